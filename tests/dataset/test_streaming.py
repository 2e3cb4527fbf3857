"""Streams of text, window by window."""

import collections
import gzip

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

PAIRS = list(dict.fromkeys(make_pairs(131)))[:97]


def make_stream(*args, pairs=None, **kwargs):
    kwargs = {
        "tokens_per_batch": 64,
        "max_source_length": 31,
        "max_target_length": 33,
        "window": 23,
        "batches_per_epoch": 7,
    } | kwargs
    if not args:
        kwargs["pairs"] = pairs or PAIRS
    return make_dataset(*args, **kwargs)


def read_pairs_of(data, count):
    """Returns the next pairs, without rows of padding."""
    pairs = []
    while len(pairs) < count:
        pairs += filter(any, epoch_pairs(data))
    return pairs


def test_each_repetition_contains_each_pair_once():
    """Windows and epochs end at different batches, which drops no pairs."""
    data = make_stream(batches_per_epoch=31)
    pairs = read_pairs_of(data, 5 * 97)
    counts = collections.Counter(pairs[: 4 * 97])
    # A window of 23 pairs is shuffled, and the last one may be incomplete.
    assert set(counts) == set(PAIRS)
    assert max(counts.values()) <= 5
    assert sum(abs(count - 4) for count in counts.values()) <= 2 * 23


def test_shapes_are_few_and_fixed():
    data = make_stream(max_shapes=3)
    shapes = [
        (*inputs["encoder_token_ids"].shape, targets.shape[1])
        for _ in range(9)
        for inputs, targets in epoch_arrays(data)
    ]
    assert len(shapes) == 9 * 7
    assert len(set(shapes)) <= 3
    for rows, *lengths in shapes:
        assert rows == 1 or rows * max(lengths) <= 64
    assert len(data.dataset) == data.batches_per_epoch == 7
    assert sum(shape.batches for shape in data.shapes) == pytest.approx(7, abs=1)


@pytest.fixture(params=["plain", "gzip"])
def files(request, tmp_path):
    """Returns the files of two corpora with 61 and 36 pairs."""
    paths = [
        write_pairs(tmp_path, name, pairs)
        for name, pairs in {"1": PAIRS[:61], "2": PAIRS[61:]}.items()
    ]
    if request.param == "gzip":
        for path in tmp_path.iterdir():
            zipped = path.with_name(f"{path.name}.gz")
            zipped.write_bytes(gzip.compress(path.read_bytes()))
        paths = [[p.with_name(f"{p.name}.gz") for p in files] for files in paths]
    return tuple(map(list, zip(*paths, strict=True)))


TOKENIZER = SentencePieceTokenizer.train(
    lines=[text for pair in PAIRS for text in pair], vocabulary_size=31
)
ALL = {
    "weights": [1, 2],
    "max_length_ratio": 1.5,
    "drop_duplicates": True,
    "source_sampling": 0.3,
    "source_tokenizer": TOKENIZER,
    "max_source_length": 61,
}


def test_restore_at_any_position(files):
    kwargs = ALL if "gz" in files[0][0].name else {}

    def read(data):
        return [
            (inputs["encoder_token_ids"].tolist(), targets.tolist())
            for inputs, targets in epoch_arrays(data)
        ]

    data = make_stream(*files, **kwargs)
    epochs, states = [], []
    for _ in range(4):
        epochs.append(read(data))
        states.append([data.state(n) for n in range(8)])
    assert states[0][7]["epoch"] == 1
    for epoch, batch in [(0, 3), (2, 7)]:
        other = make_stream(*files, **kwargs)
        other.restore(states[epoch][batch])
        if batch < 7:
            assert read(other) == epochs[epoch][batch:]
        assert read(other) == epochs[epoch + 1]
    other.start_epoch(2)
    assert read(other) == epochs[2]
    assert data.batch(states[1][4])[1].tolist() == epochs[1][4][1]


def test_workers_share_the_windows():
    """The first of two workers has the windows with even numbers."""
    kwargs = {"batches_per_epoch": 1, "tokens_per_batch": 10**5, "max_shapes": 1}
    whole = make_stream(**kwargs)
    shards = [make_stream(shard=(index, 2), **kwargs) for index in range(2)]
    batches = [epoch_batches(whole) for _ in range(4)]
    for index, shard in enumerate(shards):
        assert [epoch_batches(shard) for _ in range(2)] == batches[index::2]
    assert shards[0].shapes == shards[1].shapes


def test_statistics_count_what_is_read():
    long = ("abcdefg" * 5, "x")
    pairs = [*PAIRS[:23], long, ("a" * 7, "g"), PAIRS[2], ("", "x"), *PAIRS[23:]]
    data = make_stream(
        pairs=pairs, max_length_ratio=2, drop_duplicates=True, batches_per_epoch=61
    )
    assert data.pairs_read == 23
    assert sum(data.dropped.values()) == 0
    assert "23 pairs read, 23 kept" in str(data)
    read_pairs_of(data, 4 * 101)
    # The second repetition drops the same lines again.
    assert data.pairs_read > 101
    assert data.pairs_read % 23 == 0
    assert data.dropped["max_target_length"] == 0
    for reason in ("empty", "duplicate", "max_source_length", "max_length_ratio"):
        assert data.dropped[reason] > 1


def test_all_pairs_of_the_first_window_dropped():
    pairs = [("", "x")] * 23 + PAIRS
    with pytest.raises(ValueError, match="all 23 pairs were dropped: {'empty': 23"):
        make_stream(pairs=pairs)


def test_all_pairs_of_a_later_window_dropped():
    pairs = PAIRS[:23] + [("", "x")] * 46
    kwargs = {**ALL, "weights": None, "batches_per_epoch": 31}
    data = make_stream(pairs=pairs, **kwargs)
    assert len(epoch_arrays(data)) == 31
    assert data.dropped["empty"] >= 46


def test_required_arguments_of_a_stream():
    message = "With `window`, `batches_per_epoch`, `max_source_length` must be an int"
    with pytest.raises(ValueError, match=message):
        make_stream(batches_per_epoch=None, max_source_length=None)
    with pytest.raises(ValueError, match="`batches_per_epoch` must be `None` without"):
        make_stream(window=None)


def test_minimum_size_of_a_window(files):
    message = "`window` must be an int of at least 2; .*`window=1`. A window has pairs"
    with pytest.raises(ValueError, match=message):
        make_stream(*files, window=1)
    assert read_pairs_of(make_stream(*files, window=2), 9)
