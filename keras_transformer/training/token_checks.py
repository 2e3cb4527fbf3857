"""Checks of the token ids of `fit`, `evaluate` and `predict`, on the host.

Keras's embeddings look ids outside the vocabulary up without an error, on most devices.
A compiled step cannot raise an error either. So the ids are checked before it, where
NumPy takes microseconds for a batch.
"""

import copy
import functools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np
from keras import ops

from keras_transformer.backend.checked_dataset import checked_dataset

# A function that raises an error for a wrong batch, and returns the batch.
CheckBatch: TypeAlias = Callable[[object], object]


class Vocabularies(NamedTuple):
    """What the token ids of a model must be.

    Attributes:
        inputs: the size of the vocabulary of each entry of the inputs; the key of
            inputs that are not a dictionary is `""`.
        targets: int, size of the vocabulary of the targets; 0 if it is unknown.
        pad_token_id: int, the padding of the inputs.
        start_token_id: int, the first token of `"decoder_token_ids"`, which may be the
            padding, as in Marian's models; `None` if there is none.
        ignored: set of ints, the targets that the loss ignores; `None` = targets are
            not checked, since the loss may ignore any.
    """

    inputs: Mapping[str, int]
    targets: int
    pad_token_id: int
    start_token_id: int | None = None
    ignored: frozenset[int] | None = None


class TokenChecks:
    """Checks batches, and keeps the first error.

    TensorFlow replaces the errors of a dataset by its own. The caller raises `error`
    in their place.

    Attributes:
        error: the first `ValueError`, or `None`.
    """

    def __init__(self, vocabularies: Vocabularies) -> None:
        self._vocabularies = vocabularies
        self.error: ValueError | None = None

    def check(
        self,
        x: object,  # array `(rows, length)`, or a dictionary of them
        y: object = None,  # array `(rows, target_length)`; others are not checked
        weights: object = None,  # array `(rows, target_length)` or `(rows,)`
        *,
        of: str = "",  # what the rows belong to, for messages
        name: str,  # the argument `x`, for messages
    ) -> None:
        """Checks a batch, or all arrays of `fit`: ids, dtypes and places of padding."""
        inputs = x if isinstance(x, Mapping) else {"": x}
        try:
            for key, size in self._vocabularies.inputs.items():
                place = f'`{name}["{key}"]`' if key else f"`{name}`"
                ids = _ids(inputs.get(key), place)
                if ids is not None:
                    is_packed = "segment_ids" in inputs
                    self._check_inputs(ids, size, key, place, of, is_packed)
            ignored = self._vocabularies.ignored if self._vocabularies.targets else None
            if ignored is not None:
                place = "`y`" if name == "x" else f"`y` of `{name}`"
                targets = _ids(y, place)
                if targets is not None:
                    self._check_targets(targets, weights, ignored, place, of)
        except ValueError as error:
            self.error = self.error or error
            raise

    def _check_inputs(
        self,
        ids: np.ndarray,
        size: int,
        key: str,
        place: str,
        of: str,
        is_packed: bool,
    ) -> None:
        pad = self._vocabularies.pad_token_id
        _check_range(ids, size, place, of, "")
        if is_packed:  # Texts of a row need no padding between them.
            return
        real = ids != pad
        if key == "decoder_token_ids" and pad == self._vocabularies.start_token_id:
            real = real[:, 1:]
        starts = real[:, :1].sum(axis=1) + (real[:, 1:] & ~real[:, :-1]).sum(axis=1)
        if key == "decoder_token_ids":
            starts = starts + (~real[:, :1].all(axis=1) & real.any(axis=1))
        wrong = np.flatnonzero(starts > 1)
        if len(wrong):
            sides = "at its end" if key == "decoder_token_ids" else "at one end"
            raise ValueError(
                f"{place} must have the padding of a row {sides}; received "
                f"`pad_token_id={pad}` before other tokens in row {wrong[0]}{of}: "
                f"{ids[wrong[0]].tolist()!r:.100}. Remove the padding within the row. "
                f"If {pad} is a token of your texts, build the model with another "
                "`pad_token_id` that no text has."
            )

    def _check_targets(
        self,
        ids: np.ndarray,
        weights: object,
        ignored: frozenset[int],
        place: str,
        of: str,
    ) -> None:
        used = ~np.isin(ids, [*ignored])
        if weights is not None:
            weights = np.asarray(_as_array(weights))
            if weights.shape in (ids.shape, ids.shape[:1]):
                used &= (weights != 0).reshape(len(ids), -1)
        remedy = ""
        if (ids == -100).any():
            remedy = (
                " If -100 marks tokens that the loss ignores, pass `pad_token_id=-100` "
                "to the loss and to the metrics."
            )
        ids = np.where(used, ids, 0)
        _check_range(ids, self._vocabularies.targets, place, of, remedy)

    def applied_to(self, data: Any, name: str) -> Any:
        """Returns data whose batches are checked when they are made."""
        check = functools.partial(self._check_batch, name)
        if isinstance(data, types.GeneratorType):
            return _each(check, data)
        if isinstance(data, keras.utils.PyDataset):
            return _CheckedPyDataset(data, check)
        if hasattr(data, "element_spec") and hasattr(data, "map"):
            return checked_dataset(check, data)
        if hasattr(data, "collate_fn"):
            data, collate = copy.copy(data), data.collate_fn
            data.collate_fn = functools.partial(_collate, check, collate)
        return data

    def _check_batch(self, name: str, batch: object) -> object:
        parts = batch if isinstance(batch, tuple) else (batch,)
        self.check(*parts[:3], of=" of a batch", name=name)
        return batch


