"""What the log-probability of a hypothesis is divided by, and what is taken off."""

from dataclasses import dataclass
from typing import Any, Protocol

from keras import ops


class LengthPenalty(Protocol):
    """A divisor that only grows, or only falls, with the length.

    Args:
        length: number or int tensor of any shape, tokens in the hypothesis, the
            end token included.

    Returns:
        Positive float32 tensor of the shape of `length`.
    """

    def __call__(self, length: Any) -> Any:
        """Computes the divisor."""
        ...


@dataclass(frozen=True)
class GNMTLengthPenalty:
    """`((5 + length) / 6) ** alpha`.

    Args:
        alpha: float; 0 = no penalty, larger values favour longer hypotheses.

    Example:

    >>> float(GNMTLengthPenalty(alpha=1.0)(7))
    2.0

    References:
        - [Wu et al., 2016](https://arxiv.org/abs/1609.08144), equation 14
    """

    alpha: float

    def __call__(self, length: Any) -> Any:
        """Computes the divisor of each length."""
        return ops.power((5.0 + ops.cast(length, "float32")) / 6.0, self.alpha)


@dataclass(frozen=True)
class PowerLengthPenalty:
    """`length ** power`; with power 1 a score is a mean over the tokens.

    It is what fairseq, CTranslate2 and Hugging Face call the length penalty.

    Args:
        power: float; 0 = no penalty, larger values favour longer hypotheses.

    Example:

    >>> float(PowerLengthPenalty(2.0)(3))
    9.0
    """

    power: float

    def __call__(self, length: Any) -> Any:
        """Computes the divisor of each length."""
        return ops.power(ops.cast(length, "float32"), self.power)


def as_length_penalty(penalty: float | LengthPenalty) -> LengthPenalty:
    """Reads a number as the α of `GNMTLengthPenalty`."""
    return penalty if callable(penalty) else GNMTLengthPenalty(float(penalty))


def coverage_penalty(coverage: Any, source_mask: Any, beta: float) -> Any:
    """Computes `beta * sum(log(min(coverage, 1)))` over the source's real tokens.

    Args:
        coverage: float32 tensor `(batch, num_beams, source_length)`, the attention
            that each source position got from all tokens of a hypothesis.
        source_mask: boolean tensor `(batch, source_length)`.
        beta: float of at least 0.

    Returns:
        float32 tensor `(batch, num_beams)`, at most 0, to be added to the score.

    Example:

    >>> seen = np.array([[[0.5, 3.0, 0.0]]], "float32")
    >>> round(float(coverage_penalty(seen, [[True, True, False]], beta=1.0)[0, 0]), 4)
    -0.6931

    References:
        - [Wu et al., 2016](https://arxiv.org/abs/1609.08144), equation 14
    """
    seen = ops.log(ops.clip(coverage, 1e-30, 1.0))
    real = ops.cast(source_mask, "float32")[:, None, :]
    return beta * ops.sum(seen * real, axis=-1)
