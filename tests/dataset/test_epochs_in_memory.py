"""Epochs of pairs in memory: weights of corpora, subword sampling, workers."""

import collections
import math

import numpy as np
import pytest
from reversal import (
    epoch_arrays,
    epoch_batches,
    epoch_pairs,
    make_dataset,
    make_pairs,
    write_pairs,
)

from keras_transformer.text import SentencePieceTokenizer

pytestmark = pytest.mark.once("torch")

# Weights.


@pytest.fixture
def files(tmp_path):
    """Returns files with 61 and 23 pairs. The latter have sources of two letters."""
    second = [(a + b, b + a) for a in "abcdefg" for b in "abcdefg"][:23]
    first = [pair for pair in make_pairs(71) if len(pair[0]) > 2][:61]
    paths = [write_pairs(tmp_path, n, p) for n, p in {"1": first, "2": second}.items()]
    return tuple(map(list, zip(*paths, strict=True)))


def from_second(pairs):
    return [pair for pair in pairs if len(pair[0]) == 2]


def test_weights_are_the_shares_of_an_epoch(files):
    data = make_dataset(*files, weights=[1, 3], tokens_per_batch=61)
    epochs = [list(filter(any, epoch_pairs(data))) for _ in range(3)]
    for pairs in epochs:
        # An epoch has 84 pairs, up to one batch that is dropped or repeated.
        assert abs(len(pairs) - 84) < 20
        assert abs(len(from_second(pairs)) - 63) < 20
    counts = collections.Counter(from_second(epochs[0]))
    assert len(counts) == 23
    assert set(counts.values()) <= {1, 2, 3, 4, 5}
    assert set(epochs[0]) != set(epochs[1])


def test_bad_number_of_weights(files):
    with pytest.raises(ValueError, match=r"received `weights=\[1, 2, 3\]` for 2"):
        make_dataset(*files, weights=[1, 2, 3])


# Sampling.

WORDS = ["tiger", "tigers", "lion", "lioness", "bear", "bears", "stag", "stages"]
TOKENIZER = SentencePieceTokenizer.train(lines=WORDS * 7, vocabulary_size=37)


def make_sampled(seed=0, **kwargs):
    random = np.random.default_rng(seed)
    texts = [" ".join(random.choice(WORDS, random.integers(1, 9))) for _ in range(97)]
    return make_dataset(
        pairs=[(text, text) for text in texts],
        source_tokenizer=TOKENIZER,
        target_tokenizer=TOKENIZER,
        tokens_per_batch=89,
        max_shapes=3,
        **kwargs,
    )


def epochs(data, count=3):
    """Returns for each epoch and batch the rows of source and target."""
    return [
        [
            (inputs["encoder_token_ids"].tolist(), targets.tolist())
            for inputs, targets in epoch_arrays(data)
        ]
        for _ in range(count)
    ]


def test_sampled_epochs_depend_only_on_seed_and_number():
    kwargs = {"source_sampling": 0.3, "target_sampling": 0.3}
    data = make_sampled(**kwargs)
    found = epochs(data, 4)
    data.start_epoch(2)
    assert epochs(data, 2) == found[2:]
    other = make_sampled(**kwargs)
    other.restore({"epoch": 2, "batch": 3})
    assert epochs(other, 2) == [found[2][3:], found[3]]
    assert data.batch({"epoch": 1, "batch": 5})[1].tolist() == found[1][5][1]


def test_sampling_does_not_change_number_and_shapes_of_batches():
    data = make_sampled(source_sampling=0.5, target_sampling=0.5)
    shapes = {shape[:3] for shape in data.shapes}
    lengths = []
    for batches in epochs(data, 5):
        assert len(batches) == data.batches_per_epoch
        assert {(len(s), len(s[0]), len(t[0])) for s, t in batches} <= shapes
        lengths.append(sum(id != 0 for s, _ in batches for row in s for id in row))
    assert len(set(lengths)) > 1


def test_statistics_describe_the_first_epoch():
    data = make_sampled(source_sampling=0.3, target_sampling=0.3)
    (batches,) = epochs(data, 1)
    ids = np.concatenate([np.ravel(side) for batch in batches for side in batch])
    assert data.padding_fraction == pytest.approx(np.mean(ids == 0))
    targets = np.concatenate([np.ravel(target) for _, target in batches])
    assert data.tokens_per_epoch == np.sum(targets != 0)


def test_sampling_requires_subwords():
    with pytest.raises(ValueError, match="`target_sampling` must be `None` unless"):
        make_dataset(pairs=[("a", "x")], target_sampling=0.1)


# Workers.


def test_workers_share_an_epoch():
    """Each batch belongs to a worker, and as few as possible are repeated."""
    kwargs, count = {"pairs": make_pairs(31), "tokens_per_batch": 53}, 3
    whole = make_dataset(**kwargs)
    shards = [make_dataset(shard=(index, count), **kwargs) for index in range(count)]
    for _ in range(2):
        batches = epoch_batches(whole)
        parts = [epoch_batches(shard) for shard in shards]
        assert {len(part) for part in parts} == {math.ceil(len(batches) / count)}
        found = [batch for part in parts for batch in part]
        least = len(found) // len(batches)
        assert {found.count(batch) for batch in batches} <= {least, least + 1}
    assert len({shard.batches_per_epoch for shard in shards}) == 1
    assert shards[0].shapes[0][:3] == whole.shapes[0][:3]


@pytest.mark.parametrize("shard", [(-1, 2), (2, 2), (0, 2.0), 2])
def test_bad_shard(shard):
    with pytest.raises(
        ValueError, match="`shard` must be the index of the worker, count"
    ):
        make_dataset(pairs=[("a", "x")], shard=shard)
