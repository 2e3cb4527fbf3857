"""Running text: windows of token ids of one length, for language models."""

import dataclasses
import io
import math
import pathlib
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Self, TypeAlias

import numpy as np
import tensorflow as tf

from keras_transformer.dataset.batches import BatchStream
from keras_transformer.dataset.epoch_dataset import EpochDataset
from keras_transformer.dataset.parallel_text import check_shard
from keras_transformer.dataset.text_pairs import checksum_of
from keras_transformer.text import Paths, Tokenizer, decode_line, numbered_lines
from keras_transformer.text.tokenizer import check_tokenizer
from keras_transformer_runtime.arguments import (
    check_ints,
    check_one_of,
    check_unicode,
)
from keras_transformer_runtime.text_files import path_list

DOCUMENTS = ("file", "line", "paragraph", None)
LINES_AT_ONCE = 4096
FILLER = -1  # The number of a row of padding.

# A line of a text, or `None` at the end of a document.
Piece: TypeAlias = str | None
# Token ids, or inputs by name, and targets.
TextArrays: TypeAlias = tuple[np.ndarray | dict[str, np.ndarray], np.ndarray]


class EpochWindows(NamedTuple):
    """The windows of an epoch."""

    offset: int  # The first token of window 0.
    batches: list[np.ndarray]  # Numbers of windows, int `(rows,)`; -1: padding.


