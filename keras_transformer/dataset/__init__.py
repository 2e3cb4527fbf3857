"""Turns parallel text into batches for `fit`: filtered, bucketed, shifted by one.

A corpus (`pairs`) is read and tokenized in windows: one of all its pairs, kept in
memory (`memory_pairs`), or one after the other (`streamed_pairs`). The pairs of a
window go into buckets by their length (`buckets`, `lengths`) and are shuffled; a bucket
has one batch shape, so a compiler meets no more shapes than there are buckets. The
batches of all windows are one stream, cut into epochs (`batch_stream`), which can
resume from any position.
"""

from keras_transformer.dataset.buckets import BatchShape
from keras_transformer.dataset.pairs import read_pairs
from keras_transformer.dataset.parallel_dataset import ParallelDataset
from keras_transformer.dataset.parallel_text import parallel_dataset

__all__ = ["BatchShape", "ParallelDataset", "parallel_dataset", "read_pairs"]
