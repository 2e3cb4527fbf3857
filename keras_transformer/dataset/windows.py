"""Windows of batches, and making them in time."""

import concurrent.futures
import dataclasses
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from keras_transformer.dataset.buckets import Batch, Buckets
from keras_transformer.dataset.pair_source import PairSource
from keras_transformer.dataset.token_rows import TokenPairs


class Window(NamedTuple):
    """Pairs that are sorted and shuffled together.

    Attributes:
        pairs: The pairs.
        batches: Their batches, in order.
    """

    pairs: TokenPairs
    batches: list[Batch]


@dataclasses.dataclass(frozen=True)
class Windows:
    """Makes windows, of each its part for one of several workers.

    Attributes:
        source: Gives the pairs of a window.
        buckets: Their buckets.
        shuffle: Whether pairs and batches are shuffled.
        seed: Seed of the orders.
        shard: Number of the worker, from 0, and of all workers. It gets as many
            batches of a window as the others or, in a stream, whole windows.
        batches: Batches of each window for the worker; `None`, in a stream: all.

    Workers whose number does not divide the batches have some of them twice.
    """

    source: PairSource
    buckets: Buckets
    shuffle: bool
    seed: int
    shard: tuple[int, int]
    batches: int | None

    def load(self, number: int) -> Window:
        """The worker's window of this number, whichever came before."""
        index, count = self.shard
        if self.batches is None:
            number = number * count + index
        pairs = self.source.draw(number, tuple(self.buckets.lengths[-1].tolist()))
        random = np.random.default_rng((self.seed, number))
        batches = self.buckets.batches(pairs.lengths, random if self.shuffle else None)
        if self.batches is not None:
            # More batches than wanted are left out at random, fewer are repeated.
            order, wanted = np.arange(len(batches)), self.batches * count
            if self.shuffle or len(order) > wanted:
                order = random.permutation(order)
            order = np.sort(np.resize(order, wanted))
            batches = [batches[place] for place in order[index::count]]
        return Window(pairs, batches)


class Ahead:
    """Loads the next window in the background, one at a time.

    Args:
        load: Makes the window of a number. It is called from one thread only.
    """

    def __init__(self, load: Callable[[int], Window]):
        self._load = load
        self._pool = concurrent.futures.ThreadPoolExecutor(1)
        self._lock = threading.Lock()
        self._futures: dict[int, concurrent.futures.Future[Window]] = {}

    def load(self, number: int) -> Window:
        """The window of this number; the next one is begun."""
        with self._lock:
            self._futures = {
                wanted: self._futures.get(wanted)
                or self._pool.submit(self._load, wanted)
                for wanted in (number, number + 1)
            }
            future = self._futures[number]
        return future.result()
