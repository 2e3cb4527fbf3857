"""Running text: windows of token ids of one length, for language models."""

import dataclasses
import io
import itertools
import math
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Self, TypeAlias

import numpy as np
import tensorflow as tf

from keras_transformer.dataset.batches import BatchStream
from keras_transformer.dataset.epoch_dataset import EpochDataset
from keras_transformer.dataset.mixture import Mixture, parse_weights
from keras_transformer.dataset.parallel_text import check_shard
from keras_transformer.dataset.text_pairs import checksum_of
from keras_transformer.text import Paths, Tokenizer, decode_line, numbered_lines
from keras_transformer.text.tokenizer import check_tokenizer
from keras_transformer_runtime.arguments import (
    check_ints,
    check_one_of,
    check_unicode,
)
from keras_transformer_runtime.text_files import FilePath, path_list
from keras_transformer_runtime.text_rows import TextRows

DOCUMENTS = ("file", "line", "paragraph", None)
LINES_AT_ONCE = 4096

# A line of a text, or `None` at the end of a document.
Piece: TypeAlias = str | None
# Token ids, or inputs by name, and targets.
TextArrays: TypeAlias = tuple[np.ndarray | dict[str, np.ndarray], np.ndarray]


class EpochWindows(NamedTuple):
    """The windows of an epoch."""

    # Begin and end of each window in the text, with the token after its inputs, int
    # `(rows, 2)`. A row of padding has both 0.
    batches: list[np.ndarray]


@dataclasses.dataclass(frozen=True)
class CorpusWindows:
    """The windows of a corpus, which can begin at any token of it."""

    begin: int  # The first token of the corpus in the text.
    num_tokens: int
    length: int  # Input tokens of a window.

    @property
    def count(self) -> int:
        """Number of windows that fit, at whichever token the first one begins."""
        return max(1, (self.num_tokens - self._offsets) // self.length)

    @property
    def _offsets(self) -> int:
        """Number of tokens at which the first window can begin."""
        return min(self.length, max(1, self.num_tokens - self.length))

    def in_order(self) -> np.ndarray:
        """Returns windows that cover the corpus."""
        return self._spans(np.arange(math.ceil((self.num_tokens - 1) / self.length)), 0)

    def shuffled(self, *seed: int) -> np.ndarray:
        """Returns all windows, from a random token on and in random order."""
        random = np.random.default_rng(seed)
        offset = int(random.integers(self._offsets))
        return self._spans(random.permutation(np.arange(self.count)), offset)

    def _spans(self, numbers: np.ndarray, offset: int) -> np.ndarray:
        begins = self.begin + offset + numbers * self.length
        ends = np.minimum(begins + self.length + 1, self.begin + self.num_tokens)
        return np.stack([begins, ends], axis=1)


@dataclasses.dataclass(frozen=True)
class TextWindows:
    """The windows of all epochs."""

    corpora: tuple[CorpusWindows, ...]  # One, unless there are weights.
    mixture: Mixture | None  # Of the windows of the corpora, by weights.
    rows: int  # Windows of a batch.
    shuffle: bool  # Windows are shuffled, and begin elsewhere in each epoch.
    seed: int
    shard: tuple[int, int]  # Index of the worker, and number of workers.

    @property
    def windows(self) -> int:
        """Number of windows of an epoch, of all workers."""
        if self.mixture is None:
            return self.corpora[0].count if self.shuffle else len(self._of_epoch(0))
        return sum(each.stop - each.start for each in self.mixture.window(0))

    @property
    def batches(self) -> int:
        """Number of batches of an epoch, of this worker."""
        return math.ceil(math.ceil(self.windows / self.rows) / self.shard[1])

    def load(self, epoch: int) -> EpochWindows:
        """Returns the windows of an epoch; the result depends on its number alone."""
        index, workers = self.shard
        spans = self._of_epoch(epoch)
        count = math.ceil(len(spans) / self.rows)
        filled = np.zeros((count * self.rows, 2), int)
        filled[: len(spans)] = spans
        batches = filled.reshape(count, self.rows, 2)
        # Workers have equally many batches, so a few batches are used twice.
        each = math.ceil(count / workers)
        order = np.resize(np.arange(count), each * workers)[index::workers]
        return EpochWindows([*batches[order]])

    def _of_epoch(self, epoch: int) -> np.ndarray:
        if not self.shuffle:
            return self.corpora[0].in_order()
        if self.mixture is None:
            return self.corpora[0].shuffled(self.seed, epoch)
        parts = [
            self.corpora[corpus].shuffled(self.seed, corpus, repetition)[start:stop]
            for corpus, repetition, start, stop in self.mixture.window(epoch)
        ]
        random = np.random.default_rng((self.seed, epoch))
        # Some epochs have one window more of a corpus, which is left out at random.
        return random.permutation(np.concatenate(parts))[: self.windows]


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
        for row, (first, stop) in zip(rows, batch.tolist(), strict=True):
            row[: stop - first] = self.token_ids[first:stop]
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
        weights: Sequence[float] | None,
    ) -> None:
        stream = BatchStream(windows.load, windows.batches, aligned=True)
        length, num_tokens = collate.length, len(collate.token_ids)
        predicted = num_tokens - 1
        if windows.shuffle:
            predicted = min(predicted, windows.windows * length)
        super().__init__(
            stream,
            collate,
            collate.signature(windows.rows),
            math.ceil(predicted / windows.shard[1]),
            {
                "texts": checksum_of(collate.token_ids),
                "order": checksum_of(
                    *(length, windows.rows, windows.shuffle, windows.seed),
                    *(collate.separate, weights),
                ),
            },
        )
        self.num_documents = counts.documents
        self.num_tokens = num_tokens
        self.num_unknown = counts.unknown
        self.num_characters = counts.characters
        self.num_bytes = counts.bytes
        self.batch_shape = windows.rows, length

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

    def add(self, lines: Sequence[str]) -> None:
        """Counts lines."""
        self.line_endings += sum(line.endswith("\n") for line in lines)
        self.characters += sum(map(len, lines))
        self.bytes += sum(len(line.encode()) for line in lines)


