"""Cross-entropy without copies of the logits on PyTorch.

The logits of a batch are the largest tensor of a training step. On a CPU, allocating
another tensor of that size takes longer than computing its values. XLA and TensorFlow
reuse the memory of tensors that are no longer needed. Outside a `StepGraph`, PyTorch
copies a tensor in every operation that is not in place.
"""

from typing import Any

import keras
from keras import ops

from keras_transformer.backend.step_graph import is_recording
from keras_transformer.types import Tensor, TokenIds

CHUNK_SIZE = 2**18  # Logits that PyTorch exponentiates at a time.


def logsumexp(logits: Tensor) -> Tensor:
    """Computes `(tokens,)` from `(tokens, vocabulary_size)`, both float32."""
    if keras.backend.backend() == "torch":
        return _torch_logsumexp(logits)
    return ops.logsumexp(logits, axis=-1)


def cross_entropy_gradient(
    logits: Tensor, targets: TokenIds, label_smoothing: float, scale: Tensor
) -> Tensor:
    """Computes `(softmax(logits) - q) * scale` for the smoothed targets q.

    Logits and result are float32 `(tokens, vocabulary_size)`, targets int32 ids of the
    vocabulary `(tokens,)`, and the scale is float32 `(tokens,)`.
    """
    smoothing = label_smoothing / logits.shape[-1]
    on_target = (1 - label_smoothing) * scale
    is_torch = keras.backend.backend() == "torch"
    gradient = _torch_gradient if is_torch else _gradient
    return gradient(logits, targets, smoothing, on_target, scale)


def _gradient(
    logits: Tensor,
    targets: TokenIds,
    smoothing: float,
    on_target: Tensor,
    scale: Tensor,
) -> Tensor:
    result = (ops.softmax(logits) - smoothing) * scale[:, None]
    chosen = ops.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
    probabilities = ops.exp(chosen - logsumexp(logits))
    hits = (probabilities - smoothing) * scale - on_target
    rows = ops.arange(ops.shape(targets)[0], dtype="int32")
    return ops.scatter_update(result, ops.stack([rows, targets], -1), hits)


def _torch_logsumexp(logits: Any) -> Tensor:
    import torch

    if is_recording() or logits.is_cuda:
        return torch.logsumexp(logits, dim=-1)
    chunks = logits.split(max(1, CHUNK_SIZE // logits.shape[-1]))
    return torch.cat([torch.logsumexp(chunk, dim=-1) for chunk in chunks])


def _torch_gradient(
    logits: Any, targets: Any, smoothing: float, on_target: Any, scale: Any
) -> Tensor:
    import torch

    result = torch.softmax(logits, dim=-1)
    if is_recording():  # One kernel, without copies.
        ids = torch.arange(logits.shape[-1], device=logits.device)
        hits = torch.where(ids == targets[:, None], on_target[:, None], 0.0)
        return (result - smoothing) * scale[:, None] - hits
    if torch.is_grad_enabled():  # The gradient is differentiated again.
        result = (result - smoothing) * scale[:, None]
        return result.scatter_add(1, targets[:, None].long(), -on_target[:, None])
    result.sub_(smoothing).mul_(scale[:, None])
    return result.scatter_add_(1, targets[:, None].long(), -on_target[:, None])