def _ids(x: object, place: str) -> np.ndarray | None:
    """Returns an array `(rows, length)` of integers; `None` for other data."""
    array = _as_array(x)
    if array is None or array.ndim != 2 or not array.size:
        return None
    if "float" in str(array.dtype):
        raise ValueError(
            f"{place} must be integers, as token ids are; received an array of "
            f'{array.dtype}. Convert it, for example with `.astype("int32")`.'
        )
    return array if array.dtype.kind in "iu" else None


def _as_array(x: Any) -> np.ndarray | None:
    if isinstance(x, np.ndarray):
        return x
    return np.asarray(ops.convert_to_numpy(x)) if hasattr(x, "shape") else None


def _check_range(ids: np.ndarray, size: int, place: str, of: str, remedy: str) -> None:
    if ids.min() >= 0 and ids.max() < size:
        return
    row, column = np.argwhere((ids < 0) | (ids >= size))[0]
    raise ValueError(
        f"{place} must have token ids from 0 to {size - 1} (the vocabulary has {size} "
        f"entries); received {ids[row, column]} in row {row}{of}.{remedy}"
    )


def _each(check: CheckBatch, batches: Iterator[object]) -> Iterator[object]:
    for batch in batches:
        yield check(batch)


def _collate(check: CheckBatch, collate: CheckBatch, rows: object) -> object:
    batch = collate(rows)
    check(tuple(batch) if isinstance(batch, list) else batch)
    return batch


class _CheckedPyDataset(keras.utils.PyDataset):
    """The batches of another `PyDataset`, checked."""

    def __init__(self, data: keras.utils.PyDataset, check: CheckBatch):
        super().__init__(
            workers=data.workers,
            use_multiprocessing=data.use_multiprocessing,
            max_queue_size=data.max_queue_size,
        )
        self._data, self._check = data, check

    def __getitem__(self, index: int) -> object:
        return self._check(self._data[index])

    @property
    def num_batches(self) -> int | None:
        return self._data.num_batches

    def on_epoch_begin(self) -> None:
        self._data.on_epoch_begin()

    def on_epoch_end(self) -> None:
        self._data.on_epoch_end()
