"""Batches of sentence pairs for `fit`."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.dataset.buckets import BatchShape, fill_buckets
from keras_transformer.dataset.pairs import read_pairs
from keras_transformer.text import Paths, Tokenizer

_CHUNK = 4096  # Pairs tokenized at a time.


@dataclasses.dataclass(frozen=True)
class ParallelDataset:
    """Batches of sentence pairs, and an account of them (`print` it).

    Attributes:
        dataset: `tf.data.Dataset` for `fit` on any backend. Pass `shuffle=False` to
            `fit`: Keras warns otherwise that it leaves the order to the dataset.
        shapes: The batch shapes, shortest first. Every batch has one of them.
        pairs_read: Pairs in the data.
        dropped: Pairs left out, by reason: `"empty"`, `"max_source_length"`,
            `"max_target_length"`.
        padding_fraction: Share of padding among all ids of an epoch, from 0 to 1.
    """

    dataset: tf.data.Dataset
    shapes: tuple[BatchShape, ...]
    pairs_read: int
    dropped: dict[str, int]
    padding_fraction: float

    @property
    def pairs_kept(self) -> int:
        """Pairs in an epoch."""
        return self.pairs_read - sum(self.dropped.values())

    @property
    def batches_per_epoch(self) -> int:
        """Batches in an epoch, the same in each."""
        return sum(shape.batches for shape in self.shapes)

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


def parallel_dataset(
    source: Paths | None = None,
    target: Paths | None = None,
    *,
    pairs: Iterable[tuple[str, str]] | None = None,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    tokens_per_batch: int = 4096,
    max_source_length: int | None = None,
    max_target_length: int | None = None,
    max_shapes: int = 8,
    shuffle: bool = True,
    seed: int = 0,
    sample_weights: bool = False,
) -> ParallelDataset:
    """Makes training batches of parallel text.

    A batch is `({"encoder_token_ids", "decoder_token_ids"}, target_token_ids)`, all
    int32: encoder ids `(batch, source_length)` end with the end token; decoder ids
    `(batch, target_length)` begin with the start token; target ids
    `(batch, target_length)` are the same shifted by one and end with the end token.
    The rest is padding. Where pairs are too few for a bucket's last batch, they move
    to the next longer bucket; only the longest one is filled up, with rows of padding.

    Args:
        source: One path or several, plain or gzip (`.gz`), a sentence a line. Without
            `target`: files of two columns, source and target, separated by a tab.
        target: As many paths as `source`; line by line the translation.
        pairs: `(source, target)` strings, in place of files.
        source_tokenizer: Tokenizer of the source.
        target_tokenizer: Tokenizer of the target, which may be the same.
        tokens_per_batch: Most ids in a batch on either side, padding included:
            `batch * max(source_length, target_length)`. A longer pair is a batch of
            its own.
        max_source_length: Longest source kept, in tokens with the end token. `None`:
            no limit.
        max_target_length: Longest target kept, in tokens with the end token. `None`:
            no limit.
        max_shapes: Most batch shapes. More shapes mean less padding and more
            compilation.
        shuffle: Whether each epoch has an order of its own.
        seed: Seed of the orders.
        sample_weights: Whether a batch has a third element for stock Keras losses,
            float32 `(batch, target_length)`: 1 on tokens, 0 on padding.

    Returns:
        A `ParallelDataset`.

    Raises:
        ValueError: If files are empty, not UTF-8 or not parallel, if no pair is left,
            or if an argument has a bad value.

    Example:

    ```python
    from keras_transformer.dataset import parallel_dataset
    from keras_transformer.text import CharacterTokenizer

    tokenizer = CharacterTokenizer.train(lines=["abc", "cba"])
    data = parallel_dataset(
        pairs=[("abc", "cba"), ("ab", "ba")],
        source_tokenizer=tokenizer,
        target_tokenizer=tokenizer,
    )
    inputs, target_token_ids = next(iter(data.dataset))
    print(data)
    ```

    References:
        Token budgets: Vaswani et al., 2017, section 5.1.
    """
    _check_positive(
        tokens_per_batch=tokens_per_batch,
        max_source_length=max_source_length,
        max_target_length=max_target_length,
        max_shapes=max_shapes,
    )
    with tf.device("CPU"):
        ids = _tokenize(
            read_pairs(source, target, pairs), source_tokenizer, target_tokenizer
        )
        lengths = _lengths(*ids)
        kept, dropped = _filter(lengths, (max_source_length, max_target_length))
        buckets = fill_buckets(kept, lengths, tokens_per_batch, max_shapes)
        dataset = _row_numbers(buckets, seed if shuffle else None).map(
            _collate(ids, source_tokenizer, target_tokenizer, sample_weights),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
    shapes = tuple(shape for shape, _ in buckets)
    batches = sum(shape.batches for shape in shapes)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(batches))
    size = sum(s.batches * s.rows * (s.source_length + s.target_length) for s in shapes)
    return ParallelDataset(
        dataset=dataset.prefetch(tf.data.AUTOTUNE),
        shapes=shapes,
        pairs_read=len(lengths),
        dropped=dropped,
        padding_fraction=1 - int(lengths[kept].sum()) / size,
    )


def _check_positive(**arguments: int | None) -> None:
    for name, value in arguments.items():
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ValueError(
                f"`{name}` must be an integer of 1 or more; received `{name}={value}`."
            )


def _tokenize(
    pairs: list[tuple[str, str]],
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Source ids with end, target ids with start and end: int32 (pairs, None)."""

    def tokenize(sources, targets):
        return (
            source_tokenizer.tokenize(sources, add_end=True),
            target_tokenizer.tokenize(targets, add_start=True, add_end=True),
        )

    sources, targets = zip(*pairs, strict=True)
    chunks = tf.data.Dataset.from_tensor_slices((list(sources), list(targets)))
    chunks = chunks.batch(_CHUNK).map(tokenize, num_parallel_calls=tf.data.AUTOTUNE)
    source_ids, target_ids = zip(*chunks, strict=True)
    return tf.concat(source_ids, axis=0), tf.concat(target_ids, axis=0)


