"""Batches of sentence pairs for `fit`, and positions in them."""

import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.arguments import check_ints
from keras_transformer.dataset.batch_stream import BatchStream
from keras_transformer.dataset.buckets import BatchShape
from keras_transformer.dataset.collating import Collator
from keras_transformer.dataset.filters import Account
from keras_transformer.dataset.freed_memory import keep_freed_memory
from keras_transformer.dataset.pairs import Corpus, Pair

PREFETCHED_BATCHES = 16


class ParallelDataset:
    """Batches of sentence pairs, and an account of them (`print` it).

    `parallel_dataset` makes it. Each new iterator of `dataset` is the next epoch, from
    number 0 on. The batches of an epoch are a function of its number and of the
    arguments of `parallel_dataset` alone; `start_epoch` and `restore` say where the
    next iterator begins.

    Attributes:
        dataset: `tf.data.Dataset` for `fit` on any backend. Pass `shuffle=False` to
            `fit`: Keras warns otherwise that it leaves the order to the dataset.
        shapes: the batch shapes, narrowest first. Every batch has one of them. How
            many an epoch has of each is exact unless epochs differ; it is then that
            of the first epoch or, in a stream, of the first window.
        padding_fraction: share of padding among all ids, from 0 to 1, in the epoch or
            window that `shapes` counts.
        tokens_per_epoch: target tokens of an epoch, with end and without padding, as
            many as `shapes` counts.
    """

    def __init__(
        self,
        stream: BatchStream,
        collate: Collator,
        corpora: Sequence[Corpus],
        account: Account,
        shapes: tuple[BatchShape, ...],
        padding_fraction: float,
        tokens_per_epoch: int,
    ):
        self._stream = stream
        self._collate = collate
        self._corpora = corpora
        self._account = account
        self.shapes = shapes
        self.padding_fraction = padding_fraction
        self.tokens_per_epoch = tokens_per_epoch
        self.dataset = _tf_dataset(stream, collate)

    @property
    def batches_per_epoch(self) -> int:
        """Batches in an epoch, the same in each."""
        return self._stream.batches_per_epoch

    @property
    def pairs_read(self) -> int:
        """Pairs in the data; of a stream, those read so far."""
        return self._account.pairs_read

    @property
    def dropped(self) -> dict[str, int]:
        """Those of them that are left out, by reason; a pair counts once.

        The reasons are `"empty"`, `"duplicate"`, `"max_source_length"`,
        `"max_target_length"` and `"max_length_ratio"`.
        """
        return dict(self._account.dropped)

    @property
    def pairs_kept(self) -> int:
        """Those of them that are used."""
        return self.pairs_read - sum(self.dropped.values())

    def state(self, batches: int) -> dict[str, int]:
        """The position in the data, for `restore`.

        Args:
            batches: batches of the running epoch before it, counted from the epoch's
                start also where `restore` began the epoch in its middle. After
                `batches_per_epoch` comes the start of the next epoch.

        Returns:
            JSON values. The running epoch is that of the newest iterator of `dataset`
            or, after `restore` or `start_epoch`, the one where the next will begin.
        """
        return self._stream.state(batches)

    def restore(self, state: dict[str, int]) -> None:
        """Makes the next iterator of `dataset` give the rest of an epoch.

        The iterators after it give whole epochs; one that runs already goes on as it
        was. `len(dataset)` stays that of a whole epoch.

        Args:
            state: what `state` gave, of a dataset made with the same arguments.

        Raises:
            ValueError: if `state` is something else.
        """
        self._stream.restore(state)

    def start_epoch(self, epoch: int) -> None:
        """Makes the next iterator of `dataset` give the epoch of this number.

        A stream that has not come near it reads its way there.

        Args:
            epoch: number of the epoch, from 0.

        Raises:
            ValueError: if `epoch` is something else.
        """
        check_ints(0, epoch=epoch)
        self._stream.restore({"epoch": epoch, "batch": 0})

    def batch(self, state: dict[str, int]) -> tuple[Any, ...]:
        """The batch that comes next at a position: NumPy arrays, as in `dataset`.

        Args:
            state: what `state` gave.
        """
        return self._collate(*self._stream.at(state))

    def lines(self, state: dict[str, int]) -> list[Pair]:
        """The (source, target) texts of that batch, row by row, to look at.

        They are read anew. A row of padding that fills up the batch has empty texts.

        Args:
            state: what `state` gave.
        """
        window, batch = self._stream.at(state)
        rows = [
            (-1, -1) if number < 0 else tuple(window.pairs.lines[number].tolist())
            for number in batch.numbers
        ]
        texts = {(-1, -1): ("", "")}
        readers = [corpus.reader() for corpus in self._corpora]
        for corpus, line in sorted(set(rows) - set(texts)):
            texts[corpus, line] = readers[corpus](line, line + 1)[0]
        return [texts[row] for row in rows]

    def __str__(self) -> str:
        reasons = ", ".join(f"{name} {count:,}" for name, count in self.dropped.items())
        table = [
            f"{shape.source_length:>13} {shape.target_length:>13} {shape.rows:>6,} "
            f"{shape.batches:>7,}"
            for shape in self.shapes
        ]
        return "\n".join(
            [
                f"{self.pairs_read:,} pairs read, {self.pairs_kept:,} kept "
                f"(dropped: {reasons})",
                f"{self.batches_per_epoch:,} batches an epoch in {len(self.shapes)} "
                f"shapes, {self.padding_fraction:.1%} padding",
                "source_length target_length   rows batches",
                *table,
            ]
        )


def _tf_dataset(stream: BatchStream, collate: Collator) -> tf.data.Dataset:
    """The epochs of the stream: each iterator is the next one."""
    # TensorFlow keeps every generator for good, and with it what it refers to.
    held = [(stream, collate)]

    def epoch() -> Iterator[tuple[Any, Any]]:
        keep_freed_memory()  # TensorFlow has made the generator by now.
        stream, collate = held[0]
        for window, batch in stream.epoch():
            yield collate(window, batch)

    with tf.device("CPU"):
        batches = tf.data.Dataset.from_generator(
            epoch, output_signature=collate.signature
        )
        # An epoch has a known length and may yet end early, as a restored one does:
        # `assert_cardinality` would not let it. A choice between datasets counts as
        # infinite where one of them is, though here only the other is ever chosen.
        batches = tf.data.Dataset.choose_from_datasets(
            [batches, batches.repeat()],
            tf.data.Dataset.from_tensors(np.int64(0)).repeat(),
            stop_on_empty_dataset=True,
        )
        numbers = tf.data.Dataset.range(stream.batches_per_epoch)
        dataset = tf.data.Dataset.zip(numbers, batches).map(lambda _, batch: batch)
        # The thread that would tune this one buffer takes up to five seconds to end,
        # and `fit` waits for it.
        options = tf.data.Options()
        options.autotune.enabled = False
        dataset = dataset.prefetch(PREFETCHED_BATCHES).with_options(options)
    weakref.finalize(dataset, held.clear)
    return dataset
