"""Parallel text for `fit`: batches of text pairs, with statistics and positions."""

import functools
import math
from collections.abc import Iterable, Sequence
from numbers import Integral

import numpy as np
import tensorflow as tf

from keras_transformer.dataset.batches import (
    BatchArrays,
    BatchStream,
    Collator,
    PositionState,
)
from keras_transformer.dataset.buckets import FILLER, BatchPlan
from keras_transformer.dataset.epoch_dataset import EpochDataset
from keras_transformer.dataset.filters import FilterStatistics, PairFilter
from keras_transformer.dataset.mixture import parse_weights
from keras_transformer.dataset.pair_sources import (
    MemoryPairs,
    PairPreparation,
    PairSource,
    StreamedPairs,
)
from keras_transformer.dataset.subword_sampling import SubwordSampling
from keras_transformer.dataset.text_pairs import (
    Corpus,
    Pair,
    checksum_of,
    open_corpora,
)
from keras_transformer.dataset.token_rows import Tokenizers
from keras_transformer.dataset.windows import PairWindow, Prefetcher, WindowLoader
from keras_transformer.text import Paths, Tokenizer
from keras_transformer_runtime.arguments import check_ints
from keras_transformer_runtime.text_files import FilePath


class ParallelDataset(EpochDataset[PairWindow, BatchArrays]):
    """Batches of text pairs for `fit`, with statistics and positions.

    `parallel_dataset` creates it. Each new iterator of `dataset` yields the next epoch,
    starting with epoch 0. The batches of an epoch depend only on its number and on the
    arguments of `parallel_dataset`. `start_epoch` and `restore` set the position at
    which the next iterator starts. `print` shows the statistics.

    Attributes:
        dataset: `tf.data.Dataset` for `fit` with any backend. Pass `shuffle=False` to
            `fit`, since the dataset shuffles its pairs itself.
        shapes: tuple of `BatchShape`, the narrowest first. Every batch has one of these
            shapes. If epochs differ, the numbers of batches are those of the first
            epoch or, in a stream, those expected from the first window.
        padding_fraction: float from 0 to 1, the share of padding among all ids of the
            epoch or window that `shapes` describes.
        tokens_per_epoch: int, target tokens of an epoch, with end tokens and without
            padding, in the epoch or window that `shapes` describes.
        output_length_ratio: float >= 1, 1.5 times the ratio of target tokens to source
            tokens that 99.9 % of the pairs do not exceed, in that epoch or window.
            `fit` passes it on to the model, whose outputs then have room for it.
        checksums: dictionary of two ints that distinguish the data: `"texts"` and
            `"order"`, the arguments that determine the batches. `Checkpoints` compares
            them when a run is resumed.
    """

    def __init__(
        self,
        stream: BatchStream[PairWindow],
        collate: Collator,
        corpora: Sequence[Corpus],
        statistics: FilterStatistics,
        plan: BatchPlan,
        checksums: dict[str, int],
    ) -> None:
        batches = stream.batches_per_epoch
        tokens = plan.tokens(batches)
        super().__init__(stream, collate, collate.signature, tokens, checksums)
        self.output_length_ratio = plan.output_length_ratio
        self.shapes = plan.shapes(batches)
        self.padding_fraction = plan.padding_fraction
        self._corpora = corpora
        self._statistics = statistics

    @functools.cached_property
    def dataset(self) -> tf.data.Dataset:
        """The batches as a `tf.data.Dataset`, of which each iterator is one epoch."""
        dataset = super().dataset
        dataset.output_length_ratio = self.output_length_ratio
        return dataset

    @property
    def pairs_read(self) -> int:
        """Number of pairs in the data; in a stream, number of pairs read so far."""
        return self._statistics.pairs_read

    @property
    def dropped(self) -> dict[str, int]:
        """Number of dropped pairs by reason.

        The reasons are `"empty"`, `"max_source_length"`, `"max_target_length"`,
        `"max_length_ratio"` and `"duplicate"`. A pair is counted once, with the first
        reason that applies.
        """
        return dict(self._statistics.dropped)

    @property
    def pairs_kept(self) -> int:
        """Number of pairs read that are not dropped."""
        return self.pairs_read - sum(self.dropped.values())

    def lines(self, state: PositionState) -> list[Pair]:
        """Returns the texts of the batch at a position, for inspection.

        The texts are read again from the files.

        Args:
            state: result of `state`.

        Returns:
            A list of (source, target) tuples, one for each row. Both texts are empty
            for a row of padding.
        """
        window, index = self._stream.at(state)
        batch, lines = window.batches[index], window.pairs.lines
        readers = [corpus.reader() for corpus in self._corpora]
        used = np.unique(lines[batch.pairs[batch.pairs != FILLER]], axis=0).tolist()
        texts = {
            (corpus, line): readers[corpus](line, line + 1)[0] for corpus, line in used
        }
        return [
            ("", "") if pair == FILLER else texts[tuple(lines[pair].tolist())]
            for pair in batch.pairs
        ]

    def __str__(self) -> str:
        reasons = [f"{name} {count:,}" for name, count in self.dropped.items() if count]
        dropped = f"dropped: {', '.join(reasons)}" if reasons else "none dropped"
        table = [
            f"{shape.source_length:>13} {shape.target_length:>13} {shape.rows:>6,} "
            f"{shape.batches:>7,}"
            for shape in self.shapes
        ]
        return "\n".join(
            [
                f"{self.pairs_read:,} pairs read, {self.pairs_kept:,} kept, {dropped}",
                f"{self.batches_per_epoch:,} batches per epoch in {len(self.shapes)} "
                f"shapes, {self.padding_fraction:.1%} padding",
                "source_length target_length   rows batches",
                *table,
            ]
        )


