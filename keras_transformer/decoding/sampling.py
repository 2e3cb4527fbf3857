"""Sampling: tokens are drawn from the model's distribution, or the best part of it."""

import math
from collections.abc import Sequence
from dataclasses import InitVar, dataclass
from typing import Any, ClassVar

from keras import ops

from keras_transformer.arguments import check_ints, renamed_argument
from keras_transformer.decoding import walk
from keras_transformer.decoding.logits_processors import LogitsProcessor, as_rules
from keras_transformer.decoding.random_numbers import combine, uniform
from keras_transformer.decoding.search import SearchResult, Sentences, StepModel
from keras_transformer.decoding.wide_top_k import highest

COLDEST = 1e-6


@dataclass(frozen=True)
class Sampling:
    """Draws every token at random, in proportion to its probability.

    The filters apply in the order of the arguments, each to what the one before has
    left; of equally probable tokens at the border all stay. A score is the sum of
    the model's own log-probabilities, whatever the filters and the temperature.

    Draws are a function of the seed given to `generate`, the source's tokens, the
    number of the sample and the position: a sentence gets the same samples whatever
    stands beside it, on every backend and in a SavedModel.

    Args:
        num_samples: int, hypotheses of each sentence, drawn independently; the most
            probable comes first.
        temperature: positive float, what logits are divided by; below 1 the probable
            tokens become more so.
        top_k: int, how many of the most probable tokens may be drawn; `None` = all.
        top_p: float in (0, 1], the least probability of the smallest set of most
            probable tokens that may be drawn; 1 = all.
        min_p: float in [0, 1), the least probability of a token that may be drawn,
            times that of the most probable token.
        logits_processors: rules that change the scores of the next token
            (`LogitsProcessor`), in their order.
        processors: deprecated name of `logits_processors`.

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
    processors: InitVar[Sequence[LogitsProcessor] | None] = None
    needs_attention: ClassVar[bool] = False

    def __post_init__(self, processors: Sequence[LogitsProcessor] | None) -> None:
        rules = renamed_argument(
            "processors", processors, "logits_processors", self.logits_processors
        )
        object.__setattr__(self, "logits_processors", as_rules(rules))
        check_ints(1, num_samples=self.num_samples)
        check_ints(1, optional=True, top_k=self.top_k)
        in_range = {
            "temperature": COLDEST <= self.temperature < float("inf"),
            "top_p": 0 < self.top_p <= 1,
            "min_p": 0 <= self.min_p < 1,
        }
        ranges = {
            "temperature": f"a number of at least {COLDEST}",
            "top_p": "above 0 and at most 1",
            "min_p": "at least 0 and below 1",
        }
        for name, fits in in_range.items():
            if not fits:
                raise ValueError(
                    f"`{name}` must be {ranges[name]}; received "
                    f"`{name}={getattr(self, name)}`."
                )

    @property
    def num_beams(self) -> int:
        """One for each sample."""
        return self.num_samples

    @property
    def num_hypotheses(self) -> int:
        """All samples are returned."""
        return self.num_samples

    def start(
        self, model: StepModel, sentences: Sentences, state: Any, max_length: Any
    ) -> walk.Walk:
        """Makes the state before the first step; see `Search`."""
        return walk.start(model, sentences, state, max_length, self.num_beams)

    def advance(
        self, model: StepModel, sentences: Sentences, progress: walk.Walk
    ) -> walk.Walk:
        """Makes one step; see `Search`."""

        def draw(logits: Any, index: Any) -> Any:
            samples = ops.arange(self.num_samples, dtype="int32")
            tokens = ops.arange(logits.shape[-1], dtype="int32")
            keys = combine(combine(sentences.keys[:, None], samples), index)
            noise = uniform(combine(keys[:, :, None], tokens))
            gumbel = -ops.log(-ops.log(noise))
            return highest(self.filter(logits) + gumbel)

        return walk.advance(model, sentences, progress, self.logits_processors, draw)

    def filter(self, logits: Any) -> Any:
        """Applies temperature and filters.

        Args:
            logits: float32 tensor `(…, vocabulary_size)`.

        Returns:
            Tensor of the same shape, `-inf` for what may not be drawn; its softmax
            is what tokens are drawn from.
        """
        logits = logits / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            lowest = ops.top_k(logits, self.top_k)[0][..., -1:]
            logits = ops.where(logits >= lowest, logits, -float("inf"))
        if self.top_p < 1:
            lowest = _lowest_of_nucleus(ops.softmax(logits), self.top_p)
            logits = ops.where(ops.softmax(logits) >= lowest, logits, -float("inf"))
        if self.min_p > 0:
            lowest = ops.max(logits, axis=-1, keepdims=True) + math.log(self.min_p)
            logits = ops.where(logits >= lowest, logits, -float("inf"))
        return logits

    def result(self, model: StepModel, progress: walk.Walk) -> SearchResult:
        """Returns the hypotheses; see `Search`."""
        return walk.result(model, progress)


def _lowest_of_nucleus(probabilities: Any, top_p: float) -> Any:
    """The lowest probability of the smallest set that sums to `top_p`."""
    ordered = ops.flip(ops.sort(probabilities, axis=-1), axis=-1)
    before = ops.cumsum(ordered, axis=-1) - ordered
    return ops.min(ops.where(before < top_p, ordered, 1.0), axis=-1, keepdims=True)
