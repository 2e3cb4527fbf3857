"""Parallel text to batches for `fit`: filtered, bucketed by length, shifted by one.

Token ids are made once and kept in memory. An epoch shuffles the pairs within their
buckets and the batches across buckets. A bucket has one batch shape, so a compiler
meets no more shapes than there are buckets.
"""

from keras_transformer.dataset.buckets import BatchShape
from keras_transformer.dataset.pairs import read_pairs
from keras_transformer.dataset.parallel_dataset import ParallelDataset
from keras_transformer.dataset.parallel_text import parallel_dataset

__all__ = ["BatchShape", "ParallelDataset", "parallel_dataset", "read_pairs"]
