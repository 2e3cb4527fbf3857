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

    Returns:
        The blocks, in the order of the sequences, remainders and positions.
    """
    size, after = _block_size(radius), 0 if use_causal_mask else radius

    def windows(x: Any, before: int = 0, after: int = 0) -> Any:
        return _windows(_by_remainder(x, stride), size, before, after)

    positions = positions_of(query)
    return Blocks(
        query=windows(query),
        key=windows(key, radius, after),
        value=windows(value, radius, after),
        query_positions=windows(positions),
        key_positions=windows(positions, radius, after),
        key_mask=windows(mask_of(key, key_mask), radius, after),
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


def pay(length: int, radius: int, stride: int = 1, keys_for_all: int = 0) -> bool:
    """Tells whether blocks cost less than dense attention, by the scores of both.

    Args:
        length: int, number of positions.
        radius: int >= 0, as for `cut`.
        stride: int >= 1, as for `cut`.
        keys_for_all: int, keys that every block has besides its window.

    Returns:
        Whether they do.
    """
    size = _block_size(radius)
    num_queries = _ceil_div(_ceil_div(length, stride), size) * size * stride
    num_scores = num_queries * (size + 2 * radius + keys_for_all)
    return _WORTH * num_scores < length**2


def mask_of(key: Any, key_mask: Any) -> Any:
    """Returns `key_mask`, boolean `(batch, length)`: all keys if it is `None`."""
    if key_mask is None:
        return ops.ones(ops.shape(key)[:2], "bool")
    return ops.cast(key_mask, "bool")


def positions_of(x: Any) -> Any:
    """Returns the positions `(1, length)`, int32, of a tensor `(batch, length, …)`."""
    return ops.arange(ops.shape(x)[1], dtype="int32")[None]


def repeat(x: Any, rows: Any) -> Any:
    """Repeats each sequence for its blocks: `(batch, …)` to `(batch * rows, …)`."""
    batch, *dims = ops.shape(x)
    x = ops.broadcast_to(ops.expand_dims(x, 1), (batch, rows, *dims))
    return ops.reshape(x, (batch * rows, *dims))


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


def _windows(x: Any, size: int, before: int, after: int) -> Any:
    """From `(batch, length, …)` to `(batch * blocks, before + size + after, …)`."""
    batch, length, *dims = ops.shape(x)
    num_blocks = _ceil_div(length, size)
    num_neighbours = _ceil_div(before + after, size)
    padded = (num_blocks + num_neighbours) * size
    x = _pad(x, before, padded - before - length)
    x = ops.reshape(x, (batch, num_blocks + num_neighbours, size, *dims))
    window = before + size + after
    parts = [
        x[:, i : i + num_blocks, : window - i * size] for i in range(num_neighbours + 1)
    ]
    x = ops.concatenate(parts, axis=2)
    return ops.reshape(x, (batch * num_blocks, window, *dims))


def _pad(x: Any, before: Any, after: Any) -> Any:
    """Pads the length with zeros."""
    if isinstance(after, int) and before == after == 0:
        return x
    return ops.pad(x, [(0, 0), (before, after)] + [(0, 0)] * (len(x.shape) - 2))


def _ceil_div(number: Any, divisor: int) -> Any:
    return -(-number // divisor)
