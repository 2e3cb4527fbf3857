"""R-Drop: divergence of two predictions of the same tokens."""

from keras import ops

from keras_transformer.backend.custom_gradient import with_gradient
from keras_transformer.training.losses import flatten_tokens
from keras_transformer.types import Tensor, TokenIds


def r_drop_loss(
    y_true: TokenIds,
    first: Tensor,
    second: Tensor,
    sample_weight: Tensor | None = None,
    pad_token_id: int = 0,
) -> Tensor:
    """Computes the symmetric KL divergence of two predictions, averaged over tokens.

    For each token it is (KL(p || q) + KL(q || p)) / 2, where p and q are the softmax
    of the two logits a and b. Since both sum to one, this equals
    sum((p - q) (a - b)) / 2, which needs no logarithm.

    Args:
        y_true: int tensor `(batch, target_length)`, the target ids.
        first: float tensor `(batch, target_length, vocabulary_size)`, logits.
        second: float tensor `(batch, target_length, vocabulary_size)`, logits of a
            second pass with different dropout.
        sample_weight: `None`, or float tensor `(batch, target_length)` or `(batch,)`.
        pad_token_id: int, the target id of padding.

    Returns:
        float32 scalar tensor, in nats per token.

    Raises:
        ValueError: if the shapes do not match.

    Example:

    >>> target_token_ids = np.array([[5, 2, 0]])
    >>> logits = np.ones((1, 3, 7), "float32")
    >>> float(r_drop_loss(target_token_ids, logits, logits))
    0.0

    References:
        - [Liang et al., 2021](https://arxiv.org/abs/2106.14448), equation 2
    """
    _, first, weights = flatten_tokens(y_true, first, sample_weight, pad_token_id)
    _, second, _ = flatten_tokens(y_true, second, sample_weight, pad_token_id)
    logits = ops.cast(first, "float32"), ops.cast(second, "float32")
    divergence = with_gradient(_divergence, _divergence_gradient)(*logits)
    return ops.divide_no_nan(ops.sum(weights * divergence), ops.sum(weights))


def _divergence(first: Tensor, second: Tensor) -> Tensor:
    """Computes float32 `(tokens,)` from two float32 `(tokens, vocabulary_size)`."""
    difference = ops.softmax(first) - ops.softmax(second)
    return ops.sum(difference * (first - second), axis=-1) / 2


def _divergence_gradient(
    upstream: Tensor, first: Tensor, second: Tensor
) -> tuple[Tensor, Tensor]:
    scale = upstream[:, None] / 2
    p, q = ops.softmax(first), ops.softmax(second)
    logit_difference = first - second
    difference = p - q
    by_first = difference + p * (logit_difference - _mean(p, logit_difference))
    by_second = difference + q * (logit_difference - _mean(q, logit_difference))
    return scale * by_first, -scale * by_second


def _mean(probabilities: Tensor, values: Tensor) -> Tensor:
    """Computes the mean `(tokens, 1)` of values under a distribution."""
    return ops.sum(probabilities * values, axis=-1, keepdims=True)
