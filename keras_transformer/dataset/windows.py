"""Windows: pairs that are sorted into batches and shuffled together."""

import concurrent.futures
import dataclasses
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from keras_transformer.dataset.buckets import Batch, Buckets
from keras_transformer.dataset.filters import MaxLengths
from keras_transformer.dataset.pair_sources import PairSource
from keras_transformer.dataset.token_rows import TokenPairs


class PairWindow(NamedTuple):
    """Pairs that are sorted into batches and shuffled together."""

    pairs: TokenPairs
    batches: list[Batch]


@dataclasses.dataclass(frozen=True)
class WindowLoader:
    """Loads windows and sorts their pairs into batches.

    In memory, each worker gets every n-th batch of a window. If the number of batches
    is not a multiple of the number of workers, some batches are used twice. In a
    stream, each worker gets every n-th window.
    """

    source: PairSource
    buckets: Buckets
    shuffle: bool
    seed: int
    shard: tuple[int, int]  # Index of the worker, and number of workers.
    batches: int | None  # In a window of this worker; `None`: all, in a stream.

    def load(self, number: int) -> PairWindow:
        """Returns window `number` of the worker.

        The result does not depend on earlier calls.
        """
        index, workers = self.shard
        if self.batches is None:
            number = number * workers + index
        largest = MaxLengths(*self.buckets.lengths[-1].tolist())
        pairs = self.source.window(number, largest)
        random = np.random.default_rng((self.seed, number))
        batches = self.buckets.batches(pairs.lengths, random if self.shuffle else None)
        if self.batches is not None:
            # Drops surplus batches at random, or repeats batches if there are too few.
            order, total = np.arange(len(batches)), self.batches * workers
            if self.shuffle or len(order) > total:
                order = random.permutation(order)
            order = np.sort(np.resize(order, total))
            batches = [batches[position] for position in order[index::workers]]
        return PairWindow(pairs, batches)


class Prefetcher:
    """Loads the next window in a background thread, the only one that calls `load`."""

    def __init__(self, load: Callable[[int], PairWindow]) -> None:
        self._load = load
        self._pool = concurrent.futures.ThreadPoolExecutor(1)
        self._lock = threading.Lock()
        self._futures: dict[int, concurrent.futures.Future[PairWindow]] = {}

    def __reduce__(self) -> tuple[type["Prefetcher"], tuple[object]]:
        return Prefetcher, (self._load,)  # A copy has its own thread.

    def load(self, number: int) -> PairWindow:
        """Returns window `number`, and starts to load the next window.

        A window whose loading failed is loaded again.
        """
        with self._lock:
            self._futures = {
                needed: self._future(needed) for needed in (number, number + 1)
            }
            future = self._futures[number]
        return future.result()

    def _future(self, number: int) -> concurrent.futures.Future[PairWindow]:
        future = self._futures.get(number)
        if future is None or (future.done() and future.exception()):
            return self._pool.submit(self._load, number)
        return future
