"""Attention over other axes than the second: folds inputs to three axes and back."""

import math
from typing import Any

from keras import ops


def standardize(axes: Any, rank: int) -> tuple[int, ...]:
    """Counts the attention axes from the front.

    Args:
        axes: an int, ints, or `None` for all axes but the first and the last.
        rank: int, number of axes of the inputs.

    Returns:
        Tuple of ints in [1, rank - 2].

    Raises:
        ValueError: if an axis is out of that range.
    """
    if axes is None:
        return tuple(range(1, rank - 1))
    positive = tuple(axis if axis >= 0 else rank + axis for axis in _as_tuple(axes))
    if not all(0 < axis < rank - 1 for axis in positive):
        raise ValueError(
            "`attention_axes` must be axes between the batch and the features; "
            f"received `attention_axes={axes}` for inputs with {rank} axes."
        )
    return positive


def fold(x: Any, axes: tuple[int, ...]) -> Any:
    """Joins the attention axes to one length, the others to the batch.

    Args:
        x: tensor `(batch, …, features)`.
        axes: the attention axes.

    Returns:
        Tensor `(batch * others, length, features)`.
    """
    batch, length = math.prod(_others(x, axes)), math.prod(_sizes(x, axes))
    order = _order(len(x.shape), axes, num_features=1)
    return ops.reshape(ops.transpose(x, order), (batch, length, ops.shape(x)[-1]))


def fold_mask(mask: Any, axes: tuple[int, ...]) -> Any:
    """Folds a mask of tokens.

    Args:
        mask: boolean tensor `(batch, …)`, or `None`.
        axes: the attention axes.

    Returns:
        Boolean tensor `(batch * others, length)`; `None` for `None`.
    """
    return None if mask is None else fold(ops.expand_dims(mask, -1), axes)[..., 0]


def unfold(x: Any, axes: tuple[int, ...], like: Any) -> Any:
    """Undoes `fold` for an output.

    Args:
        x: tensor `(batch * others, length, …)`.
        axes: the attention axes.
        like: tensor `(batch, …, features)` that was folded.

    Returns:
        Tensor `(batch, …)` with the axes of `like` before its features and
        those of `x` after its length.
    """
    num_outputs, shape = len(x.shape) - 2, ops.shape(like)
    rank = len(like.shape) - 1 + num_outputs
    order = _order(rank, axes, num_outputs)
    sizes = [*shape[:-1], *ops.shape(x)[2:]]
    x = ops.reshape(x, tuple(sizes[axis] for axis in order))
    return ops.transpose(x, tuple(order.index(axis) for axis in range(rank)))


def fold_attention_mask(mask: Any, axes: tuple[int, ...], query: Any, key: Any) -> Any:
    """Folds a mask the way Keras reads it: missing axes come before the queries'.

    Args:
        mask: boolean tensor `(batch, others…, num_heads, query axes…, key axes…)`
            without some of the axes before the queries'.
        axes: the attention axes.
        query: tensor `(batch, …, features)`.
        key: tensor `(batch, …, features)`.

    Returns:
        Boolean tensor `(batch * others, num_heads or 1, query_length, key_length)`.
    """
    pairs = _sizes(query, axes) + _sizes(key, axes)
    leading = len(query.shape) - len(axes)
    while len(mask.shape) < leading + len(pairs):
        mask = ops.expand_dims(mask, -len(pairs) - 1)
    others = _others(query, axes)
    heads = ops.shape(mask)[leading - 1]
    mask = ops.broadcast_to(mask, (*others, heads, *pairs))
    lengths = math.prod(pairs[: len(axes)]), math.prod(pairs[len(axes) :])
    return ops.reshape(mask, (math.prod(others), heads, *lengths))


def unfold_scores(scores: Any, axes: tuple[int, ...], query: Any, key: Any) -> Any:
    """Undoes the folding for attention scores.

    Args:
        scores: tensor `(batch * others, num_heads, query_length, key_length)`.
        axes: the attention axes.
        query: tensor `(batch, …, features)`.
        key: tensor `(batch, …, features)`.

    Returns:
        Tensor `(batch, others…, num_heads, query axes…, key axes…)`.
    """
    pairs = _sizes(query, axes) + _sizes(key, axes)
    return ops.reshape(scores, (*_others(query, axes), ops.shape(scores)[1], *pairs))


def _order(rank: int, axes: tuple[int, ...], num_features: int) -> tuple[int, ...]:
    features = range(rank - num_features, rank)
    others = [axis for axis in range(rank - num_features) if axis not in axes]
    return (*others, *axes, *features)


def _sizes(x: Any, axes: tuple[int, ...]) -> tuple[Any, ...]:
    return tuple(ops.shape(x)[axis] for axis in axes)


def _others(x: Any, axes: tuple[int, ...]) -> tuple[Any, ...]:
    rank = len(x.shape) - 1
    return _sizes(x, tuple(axis for axis in range(rank) if axis not in axes))


def _as_tuple(axes: Any) -> tuple[int, ...]:
    return (axes,) if isinstance(axes, int) else tuple(axes)
