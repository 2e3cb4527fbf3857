"""Collates token rows into the batches that `fit` takes."""

import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from keras_transformer.dataset.buckets import Batch, Buckets
from keras_transformer.dataset.windows import Window


@dataclasses.dataclass(frozen=True)
class Collator:
    """Pads the rows of a batch and shifts the target by one.

    Attributes:
        buckets: the buckets, which give the shapes.
        pad_token_ids: ids of the source's and the target's padding.
        sample_weights: whether a batch has weights: 1 on tokens, 0 on padding.
    """

    buckets: Buckets
    pad_token_ids: tuple[int, int]
    sample_weights: bool

    def __call__(self, window: Window, batch: Batch) -> tuple[Any, ...]:
        """Returns the batch as `fit` takes it."""
        source_length, target_length = self.buckets.lengths[batch.bucket].tolist()
        source_pad, target_pad = self.pad_token_ids
        source, target, _ = window.pairs
        both = target.pad(batch.numbers, target_length + 1, target_pad)
        lengths = np.where(batch.numbers < 0, 0, target.lengths[batch.numbers] - 1)
        real = np.arange(target_length) < lengths[:, None]
        inputs = {
            "encoder_token_ids": source.pad(batch.numbers, source_length, source_pad),
            "decoder_token_ids": np.where(real, both[:, :-1], np.int32(target_pad)),
        }
        weights = [real.astype(np.float32)] if self.sample_weights else []
        return inputs, both[:, 1:], *weights

    @property
    def signature(self) -> tuple[Any, ...]:
        """The `tf.data` signature of the batches; `None` where sizes differ."""
        rows, source_length, target_length = (
            sizes.pop() if len(sizes) == 1 else None
            for sizes in map(set, (self.buckets.rows, *self.buckets.lengths.T.tolist()))
        )
        source = tf.TensorSpec([rows, source_length], tf.int32)
        target = tf.TensorSpec([rows, target_length], tf.int32)
        weights = tf.TensorSpec([rows, target_length], tf.float32)
        inputs = {"encoder_token_ids": source, "decoder_token_ids": target}
        return inputs, target, *([weights] if self.sample_weights else [])
