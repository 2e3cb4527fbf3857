"""Base class of encoder stacks and decoder stacks."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, TypeAlias

import keras

from keras_transformer.backend.rematerialization import rematerialized_call
from keras_transformer.layers.activations import Activation
from keras_transformer.layers.argument_errors import check_embedded, explains_arguments
from keras_transformer.layers.block import Block
from keras_transformer.layers.positions.scheme import PositionScheme, copy_scheme
from keras_transformer.layers.residual import make_normalization
from keras_transformer.layers.sub_layers import Initializer, freeze_new_sub_layers
from keras_transformer.layers.transformer_layer import TransformerLayer
from keras_transformer.types import Config, Options, Shape, Tensor
from keras_transformer_runtime.arguments import check_ints

# Calls the blocks of a stack: a function of the stack, its first input, and the further
# inputs and options of a block.
BlockRunner: TypeAlias = Callable[..., Tensor]


@contextlib.contextmanager
def override_block_calls(stacks: Iterable["Stack"], run: BlockRunner) -> Iterator[None]:
    """Within the context, the stacks call `run` instead of their blocks in turn."""
    for stack in stacks:
        stack.block_runner = run
    try:
        yield
    finally:
        for stack in stacks:
            stack.block_runner = None


class Stack(TransformerLayer):
    """Base class of `EncoderStack`, whose arguments it has, and `DecoderStack`."""

    block_runner: BlockRunner | None = None  # of `override_block_calls`
    block_class: ClassVar[type[Block]]
    blocks: list[Any]  # once the stack is built
    shared_positions: PositionScheme | None  # of all blocks, if they share one
    norm: keras.layers.Layer | None  # the final normalisation of pre-norm blocks

    @explains_arguments
    def __init__(
        self,
        num_layers: int,
        intermediate_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        activation: Activation = "relu",
        layer_norm_epsilon: float = 1e-5,
        normalize_first: bool = False,
        positions: PositionScheme | None = None,
        attention_options: Options | None = None,
        feed_forward_options: Options | None = None,
        residual_options: Options | None = None,
        rematerialize: bool = False,
        kernel_initializer: Initializer = "glorot_uniform",
        bias_initializer: Initializer = "zeros",
        **kwargs: Any,
    ):
        super().__init__(
            intermediate_dim=intermediate_dim,
            num_heads=num_heads,
            dropout=dropout,
            activation=activation,
            layer_norm_epsilon=layer_norm_epsilon,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            normalize_first=normalize_first,
            positions=positions,
            attention_options=attention_options,
            feed_forward_options=feed_forward_options,
            residual_options=residual_options,
            **kwargs,
        )
        check_ints(1, num_layers=num_layers)
        self._check_windows(num_layers)
        self.num_layers = num_layers
        self.rematerialize = rematerialize

    def _check_windows(self, num_layers: int) -> None:
        """Raises `ValueError` if there is not one `sliding_window` for each block."""
        windows = self.attention_options.get("sliding_window")
        if isinstance(windows, list | tuple) and len(windows) != num_layers:
            raise ValueError(
                "`sliding_window` must be an int, `None`, or a list with one of them "
                f"for each of the {num_layers} blocks; received {len(windows)} in "
                f"`sliding_window={windows!r}`."
            )

    def _build_blocks(self, *shapes: Shape | None) -> None:
        check_embedded(self, *shapes)
        self.shared_positions = None
        if self.positions is not None and self.positions.shared:
            self.shared_positions = copy_scheme(self.positions, self.dtype_policy)
            self.shared_positions.build((None, self.num_heads, None, None))
        self.blocks = [self._make_block(layer) for layer in range(self.num_layers)]
        for block in self.blocks:
            block.build(*shapes)
        residual = self.blocks[-1].feed_forward_residual
        self.norm = None
        if residual.normalize_first:
            self.norm = make_normalization(
                residual.normalization, residual.layer_norm_epsilon, self.dtype_policy
            )
        if self.norm is not None:
            self.norm.build(shapes[0])
        freeze_new_sub_layers(self)

    def _make_block(self, layer: int) -> Block:
        arguments = self.get_block_arguments()
        residual_options = dict(self.residual_options)
        if "stochastic_depth" in residual_options:
            residual_options["stochastic_depth"] *= (layer + 1) / self.num_layers
        arguments["residual_options"] = residual_options
        windows = self.attention_options.get("sliding_window")
        if isinstance(windows, list | tuple):
            window = {"sliding_window": windows[layer]}
            arguments["attention_options"] = {**self.attention_options, **window}
        if layer > 0 and self.positions is not None and self.positions.added_to_inputs:
            arguments["positions"] = None
        if self.shared_positions is not None:
            arguments["positions"] = self.shared_positions
        return self.block_class(
            **arguments, dtype=self.dtype_policy, name=f"block_{layer}"
        )

    def _call_blocks(self, x: Tensor, *inputs: Tensor, **options: Any) -> Tensor:
        """Calls the blocks one after another, without caches and scores."""
        if self.block_runner is not None:
            return self.block_runner(self, x, *inputs, **options)
        for block in self.blocks:
            x = self._call_block(block, x, *inputs, **options)
        return x

    def _call_block(
        self, block: Block, *inputs: Tensor, training: bool | None, **options: Any
    ) -> Any:
        if self.rematerialize and training:
            return rematerialized_call(block, *inputs, training=training, **options)
        return block(*inputs, training=training, **options)

    def has_equal_blocks(self) -> bool:
        """Returns whether the blocks differ in the values of their variables only."""
        if self.shared_positions is not None:
            return False
        first, *others = map(_design, self.blocks)
        return all(other == first for other in others)

    def _normalize(self, x: Tensor) -> Tensor:
        return x if self.norm is None else self.norm(x)

    def get_config(self) -> Config:
        return {
            **super().get_config(),
            "num_layers": self.num_layers,
            "rematerialize": self.rematerialize,
        }


def _design(block: Block) -> tuple[Any, ...]:
    """Returns what a block computes, except for the values of its variables."""
    variables = [(tuple(v.shape), v.dtype, v.trainable) for v in block.variables]
    return type(block), block.get_block_config(), variables
