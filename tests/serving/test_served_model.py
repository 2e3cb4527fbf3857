import asyncio
import gc
import threading
import weakref

import pytest
from fake_models import FakeModel

from keras_transformer_runtime.engines.generation_options import GenerationOptions
from keras_transformer_runtime.engines.model_description import FILE
from keras_transformer_runtime.serving import served_model
from keras_transformer_runtime.serving.loaded_model import GENERATING, Progress
from keras_transformer_runtime.serving.requests import Generation, RequestError, Text
from keras_transformer_runtime.serving.served_model import ServedModel
from keras_transformer_runtime.serving.server_options import ModelOptions
from keras_transformer_runtime.serving.versions import VersionFolder

pytestmark = pytest.mark.once("torch")

GENERATION = Generation(GenerationOptions())


class Loader:
    """Loads `FakeModel`s; the versions in `broken` fail."""

    def __init__(self):
        self.done = []
        self.broken = set()
        self.open = threading.Event()
        self.open.set()
        self.states = {}
        self.signatures = GENERATING
        self.models = {}

    def __call__(self, version, options, threads):
        assert self.open.wait(20)
        number = int(version.folder.name)
        self.done.append(number)
        if number in self.broken:
            raise ValueError(f"{version.folder} has no such op")
        model = FakeModel(signatures=self.signatures)
        model.states = self.states.get(number, [])
        self.models[number] = model
        return model


def add(folder, *versions):
    for version in versions:
        (folder / f"{version}").mkdir()
        (folder / f"{version}/model.bin").touch()
        (folder / f"{version}/{FILE}").touch()


def run(scenario, folder, **options):
    async def main():
        load = Loader()
        options_of_model = ModelOptions(folder=folder, **options)
        async with asyncio.timeout(20):
            await scenario(ServedModel("m", options_of_model, 1, load), load)

    asyncio.run(main())


def states(model):
    return {number: version.state for number, version in model.versions.items()}


async def generate(loaded, *texts):
    found = await loaded.generate([*map(Text, texts)], GENERATION)
    return [hypotheses[0].text for hypotheses in found]


def test_a_new_version_takes_over_and_the_old_one_finishes(tmp_path):
    async def scenario(model, load):
        add(tmp_path, 1)
        await model.refresh()
        old = model.available()
        asked = asyncio.create_task(generate(old.loaded, "sleep"))
        while old.loaded.batcher.idle:
            await asyncio.sleep(0.01)
        add(tmp_path, 2)
        refreshing = asyncio.create_task(model.refresh())
        while old.state == "AVAILABLE":
            await asyncio.sleep(0.01)
        assert model.available().number == 2
        await asyncio.sleep(0.1)
        assert old.state == "UNLOADING" and not load.models[1].closed
        load.models[1].engine.awake.set()
        assert await asked == ["SLEEP"]
        await refreshing
        assert load.models[1].closed
        assert states(model) == {1: "END", 2: "AVAILABLE"}
        await model.refresh()
        assert load.done == [1, 2]

    run(scenario, tmp_path)


def test_a_request_keeps_its_version_until_it_ends(tmp_path):
    """A request can have several batches, between which its version is idle."""

    async def scenario(model, load):
        add(tmp_path, 1)
        await model.refresh()
        loaded = model.available().loaded
        reference = weakref.ref(load.models.pop(1))
        add(tmp_path, 2)
        await model.refresh()
        assert states(model) == {1: "END", 2: "AVAILABLE"}
        assert await generate(loaded, "a") == ["A"]
        gc.disable()
        try:
            del loaded
            await asyncio.sleep(0.05)
            assert reference() is None
        finally:
            gc.enable()

    run(scenario, tmp_path)


def test_the_old_version_responds_while_the_new_one_loads(tmp_path):
    async def scenario(model, load):
        add(tmp_path, 1)
        load.open.clear()
        refreshing = asyncio.create_task(model.refresh())
        while not model.versions:
            await asyncio.sleep(0.01)
        assert model.loading and not model.ready
        with pytest.raises(RequestError, match="m is loading; try again") as found:
            model.available()
        assert found.value.status == 503
        load.open.set()
        await refreshing
        assert model.ready and not model.loading
        add(tmp_path, 2)
        load.open.clear()
        refreshing = asyncio.create_task(model.refresh())
        while 2 not in model.versions:
            await asyncio.sleep(0.01)
        assert model.available().number == 1 and not model.loading
        with pytest.raises(RequestError, match="m, version 2, is loading"):
            model.available(2)
        load.open.set()
        await refreshing
        assert model.available().number == 2

    run(scenario, tmp_path)


