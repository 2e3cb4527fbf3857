"""Attention over several axes: folds inputs to three axes and unfolds the outputs."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from keras import ops

from keras_transformer.types import Mask, Size, Tensor

# Attention axes, counted from the front.
Axes: TypeAlias = tuple[int, ...]


class Masks(NamedTuple):
    """Masks of a call of `MultiHeadAttention`."""

    query_mask: Mask | None
    value_mask: Mask | None
    key_mask: Mask | None
    attention_mask: Mask | None


def call_over_axes(
    call: Callable[..., Any],
    inputs: tuple[Tensor, Tensor, Tensor],  # query, value and key, (batch, …, features)
    masks: Masks,
    attention_axes: int | Sequence[int] | None,  # None = all but the first and last
    *,
    return_attention_scores: bool,
    **options: object,
) -> Tensor | tuple[Tensor, Tensor]:
    """Folds inputs to three axes, calls an attention layer and unfolds the outputs."""
    query, value, key = inputs
    axes = standardize(attention_axes, len(query.shape))
    attention_mask = masks.attention_mask
    if attention_mask is not None:
        attention_mask = fold_attention_mask(attention_mask, axes, query, key)
    folded = call(
        fold(query, axes),
        fold(value, axes),
        fold(key, axes),
        query_mask=fold_mask(masks.query_mask, axes),
        value_mask=fold_mask(masks.value_mask, axes),
        key_mask=fold_mask(masks.key_mask, axes),
        attention_mask=attention_mask,
        return_attention_scores=return_attention_scores,
        **options,
    )
    if not return_attention_scores:
        return unfold(folded, axes, like=query)
    output, scores = folded
    return unfold(output, axes, query), unfold_scores(scores, axes, query, key)


def standardize(axes: int | Sequence[int] | None, rank: int) -> Axes:
    """Returns the attention axes counted from the front; all for `None`."""
    if axes is None:
        return tuple(range(1, rank - 1))
    axes = (axes,) if isinstance(axes, int) else tuple(axes)
    positive = tuple(axis if axis >= 0 else rank + axis for axis in axes)
    if not all(0 < axis < rank - 1 for axis in positive):
        raise ValueError(
            "`attention_axes` must be axes between the batch and the features; "
            f"received `attention_axes={axes}` for inputs with {rank} axes."
        )
    return positive


def fold(x: Tensor, axes: Axes) -> Tensor:
    """Reshapes `(batch, …, features)` to `(batch * others, length, features)`.

    The attention axes become one length, and the other axes belong to the batch.
    """
    batch, length = math.prod(_others(x, axes)), math.prod(_sizes(x, axes))
    order = _order(len(x.shape), axes, num_features=1)
    return ops.reshape(ops.transpose(x, order), (batch, length, ops.shape(x)[-1]))


def fold_mask(mask: Mask | None, axes: Axes) -> Mask | None:
    """Folds a mask of tokens `(batch, …)` to `(batch * others, length)`."""
    return None if mask is None else fold(ops.expand_dims(mask, -1), axes)[..., 0]


def unfold(x: Tensor, axes: Axes, like: Tensor) -> Tensor:
    """Inverts `fold` for an output `(batch * others, length, …)`.

    The result has the axes of the folded tensor `like` before its features, then the
    axes of `x` after its length.
    """
    num_outputs, shape = len(x.shape) - 2, ops.shape(like)
    rank = len(like.shape) - 1 + num_outputs
    order = _order(rank, axes, num_outputs)
    sizes = [*shape[:-1], *ops.shape(x)[2:]]
    x = ops.reshape(x, tuple(sizes[axis] for axis in order))
    return ops.transpose(x, tuple(order.index(axis) for axis in range(rank)))


def fold_attention_mask(mask: Mask, axes: Axes, query: Tensor, key: Tensor) -> Mask:
    """Folds an attention mask as Keras does.

    `(batch, others…, num_heads, query axes…, key axes…)`, where axes before those of
    the queries may be missing, becomes
    `(batch * others, num_heads or 1, query_length, key_length)`.
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


def unfold_scores(scores: Tensor, axes: Axes, query: Tensor, key: Tensor) -> Tensor:
    """Reshapes `(batch * others, num_heads, query_length, key_length)`.

    The result is `(batch, others…, num_heads, query axes…, key axes…)`.
    """
    pairs = _sizes(query, axes) + _sizes(key, axes)
    return ops.reshape(scores, (*_others(query, axes), ops.shape(scores)[1], *pairs))


def _order(rank: int, axes: Axes, num_features: int) -> Axes:
    features = range(rank - num_features, rank)
    others = [axis for axis in range(rank - num_features) if axis not in axes]
    return (*others, *axes, *features)


def _sizes(x: Tensor, axes: Axes) -> tuple[Size, ...]:
    return tuple(ops.shape(x)[axis] for axis in axes)


def _others(x: Tensor, axes: Axes) -> tuple[Size, ...]:
    rank = len(x.shape) - 1
    return _sizes(x, tuple(axis for axis in range(rank) if axis not in axes))