def _lengths(source_ids: tf.RaggedTensor, target_ids: tf.RaggedTensor) -> np.ndarray:
    """Tokens a side, of the decoder where the target is concerned: (pairs, 2)."""
    return np.stack([source_ids.row_lengths(), target_ids.row_lengths() - 1], axis=1)


def _filter(
    lengths: np.ndarray, max_lengths: tuple[int | None, int | None]
) -> tuple[np.ndarray, dict[str, int]]:
    """Numbers of the pairs to keep, and counts of the others by reason."""
    limits = [np.inf if limit is None else limit for limit in max_lengths]
    faults = {
        "empty": (lengths == 1).any(axis=1),
        "max_source_length": lengths[:, 0] > limits[0],
        "max_target_length": lengths[:, 1] > limits[1],
    }
    kept = np.ones(len(lengths), bool)
    dropped = {}
    for name, fault in faults.items():
        dropped[name] = int((kept & fault).sum())
        kept &= ~fault
    if not kept.any():
        raise ValueError(
            f"At least one pair must be left; all {len(lengths):,} were dropped: "
            f"{dropped}. Check the text or raise the maximal lengths."
        )
    return np.flatnonzero(kept), dropped


def _row_numbers(
    buckets: list[tuple[BatchShape, np.ndarray]], seed: int | None
) -> tf.data.Dataset:
    """An epoch's batches: pair numbers int64 (rows,), the two lengths int32 (2,)."""

    def shuffled(values):
        dataset = tf.data.Dataset.from_tensor_slices(values)
        return dataset if seed is None else dataset.shuffle(len(values), seed)

    def batched(shape, numbers):
        lengths = tf.constant([shape.source_length, shape.target_length])
        lengths = tf.data.Dataset.from_tensors(lengths).repeat()
        return tf.data.Dataset.zip(shuffled(numbers).batch(shape.rows), lengths)

    choice = np.repeat(np.arange(len(buckets)), [shape.batches for shape, _ in buckets])
    return tf.data.Dataset.choose_from_datasets(
        [batched(*bucket) for bucket in buckets],
        shuffled(choice),
        stop_on_empty_dataset=False,
    )


def _collate(
    ids: tuple[tf.RaggedTensor, tf.RaggedTensor],
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    sample_weights: bool,
) -> Callable[..., tuple[Any, ...]]:
    """A function from an element of `_row_numbers` to a batch."""
    empty = tf.RaggedTensor.from_row_lengths(tf.zeros([0], tf.int32), [0])
    source_ids, target_ids = (tf.concat([rows, empty], axis=0) for rows in ids)
    source_pad = source_tokenizer.pad_token_id
    target_pad = target_tokenizer.pad_token_id

    def collate(numbers, lengths):
        source_length, target_length = tf.unstack(lengths)
        source = tf.gather(source_ids, numbers)
        target = tf.gather(target_ids, numbers)
        encoder = source.to_tensor(source_pad, shape=[-1, source_length])
        both = target.to_tensor(target_pad, shape=[-1, target_length + 1])
        real = tf.sequence_mask(target.row_lengths() - 1, target_length)
        decoder = tf.where(real, both[:, :-1], target_pad)
        inputs = {"encoder_token_ids": encoder, "decoder_token_ids": decoder}
        weights = [tf.cast(real, tf.float32)] if sample_weights else []
        return inputs, both[:, 1:], *weights

    return collate
