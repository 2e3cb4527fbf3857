"""Texts or token ids of a user, as rows of ids and in batches of few shapes."""

import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np
from keras import ops

from keras_transformer.arguments import check_ints, check_unicode
from keras_transformer.inference.protocols import SequenceInputs, SequenceModel
from keras_transformer.types import TokenIds

if TYPE_CHECKING:
    from keras_transformer.text import Tokenizer

SMALLEST_LENGTH = 16

# Lists of token ids without padding.
Rows: TypeAlias = list[list[int]]
# Texts, lists of token ids, or an int array `(batch, length)` with padding.
Sequences: TypeAlias = str | bytes | Iterable[Any]


def is_text(value: Any) -> bool:
    """Returns whether a value is a text.

    Args:
        value: any object.

    Returns:
        bool; `True` for a str, bytes, or a string array or tensor of shape `()`.
    """
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
    """Converts a batch of a user to a list.

    Args:
        inputs: a text; or texts or token ids in a list, an array, a tensor, a column of
            a table, a `tf.data.Dataset` (batched or not) or an iterator.
        argument: name of the argument, for error messages.

    Returns:
        A list, or `inputs` if they are an int array.

    Raises:
        ValueError: if `inputs` cannot be iterated over, or the strings have more than
            one axis.
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
    """Converts the texts of a batch to str or bytes, and refuses lists of texts."""
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
    add_end: bool = True,
) -> Rows:
    """Converts texts or token ids to lists of token ids without padding.

    Args:
        inputs: a text or a list of texts; or token ids: a list of lists of ints, or
            an int array `(batch, length)` with padding.
        argument: name of the argument, for error messages.
        tokenizer: tokenizer of the texts or `None`.
        pad_token_id: int, the id of padding, which is removed.
        add_end: whether to append the end token to the ids of texts.

    Returns:
        Lists of ints.

    Raises:
        ValueError: if `inputs` are neither texts nor token ids, or texts without a
            tokenizer; or if a text is not valid Unicode, or begins with a language
            token that the vocabulary lacks.
    """
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


def source_rows(model: SequenceModel, sources: Sequences, argument: str) -> Rows:
    """Converts sources to lists of token ids without padding.

    Args:
        model: the model.
        sources: texts or token ids; see `token_rows`.
        argument: name of the argument, for error messages.

    Returns:
        Lists of ints; those of a source without tokens are `model.empty_source`.

    Raises:
        ValueError: as of `token_rows`.
    """
    pad = model.pad_token_id
    rows = token_rows(sources, argument, model.source_tokenizer, pad)
    return [row or [*model.empty_source] for row in rows]


def check_sources(model: SequenceModel, rows: Rows, argument: str) -> None:
    """Checks the token ids of sources against the limits of a model.

    Args:
        model: the model.
        rows: lists of token ids.
        argument: name of the argument, for error messages.

    Raises:
        ValueError: as of `check_rows`.
    """
    size, limit = model.source_vocabulary_size, model.max_source_length
    check_rows(rows, argument, "source", size, limit, model.length_arguments[0])


def check_rows(
    rows: Rows,
    argument: str,
    side: str,
    size: int,
    limit: int | None,
    limit_name: str,
) -> None:
    """Checks token ids against the vocabulary and the greatest length of a model.

    Args:
        rows: lists of token ids.
        argument: name of the argument, for error messages.
        side: `"source"` or `"target"`.
        size: int, size of the vocabulary.
        limit: int, greatest length, or `None`.
        limit_name: name of the argument of the model that sets the limit.

    Raises:
        ValueError: if a token id is not in the vocabulary, or a row is too long.
    """
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
    """Returns the least power of two that is at least `number` and `smallest`.

    Args:
        number: int.
        smallest: int, a power of two.

    Returns:
        int.
    """
    return max(smallest, 1 << (max(number, 1) - 1).bit_length())


def length_buckets(longest: int) -> list[int]:
    """Returns the lengths to which sources are padded, up to the first that fits.

    They are powers of two and the means of neighbouring powers: few shapes are
    compiled, and above 16 less than a third of the longest row of a batch is padding.

    Args:
        longest: int, the length that the last bucket must fit.

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
    rows: Rows, batch_size: int, limit: int | None, pad_token_id: int
) -> np.ndarray:
    """Pads rows to a batch whose length is one of `length_buckets`, or `limit`.

    Args:
        rows: lists of token ids.
        batch_size: int, rows of the batch; missing rows are padding.
        limit: int, greatest length, or `None`.
        pad_token_id: int, fills the rows.

    Returns:
        int32 array `(batch_size, length)`.
    """
    length = length_buckets(max(map(len, rows)))[-1]
    padded = np.full((batch_size, min(length, limit or length)), pad_token_id, "int32")
    for index, row in enumerate(rows):
        padded[index, : len(row)] = row
    return padded


