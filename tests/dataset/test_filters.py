import tracemalloc

import numpy as np
import pytest

from keras_transformer.dataset.filters import (
    PackedFlags,
    PairFilter,
    find_duplicates,
)

pytestmark = pytest.mark.once("torch")

LENGTHS = np.array([[2, 3], [1, 5], [5, 1], [8, 3], [3, 8], [4, 7], [4, 8], [2, 3]])
DUPLICATES = np.array([0, 1, 0, 1, 0, 0, 0, 1], bool)


def dropped(**limits):
    """Returns the indices of the dropped pairs by reason."""
    names = ("max_source_length", "max_target_length", "max_length_ratio")
    pair_filter = PairFilter(*(limits.get(name) for name in names))
    reasons = pair_filter.find_dropped(
        LENGTHS, LENGTHS - 1, DUPLICATES, np.zeros(len(LENGTHS), bool)
    )
    indices = {
        name: np.flatnonzero(mask).tolist() for name, mask in reasons._asdict().items()
    }
    rest = set(range(len(LENGTHS))).difference(*indices.values())
    assert reasons.kept.tolist() == sorted(rest)
    return indices


def test_first_reason_counts():
    assert dropped(max_source_length=7, max_target_length=7) == {
        "empty": [1, 2],
        "max_source_length": [3],
        "max_target_length": [4, 6],
        "max_length_ratio": [],
        "duplicate": [7],
    }


def test_length_ratio_without_end_tokens():
    """7 to 2 and 7 to 3 tokens exceed a ratio of 2, 6 to 3 tokens do not."""
    found = dropped(max_length_ratio=2)
    assert found["max_length_ratio"] == [3, 4, 6]
    assert found["duplicate"] == [7]
    assert dropped(max_length_ratio=7 / 3)["max_length_ratio"] == [3, 4]


# Duplicates.


@pytest.mark.parametrize("chunk", [8, 1 << 18])
def test_duplicates_against_a_set(chunk):
    numbers = np.random.default_rng(3).integers(0, 97, 211)
    pairs = [(str(n), str(n % 89)) for n in numbers]
    corpora = [pairs[:97], pairs[97:97], pairs[97:]]
    seen, expected = set(), []
    for pair in pairs:
        expected.append(pair in seen)
        seen.add(pair)
    found = [
        flag
        for flags, corpus in zip(find_duplicates(corpora, chunk), corpora, strict=True)
        for flag in flags.between(0, len(corpus)).tolist()
    ]
    assert found == expected
    assert 0 < sum(expected) < len(expected)


def test_duplicates_have_equal_source_and_target():
    (flags,) = find_duplicates([[("ab", "c"), ("a", "bc"), ("ab", "c"), ("c", "ab")]])
    assert flags.between(0, 4).tolist() == [False, False, True, False]
    (flags,) = find_duplicates([[("lion\nbear", "cat"), ("lion", "bear\ncat")]])
    assert not flags.between(0, 2).any()


def test_packed_flags():
    flags = np.random.default_rng(3).integers(0, 2, 61).astype(bool)
    packed = PackedFlags(np.packbits(flags))
    for start, stop in [(0, 61), (0, 0), (5, 6), (8, 16), (13, 59), (60, 61)]:
        assert packed.between(start, stop).tolist() == flags[start:stop].tolist()
    assert not PackedFlags.unset(61).between(3, 61).any()


def test_memory_of_duplicates():
    """At most 16 bytes per distinct pair, and one bit per pair."""
    count = 20_011
    tracemalloc.start()
    find_duplicates([((str(n), "") for n in range(count))], chunk=256)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * count + count / 8 + 200 * 256
