"""Texts or token ids of a user, as rows of ids and in batches of few shapes."""

import itertools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from keras_transformer_runtime.arguments import check_unicode

if TYPE_CHECKING:
    from keras_transformer.text import Tokenizer

SMALLEST_LENGTH = 16

# Lists of token ids without padding.
Rows: TypeAlias = list[list[int]]
# Texts, lists of token ids, or an int array `(batch, length)` with padding.
Sequences: TypeAlias = str | bytes | Iterable[Any]


def is_text(value: object) -> bool:
    """Returns whether a value is a str, bytes, or a string array or tensor `()`."""
    return isinstance(_plain(value), str | bytes)


def _plain(value: Any) -> Any:
    """Converts arrays and tensors of strings to (lists of) str or bytes."""
    if isinstance(value, str | bytes | list | tuple):
        return value
    is_string_tensor = "string" in str(getattr(value, "dtype", ""))
    if is_string_tensor and hasattr(value, "numpy"):  # an eager tensor of TensorFlow
        value = value.numpy()
    is_array = isinstance(value, np.ndarray) and value.dtype.kind in "SUO"
    return value.tolist() if is_array else value


def as_entries(inputs: Sequences, argument: str) -> Sequence[Any]:
    """Converts a batch to a list, and returns an int array as it is.

    A batch is a text; or texts or token ids in a list, an array, a tensor, a column of
    a table, a `tf.data.Dataset` (batched or not) or an iterator.
    """
    inputs = _plain(inputs)
    if hasattr(inputs, "row_splits"):  # a ragged tensor of TensorFlow
        ragged: Any = inputs
        inputs = ragged.to_list()
    if isinstance(inputs, str | bytes):
        return [inputs]
    if isinstance(inputs, Sequence):
        return _with_plain_texts(inputs, argument)
    if "int" in str(getattr(inputs, "dtype", "")) and getattr(inputs, "shape", None):
        return cast(Sequence[Any], inputs)
    try:
        entries = list(inputs)
    except TypeError as error:
        raise ValueError(
            f"`{argument}` must be texts, lists of int token ids or an int array "
            f"(batch, length); received `{argument}={inputs!r}`."
        ) from error
    if hasattr(inputs, "element_spec"):  # a dataset of TensorFlow yields batches
        entries = list(itertools.chain.from_iterable(map(_rows_of_batch, entries)))
    return _with_plain_texts(entries, argument)


def _rows_of_batch(element: Any) -> Sequence[Any]:
    """Returns the rows of an element of a dataset, which is a batch or a row."""
    plain = _plain(element)
    is_batch = isinstance(plain, list) or len(getattr(plain, "shape", ())) == 2
    return list(plain) if is_batch else [plain]


def _with_plain_texts(entries: Sequence[Any], argument: str) -> Sequence[Any]:
    """Converts the texts of a batch to str or bytes; rejects lists of texts."""
    if all(isinstance(entry, str | bytes) for entry in entries):
        return entries
    plain = [*map(_plain, entries)]
    for number, entry in enumerate(plain):
        is_list = isinstance(entry, list | tuple) and len(entry) > 0
        if is_list and is_text(entry[0]):
            raise ValueError(
                f"`{argument}` must have one text in each row; received "
                f"{len(entry)} texts in row {number}: {entry!r:.200}. Pass texts of "
                "shape (batch,), and a dataset without its targets."
            )
    return plain


def token_rows(
    inputs: Sequences,
    argument: str,
    tokenizer: "Tokenizer | None",
    pad_token_id: int,
    add_end: bool = True,  # whether texts end with the end token
) -> Rows:
    """Converts texts or token ids to lists of token ids without padding."""
    rows = as_entries(inputs, argument)
    if any(map(is_text, rows)):
        if tokenizer is None:
            raise ValueError(
                f"`{argument}` must be token ids for a model without tokenizers; "
                "received texts. Pass `source_tokenizer` and `target_tokenizer` to "
                "the model."
            )
        for number, row in enumerate(rows):
            if not is_text(row):
                raise ValueError(
                    f"`{argument}` must have a text in every row if any row is a text; "
                    f"received {row!r} in row {number}."
                )
            if isinstance(row, str):
                check_unicode(row, argument, f"row {number}")
        token_ids: Rows = tokenizer.tokenize(rows, add_end=add_end).to_list()
        for number, (row, ids) in enumerate(zip(rows, token_ids, strict=True)):
            tokenizer.check_language_token(row, ids, argument, f"row {number}")
        return token_ids
    arrays = [np.asarray(row) for row in rows]
    for array in arrays:
        is_int = not array.size or np.issubdtype(array.dtype, np.integer)
        if array.ndim != 1 or not is_int:
            raise ValueError(
                f"`{argument}` must be texts, lists of int token ids or an int array "
                f"(batch, length); received a row {array!r}."
            )
    return [array[array != pad_token_id].tolist() for array in arrays]


def check_rows(
    rows: Rows,
    argument: str,
    side: str,  # "source" or "target"
    size: int,
    limit: int | None,
    limit_name: str,  # the argument of the model that sets the limit
) -> None:
    """Checks token ids against the vocabulary and the maximum length of a model."""
    for number, row in enumerate(rows):
        if row and not 0 <= min(row) <= max(row) < size:
            raise ValueError(
                f"`{argument}` must have token ids from 0 to {size - 1} (the {side} "
                f"vocabulary has {size} entries); received "
                f"{[t for t in row if not 0 <= t < size]} in row {number}."
            )
        if limit is not None and len(row) > limit:
            raise ValueError(
                f"`{argument}` must have at most `{limit_name}={limit}` tokens "
                f"each; received {len(row)} tokens in row {number}. Shorten or split "
                f"it, or build the model with a larger `{limit_name}`."
            )


def power_of_two(number: int, smallest: int = 1) -> int:
    """Returns the smallest power of two that is at least `number` and `smallest`."""
    return max(smallest, 1 << (max(number, 1) - 1).bit_length())


def length_buckets(longest: int) -> list[int]:
    """Returns the lengths to which sources are padded, up to the first that fits.

    They are powers of two and the means of neighbouring powers (16, 24, 32, 48, …): few
    shapes are compiled, and above 16 less than a third of the longest row of a batch is
    padding.
    """
    buckets = [SMALLEST_LENGTH]
    while buckets[-1] < longest:
        power = 1 << (buckets[-1].bit_length() - 1)
        buckets.append(power + power // 2 if buckets[-1] == power else 2 * power)
    return buckets


def pad_rows(
    rows: Rows, batch_size: int, limit: int | None, pad_token_id: int
) -> np.ndarray:
    """Pads rows to a batch whose length is one of `length_buckets`, or `limit`."""
    length = length_buckets(max(map(len, rows)))[-1]
    padded = np.full((batch_size, min(length, limit or length)), pad_token_id, "int32")
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return padded


def pad_prefixes(prefixes: Rows, batch_size: int, pad_token_id: int) -> np.ndarray:
    """Pads prefixes to a batch whose length is 0 or a power of two."""
    longest = max(map(len, prefixes))
    shape = (batch_size, power_of_two(longest, 4) if longest else 0)
    padded = np.full(shape, pad_token_id, "int32")
    for row, prefix in zip(padded, prefixes, strict=False):
        row[: len(prefix)] = prefix
    return padded
