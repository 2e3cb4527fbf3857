"""Base class of the datasets: a `tf.data.Dataset` of epochs, with positions."""

import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import numpy as np
import tensorflow as tf

from keras_transformer.backend.freed_memory import keep_freed_memory
from keras_transformer.dataset.batches import BatchStream, PositionState, WindowT
from keras_transformer_runtime.arguments import check_ints

PREFETCHED_BATCHES = 16

ArraysT = TypeVar("ArraysT")


class EpochDataset(Generic[WindowT, ArraysT]):
    """Batches for `fit`, in epochs, with positions.

    Each new iterator of `dataset` yields the next epoch, starting with epoch 0. The
    batches of an epoch depend only on its number and on the arguments of the dataset.
    `start_epoch` and `restore` set the position at which the next iterator starts.

    Args:
        stream: the batches.
        collate: function from a window and the index of a batch in it to arrays.
        signature: the `tf.data` signature of the arrays.
        tokens_per_epoch: int, target tokens of an epoch, without padding.
        checksums: dictionary of two ints that distinguish the data: `"texts"` and
            `"order"`, the arguments that determine the batches.

    Attributes:
        dataset: `tf.data.Dataset` for `fit` with any backend. Pass `shuffle=False` to
            `fit`, since the dataset shuffles itself.
    """

    def __init__(
        self,
        stream: BatchStream[WindowT],
        collate: Callable[[WindowT, int], ArraysT],
        signature: object,
        tokens_per_epoch: int,
        checksums: dict[str, int],
    ) -> None:
        self._stream = stream
        self._collate = collate
        self._signature = signature
        self.tokens_per_epoch = tokens_per_epoch
        self.checksums = checksums

    def __getstate__(self) -> dict[str, object]:
        # A `tf.data.Dataset` cannot be copied, and is made when it is needed.
        return {name: each for name, each in vars(self).items() if name != "dataset"}

    @functools.cached_property
    def dataset(self) -> tf.data.Dataset:
        """The batches as a `tf.data.Dataset`, of which each iterator is one epoch."""
        return _tf_dataset(self._stream, self._collate, self._signature)

    @property
    def batches_per_epoch(self) -> int:
        """Number of batches in each epoch."""
        return self._stream.batches_per_epoch

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

    def batch(self, state: PositionState) -> ArraysT:
        """Returns the batch at a position as NumPy arrays.

        Args:
            state: result of `state`.
        """
        return self._collate(*self._stream.at(state))


def _tf_dataset(
    stream: BatchStream[WindowT],
    collate: Callable[[WindowT, int], ArraysT],
    signature: object,
) -> tf.data.Dataset:
    """Returns a dataset of which each iterator yields the next epoch of the stream."""
    # TensorFlow never frees a generator or the objects that it references.
    held = [(stream, collate)]

    def epoch() -> Iterator[ArraysT]:
        keep_freed_memory()  # After TensorFlow has created the generator.
        stream, collate = held[0]
        for window, index in stream.epoch():
            yield collate(window, index)

    with tf.device("CPU"):
        batches = tf.data.Dataset.from_generator(epoch, output_signature=signature)
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
