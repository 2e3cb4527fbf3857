"""Blocks of a stack that a training step calls in a loop, on JAX."""

from typing import Any

import keras

from keras_transformer.backend.pipeline import scan_layers
from keras_transformer.layers.stack import Stack
from keras_transformer.types import Tensor


def check_scan(scan_blocks: bool) -> None:
    """Raises `ValueError` if the backend has no loop over blocks."""
    if scan_blocks and keras.backend.backend() != "jax":
        raise ValueError(
            "`scan_blocks` must be `False` on the backend "
            f"{keras.backend.backend()!r}; received `scan_blocks={scan_blocks!r}`. Set "
            "KERAS_BACKEND=jax before Keras is imported."
        )


def scan_stack(stack: Stack, *inputs: Tensor, **options: Any) -> Tensor:
    """Calls the blocks of a stack in a loop over their stacked variables.

    Args:
        stack: a built stack.
        *inputs: inputs of each block; the first is that of the first block.
        **options: further arguments of each block.

    Returns:
        The output of the last block.

    Raises:
        ValueError: if the blocks differ in more than the values of their variables.
    """
    if not stack.has_equal_blocks():
        raise ValueError(
            "`scan_blocks` must be `False` for a stack of different blocks; those of "
            f"`{stack.name}` differ. Use no `stochastic_depth`, freeze all blocks of a "
            "stack or none, and use a position scheme that acts in each self-attention "
            "or before the stack."
        )
    return scan_layers(stack.blocks, stack.rematerialize, *inputs, **options)
