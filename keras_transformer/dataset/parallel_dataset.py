"""The dataset that `parallel_dataset` returns: epochs, positions and statistics."""

import functools
import weakref
from collections.abc import Iterator, Sequence

import numpy as np
import tensorflow as tf

from keras_transformer.arguments import check_ints
from keras_transformer.dataset.batches import (
    BatchArrays,
    BatchStream,
    Collator,
    PositionState,
)
from keras_transformer.dataset.buckets import FILLER, BatchShape
from keras_transformer.dataset.filters import FilterStatistics
from keras_transformer.dataset.freed_memory import keep_freed_memory
from keras_transformer.dataset.text_pairs import Corpus, Pair

PREFETCHED_BATCHES = 16


class ParallelDataset:
    """Batches of text pairs for `fit`, with statistics and positions.

    `parallel_dataset` creates it. Each new iterator of `dataset` yields the next epoch,
    starting with epoch 0. The batches of an epoch depend only on its number and on the
    arguments of `parallel_dataset`. `start_epoch` and `restore` set the position at
    which the next iterator starts. `print` shows the statistics.

    Attributes:
        dataset: `tf.data.Dataset` for `fit` with any backend. Pass `shuffle=False` to
            `fit`, since the dataset shuffles its pairs itself.
        shapes: tuple of `BatchShape`, the narrowest first. Every batch has one of these
            shapes. If epochs differ, the numbers of batches are those of the first
            epoch or, in a stream, those expected from the first window.
        padding_fraction: float from 0 to 1, the share of padding among all ids of the
            epoch or window that `shapes` describes.
        tokens_per_epoch: int, target tokens of an epoch, with end tokens and without
            padding, in the epoch or window that `shapes` describes.
    """

    def __init__(
        self,
        stream: BatchStream,
        collate: Collator,
        corpora: Sequence[Corpus],
        statistics: FilterStatistics,
        shapes: tuple[BatchShape, ...],
        padding_fraction: float,
        tokens_per_epoch: int,
    ) -> None:
        self._stream = stream
        self._collate = collate
        self._corpora = corpora
        self._statistics = statistics
        self.shapes = shapes
        self.padding_fraction = padding_fraction
        self.tokens_per_epoch = tokens_per_epoch

    @functools.cached_property
    def dataset(self) -> tf.data.Dataset:
        """The batches as a `tf.data.Dataset`, of which each iterator is one epoch."""
        return _tf_dataset(self._stream, self._collate)

    @property
    def batches_per_epoch(self) -> int:
        """Number of batches in each epoch."""
        return self._stream.batches_per_epoch

    @property
    def pairs_read(self) -> int:
        """Number of pairs in the data; in a stream, number of pairs read so far."""
        return self._statistics.pairs_read

    @property
    def dropped(self) -> dict[str, int]:
        """Number of dropped pairs by reason.

        The reasons are `"empty"`, `"max_source_length"`, `"max_target_length"`,
        `"max_length_ratio"` and `"duplicate"`. A pair is counted once, with the first
        reason that applies.
        """
        return dict(self._statistics.dropped)

    @property
    def pairs_kept(self) -> int:
        """Number of pairs read that are not dropped."""
        return self.pairs_read - sum(self.dropped.values())

    def state(self, batches: int) -> PositionState:
        """Returns a position in the data, for `restore`.

        Args:
            batches: int, number of batches from the start of the current epoch to the
                position, even if `restore` started the epoch at a later batch.
                `batches_per_epoch` gives the start of the next epoch.

        Returns:
            A dictionary of JSON values. The current epoch is the epoch of the newest
            iterator of `dataset` or, after `restore` or `start_epoch`, the epoch at
            which the next iterator starts.

        Raises:
            ValueError: if `batches` is not an int of at least 0.
        """
        return self._stream.state(batches)

    def restore(self, state: PositionState) -> None:
        """Makes the next iterator of `dataset` start at a position.

        This iterator yields the rest of the epoch, later iterators yield whole epochs.
        Existing iterators do not change. `len(dataset)` remains the length of a whole
        epoch.

        Args:
            state: result of `state`, of a dataset with the same arguments.

        Raises:
            ValueError: if `state` is not a position.
        """
        self._stream.restore(state)

    def start_epoch(self, epoch: int) -> None:
        """Makes the next iterator of `dataset` start at the beginning of an epoch.

        A stream reads the windows between the nearest known position and the epoch.

        Args:
            epoch: int, number of the epoch, counted from 0.

        Raises:
            ValueError: if `epoch` is not an int of at least 0.
        """
        check_ints(0, epoch=epoch)
        self._stream.restore({"epoch": epoch, "batch": 0})

    def batch(self, state: PositionState) -> BatchArrays:
        """Returns the batch at a position as NumPy arrays.

        Args:
            state: result of `state`.
        """
        return self._collate(*self._stream.at(state))

    def lines(self, state: PositionState) -> list[Pair]:
        """Returns the texts of the batch at a position, for inspection.

        The texts are read again from the files.

        Args:
            state: result of `state`.

        Returns:
            A list of (source, target) tuples, one for each row. Both texts are empty
            for a row of padding.
        """
        window, batch = self._stream.at(state)
        lines = window.pairs.lines
        readers = [corpus.reader() for corpus in self._corpora]
        used = np.unique(lines[batch.pairs[batch.pairs != FILLER]], axis=0).tolist()
        texts = {
            (corpus, line): readers[corpus](line, line + 1)[0] for corpus, line in used
        }
        return [
            ("", "") if pair == FILLER else texts[tuple(lines[pair].tolist())]
            for pair in batch.pairs
        ]

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
                f"{self.batches_per_epoch:,} batches per epoch in {len(self.shapes)} "
                f"shapes, {self.padding_fraction:.1%} padding",
                "source_length target_length   rows batches",
                *table,
            ]
        )


def _tf_dataset(stream: BatchStream, collate: Collator) -> tf.data.Dataset:
    """Returns a dataset of which each iterator yields the next epoch of the stream."""
    # TensorFlow never frees a generator or the objects that it references.
    held = [(stream, collate)]

    def epoch() -> Iterator[BatchArrays]:
        keep_freed_memory()  # After TensorFlow has created the generator.
        stream, collate = held[0]
        for window, batch in stream.epoch():
            yield collate(window, batch)

    with tf.device("CPU"):
        batches = tf.data.Dataset.from_generator(
            epoch, output_signature=collate.signature
        )
        # The cardinality of an epoch is known, but a restored epoch ends earlier, which
        # `assert_cardinality` does not permit. A choice between a finite and an
        # infinite dataset has infinite cardinality, even if it never chooses the
        # latter. `zip` then takes the cardinality of the range.
        batches = tf.data.Dataset.choose_from_datasets(
            [batches, batches.repeat()],
            tf.data.Dataset.from_tensors(np.int64(0)).repeat(),
            stop_on_empty_dataset=True,
        )
        numbers = tf.data.Dataset.range(stream.batches_per_epoch)
        dataset = tf.data.Dataset.zip(numbers, batches).map(lambda _, batch: batch)
        # Without this, `fit` waits up to five seconds for the autotuning thread to end.
        options = tf.data.Options()
        options.autotune.enabled = False
        dataset = dataset.prefetch(PREFETCHED_BATCHES).with_options(options)
    weakref.finalize(dataset, held.clear)
    return dataset