def text_dataset(
    files: Paths | None = None,
    *,
    texts: Iterable[str] | None = None,
    column: str | None = None,
    tokenizer: Tokenizer,
    length: int,
    weights: Sequence[float] | None = None,
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
        files: one path or several paths of UTF-8 files, plain or gzip (`.gz`). Each
            row of a CSV file (`.csv`), of a JSONL file (`.jsonl`, `.ndjson`) and, with
            `column`, of a TSV file (`.tsv`) is read as a file of its own.
        texts: iterable of str, the documents, instead of `files`.
        column: name of the column of the text in files with columns, `a.b` for the name
            `b` in the object `a` of a JSONL file. `None`: they must have one column.
        tokenizer: `Tokenizer` of the text. It receives each line with its line ending,
            so a tokenizer with the token "\n" keeps the lines.
        length: int, number of tokens of a window.
        weights: list of numbers above 0, the relative share of the windows of each file
            in an epoch. An epoch has as many windows as all files together, so windows
            of a file with a larger share are repeated. No window has tokens of two
            files. `None`: the files are one text.
        tokens_per_batch: int, number of tokens of a batch: its rows are
            `tokens_per_batch // length`, at least one.
        documents: the unit of a document: `"file"` (in a file with columns: a row),
            `"line"` (a line that is not blank, without its line ending) or
            `"paragraph"` (lines up to a blank line). `None` = the files are one text
            without start and end tokens. With `texts`, it must be `"file"`.
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
    corpora = _pieces(files, texts, documents, column, weights)
    weights = parse_weights(weights, len(corpora))
    if weights is not None and not shuffle:
        raise ValueError(
            "`weights` must be `None` without `shuffle`; received "
            f"`weights={weights}`. Read each file in a dataset of its own."
        )
    token_ids, sizes, counts = _write_tokens(corpora, tokenizer, documents is not None)
    newline = tokenizer.tokenize(["\n"]).flat_values.numpy()
    if counts.line_endings and tokenizer.unknown_token_id in newline:
        warnings.warn(
            "`tokenizer` must have the token '\\n' to keep the lines; received one "
            f"that converts all {counts.line_endings:,} line endings to the unknown "
            "token. Train it on lines with their endings, such as those of "
            "`CharacterTokenizer.train(lines=open(path))`, or use `documents='line'`.",
            stacklevel=2,
        )
    if min(sizes, default=0) < 2:
        where = "The text" if weights is None else "Each file"
        raise ValueError(
            f"{where} must have at least two tokens, of which one is predicted from "
            f"the other; received {min(sizes, default=0)}."
        )
    begins = itertools.accumulate(sizes, initial=0)
    parts = tuple(
        CorpusWindows(begin, size, length)
        for begin, size in zip(begins, sizes, strict=False)
    )
    mixture = None
    if weights is not None:
        numbers = [part.count for part in parts]
        mixture = Mixture(numbers, weights, sum(numbers))
    rows = max(1, tokens_per_batch // length)
    windows = TextWindows(parts, mixture, rows, shuffle, seed, shard)
    ids = tokenizer.pad_token_id, tokenizer.start_token_id, tokenizer.end_token_id
    collate = TextCollator(token_ids, length, ids, separate_documents)
    return TextDataset(windows, collate, counts, weights)


def _pieces(
    files: Paths | None,
    texts: Iterable[str] | None,
    documents: str | None,
    column: str | None,
    weights: Sequence[float] | None,
) -> list[Iterator[Piece]]:
    """Returns the pieces of `files`, for each file with `weights`, or of `texts`."""
    if (files is None) == (texts is None):
        raise ValueError(
            "Either `files` or `texts` must be given; received "
            f"`files={files!r}`, `texts={texts!r:.80}`."
        )
    if texts is None:
        check_one_of(DOCUMENTS, documents=documents)
        paths = path_list(files or ())
        parts = [paths] if weights is None else [[path] for path in paths]
        return [text_pieces(part, documents, column) for part in parts]
    remedy = "Each of `texts` is a document."
    check_one_of(("file",), documents=documents, remedy=remedy)
    return [_document_pieces(texts)]


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


def text_pieces(
    files: Paths, documents: str | None, column: str | None = None
) -> Iterator[Piece]:
    """Yields the lines of files, and `None` after each document.

    Lines have their endings if a document can have several of them. Each row of a file
    with columns is read as a file.
    """
    for lines in _texts(files, documents, column):
        if documents == "line":
            for line in filter(str.strip, lines):
                yield line.rstrip("\n")
                yield None
        elif documents == "paragraph":
            yield from _paragraphs(lines)
        else:
            yield from lines
            if documents == "file":
                yield None


def text_documents(
    files: Paths, documents: str | None, column: str | None = None
) -> Iterator[str]:
    """Reads the documents of running text; see `text_pieces`."""
    lines: list[str] = []
    for piece in text_pieces(files, documents, column):
        if piece is not None:
            lines.append(piece)
        elif lines:
            yield "".join(lines)
            lines = []
    if lines:
        yield "".join(lines)


def has_rows(path: FilePath, column: str | None) -> bool:
    """Returns whether a file of running text has columns, of which one is the text."""
    return bool(_rows(path, column).names)


def _rows(path: FilePath, column: str | None) -> TextRows:
    return TextRows.of(path, None if column is None else [column], 1)


def _texts(
    files: Paths, documents: str | None, column: str | None
) -> Iterator[Iterator[str]]:
    """Yields the lines, with their endings, of each file or of each row of it."""
    for path in path_list(files):
        rows = _rows(path, column)
        if not rows.names:
            yield _lines(path)
            continue
        for (text,) in rows:
            # One text without documents has the rows one below the other.
            is_open = documents is None and not text.endswith("\n")
            yield io.StringIO(f"{text}\n" if is_open else text, newline="\n")


def _lines(path: FilePath) -> Iterator[str]:
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
    corpora: Sequence[Iterator[Piece]], tokenizer: Tokenizer, has_documents: bool
) -> tuple[np.ndarray, list[int], TextCounts]:
    """Writes the token ids to a temporary file.

    Returns them as a mapped array, with the number of tokens of each corpus.
    """
    small = tokenizer.vocabulary_size <= 2**16
    dtype, counts = np.dtype("uint16" if small else "int32"), TextCounts()
    start = np.array([tokenizer.start_token_id], dtype)
    end = np.array([tokenizer.end_token_id], dtype)
    ends = [0]
    # The file has no name: it is removed when the array is.
    with tempfile.TemporaryFile() as file:
        for pieces in corpora:
            is_open, is_first = False, True
            for batch in _batches(pieces):
                lines = [piece for piece in batch if piece is not None]
                counts.add(lines)
                rows = iter(tokenizer.tokenize(lines).numpy() if lines else [])
                for piece in batch:
                    if piece is None:
                        if is_open:
                            file.write(end.tobytes())
                            counts.documents += 1
                        is_open = False
                        continue
                    if has_documents and not is_open:
                        if is_first or start != end:  # One token can be both.
                            file.write(start.tobytes())
                        is_open, is_first = True, False
                    tokens = next(rows)
                    counts.unknown += int((tokens == tokenizer.unknown_token_id).sum())
                    file.write(tokens.astype(dtype).tobytes())
            ends.append(file.tell() // dtype.itemsize)
        if not has_documents:
            counts.documents = len(corpora)
        file.flush()
        sizes = [stop - first for first, stop in itertools.pairwise(ends)]
        if ends[-1] == 0:
            return np.zeros(0, dtype), sizes, counts
        return np.memmap(file, dtype, mode="r"), sizes, counts


def _batches(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    for piece in pieces:
        batch.append(piece)
        if len(batch) == LINES_AT_ONCE:
            yield batch
            batch = []
    yield batch
