"""Finds pairs that have occurred before."""

import hashlib
import itertools
from collections.abc import Iterable

import numpy as np

from keras_transformer.dataset.pairs import Pair

_CHUNK = 1 << 18  # Pairs looked up at a time: a multiple of 8.


class Flags:
    """A boolean for each of any number of pairs, at one bit each.

    Args:
        packed: the values as `np.packbits` gives them.
    """

    def __init__(self, packed: np.ndarray):
        self._packed = packed

    @classmethod
    def unset(cls, count: int) -> "Flags":
        """Returns `count` times `False`."""
        return cls(np.broadcast_to(np.uint8(0), count // 8 + 1))

    def between(self, start: int, stop: int) -> np.ndarray:
        """Returns the values from `start` up to `stop`, exclusive: boolean."""
        first = start // 8
        bits = np.unpackbits(self._packed[first : -(-stop // 8)])
        return bits[start - 8 * first : stop - 8 * first].astype(bool)


def find_duplicates(corpora: Iterable[Iterable[Pair]]) -> list[Flags]:
    """Flags, for each corpus, pairs that occur earlier in it or a corpus before it.

    Pairs are compared by 64-bit hashes: 8 bytes for each distinct pair, 16 while new
    ones are added. Among ten million distinct pairs, the odds that any two are taken
    for the same are 1 to 370,000.
    """
    seen = np.empty(0, np.uint64)
    found = []
    for corpus in corpora:
        packed = [np.empty(0, np.uint8)]
        pairs = iter(corpus)
        while len(hashes := _hashes(itertools.islice(pairs, _CHUNK))):
            distinct, first = np.unique(hashes, return_index=True)
            new = ~_contains(seen, distinct)
            duplicate = np.ones(len(hashes), bool)
            duplicate[first[new]] = False
            packed.append(np.packbits(duplicate))
            seen = np.concatenate([seen, distinct[new]])
            seen.sort(kind="stable")  # Merges the two sorted parts in place.
        found.append(Flags(np.concatenate(packed)))
    return found


def _hashes(pairs: Iterable[Pair]) -> np.ndarray:
    digests = [
        hashlib.blake2b(
            f"{len(pair[0])}\n{pair[0]}{pair[1]}".encode(), digest_size=8
        ).digest()
        for pair in pairs
    ]
    return np.frombuffer(b"".join(digests), np.uint64)


def _contains(ordered: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Tells which of the values `ordered` contains."""
    if not len(ordered):
        return np.zeros(len(values), bool)
    places = np.searchsorted(ordered, values)
    return ordered.take(places, mode="clip") == values
