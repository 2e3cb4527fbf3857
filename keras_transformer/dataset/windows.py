"""Windows of batches, made in the background."""

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
        pairs: the pairs.
        batches: their batches, in order.
    """

    pairs: TokenPairs
    batches: list[Batch]


@dataclasses.dataclass(frozen=True)
class Windows:
    """Makes windows, or one worker's share of them.

    Attributes:
        source: source of the pairs.
        buckets: their buckets.
        shuffle: whether pairs and batches are shuffled.
        seed: seed of the orders.
        shard: number of the worker, from 0, and number of workers. Each gets equally
            many batches of a window or, in a stream, whole windows.
        batches: batches of each window for the worker; `None`, in a stream, = all.

    If the number of workers does not divide the batches, some come twice.
    """

    source: PairSource
    buckets: Buckets
    shuffle: bool
    seed: int
    shard: tuple[int, int]
    batches: int | None

    def load(self, number: int) -> Window:
        """Returns the worker's window `number`, regardless of earlier calls."""
        index, count = self.shard
        if self.batches is None:
            number = number * count + index
        pairs = self.source.draw(number, tuple(self.buckets.lengths[-1].tolist()))
        random = np.random.default_rng((self.seed, number))
        batches = self.buckets.batches(pairs.lengths, random if self.shuffle else None)
        if self.batches is not None:
            # Surplus batches are dropped at random; if too few, some are repeated.
            order, wanted = np.arange(len(batches)), self.batches * count
            if self.shuffle or len(order) > wanted:
                order = random.permutation(order)
            order = np.sort(np.resize(order, wanted))
            batches = [batches[place] for place in order[index::count]]
        return Window(pairs, batches)


class Ahead:
    """Loads the next window in the background, one at a time.

    Args:
        load: function from a number to its window, called from one thread only.
    """

    def __init__(self, load: Callable[[int], Window]):
        self._load = load
        self._pool = concurrent.futures.ThreadPoolExecutor(1)
        self._lock = threading.Lock()
        self._futures: dict[int, concurrent.futures.Future[Window]] = {}

    def load(self, number: int) -> Window:
        """Returns window `number`, and starts to load the next one.

        One that could not be loaded is tried again.
        """
        with self._lock:
            self._futures = {
                wanted: self._future(wanted) for wanted in (number, number + 1)
            }
            future = self._futures[number]
        return future.result()

    def _future(self, number: int) -> concurrent.futures.Future[Window]:
        future = self._futures.get(number)
        if future is None or (future.done() and future.exception()):
            return self._pool.submit(self._load, number)
        return future
