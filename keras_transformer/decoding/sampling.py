"""Sampling: tokens are drawn from the distribution of the model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

from keras import ops

from keras_transformer.decoding.independent_search import IndependentSearch
from keras_transformer.decoding.logits_processors import (
    LogitsProcessor,
    as_logits_processors,
)
from keras_transformer.decoding.random_numbers import combine, uniform
from keras_transformer.decoding.search import SearchInputs
from keras_transformer.decoding.top_candidates import argmax
from keras_transformer.types import Tensor, TokenIds
from keras_transformer_runtime.arguments import check_ints

LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE = 1e-6, 1e30  # in the range of float32
_BITS_BELOW_2 = 30  # in which float32 numbers from 0 to 2 differ


@dataclass(frozen=True)
class Sampling(IndependentSearch):
    """Draws every token at random, in proportion to its probability.

    The filters are applied in the order of the arguments, each to the tokens that the
    previous one keeps. Equally probable tokens at the threshold are all kept. The
    score is the sum of the log-probabilities of the model, without filters and
    temperature.

    Samples depend only on the seed of `generate`, the tokens of the source, the number
    of the sample and the position. Therefore, they do not depend on the other sequences
    of the batch, and are the same on every backend and in a SavedModel.

    Args:
        num_samples: int, number of samples of each sequence, drawn independently; the
            most probable sample is the first.
        temperature: float from 1e-6 to 1e30, divisor of the logits; values below 1
            increase the probability of the most probable tokens.
        top_k: int, keeps the `top_k` most probable tokens; `None` = all.
        top_p: float in (0, 1], keeps the smallest set of most probable tokens whose
            probabilities sum to at least `top_p`; 1 = all.
        min_p: float in [0, 1), keeps the tokens whose probability is at least `min_p`
            times that of the most probable token.
        logits_processors: rules that change the scores of the next token
            (`LogitsProcessor`), in the order of their application.

    Raises:
        ValueError: if an argument is out of its range.

    Example:

    ```python
    search = Sampling(num_samples=8, top_p=0.9)
    model.generate(["hello"], search, seed=1)
    ```

    References:
        - [Fan et al., 2018](https://arxiv.org/abs/1805.04833), section 5 (top-k)
        - [Holtzman et al., 2020](https://arxiv.org/abs/1904.09751) (top-p)
        - [Nguyen et al., 2025](https://arxiv.org/abs/2407.01082) (min-p)
    """

    num_samples: int = 1
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    logits_processors: Sequence[LogitsProcessor] = ()
    needs_attention: ClassVar[bool] = False

    def __post_init__(self) -> None:
        processors = as_logits_processors(self.logits_processors)
        object.__setattr__(self, "logits_processors", processors)
        check_ints(1, num_samples=self.num_samples)
        check_ints(1, optional=True, top_k=self.top_k)
        low, high = LOWEST_TEMPERATURE, HIGHEST_TEMPERATURE
        ranges = {
            "temperature": (
                lambda x: low <= x <= high,
                f"a number of at least {low} and at most {high}",
            ),
            "top_p": (lambda x: 0 < x <= 1, "above 0 and at most 1"),
            "min_p": (lambda x: 0 <= x < 1, "at least 0 and below 1"),
        }
        for name, (fits, expected) in ranges.items():
            value = getattr(self, name)
            if not (isinstance(value, Real) and fits(value)):
                raise ValueError(
                    f"`{name}` must be {expected}; received `{name}={value!r}`."
                )

    @property
    def num_beams(self) -> int:
        """Number of samples."""
        return self.num_samples

    @property
    def num_hypotheses(self) -> int:
        """Number of samples."""
        return self.num_samples

    def choose(self, logits: Tensor, index: Tensor, inputs: SearchInputs) -> TokenIds:
        """Draws the next tokens with the Gumbel-max trick."""
        samples = ops.arange(self.num_samples, dtype="int32")
        tokens = ops.arange(logits.shape[-1], dtype="int32")
        keys = combine(combine(inputs.keys[:, None], samples), index)
        noise = uniform(combine(keys[:, :, None], tokens))
        gumbel = -ops.log(-ops.log(noise))
        return argmax(self.filter(logits) + gumbel)

    def filter(self, logits: Tensor) -> Tensor:
        """Applies the temperature and the filters.

        Args:
            logits: float32 tensor `(…, vocabulary_size)`.

        Returns:
            Tensor of the same shape, `-inf` for filtered tokens. Its softmax is the
            distribution of the samples.
        """
        logits = logits / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            # XLA sorts all logits if the lowest of the highest is a slice.
            highest, _ = ops.top_k(logits, self.top_k)
            lowest = ops.min(highest, axis=-1, keepdims=True)
            logits = ops.where(logits >= lowest, logits, -float("inf"))
        if self.top_p < 1:
            lowest = _lowest_of_nucleus(ops.softmax(logits), self.top_p)
            logits = ops.where(ops.softmax(logits) >= lowest, logits, -float("inf"))
        if self.min_p > 0:
            lowest = ops.max(logits, axis=-1, keepdims=True) + math.log(self.min_p)
            logits = ops.where(logits >= lowest, logits, -float("inf"))
        return logits


def _lowest_of_nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """Returns the lowest probability in the smallest set that sums to `top_p`."""
    # It is found bit by bit, highest first, since positive floats have the order of
    # their bits. On a CPU, XLA takes forty times as long to sort the probabilities.

    def add_bit(index: Tensor, lowest: Tensor) -> Tensor:
        candidate = lowest + ops.left_shift(1, _BITS_BELOW_2 - 1 - index)
        reached = probabilities >= ops.view(candidate, "float32")
        total = ops.sum(ops.where(reached, probabilities, 0.0), axis=-1, keepdims=True)
        # A set has at least one token, also if `top_p` is 0 in float32.
        enough = ops.logical_and(total >= top_p, total > 0)
        return ops.where(enough, candidate, lowest)

    zero = ops.zeros_like(probabilities[..., :1], dtype="int32")
    return ops.view(ops.fori_loop(0, _BITS_BELOW_2, add_bit, zero), "float32")