def pad_prefixes(prefixes: Rows, batch_size: int, pad_token_id: int) -> np.ndarray:
    """Pads prefixes to a batch.

    Args:
        prefixes: lists of token ids.
        batch_size: int, rows of the batch.
        pad_token_id: int, fills the rows.

    Returns:
        int32 array `(batch_size, prefix_length)`; the length is 0 or a power of two.
    """
    longest = max(map(len, prefixes))
    shape = (batch_size, power_of_two(longest, 4) if longest else 0)
    padded = np.full(shape, pad_token_id, "int32")
    for row, prefix in zip(padded, prefixes, strict=False):
        row[: len(prefix)] = prefix
    return padded


class Pairs(NamedTuple):
    """Sources and targets as lists of token ids without padding."""

    sources: Rows
    targets: Rows


class PairBatch(NamedTuple):
    """A batch of pairs.

    Attributes:
        numbers: list of ints, the numbers of the pairs in the first rows; the other
            rows are padding.
        inputs: the inputs of the model.
        target_token_ids: int32 tensor `(batch, target_length)`, padded.
    """

    numbers: list[int]
    inputs: SequenceInputs
    target_token_ids: TokenIds


def token_pairs(model: SequenceModel, sources: Sequences, targets: Sequences) -> Pairs:
    """Converts sources and targets to lists of token ids, and checks them.

    Args:
        model: the model.
        sources: a text or a list of texts, if the model has tokenizers; or token ids:
            a list of lists of ints, or an int array `(batch, source_length)` with
            padding.
        targets: as many, likewise.

    Returns:
        `Pairs`; the ids of targets that are texts end with the end token.

    Raises:
        ValueError: if the model does not accept them, or their numbers differ.
    """
    pad, limit = model.pad_token_id, model.max_target_length
    rows = source_rows(model, sources, "sources")
    check_sources(model, rows, "sources")
    tokenizer, size = model.target_tokenizer, model.target_vocabulary_size
    target_rows = token_rows(targets, "targets", tokenizer, pad)
    limit_name = model.length_arguments[1]
    check_rows(target_rows, "targets", "target", size, limit, limit_name)
    if len(rows) != len(target_rows):
        raise ValueError(
            "`targets` must have one entry for each source; received "
            f"{len(target_rows)} targets and {len(rows)} sources."
        )
    for number, (source, target) in enumerate(zip(rows, target_rows, strict=True)):
        longest = model.max_steps(len(source), sys.maxsize)
        if len(target) > longest:
            raise ValueError(
                f"`targets` must have at most {longest} tokens after a source of "
                f"{len(source)} tokens (`{limit_name}={limit}`); received "
                f"{len(target)} tokens in row {number}. Shorten or split it, or build "
                f"the model with a larger `{limit_name}`."
            )
    return Pairs(rows, target_rows)


def pair_batches(
    model: SequenceModel, pairs: Pairs, batch_size: int
) -> Iterator[PairBatch]:
    """Groups pairs of similar lengths into batches, whose sizes are powers of two.

    Args:
        model: the model.
        pairs: the token ids.
        batch_size: int, greatest number of pairs of a batch.

    Yields:
        `PairBatch`es.

    Raises:
        ValueError: if `batch_size` is not an int of at least 1.
    """
    check_ints(1, batch_size=batch_size)
    sources, targets = pairs
    order = sorted(
        range(len(targets)), key=lambda i: (len(targets[i]), len(sources[i]))
    )
    size = min(batch_size, power_of_two(len(order)))
    pad = model.pad_token_id

    def padded(rows: Rows, limit: int | None) -> TokenIds:
        return ops.convert_to_tensor(pad_rows(rows, size, limit, pad))

    for start in range(0, len(order), size):
        numbers = order[start : start + size]
        chosen = [targets[i] for i in numbers]
        shifted = [[model.start_token_id, *row][: len(row)] for row in chosen]
        inputs: SequenceInputs = {
            "encoder_token_ids": padded(
                [sources[i] for i in numbers], model.max_source_length
            ),
            "decoder_token_ids": padded(shifted, model.max_target_length),
        }
        yield PairBatch(numbers, inputs, padded(chosen, model.max_target_length))
