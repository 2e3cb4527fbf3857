"""The dataset that `parallel_dataset` returns: epochs, positions and statistics."""

import functools
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_transformer.dataset.batches import BatchStream, Collator, PositionState
from keras_transformer.dataset.buckets import FILLER, BatchShape
from keras_transformer.dataset.epoch_dataset import EpochDataset
from keras_transformer.dataset.filters import FilterStatistics
from keras_transformer.dataset.text_pairs import Corpus, Pair
from keras_transformer.dataset.windows import PairWindow


class ParallelDataset(EpochDataset[PairWindow]):
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
        output_length_ratio: float >= 1, 1.5 times the ratio of target tokens to source
            tokens that 99.9 % of the pairs do not exceed, in that epoch or window.
            `fit` passes it on to the model, whose outputs then have room for it.
        checksums: dictionary of two ints that distinguish the data: `"texts"` and
            `"order"`, the arguments that determine the batches. `Checkpoints` compares
            them when a run is resumed.
    """

    def __init__(
        self,
        stream: BatchStream[PairWindow],
        collate: Collator,
        corpora: Sequence[Corpus],
        statistics: FilterStatistics,
        shapes: tuple[BatchShape, ...],
        padding_fraction: float,
        tokens_per_epoch: int,
        output_length_ratio: float,
        checksums: dict[str, int],
    ) -> None:
        super().__init__(
            stream, collate, collate.signature, tokens_per_epoch, checksums
        )
        self.output_length_ratio = output_length_ratio
        self._corpora = corpora
        self._statistics = statistics
        self.shapes = shapes
        self.padding_fraction = padding_fraction

    @functools.cached_property
    def dataset(self) -> tf.data.Dataset:
        """The batches as a `tf.data.Dataset`, of which each iterator is one epoch."""
        dataset = super().dataset
        dataset.output_length_ratio = self.output_length_ratio
        return dataset

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
