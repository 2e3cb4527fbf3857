"""Datasets of parallel and of running text for `fit`.

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
- `epoch_dataset`: a `tf.data.Dataset` whose iterators are the epochs, with positions

In memory, one window contains all pairs and is one epoch. In a stream, windows and
epochs are independent of each other. Each bucket has one batch shape, so a compiler
compiles as many shapes as there are buckets.

`text_dataset` in `running_text` writes the token ids of running text to a temporary
file, and yields windows of it, in batches of one shape.
"""

from keras_transformer_runtime.packages import require_extra

require_extra("tensorflow", "`keras_transformer.dataset`")

from keras_transformer.dataset.buckets import BatchShape
from keras_transformer.dataset.parallel_text import ParallelDataset, parallel_dataset
from keras_transformer.dataset.running_text import TextDataset, text_dataset
from keras_transformer.dataset.text_pairs import read_pairs

__all__ = [
    "BatchShape",
    "ParallelDataset",
    "TextDataset",
    "parallel_dataset",
    "read_pairs",
    "text_dataset",
]
