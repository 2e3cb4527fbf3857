"""Batches of texts and their labels as inputs of a model, for `fit` and `evaluate`."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from keras_transformer.dataset.encoder_inputs import (
    EncodedTexts,
    EncodedWords,
    pad_rows,
)
from keras_transformer.types import Data

# Texts, pairs of texts or words to the inputs of a model.
ToInputs: TypeAlias = Callable[[Data], Data]
# Labels, their sources and the inputs to the targets of a model and weights or `None`.
ToTargets: TypeAlias = Callable[[Data, Data, Data], tuple[Data, Data]]


def has_texts(dataset: tf.data.Dataset) -> bool:
    """Returns whether the sources of a dataset are strings."""
    spec = dataset.element_spec
    sources = spec[0] if isinstance(spec, tuple) else spec
    return all(each.dtype == tf.string for each in tf.nest.flatten(sources))


def batch_rows(
    sources: Data,
    labels: Data,
    weights: Data,
    batch_size: int,
    shuffle: bool,
    seed: int,
) -> tf.data.Dataset:
    """Returns a dataset of batches of rows, in another order in each epoch."""
    parts = (sources, labels) if weights is None else (sources, labels, weights)
    dataset = tf.data.Dataset.from_tensor_slices(parts)
    if shuffle:
        dataset = dataset.shuffle(len(dataset), seed=seed)
    return dataset.batch(batch_size)


def convert_batches(
    dataset: tf.data.Dataset,
    to_inputs: ToInputs,
    to_targets: ToTargets,
    batch_size: int,
    batch_rank: int,
) -> tf.data.Dataset:
    """Converts a dataset of sources, labels and optional weights, batched or not.

    `batch_rank` is the number of axes of a batch of sources.
    """
    spec = dataset.element_spec
    first = tf.nest.flatten(spec[0] if isinstance(spec, tuple) else spec)[0]
    has_words = batch_rank == 2
    if first.shape.rank == batch_rank - 1:
        has_lists = any(None in each.shape for each in tf.nest.flatten(spec))
        is_ragged = has_words or has_lists
        dataset = (dataset.ragged_batch if is_ragged else dataset.batch)(batch_size)
    elif first.shape.rank != batch_rank:
        raise ValueError(
            f"`x` must be a dataset of strings, batched or not; received {first}."
        )
    elif has_words and not isinstance(first, tf.RaggedTensorSpec):
        raise ValueError(
            "`x` must have batches of words as ragged tensors; received "
            f"{first}. Batch the dataset with `ragged_batch`."
        )

    @tf.autograph.experimental.do_not_convert
    def convert(sources: Data, labels: Data = None, weights: Data = None) -> Data:
        inputs = to_inputs(sources)
        if labels is None:
            return inputs
        targets, own = to_targets(labels, sources, inputs)
        if weights is not None:
            own = weights if own is None else own * weights[:, None]
        return (inputs, targets) if own is None else (inputs, targets, own)

    return dataset.map(convert, tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def text_inputs(
    encode: Callable[[tf.Tensor, tf.Tensor | None], EncodedTexts],
    sources: Data,
    pad_token_id: int,
    lengths: Sequence[int],
    warn: Callable[[], None],
) -> dict[str, tf.Tensor]:
    """Converts a batch of texts or pairs of texts to inputs; warns of cut texts."""
    first, second = sources if isinstance(sources, tuple) else (sources, None)
    encoded = encode(first, second)
    token_ids = pad_rows(encoded.token_ids, pad_token_id, lengths)
    with tf.control_dependencies([when_any(encoded.is_cut, warn)]):
        token_ids = tf.identity(token_ids)
    return {
        "token_ids": token_ids,
        "segment_ids": pad_rows(encoded.segment_ids, 0, lengths),
    }


def word_inputs(
    encoded: EncodedWords,
    pad_token_id: int,
    lengths: Sequence[int],
    warn: Callable[[], None],
) -> dict[str, tf.Tensor]:
    """Converts the words of a batch to inputs; warns of cut sentences."""
    token_ids = pad_rows(encoded.token_ids, pad_token_id, lengths)
    with tf.control_dependencies([when_any(encoded.is_cut, warn)]):
        token_ids = tf.identity(token_ids)
    first_pieces = pad_rows(encoded.first_pieces, 0, lengths)
    return {"token_ids": token_ids, "first_pieces": first_pieces}


def several_labels(labels: Data, names: list[str]) -> tf.Tensor:
    """Converts rows of labels, or 0 and 1 for each class, to float32 targets."""
    if isinstance(labels, tf.Tensor):
        if labels.dtype != tf.string:
            return tf.cast(labels, tf.float32)
        return tf.reduce_max(tf.one_hot(class_ids(labels, names, "y"), len(names)), 1)
    hot = labels.with_flat_values(
        tf.one_hot(class_ids(labels.flat_values, names, "y"), len(names))
    )
    return tf.reduce_max(hot.to_tensor(0.0, shape=[None, None, len(names)]), 1)


def tag_targets(
    labels: tf.RaggedTensor,
    sources: tf.RaggedTensor,
    first_pieces: tf.Tensor,
    names: list[str],
) -> tuple[tf.Tensor, tf.Tensor]:
    """Converts the tags of words to targets `(batch, words)`, and weights of words."""
    ids = class_ids(labels.flat_values, names, "y")
    counts = (sources.row_lengths(), labels.row_lengths())
    message = "`y` must have a tag for each word; received"
    ids = asserted(ids, tf.reduce_all(counts[0] == counts[1]), message, *counts)
    shape = tf.shape(first_pieces)
    targets = labels.with_flat_values(ids)[:, : shape[1]].to_tensor(0, shape=shape)
    return targets, tf.cast(first_pieces > 0, tf.float32)


def ragged_words(sentences: Sequence[Sequence[str]]) -> tf.RaggedTensor:
    """Returns words as a ragged string tensor `(sentences, words)`."""
    return tf.ragged.constant(sentences, tf.string, 1)


def ragged_ids(rows: Sequence[Sequence[int]]) -> tf.RaggedTensor:
    """Returns numbers of classes as a ragged int32 tensor `(sentences, words)`."""
    return tf.ragged.constant(rows, tf.int32, 1)


def class_ids(labels: tf.Tensor, names: list[str], argument: str) -> tf.Tensor:
    """Converts labels, names or numbers of classes, to int32 numbers of the same shape.

    The computation fails for an unknown label.
    """
    if labels.dtype != tf.string:
        ids = tf.cast(labels, tf.int32)
        known = (ids >= 0) & (ids < len(names))
    else:
        numbers = tf.range(len(names), dtype=tf.int32)
        entries = tf.lookup.KeyValueTensorInitializer(tf.constant(names), numbers)
        ids = tf.lookup.StaticHashTable(entries, -1).lookup(labels)
        known = ids >= 0
    unknown = tf.boolean_mask(labels, ~known)
    message = f"`{argument}` must be among the names or numbers of classes; received"
    return asserted(ids, tf.reduce_all(known), message, unknown)


def asserted(
    values: tf.Tensor, condition: tf.Tensor, message: str, *received: tf.Tensor
) -> tf.Tensor:
    """Returns the values, whose computation fails unless the condition is true."""
    checked = tf.debugging.Assert(condition, [message, *received])
    with tf.control_dependencies([checked]):
        return tf.identity(values)


def when_any(conditions: tf.Tensor, function: Callable[[], None]) -> tf.Tensor:
    """Calls a function, also in a graph, if a bool tensor has `True`."""

    def call(values: np.ndarray) -> np.ndarray:
        if values.any():
            function()
        return values

    return tf.numpy_function(call, [conditions], tf.bool)
