"""Gathers the texts of requests into batches while the engine is busy."""

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol, TypeAlias

from keras_transformer_runtime.serving.requests import (
    Generation,
    RequestError,
    SignatureCall,
    Text,
)
from keras_transformer_runtime.serving.rest import Row

# Time without a new text after which an incomplete batch is computed.
IDLE_SECONDS = 0.004
# Rows that are not divided among threads.
SMALLEST_SHARE = 8

# What the rows of a batch have in common.
Key: TypeAlias = Generation | SignatureCall
# Computes the rows of a batch. A result may be an exception.
Compute: TypeAlias = Callable[[Key, Sequence[Row | Text]], Sequence[object]]


class BatchSize(Protocol):
    """Has the maximum number of rows of a batch."""

    @property
    def max_texts(self) -> int: ...


class _Waiting(NamedTuple):
    key: Key
    row: Row | Text
    tokens: int
    result: "asyncio.Future[object]"


class Batcher:
    """Computes rows in batches, each in a thread, which end with this object.

    A batch has rows of one key, at most `max_texts` of them, and at most `max_tokens`
    tokens, with the shorter rows padded to the longest. An idle engine computes a row
    at once, and divides many rows among its threads. After a batch, the next one begins
    when as many rows are waiting as the last one had, or none has arrived for
    `IDLE_SECONDS`: the clients of a batch, which get their responses together, form a
    batch again.

    Args:
        compute: function of the key and the rows of a batch.
        size: has the maximum number of rows of a batch, which may change.
        threads: int, number of batches that are computed at the same time.
        max_tokens: int, maximum number of tokens of a batch of several rows.
        max_waiting: int, maximum number of waiting rows.
    """

    def __init__(
        self,
        compute: Compute,
        size: BatchSize,
        max_tokens: int,
        max_waiting: int,
        threads: int = 1,
    ):
        self._compute = compute
        self._size = size
        self._max_tokens = max_tokens
        self._max_waiting = max_waiting
        self._queue: deque[_Waiting] = deque()
        self._threads = ThreadPoolExecutor(threads, "engine")
        self._free = threads
        self._running: set[asyncio.Task[None]] = set()
        self._last_size = 0
        self._idle_timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        """The number of rows that wait for a batch."""
        return len(self._queue)

    @property
    def idle(self) -> bool:
        """Whether no row is waiting and no batch is computed."""
        return not self._queue and not self._running

    async def submit(
        self, key: Key, rows: Sequence[Row | Text], tokens: Sequence[int]
    ) -> list[object]:
        """Computes the rows of a request.

        Args:
            key: what the rows of a batch have in common.
            rows: what is computed.
            tokens: list of int, the number of tokens of each row.

        Returns:
            The result of each row. Rows leave the queue if the caller is cancelled
            while they wait.
        """
        if self.waiting + len(rows) > max(self._max_waiting, len(rows)):
            raise RequestError(
                503, f"{self.waiting} texts are waiting; try again later"
            )
        loop = asyncio.get_running_loop()
        waiting = [
            _Waiting(key, row, count, loop.create_future())
            for row, count in zip(rows, tokens, strict=True)
        ]
        self._queue.extend(waiting)
        self._start_soon()
        results = [each.result for each in waiting]
        try:
            found = await asyncio.gather(*results)
        except asyncio.CancelledError:
            self._queue = deque(row for row in self._queue if not row.result.done())
            raise
        for each in found:
            if isinstance(each, Exception):
                raise each
        return found

    def _start_soon(self) -> None:
        """Starts a batch of the last size now, and a smaller one after idle time."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None
        if not self._free or not self._queue:
            return
        if self.waiting >= self._last_size:
            self._start()
        else:
            loop = asyncio.get_running_loop()
            self._idle_timer = loop.call_later(IDLE_SECONDS, self._start)

    def _start(self) -> None:
        self._idle_timer = None  # It refers to this object.
        while self._free and (batch := self._next_batch()):
            self._last_size = len(batch)
            self._free -= 1
            task = asyncio.create_task(self._run(batch))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    def _next_batch(self) -> list[_Waiting]:
        """Removes the oldest row, and those that fit to it, from the queue."""
        batch: list[_Waiting] = []
        others: list[_Waiting] = []
        longest = 0
        share = max(SMALLEST_SHARE, -(-len(self._queue) // self._free))
        size = min(self._size.max_texts, share)
        while self._queue and len(batch) < size:
            row = self._queue.popleft()
            if row.result.done():  # the client has disconnected
                continue
            longest_of_both = max(longest, row.tokens)
            is_small = longest_of_both * (len(batch) + 1) <= self._max_tokens
            if batch and not (row.key == batch[0].key and is_small):
                others.append(row)
                continue
            batch.append(row)
            longest = longest_of_both
        self._queue.extendleft(reversed(others))
        return batch

    async def _run(self, batch: list[_Waiting]) -> None:
        rows = [each.row for each in batch]
        call = functools.partial(self._compute, batch[0].key, rows)
        found: Sequence[object] = [RuntimeError("the engine has failed")] * len(batch)
        try:
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._threads, call)
        except Exception as error:
            found = [error] * len(batch)
        finally:
            self._free += 1
            for each, result in zip(batch, found, strict=True):
                if not each.result.done():
                    each.result.set_result(result)
            self._start_soon()
