"""The divergence of two predictions of the same tokens (R-Drop)."""

from typing import Any

from keras import ops

from keras_transformer.training.losses import flatten_tokens
from keras_transformer.types import Tensor


def consistency_loss(
    y_true: Any,
    first: Any,
    second: Any,
    sample_weight: Any = None,
    pad_token_id: int = 0,
) -> Any:
    """Computes the symmetric KL divergence of two predictions, averaged over tokens.

    For each token it is (KL(p || q) + KL(q || p)) / 2, where p and q are the softmax
    of the two logits a and b. As both sum to one it is also sum((p - q) (a - b)) / 2,
    which needs no logarithm and has a gradient of two terms.

    Args:
        y_true: int tensor `(batch, target_length)`, the target ids.
        first: float tensor `(batch, target_length, vocabulary_size)`, logits.
        second: float tensor of the same shape, logits.
        sample_weight: None, or a float tensor `(batch, target_length)` or `(batch,)`.
        pad_token_id: int, the target id that marks padding.

    Returns:
        A float32 scalar tensor, in nats a token.

    Raises:
        ValueError: if the shapes do not match.

    Example:

    >>> target_token_ids = np.array([[5, 2, 0]])
    >>> logits = np.ones((1, 3, 7), "float32")
    >>> float(consistency_loss(target_token_ids, logits, logits))
    0.0

    References:
        - [Liang et al., 2021](https://arxiv.org/abs/2106.14448), equation 2
    """
    _, first, weights = flatten_tokens(y_true, first, sample_weight, pad_token_id)
    _, second, _ = flatten_tokens(y_true, second, sample_weight, pad_token_id)
    divergence = _divergence(ops.cast(first, "float32"), ops.cast(second, "float32"))
    return ops.divide_no_nan(ops.sum(weights * divergence), ops.sum(weights))


@ops.custom_gradient
def _divergence(first: Any, second: Any) -> Any:
    """Computes float32 `(tokens,)` from two float32 `(tokens, vocabulary_size)`."""

    # PyTorch passes the gradient by name, the other backends by position.
    def gradient(*args: Tensor, upstream: Tensor | None = None) -> tuple[Tensor, ...]:
        upstream = args[0] if upstream is None else upstream
        scale = upstream[:, None] / 2
        p, q = ops.softmax(first), ops.softmax(second)
        apart = first - second
        between = p - q
        of_first = between + p * (apart - _expected(p, apart))
        of_second = between + q * (apart - _expected(q, apart))
        return scale * of_first, -scale * of_second

    between = ops.softmax(first) - ops.softmax(second)
    return ops.sum(between * (first - second), axis=-1) / 2, gradient


def _expected(probabilities: Any, values: Any) -> Any:
    return ops.sum(probabilities * values, axis=-1, keepdims=True)
