import asyncio
import gc
import threading
import weakref

import pytest

from keras_transformer_runtime.serving import batching
from keras_transformer_runtime.serving.batching import Batcher
from keras_transformer_runtime.serving.requests import RequestError

pytestmark = pytest.mark.once("torch")


class Gate:
    """Computes upper case when it is open, and records its batches."""

    def __init__(self, max_texts):
        self.max_texts = max_texts
        self.batches = []
        self.open = threading.Event()

    def compute(self, key, rows):
        self.batches.append(rows)
        assert self.open.wait(20)
        return [ValueError("no digits") if row == "1" else row.upper() for row in rows]


def run(scenario, max_texts=3, max_tokens=100, max_waiting=100):
    async def main():
        gate = Gate(max_texts)
        batcher = Batcher(gate.compute, gate, max_tokens, max_waiting)
        try:
            async with asyncio.timeout(20):
                return await scenario(batcher, gate)
        finally:
            gate.open.set()

    return asyncio.run(main())


@pytest.fixture
def patient(monkeypatch):
    """Incomplete batches wait for more rows."""
    monkeypatch.setattr(batching, "IDLE_SECONDS", 3600)


async def ask(batcher, *rows, key="a key", tokens=1):
    return await batcher.submit(key, rows, [tokens] * len(rows))


async def start(*coroutines):
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    await asyncio.sleep(0)  # their rows are in the queue
    return tasks


def test_waiting_rows_form_a_batch(patient):
    async def scenario(batcher, gate):
        tasks = await start(*(ask(batcher, row) for row in "abcdef"))
        assert batcher.waiting == 5 and not batcher.idle
        gate.open.set()
        assert await asyncio.gather(*tasks[:4]) == [["A"], ["B"], ["C"], ["D"]]
        assert gate.batches == [["a"], ["b", "c", "d"]]
        last = await start(ask(batcher, "g"))
        assert await asyncio.gather(*tasks[4:], *last) == [["E"], ["F"], ["G"]]
        assert gate.batches[2:] == [["e", "f", "g"]]
        assert batcher.idle and batcher.waiting == 0

    run(scenario)


def test_clients_of_a_batch_form_a_batch_again(patient):
    async def scenario(batcher, gate):
        gate.open.set()
        await ask(batcher, *"abc")
        first = await start(ask(batcher, "d"))
        assert batcher.waiting == 1  # more rows may arrive
        rest = await start(ask(batcher, "e"), ask(batcher, "f"))
        await asyncio.gather(*first, *rest)
        assert gate.batches == [["a", "b", "c"], ["d", "e", "f"]]

    run(scenario)


def test_incomplete_batches_are_computed_when_none_arrives():
    async def scenario(batcher, gate):
        gate.open.set()
        await ask(batcher, *"abc")
        assert await ask(batcher, "d") == ["D"]

    run(scenario)


def test_a_single_row_does_not_wait_for_others(patient):
    async def scenario(batcher, gate):
        gate.open.set()
        assert await ask(batcher, "a") == ["A"]
        assert await ask(batcher, "b") == ["B"]

    run(scenario)


def test_a_large_request_is_split():
    async def scenario(batcher, gate):
        gate.open.set()
        assert await ask(batcher, *"abcdefgh") == list("ABCDEFGH")
        assert gate.batches == [["a", "b", "c"], ["d", "e", "f"], ["g", "h"]]

    run(scenario)


def test_a_batch_has_one_key_and_the_oldest_row():
    async def scenario(batcher, gate):
        asked = zip("abcde", "xyxyx", strict=True)
        tasks = await start(*(ask(batcher, row, key=key) for row, key in asked))
        gate.open.set()
        found = await asyncio.gather(*tasks)
        assert found == [["A"], ["B"], ["C"], ["D"], ["E"]]
        assert gate.batches == [["a"], ["b", "d"], ["c", "e"]]

    run(scenario)


def test_the_padded_tokens_of_a_batch_are_limited():
    async def scenario(batcher, gate):
        lengths = {"a": 1, "b": 5, "c": 7, "d": 3, "e": 29, "f": 2}
        asked = [ask(batcher, row, tokens=lengths[row]) for row in lengths]
        tasks = await start(*asked)
        gate.open.set()
        await asyncio.gather(*tasks)
        # Three rows of seven tokens are too many; a long row is a batch of its own.
        assert gate.batches == [["a"], ["b", "c"], ["d", "f"], ["e"]]

    run(scenario, max_tokens=17)


