"""Attention masks: boolean, `True` = attend."""

import functools
from typing import overload

from keras import ops

from keras_transformer.types import Mask, Size, Tensor, TokenIds


def padding_mask(token_ids: TokenIds, pad_token_id: int = 0) -> Mask:
    """Computes the mask of the real tokens of a padded batch.

    Args:
        token_ids: int tensor `(batch, length)`.
        pad_token_id: int, id of the padding token.

    Returns:
        Boolean tensor `(batch, length)`, `False` for padding.

    Example:

    >>> mask = padding_mask(np.array([[5, 7, 0], [6, 0, 0]]))
    >>> ops.convert_to_numpy(mask).tolist()
    [[True, True, False], [True, False, False]]
    """
    return ops.not_equal(token_ids, pad_token_id)


def move_padding_to_end(
    token_ids: TokenIds, pad_token_id: int = 0
) -> tuple[TokenIds, Tensor]:
    """Moves the padding at the start of rows `(batch, length)` to their end.

    The second result is the number of padding tokens at the start of each row, int32
    `(batch, 1)`, for `move_padding_back`.
    """
    is_token = ops.cast(padding_mask(token_ids, pad_token_id), "int32")
    shifts = ops.cast(ops.argmax(is_token, axis=1), "int32")[:, None]
    return move_padding_back(token_ids, -shifts, 1), shifts


def move_padding_back(x: Tensor, shifts: Tensor, *axes: int) -> Tensor:
    """Moves positions back to where they were before `move_padding_to_end`.

    `axes` are the axes of `x` `(batch, …)` with the length of the rows.
    """
    for axis in axes:
        length = ops.shape(x)[axis]
        indices = ops.mod(ops.arange(length, dtype="int32") - shifts, length)
        others = [other for other in range(1, len(x.shape)) if other != axis]
        x = ops.take_along_axis(x, ops.expand_dims(indices, others), axis=axis)
    return x


def causal_mask(query_length: Size, key_length: Size, offset: Size = 0) -> Mask:
    """Computes the mask with which a query attends to keys up to its own position.

    The mask may be rectangular: with a key-value cache, the queries are the newest
    tokens, and the keys are all entries of the cache.

    Args:
        query_length: int or int scalar tensor, number of queries.
        key_length: int or int scalar tensor, number of keys.
        offset: int or int scalar tensor, position of the first query.

    Returns:
        Boolean tensor `(1, query_length, key_length)`, `True` where
        `key position <= offset + query position`.

    Example:

    >>> ops.convert_to_numpy(causal_mask(2, 4, offset=1)).astype(int).tolist()
    [[[1, 1, 0, 0], [1, 1, 1, 0]]]
    """
    queries = ops.arange(query_length, dtype="int32")[None, :, None]
    keys = ops.arange(key_length, dtype="int32")[None, None, :]
    return ops.less_equal(keys, queries + offset)


def merge_masks(*masks: Mask | None) -> Mask | None:
    """Merges masks by logical and, ignoring `None`.

    Args:
        masks: boolean (or 0/1 integer) tensors that broadcast to each other,
            or `None`. If one of them has an axis for the heads, this axis is
            inserted into the other attention masks.

    Returns:
        Boolean tensor, or `None` if all masks are `None`.
    """
    given = [ops.cast(mask, "bool") for mask in masks if mask is not None]
    if any(len(mask.shape) == 4 for mask in given):
        given = [with_head_axis(mask) for mask in given]
    return functools.reduce(ops.logical_and, given) if given else None


def attention_mask_from_padding(mask: Mask | None) -> Mask | None:
    """Converts a mask `(batch, key_length)` to a mask `(batch, 1, key_length)`."""
    return None if mask is None else ops.expand_dims(mask, 1)


@overload
def with_head_axis(mask: None) -> None: ...
@overload
def with_head_axis(mask: Mask) -> Mask: ...
def with_head_axis(mask: Mask | None) -> Mask | None:
    """Inserts the axes of the batch and the heads into a mask that lacks them."""
    if mask is None or len(mask.shape) == 4:
        return mask
    mask = mask if len(mask.shape) == 3 else ops.expand_dims(mask, 0)
    return ops.expand_dims(mask, 1)


def zero_masked_queries(
    attended: Tensor, scores: Tensor | None, query_mask: Mask
) -> tuple[Tensor, Tensor | None]:
    """Sets weighted sums and scores to zero where `(batch, query_length)` is `False`.

    The sums are `(batch, query_length, num_heads, value_dim)` and the scores
    `(batch, num_heads, query_length, key_length)`.
    """
    rows = ops.cast(query_mask, "bool")[:, :, None, None]
    if scores is not None:
        scores = ops.where(ops.transpose(rows, (0, 2, 1, 3)), scores, 0.0)
    return ops.where(rows, attended, 0.0), scores
