"""Puts the texts of several requests together."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from keras_transformer.serving.rest import Columns, RequestError

# How long no request has come when no more are to be expected.
LULL_SECONDS = 0.004
ABANDONED_SECONDS = 60.0

Compute = Callable[[str, list[Columns]], Awaitable[list[Columns | str]]]


class _Waiting(NamedTuple):
    signature: str
    inputs: Columns
    rows: int
    widths: tuple[int, ...]
    answered: asyncio.Future


class Batcher:
    """Answers requests in batches.

    A batch goes out when one of the `slots` is free and as many texts wait as the last
    batch had, or no more come for `LULL_SECONDS`: a text alone goes at once on an idle
    server, and on a busy one those whose answers came together go together again.

    Args:
        compute: coroutine that answers a list of requests for one signature.
        slots: int, batches on the way at a time.
        max_batch_size: int, texts of a batch. A request with more is cut in pieces.
        max_waiting: int, texts that may wait.
    """

    def __init__(
        self, compute: Compute, slots: int, max_batch_size: int, max_waiting: int
    ):
        self._compute = compute
        self._free = slots
        self._max_batch_size = max_batch_size
        self._max_waiting = max_waiting
        self._queue: deque[_Waiting] = deque()
        self._running: set[asyncio.Task] = set()
        self._last_rows = 0
        self._lull: asyncio.TimerHandle | None = None
        self.waiting = 0

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is on its way."""
        return not self._queue and not self._running

    async def predict(self, signature: str, inputs: Columns) -> Columns:
        """Answers one request.

        Args:
            signature: name of the function.
            inputs: by name, lists with an entry for each text.

        Returns:
            The outputs by name.

        Raises:
            RequestError: with status 503 if too many texts wait, with status 400 if
                the model refuses one of them.
        """
        rows = len(next(iter(inputs.values())))
        if self.waiting + rows > max(self._max_waiting, rows):
            raise RequestError(
                503, f"{self.waiting} texts are waiting already: try again later"
            )
        pieces = [
            self._enqueue(signature, start, inputs)
            for start in range(0, rows, self._max_batch_size)
        ]
        self._send()
        try:
            answers = await asyncio.gather(*pieces)
        finally:
            for piece in pieces:
                piece.cancel()
        for answer in answers:
            if isinstance(answer, str):
                raise RequestError(400, answer)
        return _joined(answers)

    def _enqueue(self, signature: str, start: int, inputs: Columns) -> asyncio.Future:
        end = start + self._max_batch_size
        piece = {name: column[start:end] for name, column in inputs.items()}
        columns = [column[0] for column in piece.values()]
        rows = len(next(iter(piece.values())))
        widths = tuple(len(value) for value in columns if isinstance(value, list))
        answered = asyncio.get_running_loop().create_future()
        self._queue.append(_Waiting(signature, piece, rows, widths, answered))
        self.waiting += rows
        return answered

    def _send(self) -> None:
        """Sends what is as large as the last batch now, the rest at the next lull."""
        self._send_at_least(self._last_rows)
        if self._lull is not None:
            self._lull.cancel()
        loop = asyncio.get_running_loop()
        self._lull = loop.call_later(LULL_SECONDS, self._send_at_least, 0)

    def _send_at_least(self, rows: int) -> None:
        while self._free and self.waiting >= rows and (batch := self._next_batch()):
            self._free -= 1
            self._last_rows = sum(waiting.rows for waiting in batch)
            task = asyncio.create_task(self._run(batch))
            self._running.add(task)
            task.add_done_callback(self._finished)
            _give_up_if_all_have_gone(task, batch)

    def _finished(self, task: asyncio.Task) -> None:
        self._running.discard(task)
        self._free += 1
        self._send()

    def _next_batch(self) -> list[_Waiting]:
        """Those that wait longest, of one signature and one width."""
        batch: list[_Waiting] = []
        others: list[_Waiting] = []
        rows = 0
        while self._queue:
            first = self._queue.popleft()
            if first.answered.done():  # its client has gone
                self.waiting -= first.rows
                continue
            mate = batch[0] if batch else first
            if (first.signature, first.widths) != (mate.signature, mate.widths):
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

    async def _run(self, batch: list[_Waiting]) -> None:
        try:
            answers = await self._compute(batch[0].signature, [x.inputs for x in batch])
            for waiting, answer in zip(batch, answers, strict=True):
                if not waiting.answered.done():
                    waiting.answered.set_result(answer)
        except Exception as error:
            for waiting in batch:
                if not waiting.answered.done():
                    waiting.answered.set_exception(error)


def _give_up_if_all_have_gone(task: asyncio.Task, batch: list[_Waiting]) -> None:
    """Takes the slot from a batch that does not come back.

    That of clients who have gone is computed all the same, and until then its replica
    is busy: it has some time for that.
    """

    def check(_: asyncio.Future) -> None:
        if all(waiting.answered.done() for waiting in batch):
            loop = asyncio.get_running_loop()
            given_up = loop.call_later(ABANDONED_SECONDS, task.cancel)
            task.add_done_callback(lambda _: given_up.cancel())

    for waiting in batch:
        waiting.answered.add_done_callback(check)


def _joined(answers: list[Any]) -> Columns:
    if len(answers) == 1:
        return answers[0]
    return {
        name: [value for answer in answers for value in answer[name]]
        for name in answers[0]
    }
