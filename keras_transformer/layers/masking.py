"""Attention masks: boolean, `True` means "attend". Defined here, once."""

from typing import Any

from keras import ops


def padding_mask(token_ids: Any, pad_token_id: int = 0) -> Any:
    """Marks the real tokens of a padded batch.

    Args:
        token_ids: int tensor `(batch, length)`.
        pad_token_id: id of the padding token.

    Returns:
        Boolean tensor `(batch, length)`, `True` on every token that is not
        padding.

    Example:

    >>> mask = padding_mask(np.array([[5, 7, 0], [6, 0, 0]]))
    >>> ops.convert_to_numpy(mask).tolist()
    [[True, True, False], [True, False, False]]
    """
    return ops.not_equal(token_ids, pad_token_id)


def causal_mask(query_length: Any, key_length: Any, offset: Any = 0) -> Any:
    """Lets every query see the keys up to its own position.

    The mask is rectangular: with a key-value cache, the queries are the newest
    tokens, the keys all positions of the cache.

    Args:
        query_length: int or int scalar tensor, number of queries.
        key_length: int or int scalar tensor, number of keys.
        offset: int or int scalar tensor, position of the first query among
            the keys.

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


def sliding_window_mask(
    query_length: Any, key_length: Any, window: int, offset: Any = 0
) -> Any:
    """Lets every query see the keys less than `window` positions away.

    Args:
        query_length: int or int scalar tensor, number of queries.
        key_length: int or int scalar tensor, number of keys.
        window: positive int; 1 is the query's own position alone.
        offset: int or int scalar tensor, position of the first query among
            the keys.

    Returns:
        Boolean tensor `(1, query_length, key_length)`.
    """
    queries = ops.arange(query_length, dtype="int32")[None, :, None]
    keys = ops.arange(key_length, dtype="int32")[None, None, :]
    return ops.less(ops.abs(queries + offset - keys), window)


def merge_masks(*masks: Any) -> Any:
    """Joins masks by logical and, passing over those that are `None`.

    Args:
        masks: boolean (or 0/1 integer) tensors that broadcast to each other,
            or `None`.

    Returns:
        The boolean tensor they have in common; `None` if there is none.
    """
    merged = None
    for mask in masks:
        if mask is not None:
            mask = ops.cast(mask, "bool")
            merged = mask if merged is None else ops.logical_and(merged, mask)
    return merged


def attention_mask_from_padding(mask: Any) -> Any:
    """Turns a padding mask of the keys into an attention mask.

    Args:
        mask: boolean tensor `(batch, key_length)`, or `None`.

    Returns:
        Boolean tensor `(batch, 1, key_length)`; `None` for `None`.
    """
    return None if mask is None else ops.expand_dims(mask, 1)
