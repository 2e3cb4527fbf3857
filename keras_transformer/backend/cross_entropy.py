"""Cross-entropy without copies of the logits.

The logits of a batch are the largest tensor of a training step. On a CPU, allocating
another tensor of that size takes longer than computing its values. XLA reuses the
memory of tensors that are no longer needed. TensorFlow copies a tensor to change a few
of its values, and PyTorch copies it in every operation that is not in place.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import keras
from keras import ops

from keras_transformer.backend.xla_barriers import is_without_xla
from keras_transformer.types import Tensor, TokenIds

CHUNK_SIZE = 2**18  # Logits that PyTorch exponentiates at a time.

# Of logits, targets, probability of each token, scale of the target and of all.
Gradient: TypeAlias = Callable[[Tensor, TokenIds, float, Tensor, Tensor], Tensor]


def logsumexp(logits: Tensor) -> Tensor:
    """Computes the logarithm of the sum of exponentials over the vocabulary.

    Args:
        logits: Float32 tensor `(tokens, vocabulary_size)`.

    Returns:
        Float32 tensor `(tokens,)`.
    """
    return _LOGSUMEXP.get(keras.backend.backend(), _logsumexp)(logits)


def log_normalizer(logits: Tensor) -> Tensor:
    """Computes `logsumexp` over the last axis, for logits without a gradient.

    Args:
        logits: Float32 tensor `(…, vocabulary_size)`.

    Returns:
        Float32 tensor `(…, 1)`.
    """
    if keras.backend.backend() != "torch":
        return ops.logsumexp(logits, axis=-1, keepdims=True)
    *shape, vocabulary_size = logits.shape
    rows = ops.reshape(logits, (-1, vocabulary_size))
    return ops.reshape(_torch_logsumexp(rows), (*shape, 1))


def cross_entropy_gradient(
    logits: Tensor, targets: TokenIds, label_smoothing: float, scale: Tensor
) -> Tensor:
    """Computes `(softmax(logits) - q) * scale` for the smoothed targets q.

    Args:
        logits: Float32 tensor `(tokens, vocabulary_size)`.
        targets: Int32 tensor `(tokens,)`, ids in the vocabulary.
        label_smoothing: Float in [0, 1), the probability that is distributed evenly
            over the vocabulary.
        scale: Float32 tensor `(tokens,)`.

    Returns:
        Float32 tensor `(tokens, vocabulary_size)`.
    """
    smoothing = label_smoothing / logits.shape[-1]
    on_target = (1 - label_smoothing) * scale
    gradient = _GRADIENT.get(keras.backend.backend(), _gradient)
    return gradient(logits, targets, smoothing, on_target, scale)


def _logsumexp(logits: Tensor) -> Tensor:
    return ops.logsumexp(logits, axis=-1)


def _tensorflow_logsumexp(logits: Tensor) -> Tensor:
    # TensorFlow's softmax is one kernel, and the gradient computes it as well.
    highest = ops.max(ops.softmax(logits), axis=-1)
    return ops.max(logits, axis=-1) - ops.log(highest)


def _torch_logsumexp(logits: Any) -> Any:
    import torch

    chunks = logits.split(max(1, CHUNK_SIZE // logits.shape[-1]))
    return torch.cat([torch.logsumexp(chunk, dim=-1) for chunk in chunks])


def _gradient(
    logits: Any, targets: Any, smoothing: float, on_target: Any, scale: Any
) -> Any:
    result = (ops.softmax(logits) - smoothing) * scale[:, None]
    chosen = ops.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
    probabilities = ops.exp(chosen - logsumexp(logits))
    hits = (probabilities - smoothing) * scale - on_target
    rows = ops.arange(ops.shape(targets)[0], dtype="int32")
    return ops.scatter_update(result, ops.stack([rows, targets], -1), hits)


def _tensorflow_gradient(
    logits: Any, targets: Any, smoothing: float, on_target: Any, scale: Any
) -> Any:
    if not is_without_xla():  # XLA does not have the operation.
        return _gradient(logits, targets, smoothing, on_target, scale)
    import tensorflow as tf

    rows = tf.range(tf.shape(targets)[0])
    return tf.raw_ops.ScatterNdNonAliasingAdd(
        input=(tf.nn.softmax(logits) - smoothing) * scale[:, None],
        indices=tf.stack([rows, targets], axis=-1),
        updates=-on_target,
    )


def _torch_gradient(
    logits: Any, targets: Any, smoothing: float, on_target: Any, scale: Any
) -> Any:
    import torch

    result = torch.softmax(logits, dim=-1)
    result.sub_(smoothing).mul_(scale[:, None])
    return result.scatter_add_(1, targets[:, None].long(), -on_target[:, None])


_LOGSUMEXP: dict[str, Callable[[Tensor], Tensor]] = {
    "tensorflow": _tensorflow_logsumexp,
    "torch": _torch_logsumexp,
}
_GRADIENT: dict[str, Gradient] = {
    "tensorflow": _tensorflow_gradient,
    "torch": _torch_gradient,
}
