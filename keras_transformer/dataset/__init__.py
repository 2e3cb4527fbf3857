"""Datasets of parallel text for `fit`: filtered, bucketed, padded and shifted by one.

`parallel_dataset` in `parallel_text` connects the steps:

- `text_pairs`: reading of source and target texts
- `mixture`: the share of each corpus
- `filters`: length limits, duplicates, statistics of dropped pairs
- `token_rows`: token ids of pairs
- `subword_sampling`: different subwords in each epoch
- `pair_sources`: pairs in memory or streamed, window by window
- `buckets`: batch shapes, and the division of pairs into batches
- `windows`: shuffling of the pairs of a window, prefetching of the next window
- `batches`: the stream of batches, its positions, the arrays of a batch
- `parallel_dataset`: the `ParallelDataset`, whose iterators are the epochs

In memory, one window contains all pairs and is one epoch. In a stream, windows and
epochs are independent of each other. Each bucket has one batch shape, so a compiler
compiles as many shapes as there are buckets.
"""

from keras_transformer.dataset.buckets import BatchShape
from keras_transformer.dataset.parallel_dataset import ParallelDataset
from keras_transformer.dataset.parallel_text import parallel_dataset
from keras_transformer.dataset.text_pairs import read_pairs

__all__ = ["BatchShape", "ParallelDataset", "parallel_dataset", "read_pairs"]
