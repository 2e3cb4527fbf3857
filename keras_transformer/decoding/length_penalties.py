"""Length and coverage penalties of the score of a hypothesis."""

from dataclasses import dataclass
from typing import Protocol

from keras import ops

from keras_transformer.types import Mask, Size, Tensor


class LengthPenalty(Protocol):
    """The divisor of a log-probability, monotonic in the length of the hypothesis."""

    def __call__(self, length: Size) -> Tensor:
        """Computes the divisor.

        Args:
            length: int or int tensor of any shape, number of tokens of the
                hypothesis, the end token included.

        Returns:
            Positive float32 tensor of the shape of `length`.
        """
        ...


@dataclass(frozen=True)
class GNMTLengthPenalty:
    """Length penalty of GNMT, `((5 + length) / 6) ** alpha`.

    Args:
        alpha: float; 0 = no penalty, larger values favour longer hypotheses.

    Example:

    >>> float(GNMTLengthPenalty(alpha=1.0)(7))
    2.0

    References:
        - [Wu et al., 2016](https://arxiv.org/abs/1609.08144), equation 14
    """

    alpha: float

    def __call__(self, length: Size) -> Tensor:
        """Computes the divisor of each length."""
        return ops.power((5.0 + ops.cast(length, "float32")) / 6.0, self.alpha)


@dataclass(frozen=True)
class PowerLengthPenalty:
    """Length penalty `length ** power`; with power 1, the score is a mean over tokens.

    fairseq, CTranslate2 and Hugging Face transformers have this length penalty.

    Args:
        power: float; 0 = no penalty, larger values favour longer hypotheses.

    Example:

    >>> float(PowerLengthPenalty(2.0)(3))
    9.0
    """

    power: float

    def __call__(self, length: Size) -> Tensor:
        """Computes the divisor of each length."""
        return ops.power(ops.cast(length, "float32"), self.power)


def as_length_penalty(penalty: float | LengthPenalty) -> LengthPenalty:
    """Returns a `GNMTLengthPenalty` for a float, and a callable as it is."""
    return penalty if callable(penalty) else GNMTLengthPenalty(float(penalty))


def coverage_penalty(coverage: Tensor, source_mask: Mask, beta: float) -> Tensor:
    """Computes `beta * sum(log(min(coverage, 1)))` over the real source tokens.

    Args:
        coverage: float32 tensor `(batch, num_beams, source_length)`, the attention
            to each source token, summed over the tokens of a hypothesis.
        source_mask: boolean tensor `(batch, source_length)`.
        beta: float of at least 0.

    Returns:
        float32 tensor `(batch, num_beams)`, at most 0, a summand of the score.

    Example:

    >>> seen = np.array([[[0.5, 3.0, 0.0]]], "float32")
    >>> round(float(coverage_penalty(seen, [[True, True, False]], beta=1.0)[0, 0]), 4)
    -0.6931

    References:
        - [Wu et al., 2016](https://arxiv.org/abs/1609.08144), equation 14
    """
    covered = ops.log(ops.clip(coverage, 1e-30, 1.0))
    real = ops.cast(source_mask, "float32")[:, None, :]
    return beta * ops.sum(covered * real, axis=-1)
