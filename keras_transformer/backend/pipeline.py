"""A pipeline of equal layers over several devices of JAX."""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import keras
from keras import ops

from keras_transformer.backend.rematerialization import (
    get_mask,
    set_masks,
    split_variables,
)
from keras_transformer.backend.sharding import advice_on_virtual_devices
from keras_transformer.types import Options, Tensor

_STAGE = "stage"
Values: TypeAlias = list[Tensor]


class Stages:
    """Devices of JAX in a row, each with an equal part of the layers."""

    def __init__(self, devices: int | None):
        import jax

        present = jax.devices()
        if devices is not None and devices > len(present):
            raise ValueError(
                f"`devices` must be at most {len(present)}, the number of devices of "
                f"JAX; received `devices={devices}`."
                f"{advice_on_virtual_devices(devices)}"
            )
        self._mesh = jax.sharding.Mesh(present[:devices], (_STAGE,))
        self.count = self._mesh.size

    def divide(self, value: Tensor) -> Tensor:
        """Moves a tensor `(layers, …)`, to each device the part of its layers."""
        import jax

        return jax.device_put(value, self._layout(_STAGE))

    def copy(self, value: Tensor) -> Tensor:
        """Copies a tensor to each device."""
        import jax

        return jax.device_put(value, self._layout())

    def _layout(self, *axes: str) -> Any:
        import jax

        spec = jax.sharding.PartitionSpec(*axes)
        return jax.sharding.NamedSharding(self._mesh, spec)

    def run(
        self,
        layer: keras.layers.Layer,
        weights: Values,  # values of `layer.weights`, (layers, …)
        seeds: Values,  # states of its seed generators, (layers, …)
        micro_batches: int,
        rematerialize: bool,
        x: Tensor,  # (rows, …), like the other inputs
        *inputs: Tensor,
        **options: Any,
    ) -> tuple[Tensor, Values]:
        """Calls a layer with the variables of one layer after another.

        In each of `micro_batches + count - 1` ticks, every device calls its layers with
        one part of the rows, and sends the output to the next device. A layer draws
        random numbers for the parts in their order. Returns the output of the last
        layer and the new states.
        """
        import jax

        mask = get_mask(x)
        if mask is not None and options.get("mask") is None:
            options["mask"] = mask
        tensors = {name: each for name, each in options.items() if _is_tensor(each)}
        rest = {name: each for name, each in options.items() if name not in tensors}
        x = ops.cast(x, layer.compute_dtype)
        parts = _divide_rows((x, list(inputs), tensors), micro_batches)

        def call_stage(
            x: Tensor, weights: Values, seeds: Values, inputs: Values, tensors: Options
        ) -> tuple[Tensor, Values]:
            def call(layer: keras.layers.Layer, x: Tensor) -> Tensor:
                return layer(x, *inputs, **tensors, **rest)

            x, seeds, losses = _call_with_each(
                call, layer, x, weights, seeds, rematerialize=rematerialize
            )
            if losses:
                raise ValueError(
                    "`model` must not have layers with losses in a pipeline; received "
                    "one with activity regularizers. Remove them."
                )
            return x, seeds

        stage, whole = (jax.sharding.PartitionSpec(*axes) for axes in ([_STAGE], []))
        outputs, seeds = jax.shard_map(
            functools.partial(_run_stage, call_stage, self.count, micro_batches),
            mesh=self._mesh,
            in_specs=(stage, stage, whole),
            out_specs=(stage, stage),
            check_vma=False,
        )(weights, seeds, parts)
        # Only the last device has the outputs of the last layer. The devices share the
        # rows of what follows, such as the logits.
        x = ops.reshape(outputs[-1], x.shape)
        if x.shape[0] % self.count == 0:
            x = jax.lax.with_sharding_constraint(x, self._layout(_STAGE))
        set_masks([x], [mask])
        return x, seeds


def _run_stage(
    call_stage: Callable[..., tuple[Tensor, Values]],
    num_stages: int,
    micro_batches: int,
    weights: Values,
    seeds: Values,
    parts: tuple[Tensor, Values, Options],
) -> tuple[Tensor, Values]:
    """Runs what one device does in all ticks; see `Stages.run`."""
    import jax

    stage: Any = jax.lax.axis_index(_STAGE)
    last = num_stages - 1
    first, inputs, tensors = parts

    def tick(
        carry: tuple[Tensor, Values], time: Tensor
    ) -> tuple[tuple[Tensor, Values], Tensor]:
        received, seeds = carry
        number = time - stage  # of the part; results of others are discarded
        is_part = (number >= 0) & (number < micro_batches)
        place = ops.clip(number, 0, micro_batches - 1)
        own_inputs, own_tensors = keras.tree.map_structure(
            lambda each: each[place], (inputs, tensors)
        )
        x = ops.where(stage == 0, first[place], received)
        x, drawn = call_stage(x, weights, seeds, own_inputs, own_tensors)
        seeds = [
            ops.where(is_part, new, old) for new, old in zip(drawn, seeds, strict=True)
        ]
        following = [(place, place + 1) for place in range(last)]
        return (jax.lax.ppermute(x, _STAGE, following), seeds), x

    ticks = ops.arange(micro_batches + last)
    (_, seeds), outputs = jax.lax.scan(tick, (first[0], seeds), ticks)
    return outputs[None, last:], seeds


def _call_with_each(
    call: Callable[[keras.layers.Layer, Tensor], Tensor],
    layer: keras.layers.Layer,
    x: Tensor,
    weights: Values,
    seeds: Values,
    rematerialize: bool,
) -> tuple[Tensor, Values, Values]:
    """Calls a layer with the variables `(layers, …)` of one layer after another."""
    # The results are the last output, the new states of the seed generators, and the
    # losses that the calls added, tensors `(layers,)`. With `rematerialize`, the
    # gradient recomputes the activations: in a loop, XLA does not merge this with the
    # forward pass.
    import jax

    own_weights, own_seeds = split_variables(layer)
    variables = [*own_weights, *own_seeds]

    def step(x: Tensor, values: Values) -> tuple[Tensor, tuple[Values, Values]]:
        with keras.StatelessScope(collect_losses=True) as scope:
            for update in zip(variables, values, strict=True):
                scope.add_update(update)
            outputs = call(layer, x)
        new_seeds = [scope.get_current_value(seed) for seed in own_seeds]
        return outputs, (new_seeds, scope.losses)

    if rematerialize:
        step = jax.checkpoint(step, prevent_cse=False)
    x, (new_seeds, losses) = jax.lax.scan(step, x, [*weights, *seeds])
    return x, new_seeds, losses


def _is_tensor(value: object) -> bool:
    return len(getattr(value, "shape", ())) > 0


def _divide_rows(tensors: Any, micro_batches: int) -> Any:
    """Reshapes tensors `(rows, …)` to `(micro_batches, part, …)`."""
    rows = keras.tree.flatten(tensors)[0].shape[0]
    if rows % micro_batches:
        raise ValueError(
            "`micro_batches` must divide the rows of a batch; received "
            f"`micro_batches={micro_batches}` and {rows} rows."
        )

    def divide(tensor: Tensor) -> Tensor:
        if tensor.shape[0] != rows:
            raise ValueError(
                f"A mask in a pipeline must have the {rows} rows of the batch; "
                f"received the shape {tuple(tensor.shape)}."
            )
        shape = micro_batches, rows // micro_batches, *tensor.shape[1:]
        return ops.reshape(tensor, shape)

    return keras.tree.map_structure(divide, tensors)