def test_an_invalid_row_fails_only_its_request():
    async def scenario(batcher, gate):
        asked = [ask(batcher, "x"), ask(batcher, "a"), ask(batcher, "1", "b")]
        tasks = await start(*asked)
        gate.open.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert gate.batches[1] == ["a", "1", "b"]
        assert found[:2] == [["X"], ["A"]]
        assert isinstance(found[2], ValueError) and str(found[2]) == "no digits"

    run(scenario)


def test_too_many_waiting_rows_are_refused():
    async def scenario(batcher, gate):
        tasks = await start(ask(batcher, "a"), ask(batcher, *"bc"), ask(batcher, "d"))
        with pytest.raises(RequestError, match="3 texts are waiting") as found:
            await ask(batcher, "e")
        assert found.value.status == 503
        gate.open.set()
        assert await asyncio.gather(*tasks) == [["A"], ["B", "C"], ["D"]]
        assert await ask(batcher, "e") == ["E"]

    run(scenario, max_waiting=3)


def test_a_request_over_the_limit_is_accepted_when_idle():
    async def scenario(batcher, gate):
        gate.open.set()
        assert await ask(batcher, *"abcde") == list("ABCDE")

    run(scenario, max_waiting=2)


def test_rows_of_disconnected_clients_leave_the_queue():
    async def scenario(batcher, gate):
        tasks = await start(ask(batcher, "a"), ask(batcher, *"bc"), ask(batcher, "d"))
        tasks[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]
        assert batcher.waiting == 1
        tasks += await start(ask(batcher, *"ef"))  # there is room for them
        gate.open.set()
        assert await tasks[0] == ["A"] and await tasks[2] == ["D"]
        assert await tasks[3] == ["E", "F"]
        assert gate.batches == [["a"], ["d", "e", "f"]]
        assert batcher.idle

    run(scenario, max_waiting=3)


def test_a_client_that_disconnects_leaves_its_batch_to_the_others():
    async def scenario(batcher, gate):
        first = await start(ask(batcher, "a"))
        tasks = await start(ask(batcher, "b"), ask(batcher, "c"))
        gate.open.set()
        await asyncio.gather(*first)
        tasks[0].cancel()
        assert await tasks[1] == ["C"]

    run(scenario)


class PanicException(BaseException):
    """An error that is no `Exception`, such as a panic of Rust."""


@pytest.mark.parametrize("error", [OSError, PanicException])
def test_a_failure_fails_its_batch_alone(error, caplog):
    async def scenario(batcher, gate):
        def fail(key, rows):
            raise error("lost")

        batcher._compute = fail
        tasks = await start(ask(batcher, "a"), ask(batcher, "b"))
        found = await asyncio.gather(*tasks, return_exceptions=True)
        kind = error if error is OSError else RuntimeError
        assert [type(each) for each in found] == [kind, kind]
        batcher._compute = gate.compute
        gate.open.set()
        assert await ask(batcher, "c") == ["C"]

    run(scenario)


def test_the_memory_of_a_batcher_is_free_without_a_collection():
    async def scenario(batcher, gate):
        gate.open.set()
        other, size = Gate(3), Gate(2)
        other.open.set()
        batcher = Batcher(other.compute, size, 100, 100)
        await ask(batcher, *"abc")
        await ask(batcher, "d")
        [thread] = batcher._threads._threads
        references = weakref.ref(batcher), weakref.ref(other)
        gc.disable()
        try:
            del batcher, other
            # The thread ends when there is no batcher; until then it may compute.
            await asyncio.to_thread(thread.join, 20)
            assert not thread.is_alive()
            assert [reference() for reference in references] == [None, None]
        finally:
            gc.enable()

    run(scenario)


def test_threads_divide_many_rows():
    async def scenario(batcher, gate):
        wide = Gate(64)
        batcher = Batcher(wide.compute, wide, 9999, 999, threads=3)
        rows = [f"row {number}" for number in range(40)]
        asked = asyncio.create_task(ask(batcher, *rows))
        while len(wide.batches) < 3:
            await asyncio.sleep(0.001)
        wide.open.set()
        assert await asked == [row.upper() for row in rows]
        assert sorted(map(len, wide.batches)) == [13, 13, 14]

    run(scenario)
