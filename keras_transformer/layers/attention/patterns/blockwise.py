"""Blocks of queries, each with a window of keys, for blockwise attention."""

from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from keras import ops

from keras_transformer.layers.attention.patterns.attention_pattern import (
    AttentionPattern,
)
from keras_transformer.types import Mask, Tensor

# Minimum number of queries of a block: with fewer, the overhead dominates.
_MIN_BLOCK_SIZE = 32

# A score of a block takes as long as this number of scores of dense attention.
_COST_OF_BLOCK_SCORE = 2


class Window(NamedTuple):
    """The keys that a query attends to."""

    radius: int  # number of keys on either side, in steps of `stride`
    stride: int = 1  # positions with the same remainder form a sequence
    num_first: int = 0  # first keys that all queries of a sequence attend to


class BlockwisePattern(AttentionPattern):
    """A pattern of windows: the queries of a block share their window of keys."""

    @property
    @abstractmethod
    def window(self) -> Window:
        """The window of each query."""

    def is_worthwhile(self, length: int | None) -> bool:
        """Compares the numbers of scores; see `AttentionPattern.is_worthwhile`."""
        if length is None:
            return True
        radius, stride, num_first = self.window
        size = _block_size(radius)
        num_queries = _ceil_div(_ceil_div(length, stride), size) * size * stride
        num_scores = num_queries * (num_first + size + 2 * radius)
        return _COST_OF_BLOCK_SCORE * num_scores < length**2

    def attend(
        self,
        attend: Callable[..., Tensor],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_mask: Mask | None = None,
        use_causal_mask: bool = False,
    ) -> Tensor:
        blocks = split_into_blocks(
            query, key, value, key_mask, use_causal_mask, self.window
        )
        return merge_blocks(attend(*blocks), query, self.window.stride)


class Blocks(NamedTuple):
    """Sequences split into `rows` blocks each (see `AttentionPattern.attend`)."""

    query: Tensor  # float (batch * rows, block, num_heads, key_dim)
    key: Tensor  # float (batch * rows, window, num_heads, key_dim), zero-padded
    value: Tensor  # float (batch * rows, window, num_heads, value_dim), zero-padded
    query_positions: Tensor  # int32 (rows, block)
    key_positions: Tensor  # int32 (rows, window)
    key_mask: Mask  # bool (batch * rows, window), False for padding


def split_into_blocks(
    query: Tensor,  # (batch, length, num_heads, key_dim)
    key: Tensor,  # (batch, length, num_key_value_heads, key_dim)
    value: Tensor,  # (batch, length, num_key_value_heads, value_dim)
    key_mask: Mask | None,  # (batch, length)
    use_causal_mask: bool,
    window: Window,
) -> Blocks:
    """Splits sequences into blocks, ordered by sequence, remainder and position.

    With `use_causal_mask`, the windows have no keys after their block. The first keys
    precede each window and are left out of the windows themselves.
    """
    radius, stride, num_first = window
    size, after = _block_size(radius), 0 if use_causal_mask else radius

    def blocks_of(x: Tensor) -> Tensor:
        return _windows(_split_by_remainder(x, stride), size)

    def windows_of(x: Tensor) -> Tensor:
        x = _split_by_remainder(x, stride)
        return _windows(x, size, radius, after, num_first)

    positions = block_positions(query)
    if key_mask is None:
        key_mask = ops.ones(ops.shape(key)[:2], "bool")
    return Blocks(
        query=blocks_of(query),
        key=windows_of(key),
        value=windows_of(value),
        query_positions=blocks_of(positions),
        key_positions=windows_of(positions),
        key_mask=windows_of(ops.cast(key_mask, "bool")),
    )


def merge_blocks(blocks: Tensor, like: Tensor, stride: int = 1) -> Tensor:
    """Merges the outputs of blocks into sequences `(batch, length, …)`.

    `blocks` are `(batch * rows, block, num_heads, value_dim)`, and `like` are the
    queries `(batch, length, …)` that were split.
    """
    (batch, length, *_), (_, size, *dims) = ops.shape(like), ops.shape(blocks)
    steps = _ceil_div(_ceil_div(length, stride), size) * size
    x = ops.swapaxes(ops.reshape(blocks, (batch, stride, steps, *dims)), 1, 2)
    return ops.reshape(x, (batch, steps * stride, *dims))[:, :length]


def block_positions(x: Tensor) -> Tensor:
    """Returns the positions `(1, length)`, int32, of a tensor `(batch, length, …)`."""
    return ops.arange(ops.shape(x)[1], dtype="int32")[None]


def _block_size(radius: int) -> int:
    """Returns the number of queries that share a window of keys."""
    return max(radius, _MIN_BLOCK_SIZE)


def _split_by_remainder(x: Tensor, stride: int) -> Tensor:
    """Reshapes `(batch, length, …)` to `(batch * stride, ⌈length / stride⌉, …)`."""
    batch, length, *dims = ops.shape(x)
    steps = _ceil_div(length, stride)
    x = _pad(x, 0, steps * stride - length)
    x = ops.swapaxes(ops.reshape(x, (batch, steps, stride, *dims)), 1, 2)
    return ops.reshape(x, (batch * stride, steps, *dims))


def _windows(
    x: Tensor, size: int, before: int = 0, after: int = 0, num_first: int = 0
) -> Tensor:
    """Returns the windows `(batch * num_blocks, window, …)` of `(batch, length, …)`."""
    # For each block of `size` positions, a window contains the first positions of the
    # sequence, those before the block, those of the block, and those after it.
    batch, length, *dims = ops.shape(x)
    num_blocks = _ceil_div(length, size)
    parts = []
    if num_first:
        first = ops.expand_dims(x[:, :num_first], 1)
        num_first = ops.shape(first)[2]
        parts.append(ops.broadcast_to(first, (batch, num_blocks, num_first, *dims)))
        x = _pad(x[:, num_first:], num_first, 0)
    reach = before + size + after
    num_parts = _ceil_div(reach, size)
    padded = (num_blocks + num_parts - 1) * size
    x = _pad(x, before, padded - before - length)
    x = ops.reshape(x, (batch, padded // size, size, *dims))
    for i in range(num_parts):
        parts.append(x[:, i : i + num_blocks, : reach - i * size])
    x = ops.concatenate(parts, axis=2)
    return ops.reshape(x, (batch * num_blocks, ops.shape(x)[2], *dims))


def _pad(x: Tensor, before: int, after: int) -> Tensor:
    """Pads the length with zeros."""
    if isinstance(before + after, int) and before + after == 0:
        return x
    return ops.pad(x, [(0, 0), (before, after)] + [(0, 0)] * (len(x.shape) - 2))


# Sizes that are unknown when a function is traced are tensors, and in an ONNX graph the
# division of negative numbers truncates.
def _ceil_div(number: int, divisor: int) -> int:
    return (number + divisor - 1) // divisor