@dataclasses.dataclass(frozen=True)
class TextWindows:
    """The windows of all epochs."""

    num_tokens: int
    length: int  # Input tokens of a window.
    rows: int  # Windows of a batch.
    shuffle: bool  # Windows are shuffled, and begin elsewhere in each epoch.
    seed: int
    shard: tuple[int, int]  # Index of the worker, and number of workers.

    @property
    def windows(self) -> int:
        """Number of windows of an epoch, of all workers."""
        tokens = self.num_tokens - 1
        if self.shuffle:  # Windows that begin at any offset have to fit.
            return max(1, (tokens - self._offsets + 1) // self.length)
        return math.ceil(tokens / self.length)

    @property
    def _offsets(self) -> int:
        """Number of tokens at which window 0 can begin."""
        return min(self.length, max(1, self.num_tokens - self.length))

    @property
    def batches(self) -> int:
        """Number of batches of an epoch, of this worker."""
        return math.ceil(math.ceil(self.windows / self.rows) / self.shard[1])

    def load(self, epoch: int) -> EpochWindows:
        """Returns the windows of an epoch; the result depends on its number alone."""
        index, workers = self.shard
        numbers, offset = np.arange(self.windows), 0
        if self.shuffle:
            random = np.random.default_rng((self.seed, epoch))
            offset = int(random.integers(self._offsets))
            numbers = random.permutation(numbers)
        count = math.ceil(self.windows / self.rows)
        filled = np.full(count * self.rows, FILLER)
        filled[: self.windows] = numbers
        # Workers have equally many batches, so a few batches are used twice.
        order = np.resize(np.arange(count), self.batches * workers)[index::workers]
        return EpochWindows(offset, [*filled.reshape(count, self.rows)[order]])


@dataclasses.dataclass(frozen=True)
class TextCollator:
    """Converts the windows of a batch to arrays."""

    token_ids: np.ndarray  # The text, int `(num_tokens,)`.
    length: int  # Input tokens of a window.
    special_ids: tuple[int, int, int]  # Padding, start and end.
    separate: bool  # Whether batches have segment ids.

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self  # Nothing changes it.

    def __call__(self, window: EpochWindows, index: int) -> TextArrays:
        """Returns the inputs and targets of a batch."""
        batch = window.batches[index]
        pad, start, end = self.special_ids
        rows = np.full((len(batch), self.length + 1), pad, "int32")
        for row, number in zip(rows, batch.tolist(), strict=True):
            if number != FILLER:
                begin = window.offset + number * self.length
                tokens = self.token_ids[begin : begin + self.length + 1]
                row[: len(tokens)] = tokens
        inputs, targets = rows[:, :-1], rows[:, 1:]
        if start != end:  # No text follows from the end of another.
            targets = np.where(inputs == end, np.int32(pad), targets)
        if not self.separate:
            return inputs, targets
        segments = np.cumsum(inputs == start, axis=1, dtype="int32")
        return {"token_ids": inputs, "segment_ids": segments}, targets

    def signature(self, rows: int) -> tuple[object, tf.TensorSpec]:
        """Returns the `tf.data` signature of the batches."""
        ids = tf.TensorSpec([rows, self.length], tf.int32)
        inputs = {"token_ids": ids, "segment_ids": ids} if self.separate else ids
        return inputs, ids


class TextDataset(EpochDataset[EpochWindows, TextArrays]):
    """Batches of running text for `fit`, with statistics and positions.

    `text_dataset` creates it. Each new iterator of `dataset` yields the next epoch,
    starting with epoch 0. The batches of an epoch depend only on its number and on the
    arguments of `text_dataset`. `start_epoch` and `restore` set the position at which
    the next iterator starts. `print` shows the statistics.

    Attributes:
        dataset: `tf.data.Dataset` for `fit` with any backend. Pass `shuffle=False` to
            `fit`, since the dataset shuffles its windows itself.
        tokens_per_epoch: int, target tokens of an epoch, without the padding at the
            end. The token after an end token counts, although it is not predicted.
        num_documents: int, number of documents.
        num_tokens: int, number of tokens of the text, start and end tokens included.
        num_unknown: int, number of these tokens that are unknown.
        num_characters: int, number of characters of the text.
        num_bytes: int, number of bytes of the text in UTF-8.
        batch_shape: tuple of ints, the rows of a batch and the tokens of a row.
        checksums: dictionary of two ints that distinguish the data: `"texts"` and
            `"order"`, the arguments that determine the batches. `Checkpoints` compares
            them when a run is resumed.
    """

    def __init__(
        self,
        windows: TextWindows,
        collate: TextCollator,
        counts: "TextCounts",
    ) -> None:
        stream = BatchStream(windows.load, windows.batches, aligned=True)
        predicted = windows.num_tokens - 1
        if windows.shuffle:
            predicted = min(predicted, windows.windows * windows.length)
        super().__init__(
            stream,
            collate,
            collate.signature(windows.rows),
            math.ceil(predicted / windows.shard[1]),
            {
                "texts": checksum_of(collate.token_ids),
                "order": checksum_of(
                    *(windows.length, windows.rows, windows.shuffle, windows.seed),
                    collate.separate,
                ),
            },
        )
        self.num_documents = counts.documents
        self.num_tokens = windows.num_tokens
        self.num_unknown = counts.unknown
        self.num_characters = counts.characters
        self.num_bytes = counts.bytes
        self.batch_shape = windows.rows, windows.length

    def lines(self, state: dict[str, int]) -> list[tuple[str, str]]:
        """Returns no texts: the rows of a batch are not lines of a file."""
        return []

    def __str__(self) -> str:
        rows, length = self.batch_shape
        unknown = self.num_unknown / max(self.num_tokens, 1)
        return (
            f"{self.num_tokens:,} tokens in {self.num_documents:,} documents "
            f"({unknown:.2%} unknown), {self.num_characters:,} characters\n"
            f"{self.batches_per_epoch:,} batches per epoch of {rows} windows of "
            f"{length} tokens"
        )


@dataclasses.dataclass
class TextCounts:
    """Counts of a text."""

    documents: int = 0
    line_endings: int = 0
    unknown: int = 0
    characters: int = 0
    bytes: int = 0


def text_dataset(
    files: Paths | None = None,
    *,
    texts: Iterable[str] | None = None,
    tokenizer: Tokenizer,
    length: int,
    tokens_per_batch: int = 4096,
    documents: str | None = "file",
    separate_documents: bool = False,
    shard: tuple[int, int] = (0, 1),
    shuffle: bool = True,
    seed: int = 0,
) -> TextDataset:
    r"""Creates training batches from running text, for a `CausalLM`.

    A batch is `(token_ids, target_token_ids)`, both int32 `(rows, length)`: windows of
    consecutive tokens, and the same windows one token later. All batches have one
    shape. A document is the start token, its tokens and the end token; a window can
    begin and end anywhere, and contain several documents. Nothing is predicted from an
    end token, unless it is the start token too.

    The text is tokenized once, line by line, into a temporary file of 2 or 4 bytes per
    token, so it may be larger than the memory. An epoch contains the text once. The
    windows are shuffled, and begin at another token in each epoch; less than two
    windows of the text are left out of an epoch. Without `shuffle`, the windows are in
    order and cover the text, and the last one is padded.

    Args:
        files: one path or several paths of UTF-8 files, plain or gzip (`.gz`).
        texts: iterable of str, the documents, instead of `files`.
        tokenizer: `Tokenizer` of the text. It receives each line with its line ending,
            so a tokenizer with the token "\n" keeps the lines.
        length: int, number of tokens of a window.
        tokens_per_batch: int, number of tokens of a batch: its rows are
            `tokens_per_batch // length`, at least one.
        documents: the unit of a document: `"file"`, `"line"` (a line that is not blank,
            without its line ending) or `"paragraph"` (lines up to a blank line).
            `None` = the files are one text without start and end tokens. With `texts`,
            it must be `"file"`.
        separate_documents: bool, whether a token attends only to its own document. A
            batch is then `({"token_ids", "segment_ids"}, target_token_ids)`.
        shard: tuple of the index of this worker, counted from 0, and the number of
            workers. Each worker gets other batches of an epoch. All workers have
            equally many batches, so a few batches may be used twice.
        shuffle: bool, whether windows are shuffled, differently in each epoch.
        seed: int of at least 0, seed of the shuffling.

    Returns:
        A `TextDataset`.

    Raises:
        ValueError: if files are empty or not UTF-8, if the text has fewer than two
            tokens, or if an argument is out of range.

    Example:

    ```python
    from keras_transformer.dataset import text_dataset
    from keras_transformer.text import CharacterTokenizer

    text = ["To be, or not to be,\n", "that is the question.\n"]
    data = text_dataset(
        texts=text,
        tokenizer=CharacterTokenizer.train(lines=text),
        length=8,
        tokens_per_batch=16,
    )
    token_ids, target_token_ids = next(iter(data.dataset))
    print(data)
    ```
    """
    check_ints(1, length=length, tokens_per_batch=tokens_per_batch)
    check_ints(0, seed=seed)
    check_tokenizer("tokenizer", tokenizer)
    check_shard(shard)
    if separate_documents and documents is None:
        raise ValueError(
            "`separate_documents` requires documents; received "
            "`separate_documents=True` and `documents=None`."
        )
    pieces = _pieces(files, texts, documents)
    token_ids, counts = _write_tokens(pieces, tokenizer, documents is not None)
    newline = tokenizer.tokenize(["\n"]).flat_values.numpy()
    if counts.line_endings and tokenizer.unknown_token_id in newline:
        warnings.warn(
            "`tokenizer` must have the token '\\n' to keep the lines; received one "
            f"that converts all {counts.line_endings:,} line endings to the unknown "
            "token. Train it on lines with their endings, such as those of "
            "`CharacterTokenizer.train(lines=open(path))`, or use `documents='line'`.",
            stacklevel=2,
        )
    if len(token_ids) < 2:
        raise ValueError(
            "The text must have at least two tokens, of which one is predicted from "
            f"the other; received {len(token_ids)}."
        )
    windows = TextWindows(
        len(token_ids),
        length,
        max(1, tokens_per_batch // length),
        shuffle,
        seed,
        shard,
    )
    ids = tokenizer.pad_token_id, tokenizer.start_token_id, tokenizer.end_token_id
    collate = TextCollator(token_ids, length, ids, separate_documents)
    return TextDataset(windows, collate, counts)


def _pieces(
    files: Paths | None, texts: Iterable[str] | None, documents: str | None
) -> Iterator[Piece]:
    """Returns the pieces of either `files` or `texts`, or raises `ValueError`."""
    if (files is None) == (texts is None):
        raise ValueError(
            "Either `files` or `texts` must be given; received "
            f"`files={files!r}`, `texts={texts!r:.80}`."
        )
    if texts is None:
        check_one_of(DOCUMENTS, documents=documents)
        return text_pieces(files or (), documents)
    remedy = "Each of `texts` is a document."
    check_one_of(("file",), documents=documents, remedy=remedy)
    return _document_pieces(texts)


def _document_pieces(texts: Iterable[str]) -> Iterator[Piece]:
    """Yields the lines of checked documents, and `None` after each document."""
    # Each character of a str would be a document.
    if isinstance(texts, str | bytes):
        raise ValueError(
            "`texts` must be an iterable of strings, one per document; received "
            f"`texts={texts!r:.80}`. Pass a list of one text, or a path as `files`."
        )
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(
                "`texts` must be an iterable of strings, one per document; received "
                f"{text!r:.80} as document {number}. Decode bytes to strings first."
            )
        check_unicode(text, "texts", f"document {number}")
        yield from io.StringIO(text, newline="\n")
        yield None


def text_pieces(files: Paths, documents: str | None) -> Iterator[Piece]:
    """Yields the lines of files, and `None` after each document.

    Lines have their endings if a document can have several of them.
    """
    for path in path_list(files):
        if documents == "line":
            for line in filter(str.strip, _lines(path)):
                yield line.rstrip("\n")
                yield None
        elif documents == "paragraph":
            yield from _paragraphs(_lines(path))
        else:
            yield from _lines(path)
            if documents == "file":
                yield None


def text_documents(files: Paths, documents: str | None) -> Iterator[str]:
    """Reads the documents of running text; see `text_pieces`."""
    lines: list[str] = []
    for piece in text_pieces(files, documents):
        if piece is not None:
            lines.append(piece)
        elif lines:
            yield "".join(lines)
            lines = []
    if lines:
        yield "".join(lines)


def _lines(path: pathlib.Path) -> Iterator[str]:
    """Yields the lines of a file, each with the line ending that it has."""
    for number, line in numbered_lines(path):
        ending = "\n" if line.endswith(b"\n") else ""
        yield decode_line(line, path, number) + ending


def _paragraphs(lines: Iterator[str]) -> Iterator[Piece]:
    is_open = False
    for line in lines:
        if line.strip():
            yield line
            is_open = True
        elif is_open:
            yield None
            is_open = False
    if is_open:
        yield None


def _write_tokens(
    pieces: Iterator[Piece], tokenizer: Tokenizer, has_documents: bool
) -> tuple[np.ndarray, TextCounts]:
    """Writes the token ids to a temporary file, and returns them as a mapped array."""
    small = tokenizer.vocabulary_size <= 2**16
    dtype, counts = np.dtype("uint16" if small else "int32"), TextCounts()
    start = np.array([tokenizer.start_token_id], dtype)
    end = np.array([tokenizer.end_token_id], dtype)
    is_open = False
    # The file has no name: it is removed when the array is.
    with tempfile.TemporaryFile() as file:
        for batch in _batches(pieces):
            lines = [piece for piece in batch if piece is not None]
            counts.line_endings += sum(line.endswith("\n") for line in lines)
            counts.characters += sum(map(len, lines))
            counts.bytes += sum(len(line.encode()) for line in lines)
            rows = iter(tokenizer.tokenize(lines).numpy() if lines else [])
            for piece in batch:
                if piece is None:
                    if is_open:
                        file.write(end.tobytes())
                        counts.documents += 1
                    is_open = False
                    continue
                if has_documents and not is_open:
                    if not counts.documents or start != end:  # One token can be both.
                        file.write(start.tobytes())
                    is_open = True
                tokens = next(rows)
                counts.unknown += int((tokens == tokenizer.unknown_token_id).sum())
                file.write(tokens.astype(dtype).tobytes())
        if not has_documents:
            counts.documents = 1
        file.flush()
        if file.tell() == 0:
            return np.zeros(0, dtype), counts
        return np.memmap(file, dtype, mode="r"), counts


def _batches(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    for piece in pieces:
        batch.append(piece)
        if len(batch) == LINES_AT_ONCE:
            yield batch
            batch = []
    yield batch
