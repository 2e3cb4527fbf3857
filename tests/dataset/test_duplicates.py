import tracemalloc

import numpy as np
import pytest

from keras_transformer.dataset import duplicates
from keras_transformer.dataset.duplicates import Flags, find_duplicates

pytestmark = pytest.mark.once


@pytest.mark.parametrize("chunk", [8, 64, 1 << 18])
def test_against_a_set(chunk, monkeypatch):
    monkeypatch.setattr(duplicates, "_CHUNK", chunk)
    numbers = np.random.default_rng(3).integers(0, 97, 211)
    pairs = [(str(n), str(n % 89)) for n in numbers]
    corpora = [pairs[:97], pairs[97:97], pairs[97:]]
    seen, expected = set(), []
    for pair in pairs:
        expected.append(pair in seen)
        seen.add(pair)
    found = [
        flag
        for flags, corpus in zip(find_duplicates(corpora), corpora, strict=True)
        for flag in flags.between(0, len(corpus)).tolist()
    ]
    assert found == expected
    assert 0 < sum(expected) < len(expected)


def test_both_sides_count():
    (flags,) = find_duplicates([[("ab", "c"), ("a", "bc"), ("ab", "c"), ("c", "ab")]])
    assert flags.between(0, 4).tolist() == [False, False, True, False]


def test_a_line_s_end_belongs_to_its_side():
    (flags,) = find_duplicates([[("lion\nbear", "cat"), ("lion", "bear\ncat")]])
    assert not flags.between(0, 2).any()


def test_some_flags():
    flags = np.random.default_rng(3).integers(0, 2, 61).astype(bool)
    packed = Flags(np.packbits(flags))
    for start, stop in [(0, 61), (0, 0), (5, 6), (8, 16), (13, 59), (60, 61)]:
        assert packed.between(start, stop).tolist() == flags[start:stop].tolist()
    assert not Flags.unset(61).between(3, 61).any()


def test_memory(monkeypatch):
    """At most 16 bytes a distinct pair, and a bit for every pair."""
    monkeypatch.setattr(duplicates, "_CHUNK", 256)
    count = 20_011
    tracemalloc.start()
    find_duplicates([((str(n), "") for n in range(count))])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * count + count / 8 + 200 * 256
