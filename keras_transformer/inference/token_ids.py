"""A user's texts or token ids, as rows of ids and in batches of few shapes."""

from typing import Any

import numpy as np

SMALLEST_LENGTH = 16


def entries(inputs: Any, argument: str) -> Any:
    """Makes a list of a user's batch, whatever holds it.

    Args:
        inputs: a text; or texts or token ids in a list, an array, a column of a table
            or an iterator.
        argument: name of the argument, for error messages.

    Returns:
        A list, or `inputs` themselves if they are ints.

    Raises:
        ValueError: if `inputs` hold nothing that one could go through.
    """
    if isinstance(inputs, str | bytes):
        return [inputs]
    if "int" in str(getattr(inputs, "dtype", "")) and len(inputs.shape):
        return inputs
    try:
        return list(inputs)
    except TypeError as error:
        raise ValueError(
            f"`{argument}` must be texts, lists of int token ids or an int array "
            f"(batch, length); received `{argument}={inputs!r}`."
        ) from error


def token_rows(
    inputs: Any,
    argument: str,
    tokenizer: Any,
    pad_token_id: int,
    add_end: bool = True,
) -> list[list[int]]:
    """Makes lists of token ids, without padding, of what the user gave.

    Args:
        inputs: a text or a list of texts; or token ids: a list of lists of ints, or
            an int array `(batch, length)` with padding.
        argument: name of the argument, for error messages.
        tokenizer: tokenizer of the texts or `None`.
        pad_token_id: int, what is left out.
        add_end: whether those of texts end with the end token.

    Returns:
        Lists of ints.

    Raises:
        ValueError: if `inputs` are something else, or texts without a tokenizer.
    """
    inputs = entries(inputs, argument)
    if any(isinstance(entry, str | bytes) for entry in inputs):
        if tokenizer is None:
            raise ValueError(
                f"`{argument}` must be token ids for a model without tokenizers; "
                "received texts. Give the model `source_tokenizer` and "
                "`target_tokenizer`."
            )
        for number, entry in enumerate(inputs):
            if not isinstance(entry, str | bytes):
                raise ValueError(
                    f"`{argument}` must have a text in every row if there is one in "
                    f"any; received {entry!r} in row {number}."
                )
        return tokenizer.tokenize(inputs, add_end=add_end).to_list()
    rows = [np.asarray(row) for row in inputs]
    for row in rows:
        if row.ndim != 1 or (row.size and not np.issubdtype(row.dtype, np.integer)):
            raise ValueError(
                f"`{argument}` must be texts, lists of int token ids or an int array "
                f"(batch, length); received a row {row!r}."
            )
    return [row[row != pad_token_id].tolist() for row in rows]


def check_rows(
    rows: list[list[int]], argument: str, side: str, size: int, limit: int | None
) -> None:
    """Makes sure that a model can take the rows.

    Args:
        rows: lists of token ids.
        argument: name of the argument, for error messages.
        side: `"source"` or `"target"`.
        size: int, size of the side's vocabulary.
        limit: int, greatest length of the side, or `None`.

    Raises:
        ValueError: if a token id is not in the vocabulary, or a row is too long.
    """
    for number, row in enumerate(rows):
        if row and not 0 <= min(row) <= max(row) < size:
            raise ValueError(
                f"`{argument}` must hold token ids from 0 to {size - 1} (the {side} "
                f"vocabulary has {size} entries); received "
                f"{[t for t in row if not 0 <= t < size]} in row {number}."
            )
        if limit is not None and len(row) > limit:
            raise ValueError(
                f"`{argument}` must have at most `max_{side}_length={limit}` tokens "
                f"each; received {len(row)} tokens in row {number}. Shorten or split "
                f"it, or build the model with a larger `max_{side}_length`."
            )


def power_of_two(number: int, smallest: int = 1) -> int:
    """Returns the least power of two that is at least `number` and `smallest`.

    Args:
        number: int.
        smallest: int, a power of two.

    Returns:
        int.
    """
    return max(smallest, 1 << (max(number, 1) - 1).bit_length())


def length_buckets(longest: int) -> list[int]:
    """The lengths that sources are padded to, up to the first that has room.

    They are powers of two and the middles between them: few are ever compiled, and
    beyond 16 less than a third of a batch's longest row is padding.

    Args:
        longest: int, the greatest length there must be room for.

    Returns:
        Ints, ascending.

    Example:

    >>> length_buckets(40)
    [16, 24, 32, 48]
    """
    buckets = [SMALLEST_LENGTH]
    while buckets[-1] < longest:
        power = 1 << (buckets[-1].bit_length() - 1)
        buckets.append(power + power // 2 if buckets[-1] == power else 2 * power)
    return buckets


def pad_rows(
    rows: list[list[int]], batch: int, limit: int | None, pad_token_id: int
) -> np.ndarray:
    """Makes a batch whose length is of `length_buckets`, or `limit` if that is less.

    Args:
        rows: lists of token ids.
        batch: int, rows of the batch; those that are missing are padding.
        limit: int, greatest length, or `None`.
        pad_token_id: int, fills the rows.

    Returns:
        int32 array `(batch, length)`.
    """
    length = length_buckets(max(map(len, rows)))[-1]
    padded = np.full((batch, min(length, limit or length)), pad_token_id, "int32")
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return padded


def pad_prefixes(prefixes: list[list[int]], size: int, pad_token_id: int) -> np.ndarray:
    """Makes a batch of prefixes.

    Args:
        prefixes: lists of token ids.
        size: int, rows of the batch.
        pad_token_id: int, fills the rows.

    Returns:
        int32 array `(size, prefix_length)`, whose length is 0 or a power of two.
    """
    longest = max(map(len, prefixes))
    shape = (size, power_of_two(longest, 4) if longest else 0)
    padded = np.full(shape, pad_token_id, "int32")
    for row, prefix in zip(padded, prefixes, strict=False):
        row[: len(prefix)] = prefix
    return padded
