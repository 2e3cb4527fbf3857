"""The one place that knows how each backend computes a layer again for its gradient."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops
from keras.src.backend import AutocastScope, get_keras_mask, set_keras_mask


def rematerialized_call(layer: keras.layers.Layer, *inputs: Any, **options: Any) -> Any:
    """Calls a layer and keeps its inputs alone for the gradient.

    What the layer computes on the way is computed again when the gradient needs
    it. `keras.remat` around the layer would do for a layer without randomness:
    here the seeds are values that go in and come out, so that dropout draws the
    same numbers again and the seeds go on once.

    Args:
        layer: a built layer that passes on the mask of its first input.
        *inputs: float tensors, through which gradients go.
        **options: further arguments of the layer, without gradients.

    Returns:
        What `layer(*inputs, **options)` returns.

    References:
        - [Chen et al., 2016](https://arxiv.org/abs/1604.06174)
    """
    weights = layer.weights
    seeds = [v for v in layer.variables if not any(v is w for w in weights)]
    masks = [get_keras_mask(x) for x in inputs]

    def call(inputs: Any, weight_values: Any) -> tuple[Any, list[Any], list[Any]]:
        values = zip([*weights, *seeds], [*weight_values, *seed_values], strict=True)
        with keras.StatelessScope(collect_losses=True) as scope:
            for update in values:
                scope.add_update(update)
            _attach_masks(inputs, masks)
            outputs = layer(*inputs, **options)
        new_seeds = [scope.get_current_value(seed) for seed in seeds]
        return outputs, new_seeds, scope.losses

    with AutocastScope(None):  # as they are, for sub-layers of full precision
        weight_values = [ops.convert_to_tensor(weight.value) for weight in weights]
    # Copies, since the seeds go on before the gradient is computed.
    seed_values = [ops.copy(seed.value) for seed in seeds]
    remat = _REMAT.get(keras.backend.backend(), keras.remat)
    outputs, new_values, losses = remat(call)(list(inputs), weight_values)
    layer.add_loss(losses)
    for seed, value in zip(seeds, new_values, strict=True):
        seed.assign(value)
    _attach_masks(keras.tree.flatten(outputs)[:1], masks[:1])
    return outputs


def _attach_masks(tensors: list[Any], masks: list[Any]) -> None:
    for tensor, mask in zip(tensors, masks, strict=True):
        if mask is not None:
            set_keras_mask(tensor, mask)


def _jax_remat(function: Callable[..., Any]) -> Callable[..., Any]:
    """`jax.checkpoint`, for CPUs too.

    There XLA drops the barriers of `jax.checkpoint` and merges the recomputation
    with the forward pass, whose intermediate results it keeps for that. Here the
    recomputation depends on the gradient that comes in.
    """
    import jax

    @jax.custom_vjp
    def call(inputs: Any, weights: Any) -> Any:
        return function(inputs, weights)

    def forward(inputs: Any, weights: Any) -> tuple[Any, tuple[Any, Any]]:
        return function(inputs, weights), (inputs, weights)

    def backward(saved: tuple[Any, Any], gradients: Any) -> Any:
        inputs, weights = saved
        zero = 0 * jax.tree.leaves(gradients)[0].ravel()[0]
        inputs = [x + zero.astype(x.dtype) for x in inputs]
        return jax.vjp(function, inputs, weights)[1](gradients)

    call.defvjp(forward, backward)
    return call


def _torch_remat(function: Callable[..., Any]) -> Callable[..., Any]:
    """`keras.remat` that computes all again, without PyTorch's early stop.

    That is an exception in the midst of a layer, which holds on to its tensors
    until Python collects cycles.
    """
    from torch.utils import checkpoint

    def call(inputs: Any, weights: Any) -> Any:
        with checkpoint.set_checkpoint_early_stop(False):
            return checkpoint.checkpoint(function, inputs, weights, use_reentrant=False)

    return call


_REMAT: dict[str, Callable[..., Any]] = {"jax": _jax_remat, "torch": _torch_remat}
