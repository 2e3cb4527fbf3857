"""Training of deep models whose blocks are divided among devices, on JAX."""

from collections.abc import Sequence
from typing import Any, final

import keras

from keras_transformer.backend.keras_internals import flatten_layers
from keras_transformer.backend.pipeline import Stages
from keras_transformer.backend.rematerialization import split_variables
from keras_transformer.backend.sharding import check_jax
from keras_transformer.layers.stack import Stack, override_block_calls
from keras_transformer.types import Tensor
from keras_transformer_runtime.arguments import check_ints


@final
class Pipeline:
    """A model whose blocks are divided among devices, for training loops on JAX.

    Each device has the weights of an equal part of the consecutive blocks of each
    stack, and of all that is not a block. A batch is divided into micro-batches: while
    a device computes one of them, the device before it computes the next one.

    The outputs and the gradients are those of the model. The blocks draw the random
    numbers of dropout for one micro-batch after another, as if the model were called
    with each of them. `rematerialize=True` of the model stores only the inputs of the
    blocks of each micro-batch for the gradient.

    A device waits for `bubble = (devices - 1) / (micro_batches + devices - 1)` of the
    time: 43 % with 4 devices and 4 micro-batches, 16 % with 16.

    Args:
        model: a built `Seq2Seq` or `CausalLM`, or another Keras model with an
            `EncoderStack` or a `DecoderStack`. The blocks of a stack must be equal
            except for the values of their weights.
        devices: int >= 1, number of devices, which must divide the number of blocks of
            each stack; `None` = all devices of JAX.
        micro_batches: int >= 1, which must divide the rows of every batch.

    Attributes:
        devices: int, number of devices.
        bubble: float, the fraction of the time that a device waits.

    Raises:
        ValueError: if the backend is not JAX, there are fewer devices, or the blocks
            of a stack differ or cannot be divided.

    Example:

    ```python
    pipeline = kt.Pipeline(model, devices=4, micro_batches=16)
    trainable, non_trainable = pipeline.values()
    logits, non_trainable = pipeline.stateless_call(
        trainable, non_trainable, inputs, training=True
    )
    pipeline.assign(trainable, non_trainable)
    ```

    References:
        - [Huang et al., 2019](https://arxiv.org/abs/1811.06965) (GPipe)
    """

    def __init__(
        self, model: keras.Model, devices: int | None = None, micro_batches: int = 8
    ):
        check_jax("Pipeline")
        check_ints(1, optional=True, devices=devices)
        check_ints(1, micro_batches=micro_batches)
        self._model = model
        self._micro_batches = micro_batches
        self._stages = Stages(devices)
        self.devices = self._stages.count
        self.bubble = (self.devices - 1) / (micro_batches + self.devices - 1)
        stacks = [each for each in flatten_layers(model) if isinstance(each, Stack)]
        self._check_stacks(stacks)
        self._stacks = stacks
        # The variables of the blocks of a stack, by the variable of the first block.
        self._blocks: dict[int, list[keras.Variable]] = {}
        for stack in stacks:
            each_block = [sum(split_variables(block), []) for block in stack.blocks]
            for variables in zip(*each_block, strict=True):
                self._blocks[id(variables[0])] = list(variables)
        others = {id(v) for each in self._blocks.values() for v in each[1:]}

        def kept(variables: Sequence[keras.Variable]) -> list[keras.Variable]:
            return [v for v in variables if id(v) not in others]

        self._trainable = kept(model.trainable_variables)
        self._non_trainable = kept(model.non_trainable_variables)

    def _check_stacks(self, stacks: Sequence[Stack]) -> None:
        if not stacks or not all(stack.built for stack in stacks):
            raise ValueError(
                "`model` must be built and have an `EncoderStack` or a `DecoderStack`; "
                f"received `model={self._model!r}`. Call it with a batch first."
            )
        for stack in stacks:
            if len(stack.blocks) % self.devices:
                raise ValueError(
                    "`devices` must divide the number of blocks of each stack; "
                    f"received `devices={self.devices}` and the {len(stack.blocks)} "
                    f"blocks of `{stack.name}`."
                )
            if not stack.has_equal_blocks():
                raise ValueError(
                    "`model` must have equal blocks in each stack for a pipeline; "
                    f"those of `{stack.name}` differ. Use no `stochastic_depth`, the "
                    "same `sliding_window`, freeze all blocks of a stack or none, and "
                    "use a position scheme that acts in each self-attention or before "
                    "the stack."
                )

    def values(self) -> tuple[list[Tensor], list[Tensor]]:
        """Returns the values of the variables, on the devices that use them.

        Returns:
            Two lists of arrays: the trainable and the other variables, for
            `stateless_call`. A variable of the blocks is one array `(blocks, …)`.
        """
        return self._values(self._trainable), self._values(self._non_trainable)

    def _values(self, variables: Sequence[keras.Variable]) -> list[Tensor]:
        values = []
        for variable in variables:
            if id(variable) in self._blocks:
                each = [v.value for v in self._blocks[id(variable)]]
                values.append(self._stages.divide(keras.ops.stack(each)))
            else:
                values.append(self._stages.copy(variable.value))
        return values

    def stateless_call(
        self,
        trainable: Sequence[Tensor],
        non_trainable: Sequence[Tensor],
        inputs: object,
        training: bool | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """Calls the model, as `keras.Model.stateless_call` does.

        Call it in a function that `jax.jit` compiles.

        Args:
            trainable: list of arrays, as `values` returns.
            non_trainable: list of arrays, as `values` returns.
            inputs: the inputs of the model.
            training: bool, whether to apply dropout.

        Returns:
            The outputs of the model, and the new values of `non_trainable`.

        Raises:
            ValueError: if `micro_batches` does not divide the rows.
        """
        variables = [*self._trainable, *self._non_trainable]
        values = [*trainable, *non_trainable]
        found = {id(v): value for v, value in zip(variables, values, strict=True)}
        shared = [(v, found[id(v)]) for v in variables if id(v) not in self._blocks]

        def run(stack: Stack, *inputs: Tensor, **options: Any) -> Tensor:
            block = stack.blocks[0]
            weights, seeds = split_variables(block)
            x, drawn = self._stages.run(
                block,
                [found[id(v)] for v in weights],
                [found[id(v)] for v in seeds],
                self._micro_batches,
                stack.rematerialize,
                *inputs,
                **options,
            )
            found.update(zip(map(id, seeds), drawn, strict=True))
            return x

        stacks = override_block_calls(self._stacks, run)
        with keras.StatelessScope(shared) as scope, stacks:
            outputs = self._model(inputs, training=training)
        for variable, _ in shared:
            found[id(variable)] = scope.get_current_value(variable)
        return outputs, [found[id(v)] for v in self._non_trainable]

    def assign(
        self, trainable: Sequence[Tensor], non_trainable: Sequence[Tensor]
    ) -> None:
        """Assigns values to the variables of the model, to save it or to generate.

        Args:
            trainable: list of arrays, as `values` returns.
            non_trainable: list of arrays, as `values` returns.
        """
        variables = [*self._trainable, *self._non_trainable]
        values = [*trainable, *non_trainable]
        for variable, value in zip(variables, values, strict=True):
            array = keras.ops.convert_to_numpy(value)
            if id(variable) in self._blocks:
                for each, part in zip(self._blocks[id(variable)], array, strict=True):
                    each.assign(part)
            else:
                variable.assign(array)
