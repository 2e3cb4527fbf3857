"""Rematerialization: layers whose activations are recomputed for the gradient."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, final

import keras
from keras import ops

from keras_transformer.backend.step_graph import is_recording
from keras_transformer.types import Mask, Tensor

# A function of inputs and weights, whose result is nested tensors.
Function: TypeAlias = Callable[[list[Tensor], list[Tensor]], Any]


def rematerialized_call(
    layer: keras.layers.Layer, *inputs: Tensor, **options: Any
) -> Any:
    """Calls a layer and keeps only its inputs for the gradient.

    The gradient recomputes the activations
    ([Chen et al., 2016](https://arxiv.org/abs/1604.06174)). The states of the seed
    generators are inputs and outputs of the recomputed function, so, unlike with
    `keras.remat`, dropout draws the same numbers again and the seeds advance once. The
    layer is built and passes on the mask of its first input; only `inputs` have
    gradients.
    """
    weights, seeds = split_variables(layer)
    masks = [get_mask(x) for x in inputs]

    def call(
        inputs: list[Tensor], weight_values: list[Tensor]
    ) -> tuple[object, list[Tensor], list[Tensor]]:
        values = zip([*weights, *seeds], [*weight_values, *seed_values], strict=True)
        with keras.StatelessScope(collect_losses=True) as scope:
            for update in values:
                scope.add_update(update)
            set_masks(inputs, masks)
            outputs = layer(*inputs, **options)
        new_seeds = [scope.get_current_value(seed) for seed in seeds]
        return outputs, new_seeds, scope.losses

    weight_values = variable_values(weights)
    # Copies, since the seeds advance before the gradient is computed.
    seed_values = [ops.copy(seed.value) for seed in seeds]
    remat = _REMAT.get(keras.backend.backend(), keras.remat)
    outputs, new_values, losses = remat(call)(list(inputs), weight_values)
    layer.add_loss(losses)
    for seed, value in zip(seeds, new_values, strict=True):
        seed.assign(value)
    set_masks(keras.tree.flatten(outputs)[:1], masks[:1])
    return outputs


class _Neutral(keras.layers.Layer):
    """A layer without weights that accepts masks, and casts no inputs or weights."""

    # Keras has no public function for masks and for the values of variables without
    # autocasting. Layers have access to both.

    def __init__(self) -> None:
        super().__init__(autocast=False, name=type(self).__name__.strip("_"))
        self.supports_masking = True
        self.built = True


@final
class _Identity(_Neutral):
    """Returns its input, to which Keras attaches the argument `mask`."""

    def call(self, x: Tensor, mask: Mask | None = None) -> Tensor:
        return x


@final
class _MaskOf(_Neutral):
    """Returns the mask of its input, or the input itself if it has none."""

    def call(self, x: Tensor, mask: Mask | None = None) -> Tensor:
        return x if mask is None else mask

    def compute_mask(self, inputs: Tensor, previous_mask: Mask | None = None) -> None:
        return None


@final
class _Values(_Neutral):
    """Returns the values of variables."""

    def __init__(self, variables: Sequence[keras.Variable]) -> None:
        super().__init__()
        self._values = lambda: [ops.convert_to_tensor(v.value) for v in variables]

    def call(self, x: Tensor) -> list[Tensor]:
        return self._values()


@functools.cache
def _identity() -> _Identity:
    return _Identity()


@functools.cache
def _mask_of() -> _MaskOf:
    return _MaskOf()


def split_variables(
    layer: keras.layers.Layer,
) -> tuple[list[keras.Variable], list[keras.Variable]]:
    """Returns the weights of a layer, and the states of its seed generators."""
    weights = layer.weights
    seeds = [v for v in layer.variables if not any(v is w for w in weights)]
    return weights, seeds


def get_mask(x: Tensor) -> Mask | None:
    """Returns the Keras mask of a tensor, or `None`."""
    mask = _mask_of()(x)
    return None if mask is x else mask


def set_masks(tensors: Sequence[Tensor], masks: Sequence[Mask | None]) -> None:
    """Attaches Keras masks to tensors."""
    for tensor, mask in zip(tensors, masks, strict=True):
        if mask is not None:
            _identity()(tensor, mask=mask)


def variable_values(variables: Sequence[keras.Variable]) -> list[Tensor]:
    """Returns values in their own dtypes, also in layers of half precision."""
    return _Values(variables)(ops.zeros(())) if variables else []


def _jax_remat(function: Function) -> Function:
    """Returns the function with `jax.checkpoint` that works on CPUs too."""
    # On CPUs XLA removes the barriers of `jax.checkpoint` and merges the recomputation
    # with the forward pass, so the activations stay in memory. Here the recomputation
    # depends on the incoming gradient.
    import jax

    @jax.custom_vjp
    def call(inputs: list[Tensor], weights: list[Tensor]) -> object:
        return function(inputs, weights)

    def forward(inputs: list[Tensor], weights: list[Tensor]) -> tuple[object, object]:
        return function(inputs, weights), (inputs, weights)

    def backward(
        residuals: tuple[list[Tensor], list[Tensor]], gradients: object
    ) -> tuple[list[Tensor], list[Tensor]]:
        inputs, weights = residuals
        zero = 0 * jax.tree.leaves(gradients)[0].ravel()[0]
        inputs = [x + ops.cast(zero, x.dtype) for x in inputs]
        return jax.vjp(function, inputs, weights)[1](gradients)

    call.defvjp(forward, backward)
    return call


def _torch_remat(function: Function) -> Function:
    """Returns the function with `keras.remat`, without PyTorch's early stop."""
    # The early stop is an exception inside a layer. Its traceback keeps the layer's
    # tensors in memory until Python collects cycles.
    from torch.utils import checkpoint

    def call(inputs: list[Tensor], weights: list[Tensor]) -> object:
        if is_recording():
            raise NotImplementedError("layers are recomputed for the gradient")
        with checkpoint.set_checkpoint_early_stop(False):
            return checkpoint.checkpoint(function, inputs, weights, use_reentrant=False)

    return call


_REMAT: dict[str, Callable[[Function], Function]] = {
    "jax": _jax_remat,
    "torch": _torch_remat,
}