def test_a_broken_new_version_leaves_the_old_one(tmp_path, monkeypatch):
    async def scenario(model, load):
        add(tmp_path, 1)
        await model.refresh()
        add(tmp_path, 2)
        load.broken = {2}
        await model.refresh()
        await model.refresh()
        assert load.done == [1, 2]
        assert model.available().number == 1
        assert model.versions[2].error == "2 has no such op"  # without the path
        monkeypatch.setattr(served_model, "RETRY_LOADING_SECONDS", 0)
        load.open.clear()
        loading = asyncio.create_task(model.refresh())
        while model.versions[2].state == "END":
            await asyncio.sleep(0)
        assert model.versions[2].error == "2 has no such op"  # until it is loaded
        load.open.set()
        await loading
        assert model.versions[2].failures == 2
        monkeypatch.setattr(served_model, "RETRY_LOADING_SECONDS", 25)
        model.versions[2].failed_at -= 99
        await model.refresh()
        assert model.versions[2].failures == 2  # the second failure doubles the pause
        model.versions[2].failures = 10**6
        assert not model._is_due(2)
        (tmp_path / "2/model.bin").unlink()
        await model.refresh()
        assert states(model) == {1: "AVAILABLE"}
        (tmp_path / "2/model.bin").touch()  # loaded without a pause
        load.broken = set()
        await model.refresh()
        assert states(model) == {1: "END", 2: "AVAILABLE"}
        assert model.versions[2].error == ""

    run(scenario, tmp_path)


def test_the_message_of_other_errors_is_not_public(tmp_path):
    async def scenario(model, load):
        def fail(*arguments):
            raise OSError("/secret/path")

        add(tmp_path, 1)
        model._load_version = fail
        await model.refresh()
        error = "it cannot be loaded (OSError); see the log of the server"
        assert model.versions[1].error == error
        with pytest.raises(RequestError, match="m is not available") as found:
            model.available()
        assert found.value.status == 404

    run(scenario, tmp_path)


def test_several_versions_side_by_side(tmp_path):
    async def scenario(model, load):
        add(tmp_path, 1, 2, 3)
        await model.refresh()
        assert states(model) == {1: "AVAILABLE", 3: "AVAILABLE"}
        assert model.available().number == 3
        assert model.available(1).number == 1
        with pytest.raises(RequestError, match="m, version 2, is not av") as found:
            model.available(2)
        assert found.value.status == 404
        await model.unload_all()
        assert load.models[1].closed and load.models[3].closed

    run(scenario, tmp_path, versions=[1, 3])


def test_all_versions_are_loading_at_the_start(tmp_path):
    async def scenario(model, load):
        add(tmp_path, 1, 2)
        load.open.clear()
        refreshing = asyncio.create_task(model.refresh())
        while not model.versions:
            await asyncio.sleep(0.01)
        assert states(model) == {1: "LOADING", 2: "LOADING"}
        load.open.set()
        await refreshing
        assert states(model) == {1: "AVAILABLE", 2: "AVAILABLE"}

    run(scenario, tmp_path, versions="all")


def test_unloading_versions_are_unloaded_at_the_end(tmp_path):
    async def scenario(model, load):
        add(tmp_path, 1)
        await model.refresh()
        model.versions[1].state = "UNLOADING"
        await model.unload_all()
        assert states(model) == {1: "END"} and load.models[1].closed

    run(scenario, tmp_path)


def test_warns_once_of_a_folder_without_versions(tmp_path, caplog):
    async def scenario(model, load):
        await model.refresh()
        await model.refresh()

    run(scenario, tmp_path)
    (message,) = caplog.messages
    assert f"{tmp_path} has no version to serve" in message


def test_a_removed_folder_keeps_its_version(tmp_path):
    async def scenario(model, load):
        add(tmp_path, 1)
        await model.refresh()
        (tmp_path / "1/model.bin").unlink()
        await model.refresh()
        assert model.available().number == 1

    run(scenario, tmp_path)


COMPILING = [Progress(3), Progress(2), Progress(2), Progress(1)]
FAILED = Progress(0, "a shape cannot be compiled")


