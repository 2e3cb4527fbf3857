import asyncio

import pytest

from keras_transformer_runtime.serving import batching
from keras_transformer_runtime.serving.batching import Batcher
from keras_transformer_runtime.serving.rest import RequestError

pytestmark = pytest.mark.once


class Gate:
    """Computes upper case when it is open, and records its batches."""

    def __init__(self):
        self.batches = []
        self.open = asyncio.Event()

    async def __call__(self, signature, requests):
        self.batches.append([text for request in requests for text in request["text"]])
        await self.open.wait()
        return [
            "no digits" if "1" in request["text"] else upper(request)
            for request in requests
        ]


def upper(request):
    return {"text": [text.upper() for text in request["text"]]}


def run(scenario, slots=1, max_batch_size=3, max_waiting=100):
    async def main():
        gate = Gate()
        batcher = Batcher(gate, slots, max_batch_size, max_waiting)
        async with asyncio.timeout(20):
            return await scenario(batcher, gate)

    return asyncio.run(main())


async def ask(batcher, *texts, signature="serving_default"):
    return (await batcher.predict(signature, {"text": list(texts)}))["text"]


async def start(*coroutines):
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    for _ in range(2):  # requests arrive, and the first batch is sent
        await asyncio.sleep(0)
    return tasks


def test_waiting_requests_form_a_batch():
    async def scenario(batcher, gate):
        tasks = await start(*(ask(batcher, text) for text in "abcdef"))
        assert gate.batches == [["a"]] and batcher.waiting == 5
        gate.open.set()
        assert await asyncio.gather(*tasks) == [[text] for text in "ABCDEF"]
        assert gate.batches == [["a"], ["b", "c", "d"], ["e", "f"]]
        assert batcher.idle and batcher.waiting == 0

    run(scenario)


def test_clients_of_a_batch_form_a_batch_again():
    async def scenario(batcher, gate):
        gate.open.set()
        await ask(batcher, *"abc")
        first = await start(ask(batcher, "d"))
        assert gate.batches == [["a", "b", "c"]]  # more requests may arrive
        rest = await start(ask(batcher, "e"), ask(batcher, "f"))
        await asyncio.gather(*first, *rest)
        assert gate.batches[1:] == [["d", "e", "f"]]

    run(scenario)


def test_incomplete_batches_are_sent_when_idle():
    async def scenario(batcher, gate):
        gate.open.set()
        await ask(batcher, *"abc")
        assert await asyncio.wait_for(ask(batcher, "d"), timeout=10) == ["D"]
        (alone,) = await start(ask(batcher, "e"))
        assert gate.batches[1:] == [
            ["d"],
            ["e"],
        ]  # immediately, like the single request before
        await alone

    run(scenario)


def test_every_slot_is_used():
    async def scenario(batcher, gate):
        tasks = await start(*(ask(batcher, text) for text in "abc"))
        assert gate.batches == [["a"], ["b"]]
        gate.open.set()
        await asyncio.gather(*tasks)

    run(scenario, slots=2)


def test_a_large_request_is_split():
    async def scenario(batcher, gate):
        gate.open.set()
        assert await ask(batcher, *"abcdefgh") == list("ABCDEFGH")
        assert gate.batches == [["a", "b", "c"], ["d", "e", "f"], ["g", "h"]]

    run(scenario)


def test_requests_are_not_split_to_fill_a_batch():
    async def scenario(batcher, gate):
        tasks = await start(ask(batcher, "a"), ask(batcher, *"bc"), ask(batcher, *"de"))
        gate.open.set()
        assert await asyncio.gather(*tasks) == [["A"], ["B", "C"], ["D", "E"]]
        assert gate.batches == [["a"], ["b", "c"], ["d", "e"]]

    run(scenario)


def test_signatures_are_not_mixed():
    async def scenario(batcher, gate):
        names = ["x", "x", "y", "x"]
        asked = zip("abcd", names, strict=True)
        tasks = await start(*(ask(batcher, t, signature=n) for t, n in asked))
        gate.open.set()
        assert await asyncio.gather(*tasks) == [["A"], ["B"], ["C"], ["D"]]
        assert gate.batches == [["a"], ["b", "d"], ["c"]]

    run(scenario)


def test_lists_of_different_lengths_are_not_mixed():
    async def scenario(batcher, gate):
        async def ask_lists(row):
            return await batcher.predict("tokens", {"text": [row]})

        rows = [[1], [2, 3], [4, 5]]
        tasks = await start(ask(batcher, "x"), *map(ask_lists, rows))
        widths = []
        while batch := batcher._next_batch():
            widths.append([waiting.widths for waiting in batch])
        assert widths == [[(1,)], [(2,), (2,)]]
        for task in tasks:
            task.cancel()

    run(scenario)


def test_a_refused_text_fails_only_its_request():
    async def scenario(batcher, gate):
        tasks = await start(*(ask(batcher, text) for text in "xa1b"))
        gate.open.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert gate.batches[1] == ["a", "1", "b"]
        assert [found[1], found[3]] == [["A"], ["B"]]
        assert isinstance(found[2], RequestError) and found[2].status == 400
        assert found[2].message == "no digits"

    run(scenario)


def test_too_many_waiting_texts_are_refused():
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


def test_requests_of_disconnected_clients_are_not_computed():
    async def scenario(batcher, gate):
        tasks = await start(*(ask(batcher, text) for text in "abc"))
        tasks[1].cancel()
        await asyncio.sleep(0)
        gate.open.set()
        assert await tasks[0] == ["A"] and await tasks[2] == ["C"]
        assert gate.batches == [["a"], ["c"]]
        assert batcher.idle and batcher.waiting == 0

    run(scenario)


def test_a_failure_fails_its_batch_and_frees_the_slot():
    async def scenario(batcher, gate):
        async def fail(signature, requests):
            raise OSError("lost")

        batcher._compute = fail
        tasks = await start(ask(batcher, "a"), ask(batcher, "b"))
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(error) for error in found] == [OSError, OSError]
        batcher._compute = gate
        gate.open.set()
        assert await ask(batcher, "c") == ["C"]

    run(scenario)


def test_an_abandoned_batch_may_still_be_computed():
    async def scenario(batcher, gate):
        tasks = await start(ask(batcher, "a"), ask(batcher, "b"))
        tasks[0].cancel()
        for _ in range(9):
            await asyncio.sleep(0)
        assert gate.batches == [["a"]]
        gate.open.set()
        assert await tasks[1] == ["B"]

    run(scenario)


def test_an_abandoned_batch_frees_its_slot(monkeypatch):
    async def scenario(batcher, gate):
        tasks = await start(ask(batcher, "a"), ask(batcher, "b"))
        tasks[0].cancel()
        while gate.batches != [["a"], ["b"]]:
            await asyncio.sleep(0.01)
        tasks[1].cancel()
        while not batcher.idle:
            await asyncio.sleep(0.01)
        assert batcher.waiting == 0

    monkeypatch.setattr(batching, "ABANDONED_SECONDS", 0.05)
    run(scenario)
