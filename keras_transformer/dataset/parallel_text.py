"""Parallel text to a `ParallelDataset`."""

import math
from collections.abc import Iterable, Sequence

from keras_transformer.arguments import check_ints
from keras_transformer.dataset.arguments import (
    check_ranges,
    check_stream,
    check_tokenizers,
    check_window,
)
from keras_transformer.dataset.batch_stream import BatchStream
from keras_transformer.dataset.collating import Collator
from keras_transformer.dataset.filters import PairFilter
from keras_transformer.dataset.memory_pairs import MemoryPairs
from keras_transformer.dataset.mixture import as_weights
from keras_transformer.dataset.pair_source import PairSource
from keras_transformer.dataset.pairs import Pair, open_corpora
from keras_transformer.dataset.parallel_dataset import ParallelDataset
from keras_transformer.dataset.plan import BatchPlan
from keras_transformer.dataset.preparation import Preparation
from keras_transformer.dataset.streamed_pairs import StreamedPairs
from keras_transformer.dataset.subword_sampling import SubwordSampling
from keras_transformer.dataset.windows import Ahead, Windows
from keras_transformer.text import Paths, Tokenizer


def parallel_dataset(
    source: Paths | None = None,
    target: Paths | None = None,
    *,
    pairs: Iterable[Pair] | None = None,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    weights: Sequence[float] | None = None,
    tokens_per_batch: int = 4096,
    max_shapes: int = 12,
    batch_size_multiple: int = 1,
    max_source_length: int | None = None,
    max_target_length: int | None = None,
    max_length_ratio: float | None = None,
    drop_duplicates: bool = False,
    source_sampling: float | None = None,
    target_sampling: float | None = None,
    window: int | None = None,
    batches_per_epoch: int | None = None,
    shard: tuple[int, int] = (0, 1),
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
    to a longer bucket, or rows of padding fill it up if that makes less padding.

    All text is tokenized once and kept in memory, and an epoch has every pair that is
    kept. With `window`, text of any size is streamed in constant memory: so many
    pairs are read, filtered, tokenized, sorted into buckets and shuffled at a time,
    while training uses those before; after the last line comes the first again. An
    epoch is then the next `batches_per_epoch` batches.

    Args:
        source: one path or several, plain or gzip (`.gz`), a sentence a line. Without
            `target`: files of two columns, source and target, separated by a tab.
        target: as many paths as `source`; line by line the translation.
        pairs: `(source, target)` strings, in place of files.
        source_tokenizer: tokenizer of the source.
        target_tokenizer: tokenizer of the target, which may be the same.
        weights: share of each file in an epoch or window, in any unit. An epoch has
            as many pairs as all files together, so that those of a file with less
            than its share come more than once. `None`: by the number of lines.
        tokens_per_batch: most ids in a batch on either side, padding included:
            `batch * max(source_length, target_length)`. A longer pair is a batch of
            its own.
        max_shapes: most batch shapes. More shapes mean less padding and more
            compilation.
        batch_size_multiple: pairs in a batch are a multiple of this, for devices that
            share its rows (`keras.distribution.DataParallel`). A batch of long pairs
            has so many at least, even if `tokens_per_batch` does not hold them.
        max_source_length: longest source kept, in tokens with the end token. `None`:
            no limit.
        max_target_length: longest target kept, in tokens with the end token. `None`:
            no limit.
        max_length_ratio: most tokens of the longer side for each of the shorter one,
            1 or more. `None`: no limit.
        drop_duplicates: whether a pair is left out that stands further up, in any of
            the files, letter for letter.
        source_sampling: splits the source into other subwords in every epoch, if the
            tokenizer is a `SentencePieceTokenizer`: as a function of `seed`, epoch
            and line alone. From 0 to 1. In a BPE model it is the probability with
            which a merge is left out (BPE-dropout, 0.1 as a rule); in a unigram
            model the exponent of a split's probability (0.2 as a rule; the lower, the
            more splits vary). `None`: always the tokenizer's own split.
        target_sampling: the same of the target.
        window: pairs to stream at a time, for example 100,000, no fewer than there are
            files; it bounds the memory used. The batch shapes are made for the first
            window. `None`: all text is kept in memory.
        batches_per_epoch: batches in an epoch of a stream.
        shard: number of this worker, from 0, and of all workers, which share the data
            between them: each gets other batches of an epoch or, of a stream, other
            windows. All have equally many, so that a few may come twice.
        shuffle: whether each epoch or window has an order of its own.
        seed: seed of the orders and splits, 0 or more.
        sample_weights: whether a batch has a third element for stock Keras losses,
            float32 `(batch, target_length)`: 1 on tokens, 0 on padding.

    Returns:
        A `ParallelDataset`. With `weights` or sampling in memory, lengths differ from
        epoch to epoch, the number of batches does not: up to about one in a hundred
        batches is left out at random, or comes twice. A split that is longer than
        every batch shape gives way to the tokenizer's own.

    Raises:
        ValueError: if files are empty, not UTF-8 or not parallel, if no pair is left,
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
        Token budgets: Vaswani et al., 2017, section 5.1. BPE-dropout: Provilkov et
        al., 2020, algorithm 1. Unigram sampling: Kudo, 2018, section 3.2.
    """
    check_ints(
        1,
        tokens_per_batch=tokens_per_batch,
        max_shapes=max_shapes,
        batch_size_multiple=batch_size_multiple,
    )
    check_ints(
        1,
        optional=True,
        max_source_length=max_source_length,
        max_target_length=max_target_length,
        window=window,
        batches_per_epoch=batches_per_epoch,
    )
    check_ints(0, seed=seed)
    check_tokenizers(
        source_tokenizer=source_tokenizer, target_tokenizer=target_tokenizer
    )
    check_ranges(max_length_ratio, shard)
    check_stream(window, batches_per_epoch, max_source_length, max_target_length)
    corpora = open_corpora(source, target, pairs)
    weights = as_weights(weights, len(corpora))
    check_window(window, len(corpora))
    tokenizers = source_tokenizer, target_tokenizer
    preparation = Preparation(
        tokenizers,
        PairFilter(max_source_length, max_target_length, max_length_ratio),
        drop_duplicates,
        SubwordSampling(tokenizers, (source_sampling, target_sampling), seed),
    )
    pair_source: PairSource = (
        MemoryPairs(corpora, weights, preparation)
        if window is None
        else StreamedPairs(corpora, weights, preparation, window)
    )
    plan = BatchPlan.of(pair_source, tokens_per_batch, max_shapes, batch_size_multiple)
    batches = int(batches_per_epoch or 0) or math.ceil(plan.batches / shard[1])
    windows = Windows(
        pair_source,
        plan.buckets,
        shuffle,
        seed,
        shard,
        batches=batches if window is None else None,
    )
    pad_token_ids = source_tokenizer.pad_token_id, target_tokenizer.pad_token_id
    return ParallelDataset(
        BatchStream(Ahead(windows.load).load, batches, aligned=window is None),
        Collator(plan.buckets, pad_token_ids, sample_weights),
        corpora,
        pair_source.account,
        plan.shapes(batches),
        plan.padding_fraction,
        plan.tokens(batches),
    )
