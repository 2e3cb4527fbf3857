"""Epochs of labelled rows of token ids, with positions, for runs that are resumed."""

import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer.dataset.batches import BatchStream, PositionState
from keras_transformer.dataset.epoch_dataset import EpochDataset

SORTED_BATCHES = 50  # that are sorted by length together

# Inputs by name, targets and weights.
Arrays = tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]


class LabelledRow(NamedTuple):
    """A row of token ids and what a model learns from it.

    Attributes:
        text: str, the text, for messages.
        inputs: dictionary of the inputs of the model by name, lists of int.
        target: the number of a class, a list of 0 and 1 for each class, or the number
            of a class for each word.
        weight: float, or a list of float for each word.
    """

    text: str
    inputs: Mapping[str, Sequence[int]]
    target: int | Sequence[float] | Sequence[int]
    weight: float | Sequence[float] = 1.0


class _Epoch(NamedTuple):
    batches: list[np.ndarray]  # places of rows


class LabelledDataset(EpochDataset[_Epoch, Arrays]):
    """Batches of labelled rows for `fit`, of few shapes.

    The order of an epoch depends on its number and the seed. Rows of similar lengths
    are in one batch. All batches have `batch_size` rows: rows with the weight 0 fill
    the last one.

    Args:
        rows: list of `LabelledRow`s.
        paddings: dictionary of the padding of each input.
        lengths: list of int, lengths to which token ids are padded.
        batch_size: int, number of rows of a batch.
        shuffle: bool, whether each epoch has another order.
        seed: int, seed of the order.
    """

    def __init__(
        self,
        rows: Sequence[LabelledRow],
        paddings: Mapping[str, int],
        lengths: Sequence[int],
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
    ):
        self._rows = rows
        self._paddings, self._lengths = paddings, lengths
        self._batch_size, self._shuffle, self._seed = batch_size, shuffle, seed
        self._row_lengths = np.array([len(row.inputs["token_ids"]) for row in rows])
        has_words = "first_pieces" in paddings
        rank = 2 if has_words or np.ndim(rows[0].target) else 1
        dtype = tf.float32 if rank == 2 and not has_words else tf.int32
        specs = (
            {name: tf.TensorSpec((None, None), tf.int32) for name in paddings},
            tf.TensorSpec([None] * rank, dtype),
            tf.TensorSpec([None] * (1 + has_words), tf.float32),
        )
        content = repr([(row.text, row.target, row.weight) for row in rows])
        order = repr((batch_size, shuffle, seed, [*lengths]))
        super().__init__(
            BatchStream(self._epoch, -(-len(rows) // batch_size), aligned=True),
            self._collate,
            specs,
            int(self._row_lengths.sum()),
            {
                "texts": zlib.crc32(content.encode("utf-8", "surrogatepass")),
                "order": zlib.crc32(order.encode()),
            },
        )

    def _epoch(self, number: int) -> _Epoch:
        order = np.arange(len(self._rows))
        rng = np.random.default_rng((self._seed, number))
        if self._shuffle:
            order = rng.permutation(order)
        size = self._batch_size
        batches = []
        for start in range(0, len(order), SORTED_BATCHES * size):
            part = order[start : start + SORTED_BATCHES * size]
            part = part[np.argsort(self._row_lengths[part], kind="stable")]
            batches += [part[i : i + size] for i in range(0, len(part), size)]
        if self._shuffle:
            batches = [batches[place] for place in rng.permutation(len(batches))]
        return _Epoch(batches)

    def _collate(self, window: _Epoch, index: int) -> Arrays:
        places = window.batches[index]
        rows = [self._rows[place] for place in places]
        filled = [*rows, *rows[-1:] * (self._batch_size - len(rows))]
        lengths = self._lengths
        inputs = {
            name: padded([row.inputs[name] for row in filled], lengths, padding)
            for name, padding in self._paddings.items()
        }
        has_words = "first_pieces" in inputs
        shape: tuple[int, ...] = (len(filled),)
        if has_words:
            width = inputs["first_pieces"].shape[1]
            targets = padded([row.target for row in filled], [width], 0)
            shape = (len(filled), width)
        else:
            targets = np.array([row.target for row in filled])
            targets = targets.astype("int32" if targets.ndim == 1 else "float32")
        weights = np.zeros(shape, "float32")
        for place, row in enumerate(rows):
            if has_words:
                weights[place, : len(row.weight)] = row.weight
            else:
                weights[place] = row.weight
        return inputs, targets, weights

    def lines(self, state: PositionState) -> list[tuple[str, str]]:
        """Returns the texts and the targets of the batch at a position.

        Args:
            state: result of `state`.
        """
        window, index = self._stream.at(state)
        rows = [self._rows[place] for place in window.batches[index]]
        return [(row.text, str(row.target)) for row in rows]


def padded(
    rows: Sequence[Sequence[int]], lengths: Sequence[int], padding: int
) -> np.ndarray:
    """Pads rows to the first of `lengths` that all fit in, or to the longest row."""
    longest = max(map(len, rows))
    length = next((each for each in lengths if each >= longest), longest)
    found = np.full((len(rows), length), padding, "int32")
    for row, ids in zip(found, rows, strict=True):
        row[: len(ids)] = ids
    return found
