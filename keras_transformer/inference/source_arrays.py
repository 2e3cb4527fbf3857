"""Sources that are arrays in place of token ids, such as frames or pixels."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import keras
import numpy as np
from keras import ops

from keras_transformer.types import Mask, Shape, Tensor


class ArraySpec(NamedTuple):
    """The arrays that a model takes as sources."""

    shape: tuple[int | None, ...] | None  # of one source; None = unknown
    dtype: str | None  # None = float32, or int32 for arrays of ints


class EmbeddedSources(NamedTuple):
    """Arrays and the outputs of a `source_embedding`."""

    arrays: Tensor  # (batch, ...), its inputs
    embedded: Tensor  # (batch, source_length, hidden_dim)
    mask: Mask  # bool (batch, source_length), the positions to attend to


# Token ids, arrays, or the result of `prepare_sources`.
Sources: TypeAlias = Any


def without_embedding(sources: Sources) -> Tensor:
    """Returns the arrays of `EmbeddedSources`, and other sources as they are."""
    return sources.arrays if isinstance(sources, EmbeddedSources) else sources


def spec_of_layer(layer: keras.layers.Layer) -> ArraySpec:
    """Returns what is known about the arrays that a layer of one input takes.

    It is the shape and dtype of the `Input` of a functional or sequential model, and
    the number of axes of another layer that is built.
    """
    given = getattr(layer, "inputs", None)
    if not given:
        built = layer.get_build_config() if layer.built else None
        shape = (built or {}).get("input_shape")
        return ArraySpec(shape and (None,) * (len(shape) - 1), None)
    if len(given) > 1:
        raise ValueError(
            "`source_embedding` must have one input; received a layer of "
            f"{len(given)} inputs, `source_embedding={layer}`."
        )
    return ArraySpec(tuple(given[0].shape[1:]), str(given[0].dtype))


def embed_arrays(
    layer: keras.layers.Layer,
    arrays: Tensor | EmbeddedSources,
    hidden_dim: int,
    training: bool | None = False,
) -> EmbeddedSources:
    """Calls a `source_embedding`, and checks its outputs.

    Without a Keras mask, all positions are attended to.
    """
    if isinstance(arrays, EmbeddedSources):
        return arrays
    embedded = layer(arrays, training=training)
    shape: Shape = getattr(embedded, "shape", ())
    if len(shape) != 3 or shape[-1] != hidden_dim:
        raise ValueError(
            "`source_embedding` must return a tensor of shape (batch, length, "
            f"hidden_dim={hidden_dim}); received a tensor of shape {tuple(shape)} for "
            f"arrays of shape {tuple(arrays.shape)}."
        )
    mask = _MaskOfInputs()(embedded)
    if mask is None:
        mask = ops.ones(ops.shape(embedded)[:2], "bool")
    return EmbeddedSources(arrays, embedded, ops.cast(mask, "bool"))


class _MaskOfInputs(keras.layers.Layer):
    """Returns the Keras mask of its inputs, which Keras passes to layers alone."""

    def __init__(self) -> None:
        # The name that Keras derives from that of the class is no scope of TensorFlow.
        super().__init__(name="mask_of_inputs")
        self.supports_masking = True

    def call(self, inputs: Tensor, mask: Mask | None = None) -> Mask | None:
        return mask


def array_rows(spec: ArraySpec, sources: Any, argument: str) -> list[np.ndarray]:
    """Converts sources that are arrays to a list with an array for each source.

    They are an array or tensor `(batch, ...)`, a list of arrays, or a `tf.data.Dataset`
    of either.
    """
    if isinstance(sources, str | bytes):
        raise _not_arrays(spec, argument, repr(sources)[:80])
    if hasattr(sources, "element_spec"):  # a dataset of TensorFlow
        batched = (_rows_of_element(spec, element, argument) for element in sources)
        rows: Iterable[Any] = itertools.chain.from_iterable(batched)
    elif hasattr(sources, "shape"):
        rows = ops.convert_to_numpy(sources)
    else:
        rows = sources
    try:
        entries = list(rows)
    except TypeError as error:
        raise _not_arrays(spec, argument, repr(sources)[:80]) from error
    return [
        _checked(spec, row, argument, f"row {index}")
        for index, row in enumerate(entries)
    ]


def _rows_of_element(spec: ArraySpec, element: Any, argument: str) -> Iterable[Any]:
    """Returns the rows of an element of a dataset, which is a batch or a row."""
    if not hasattr(element, "shape"):
        kind = type(element).__name__
        raise _not_arrays(spec, argument, f"a dataset of elements of class {kind}")
    is_row = spec.shape is not None and len(element.shape) == len(spec.shape)
    array = ops.convert_to_numpy(element)
    return [array] if is_row else array


def _checked(spec: ArraySpec, row: Any, argument: str, where: str) -> np.ndarray:
    array = ops.convert_to_numpy(row) if hasattr(row, "shape") else np.asarray(row)
    is_number = array.dtype.kind not in "USO"
    is_int = array.dtype.kind in "iub"
    dtype = spec.dtype or ("int32" if is_int else "float32")
    if not is_number or ("int" in dtype and not is_int):
        raise _not_arrays(spec, argument, f"an array of {array.dtype} in {where}")
    shape = spec.shape
    fits = shape is None or (
        len(shape) == array.ndim
        and all(n in (None, m) for n, m in zip(shape, array.shape, strict=True))
    )
    if not fits or array.ndim == 0:
        raise _not_arrays(spec, argument, f"shape {array.shape} in {where}")
    return array.astype(dtype)


def _not_arrays(spec: ArraySpec, argument: str, received: str) -> ValueError:
    kind, shape = spec.dtype or "numbers", "…"
    if spec.shape is not None:
        shape = ", ".join("…" if size is None else str(size) for size in spec.shape)
    return ValueError(
        f"`{argument}` must be arrays of {kind} for a model with `source_embedding`, "
        f"of shape (batch, {shape}) or a list of arrays ({shape}); received {received}."
    )


def indices_by_shape(rows: Sequence[np.ndarray]) -> list[list[int]]:
    """Groups the indices of arrays by shape: only arrays of one shape form a batch."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault(row.shape, []).append(index)
    return [groups[shape] for shape in sorted(groups)]


def stacked(rows: Sequence[np.ndarray], batch_size: int) -> np.ndarray:
    """Stacks arrays of one shape, and repeats the last one to fill the batch."""
    return np.stack([*rows, *[rows[-1]] * (batch_size - len(rows))])