def parallel_dataset(
    source: Paths | None = None,
    target: Paths | Sequence[FilePath | None] | None = None,
    *,
    pairs: Iterable[Pair] | None = None,
    columns: Sequence[str] | None = None,
    source_tokenizer: Tokenizer,
    target_tokenizer: Tokenizer,
    weights: Sequence[float] | None = None,
    tokens_per_batch: int = 4096,
    max_shapes: int | None = None,
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
    """Creates training batches from parallel text.

    A batch is `({"encoder_token_ids", "decoder_token_ids"}, target_token_ids)`, all
    int32. Encoder ids `(batch, source_length)` end with the end token. Decoder ids
    `(batch, target_length)` begin with the start token. Target ids
    `(batch, target_length)` are the decoder ids shifted by one; they end with the end
    token. All rows are padded to the batch shape.

    Pairs of similar lengths share a bucket, and each bucket has one batch shape. Pairs
    that do not fill the last batch of a bucket move to a bucket of longer pairs, or
    rows of padding fill the batch, depending on which needs less padding.

    By default, all text is tokenized once and stored in memory, and each epoch contains
    every pair that passes the filters. With `window`, text of any size is streamed in
    constant memory: `window` pairs at a time are read, filtered, tokenized, sorted into
    buckets and shuffled, while the model is trained on the previous window. The text is
    repeated endlessly, and each epoch consists of the next `batches_per_epoch` batches.

    Args:
        source: one path or several paths of files, plain or gzip (`.gz`), with one
            sentence per line. Without `target`: files with sources and targets, whose
            ending is their form: `.csv`, `.jsonl` or `.ndjson`; others have a tab
            between source and target.
        target: as many paths as `source`; line n translates line n of the source.
            `None` in place of a path: the file of `source` has sources and targets.
        pairs: iterable of `(source, target)` strings, instead of files.
        columns: names of the columns of source and target, `a.b` for the name `b` in
            the object `a` of a JSONL file. A TSV file (`.tsv`) has a header if they are
            given. `None`: CSV and JSONL files must have two columns.
        source_tokenizer: `Tokenizer` of the source.
        target_tokenizer: `Tokenizer` of the target, which may be the same.
        weights: list of numbers above 0, the relative share of each file in an epoch or
            window. An epoch has as many pairs as all files together, so pairs of a file
            with a larger share are repeated. `None`: the number of lines of each file.
        tokens_per_batch: int, maximum number of ids in a batch on either side, padding
            included: `batch * max(source_length, target_length)`. A batch contains a
            single pair if the pair is longer.
        max_shapes: int, maximum number of batch shapes. More shapes need less padding
            and more compilation. `None` = at most 12, each of which saves the padding
            of at least 4 batches in an epoch.
        batch_size_multiple: int, the number of pairs in a batch is a multiple of this,
            for devices that share the rows of a batch
            (`keras.distribution.DataParallel`). A batch has at least this many pairs,
            even if it exceeds `tokens_per_batch`.
        max_source_length: int, maximum length of the source, in tokens with the end
            token. Longer pairs are dropped. `None`: no limit.
        max_target_length: int, maximum length of the target, in tokens with the end
            token. Longer pairs are dropped. `None`: no limit.
        max_length_ratio: float of at least 1, maximum ratio of the length of the longer
            side to that of the shorter side, in tokens. `None`: no limit.
        drop_duplicates: bool, whether a pair is dropped if the same source and target
            occur before it in the data.
        source_sampling: float from 0 to 1, subword regularization: the source is split
            into different subwords in each epoch, as a function of `seed`, epoch and
            line. Requires a `SentencePieceTokenizer`. In a BPE model, the probability
            of skipping a merge (BPE-dropout; typically 0.1). In a unigram model, the
            exponent of the probability of a split (typically 0.2; a lower exponent
            gives more varied splits). `None`: the split of the tokenizer.
        target_sampling: float from 0 to 1, as `source_sampling`, for the target.
        window: int, number of pairs to stream at a time, for example 100,000, at least
            the number of files. It limits the memory. The batch shapes are chosen for
            the first window. `None`: all text is stored in memory.
        batches_per_epoch: int, number of batches in an epoch of a stream.
        shard: tuple of the index of this worker, counted from 0, and the number of
            workers. Each worker gets other batches of an epoch or, in a stream, other
            windows. All workers have equally many batches, so a few batches may be used
            twice.
        shuffle: bool, whether pairs and batches are shuffled, differently in each epoch
            or window.
        seed: int of at least 0, seed of shuffling and subword sampling.
        sample_weights: bool, whether a batch has sample weights for the losses of
            Keras as third element: float32 `(batch, target_length)`, 1 for tokens and 0
            for padding.

    Returns:
        A `ParallelDataset`. With `weights` or subword sampling in memory, lengths
        differ between epochs but the number of batches is constant: about one in a
        hundred batches is dropped at random or used twice. If the sampled split of a
        text exceeds every batch shape, the split of the tokenizer is used.

    Raises:
        ValueError: if files are empty, not UTF-8 or not parallel, if all pairs are
            dropped, or if an argument is out of range.

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
        - Vaswani et al., 2017, "Attention Is All You Need", section 5.1 (batches by
          number of tokens).
        - Provilkov et al., 2020, "BPE-Dropout: Simple and Effective Subword
          Regularization", algorithm 1.
        - Kudo, 2018, "Subword Regularization: Improving Neural Network Translation
          Models with Multiple Subword Candidates", section 3.2.
    """
    check_ints(
        1,
        tokens_per_batch=tokens_per_batch,
        batch_size_multiple=batch_size_multiple,
    )
    check_ints(1, optional=True, max_shapes=max_shapes)
    check_ints(0, seed=seed)
    check_shard(shard)
    pair_filter = PairFilter(max_source_length, max_target_length, max_length_ratio)
    _check_stream(window, batches_per_epoch, pair_filter)
    tokenizers = Tokenizers.checked(source_tokenizer, target_tokenizer)
    sampling = SubwordSampling(tokenizers, (source_sampling, target_sampling), seed)
    preparation = PairPreparation(tokenizers, pair_filter, drop_duplicates, sampling)
    corpora = open_corpora(source, target, pairs, columns)
    weights = parse_weights(weights, len(corpora))
    pair_source = _pair_source(corpora, weights, preparation, window)
    plan = BatchPlan.of(
        pair_source,
        tokens_per_batch,
        max_shapes,
        batch_size_multiple,
        batches_per_epoch,
    )
    batches = int(batches_per_epoch or 0) or math.ceil(plan.batches / shard[1])
    per_window = batches if window is None else None
    loader = WindowLoader(pair_source, plan.buckets, shuffle, seed, shard, per_window)
    load = Prefetcher(loader.load).load
    stream = BatchStream(load, batches, aligned=window is None)
    collate = Collator(plan.buckets, tokenizers.pad_token_ids, sample_weights)
    order = checksum_of(
        *(tokens_per_batch, max_shapes, batch_size_multiple, window),
        *(max_source_length, max_target_length, max_length_ratio),
        *(drop_duplicates, source_sampling, target_sampling, weights),
        *(batches_per_epoch, shuffle, seed),
    )
    checksums = {"texts": pair_source.checksum, "order": order}
    statistics = pair_source.statistics
    return ParallelDataset(stream, collate, corpora, statistics, plan, checksums)


def _pair_source(
    corpora: Sequence[Corpus],
    weights: Sequence[float] | None,
    preparation: PairPreparation,
    window: int | None,
) -> PairSource:
    if window is None:
        return MemoryPairs(corpora, weights, preparation)
    # The share of each file in a window is rounded down.
    remedy = "A window has pairs of each file; 100,000 is a good value."
    check_ints(len(corpora), remedy=remedy, window=window)
    return StreamedPairs(corpora, weights, preparation, window)


def check_shard(shard: tuple[int, int]) -> None:
    """Raises `ValueError` if `shard` is not an index and a number of workers."""
    is_pair = isinstance(shard, tuple | list) and len(shard) == 2
    are_ints = is_pair and all(isinstance(number, Integral) for number in shard)
    if not (are_ints and 0 <= shard[0] < shard[1]):
        raise ValueError(
            "`shard` must be the index of the worker, counted from 0, and the number "
            f"of workers; received `shard={shard}`. The first of two workers has "
            "`shard=(0, 2)`."
        )


def _check_stream(
    window: int | None,
    batches_per_epoch: int | None,
    pair_filter: PairFilter,
) -> None:
    """Raises `ValueError` if an argument of a stream is missing or unused."""
    check_ints(1, optional=True, window=window, batches_per_epoch=batches_per_epoch)
    if window is None and batches_per_epoch is not None:
        raise ValueError(
            "`batches_per_epoch` must be `None` without `window`; received "
            f"`batches_per_epoch={batches_per_epoch}`. Without `window`, an epoch "
            "contains all pairs. Pass `window` to stream the pairs."
        )
    required = {
        "batches_per_epoch": batches_per_epoch,
        "max_source_length": pair_filter.max_source_length,
        "max_target_length": pair_filter.max_target_length,
    }
    missing = [f"`{name}`" for name, value in required.items() if value is None]
    if window is not None and missing:
        raise ValueError(
            f"With `window`, {', '.join(missing)} must be an int, since the number and "
            "the lengths of all pairs are not known in a stream; received "
            f"`window={window}` and `None`."
        )
