"""Batches of requests."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias

from keras_transformer.serving.rest import Columns, Failure, RequestError, Result

# Time without a new request after which an incomplete batch is sent.
IDLE_SECONDS = 0.004
# Time that a batch may take after all its clients have disconnected.
ABANDONED_SECONDS = 60.0

Compute: TypeAlias = Callable[[str, list[Columns]], Awaitable[list[Result]]]


class _WaitingRequest(NamedTuple):
    signature: str
    inputs: Columns
    rows: int
    widths: tuple[int, ...]
    result: "asyncio.Future[Result]"


class Batcher:
    """Computes requests in batches.

    A batch is sent when a slot is free and the number of waiting texts reaches the
    size of the last batch, or when no request has arrived for `IDLE_SECONDS`. An idle
    server sends a single request immediately; under load, clients whose responses
    arrive together form a batch again.
    """

    def __init__(
        self, compute: Compute, slots: int, max_batch_size: int, max_waiting: int
    ):
        self._compute = compute
        self._free = slots
        self._max_batch_size = max_batch_size
        self._max_waiting = max_waiting
        self._queue: deque[_WaitingRequest] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._last_rows = 0
        self._idle_timer: asyncio.TimerHandle | None = None
        self.waiting = 0

    @property
    def idle(self) -> bool:
        """Whether no request is waiting and no batch is computed."""
        return not self._queue and not self._running

    async def predict(self, signature: str, inputs: Columns) -> Columns:
        """Computes one request."""
        rows = len(next(iter(inputs.values())))
        if self.waiting + rows > max(self._max_waiting, rows):
            raise RequestError(
                503, f"{self.waiting} texts are waiting; try again later"
            )
        pieces = [
            self._enqueue(signature, start, inputs)
            for start in range(0, rows, self._max_batch_size)
        ]
        self._send()
        try:
            results = await asyncio.gather(*pieces)
        finally:
            for piece in pieces:
                piece.cancel()
        outputs = []
        for result in results:
            if isinstance(result, str):
                raise RequestError(400, result)
            if isinstance(result, Failure):
                raise RequestError(500, result.message)
            outputs.append(result)
        return _concatenate(outputs)

    def _enqueue(
        self, signature: str, start: int, inputs: Columns
    ) -> "asyncio.Future[Result]":
        end = start + self._max_batch_size
        piece = {name: column[start:end] for name, column in inputs.items()}
        columns = [column[0] for column in piece.values()]
        rows = len(next(iter(piece.values())))
        widths = tuple(len(value) for value in columns if isinstance(value, list))
        result = asyncio.get_running_loop().create_future()
        self._queue.append(_WaitingRequest(signature, piece, rows, widths, result))
        self.waiting += rows
        return result

    def _send(self) -> None:
        """Sends batches of the last size now, and smaller ones after idle time."""
        self._send_at_least(self._last_rows)
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        loop = asyncio.get_running_loop()
        self._idle_timer = loop.call_later(IDLE_SECONDS, self._send_at_least, 0)

    def _send_at_least(self, rows: int) -> None:
        """Sends batches while a slot is free and at least `rows` texts are waiting."""
        while self._free and self.waiting >= rows and (batch := self._next_batch()):
            self._free -= 1
            self._last_rows = sum(request.rows for request in batch)
            task = asyncio.create_task(self._run(batch))
            self._running.add(task)
            task.add_done_callback(self._finished)
            _cancel_if_abandoned(task, batch)

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        self._free += 1
        self._send()

    def _next_batch(self) -> list[_WaitingRequest]:
        """Removes the oldest requests of one signature and width from the queue."""
        batch: list[_WaitingRequest] = []
        others: list[_WaitingRequest] = []
        rows = 0
        while self._queue:
            first = self._queue.popleft()
            if first.result.done():  # the client has disconnected
                self.waiting -= first.rows
                continue
            head = batch[0] if batch else first
            if (first.signature, first.widths) != (head.signature, head.widths):
                others.append(first)
                continue
            if rows + first.rows > self._max_batch_size:
                self._queue.appendleft(first)
                break
            batch.append(first)
            rows += first.rows
        self._queue.extendleft(reversed(others))
        self.waiting -= rows
        return batch

    async def _run(self, batch: list[_WaitingRequest]) -> None:
        try:
            inputs = [request.inputs for request in batch]
            results = await self._compute(batch[0].signature, inputs)
            for request, result in zip(batch, results, strict=True):
                if not request.result.done():
                    request.result.set_result(result)
        except Exception as error:
            for request in batch:
                if not request.result.done():
                    request.result.set_exception(error)


def _cancel_if_abandoned(
    task: "asyncio.Task[None]", batch: list[_WaitingRequest]
) -> None:
    """Frees the slot of a batch `ABANDONED_SECONDS` after its last client disconnected.

    Until then the batch keeps its slot, because a replica is still computing it.
    """

    def check(_: "asyncio.Future[Result]") -> None:
        if all(request.result.done() for request in batch):
            loop = asyncio.get_running_loop()
            timer = loop.call_later(ABANDONED_SECONDS, task.cancel)
            task.add_done_callback(lambda _: timer.cancel())

    for request in batch:
        request.result.add_done_callback(check)


def _concatenate(outputs: list[Columns]) -> Columns:
    if len(outputs) == 1:
        return outputs[0]
    return {
        name: [value for output in outputs for value in output[name]]
        for name in outputs[0]
    }
