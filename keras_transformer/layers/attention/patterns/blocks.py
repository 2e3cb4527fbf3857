"""Self-attention cut into blocks of queries, each with the keys in its reach."""

from typing import Any, NamedTuple

from keras import ops

# With fewer queries a block is mostly overhead.
_SMALLEST_BLOCK = 32

# Scores of dense attention that take as long as one of a block.
_WORTH = 2


class Blocks(NamedTuple):
    """Sequences cut into `rows` blocks each, as `AttentionPattern.attend` gives them.

    What the window of a block reaches beyond the ends of its sequence is zero,
    its position too, and hidden by `key_mask`.

    Attributes:
        query: float tensor `(batch * rows, block, num_heads, key_dim)`.
        key: float tensor `(batch * rows, window, num_heads, key_dim)`.
        value: float tensor `(batch * rows, window, num_heads, value_dim)`.
        query_positions: int32 tensor `(rows, block)`.
        key_positions: int32 tensor `(rows, window)`.
        key_mask: boolean tensor `(batch * rows, window)`.
    """

    query: Any
    key: Any
    value: Any
    query_positions: Any
    key_positions: Any
    key_mask: Any


def cut(
    query: Any,
    key: Any,
    value: Any,
    key_mask: Any,
    use_causal_mask: bool,
    radius: int,
    stride: int = 1,
    num_first: int = 0,
) -> Blocks:
    """Cuts sequences into blocks whose queries reach `radius` keys either way.

    Positions with the same remainder modulo `stride` form a sequence of their
    own, in which the radius counts; there are `stride` times as many rows then.

    Args:
        query: float tensor `(batch, length, num_heads, key_dim)`.
        key: float tensor `(batch, length, num_heads, key_dim)`.
        value: float tensor `(batch, length, num_heads, value_dim)`.
        key_mask: boolean tensor `(batch, length)`, or `None`.
        use_causal_mask: whether the keys after a block are left out.
        radius: int >= 0, in steps of `stride`.
        stride: int >= 1.
        num_first: int >= 0, how many of a sequence's first keys come before each
            of its windows, and no longer inside one.

    Returns:
        The blocks, in the order of the sequences, remainders and positions.
    """
    size, after = _block_size(radius), 0 if use_causal_mask else radius

    def blocks_of(x: Any) -> Any:
        return _windows(_by_remainder(x, stride), size)

    def windows_of(x: Any) -> Any:
        return _windows(_by_remainder(x, stride), size, radius, after, num_first)

    positions = positions_of(query)
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


def join(blocks: Any, like: Any, stride: int = 1) -> Any:
    """Puts what was computed for the queries of each block back in order.

    Args:
        blocks: float tensor `(batch * rows, block, num_heads, value_dim)`.
        like: tensor `(batch, length, …)`, the queries that were cut.
        stride: int >= 1, as it was for `cut`.

    Returns:
        Float tensor `(batch, length, num_heads, value_dim)`.
    """
    (batch, length, *_), (_, size, *dims) = ops.shape(like), ops.shape(blocks)
    steps = _ceil_div(_ceil_div(length, stride), size) * size
    x = ops.swapaxes(ops.reshape(blocks, (batch, stride, steps, *dims)), 1, 2)
    return ops.reshape(x, (batch, steps * stride, *dims))[:, :length]


def pay(length: int | None, radius: int, stride: int = 1, num_first: int = 0) -> bool:
    """Tells whether blocks cost less than dense attention, by the scores of both.

    Args:
        length: int, number of positions; `None` = not known yet.
        radius: int >= 0, as for `cut`.
        stride: int >= 1, as for `cut`.
        num_first: int >= 0, as for `cut`.

    Returns:
        Whether they do; `True` for an unknown length.
    """
    if length is None:
        return True
    size = _block_size(radius)
    num_queries = _ceil_div(_ceil_div(length, stride), size) * size * stride
    num_scores = num_queries * (num_first + size + 2 * radius)
    return _WORTH * num_scores < length**2


def positions_of(x: Any) -> Any:
    """Returns the positions `(1, length)`, int32, of a tensor `(batch, length, …)`."""
    return ops.arange(ops.shape(x)[1], dtype="int32")[None]


def _block_size(radius: int) -> int:
    """Chooses how many queries share the keys in their reach."""
    return max(radius, _SMALLEST_BLOCK)


def _by_remainder(x: Any, stride: int) -> Any:
    """From `(batch, length, …)` to `(batch * stride, ceil(length / stride), …)`."""
    batch, length, *dims = ops.shape(x)
    steps = _ceil_div(length, stride)
    x = _pad(x, 0, steps * stride - length)
    x = ops.swapaxes(ops.reshape(x, (batch, steps, stride, *dims)), 1, 2)
    return ops.reshape(x, (batch * stride, steps, *dims))


def _windows(
    x: Any, size: int, before: int = 0, after: int = 0, num_first: int = 0
) -> Any:
    """From `(batch, length, …)` to `(batch * num_blocks, window, …)`.

    Block by block of `size` positions: the first ones, those before the block, the
    block, and those after it.
    """
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


def _pad(x: Any, before: Any, after: Any) -> Any:
    """Pads the length with zeros."""
    if isinstance(before + after, int) and before + after == 0:
        return x
    return ops.pad(x, [(0, 0), (before, after)] + [(0, 0)] * (len(x.shape) - 2))


def _ceil_div(number: Any, divisor: int) -> Any:
    return -(-number // divisor)