def test_the_first_version_responds_while_it_compiles(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(served_model, "PROGRESS_POLL_SECONDS", 0)
    caplog.set_level("INFO")

    async def scenario(model, load):
        add(tmp_path, 1)
        states = load.states[1] = [*COMPILING]
        await model.refresh()
        assert model.ready and model.compiling == 2
        assert "3 shapes are still compiled" in caplog.messages[-1]
        await model.versions[1].compilation
        assert not states and model.compiling == 0
        assert caplog.messages[-1] == "m, version 1: compiled all shapes in 0 s"

    run(scenario, tmp_path)


def test_a_new_version_takes_over_when_it_is_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr(served_model, "PROGRESS_POLL_SECONDS", 0)

    async def scenario(model, load):
        add(tmp_path, 1)
        await model.refresh()
        add(tmp_path, 2)
        states = load.states[2] = [*COMPILING]
        refreshing = asyncio.create_task(model.refresh())
        while states:
            assert model.available().number == 1
            await asyncio.sleep(0)
        await refreshing
        assert model.available().number == 2

    run(scenario, tmp_path)


def test_a_shape_that_cannot_be_compiled(tmp_path, caplog, monkeypatch):
    """The first version stays; one that replaces it does not replace it."""
    monkeypatch.setattr(served_model, "PROGRESS_POLL_SECONDS", 0)

    async def scenario(model, load):
        add(tmp_path, 1)
        load.states[1] = [Progress(1), Progress(1), *[FAILED] * 3]
        await model.refresh()
        await model.versions[1].compilation
        assert model.ready and not load.models[1].closed
        assert caplog.messages == [f"m, version 1: {FAILED.error}"]
        add(tmp_path, 2)
        load.states[2] = [Progress(1), *[FAILED] * 9]
        await model.refresh()
        assert model.available().number == 1
        assert model.versions[2].error == FAILED.error
        assert load.models[2].closed and not load.models[1].closed

    run(scenario, tmp_path)


def test_unloading_ends_the_wait_for_the_compilation(tmp_path):
    async def scenario(model, load):
        add(tmp_path, 1)
        load.states[1] = COMPILING * 100
        await model.refresh()
        compilation = model.versions[1].compilation
        await model.unload_all()
        with pytest.raises(asyncio.CancelledError):
            await compilation

    run(scenario, tmp_path)


@pytest.fixture
def terms(tmp_path):
    file = tmp_path / "terms.tsv"
    file.write_text("snow\t漢字\ndog\tHund\n", "utf-8")
    return file


def test_a_dictionary_with_a_term_that_the_model_cannot_spell(tmp_path, terms):
    async def scenario(model, load):
        load.signatures = {**GENERATING, "constrained": None}
        add(tmp_path, 1)
        await model.refresh()
        assert "received 1 others: '漢字'" in model.versions[1].error
        assert load.models[1].closed

    run(scenario, tmp_path, dictionary=terms, engine="ctranslate2")


def test_a_dictionary_requires_its_signature(tmp_path, terms):
    async def scenario(model, load):
        add(tmp_path, 1)
        await model.refresh()
        assert "requires the signature 'constrained'" in model.versions[1].error
        assert not model.ready and load.models[1].closed

    run(scenario, tmp_path, dictionary=terms, engine="ctranslate2")
    terms.write_text("York\n")
    with pytest.raises(ValueError, match="line 1 of"):
        run(scenario, tmp_path, dictionary=terms)


def test_what_one_text_fails(tmp_path):
    """An invalid text fails only its request, and any other error its batch."""

    async def scenario(model, load):
        add(tmp_path, 1)
        await model.refresh()
        loaded = model.available().loaded
        blocked = asyncio.create_task(generate(loaded, "sleep"))
        while loaded.batcher.idle:
            await asyncio.sleep(0.01)
        texts = ["a", "refuse", "broken", "b"]
        tasks = [asyncio.create_task(generate(loaded, text)) for text in texts]
        while loaded.batcher.waiting < 4:
            await asyncio.sleep(0.01)
        load.models[1].engine.awake.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert found[0] == ["A"] and found[3] == ["B"]
        assert [(error.status, error.message) for error in found[1:3]] == [
            (400, "`text` must be nice"),
            (500, "the model computes NaN"),
        ]
        calls = [texts for texts, _ in load.models[1].engine.calls]
        assert calls[1] == texts and calls[2:] == [[text] for text in texts]
        await blocked
        with pytest.raises(RequestError, match="at most max_source_length=40 tokens"):
            await generate(loaded, "a" * 40)
        with pytest.raises(RequestError, match="must have a language token"):
            await generate(loaded, "unmeasured")

    run(scenario, tmp_path)


def test_the_engine_of_a_version(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(
        served_model, "CTranslate2Model", lambda *given: calls.append(given)
    )
    options = ModelOptions(folder=tmp_path)
    version = VersionFolder(tmp_path / "7", "ctranslate2")
    served_model.load_version(version, options, 3)
    assert calls == [(tmp_path / "7", 3)]
