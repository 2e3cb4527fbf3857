"""The one place that works on logits in place, where a backend would copy them.

The logits of a batch are the largest tensor of a training step, and on a CPU a new
tensor of that size costs more than what is computed in it. XLA reuses what nobody needs
any longer; TensorFlow copies it to change a few of its values, and PyTorch always,
unless they are told.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_transformer.backend.xla_barriers import is_without_xla

CHUNK = 2**18  # logits at a time


def logsumexp(logits: Any) -> Any:
    """The logarithm of the sum of exponentials over the vocabulary.

    Args:
        logits: Float32 tensor `(tokens, vocabulary_size)`.

    Returns:
        Float32 tensor `(tokens,)`.
    """
    return _LOGSUMEXP.get(keras.backend.backend(), _logsumexp)(logits)


def log_normalizer(logits: Any) -> Any:
    """`logsumexp` over the last axis of logits of which nothing else is computed.

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
    logits: Any, targets: Any, label_smoothing: float, scale: Any
) -> Any:
    """`(softmax(logits) - q) * scale`, for the smoothed targets q.

    Args:
        logits: Float32 tensor `(tokens, vocabulary_size)`.
        targets: Int32 tensor `(tokens,)`, ids in the vocabulary.
        label_smoothing: Float in [0, 1), spread evenly over the vocabulary.
        scale: Float32 tensor `(tokens,)`.

    Returns:
        Float32 tensor `(tokens, vocabulary_size)`.
    """
    spread = label_smoothing / logits.shape[-1]
    on_target = (1 - label_smoothing) * scale
    gradient = _GRADIENT.get(keras.backend.backend(), _gradient)
    return gradient(logits, targets, spread, on_target, scale)


def _logsumexp(logits: Any) -> Any:
    return ops.logsumexp(logits, axis=-1)


def _tensorflow_logsumexp(logits: Any) -> Any:
    # Its softmax is one kernel, and the gradient needs it anyway.
    highest = ops.max(ops.softmax(logits), axis=-1)
    return ops.max(logits, axis=-1) - ops.log(highest)


def _torch_logsumexp(logits: Any) -> Any:
    import torch

    chunks = logits.split(max(1, CHUNK // logits.shape[-1]))
    return torch.cat([torch.logsumexp(chunk, dim=-1) for chunk in chunks])


def _gradient(
    logits: Any, targets: Any, spread: float, on_target: Any, scale: Any
) -> Any:
    result = (ops.softmax(logits) - spread) * scale[:, None]
    chosen = ops.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
    probabilities = ops.exp(chosen - logsumexp(logits))
    hits = (probabilities - spread) * scale - on_target
    rows = ops.arange(ops.shape(targets)[0], dtype="int32")
    return ops.scatter_update(result, ops.stack([rows, targets], -1), hits)


def _tensorflow_gradient(
    logits: Any, targets: Any, spread: float, on_target: Any, scale: Any
) -> Any:
    if not is_without_xla():  # which does not have the operation
        return _gradient(logits, targets, spread, on_target, scale)
    import tensorflow as tf

    rows = tf.range(tf.shape(targets)[0])
    return tf.raw_ops.ScatterNdNonAliasingAdd(
        input=(tf.nn.softmax(logits) - spread) * scale[:, None],
        indices=tf.stack([rows, targets], axis=-1),
        updates=-on_target,
    )


def _torch_gradient(
    logits: Any, targets: Any, spread: float, on_target: Any, scale: Any
) -> Any:
    import torch

    result = torch.softmax(logits, dim=-1)
    result.sub_(spread).mul_(scale[:, None])
    return result.scatter_add_(1, targets[:, None].long(), -on_target[:, None])


_LOGSUMEXP: dict[str, Callable[..., Any]] = {
    "tensorflow": _tensorflow_logsumexp,
    "torch": _torch_logsumexp,
}
_GRADIENT: dict[str, Callable[..., Any]] = {
    "tensorflow": _tensorflow_gradient,
    "torch": _torch_gradient,
}
