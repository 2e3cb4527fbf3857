import asyncio

import pytest
from keras_transformer_runtime.serving.warm_up import Progress

from keras_transformer_runtime.serving import served_model
from keras_transformer_runtime.serving.rest import RequestError
from keras_transformer_runtime.serving.served_model import ServedModel
from keras_transformer_runtime.serving.server_options import ModelOptions

pytestmark = pytest.mark.once


class Replicas:
    slots = 1
    signatures = {"serving_default": None}

    def __init__(self, name):
        self.name = name
        self.open = asyncio.Event()
        self.count = 1
        self.states = []

    async def progress(self):
        return self.states.pop(0) if self.states else Progress(3, 3)

    async def running(self):
        if self.count is None:
            raise ConnectionError("no status")
        return self.count

    async def predict(self, signature, requests):
        await self.open.wait()
        return [{"text": [self.name for _ in request["text"]]} for request in requests]


class Cluster:
    """Records its calls; the versions in `broken` fail to start."""

    def __init__(self):
        self.done = []
        self.broken = set()
        self.loading = asyncio.Event()
        self.loading.set()
        self.states = {}
        self.replicas = Replicas

    async def deploy(self, name, folder, options):
        await self.loading.wait()
        self.done.append(f"+{name}")
        if name in self.broken:
            raise RuntimeError("no such op")
        replicas = self.replicas(name)
        replicas.states = self.states.get(name, [])
        return replicas

    async def remove(self, name):
        self.done.append(f"-{name}")


def add(folder, *versions):
    for version in versions:
        (folder / f"{version}/variables").mkdir(parents=True)
        (folder / f"{version}/saved_model.pb").touch()
        (folder / f"{version}/variables/variables.index").touch()


def run(scenario, folder, **options):
    async def main():
        model = ServedModel("m", ModelOptions(folder=folder, **options), Cluster())
        return await scenario(model, model._cluster)

    return asyncio.run(main())


def states(model):
    return {number: version.state for number, version in model.versions.items()}


def test_a_new_version_takes_over_and_the_old_one_finishes(tmp_path):
    async def scenario(model, cluster):
        add(tmp_path, 1)
        await model.refresh()
        old = model.available()
        asked = asyncio.create_task(old.loaded.batcher.predict("x", {"text": ["a"]}))
        await asyncio.sleep(0)
        add(tmp_path, 2)
        refreshing = asyncio.create_task(model.refresh())
        while old.state == "AVAILABLE":
            await asyncio.sleep(0.01)
        assert model.available().number == 2
        assert cluster.done == ["+m-1", "+m-2"]  # the old version is still computing
        old.loaded.replicas.open.set()
        assert await asked == {"text": ["m-1"]}
        await refreshing
        assert cluster.done[2:] == ["-m-1"]
        assert states(model) == {1: "END", 2: "AVAILABLE"}
        await model.refresh()
        assert len(cluster.done) == 3

    run(scenario, tmp_path)


def test_the_old_version_answers_while_the_new_one_loads(tmp_path):
    async def scenario(model, cluster):
        add(tmp_path, 1)
        await model.refresh()
        add(tmp_path, 2)
        cluster.loading.clear()
        refreshing = asyncio.create_task(model.refresh())
        while 2 not in model.versions:
            await asyncio.sleep(0.01)
        assert model.available().number == 1
        with pytest.raises(RequestError, match="m, version 2, is loading"):
            model.available(2)
        cluster.loading.set()
        await refreshing
        assert model.available().number == 2

    run(scenario, tmp_path)


def test_a_broken_new_version_leaves_the_old_one(tmp_path, monkeypatch):
    async def scenario(model, cluster):
        add(tmp_path, 1)
        await model.refresh()
        add(tmp_path, 2)
        cluster.broken = {"m-2"}
        await model.refresh()
        await model.refresh()
        assert cluster.done == ["+m-1", "+m-2"]
        assert model.available().number == 1
        assert model.versions[2].error == "no such op"
        monkeypatch.setattr(served_model, "RETRY_LOADING_SECONDS", 0)
        cluster.loading.clear()
        loading = asyncio.create_task(model.refresh())
        while model.versions[2].state == "END":
            await asyncio.sleep(0)
        assert model.versions[2].error == "no such op"  # until it is loaded
        cluster.loading.set()
        await loading
        assert model.versions[2].failures == 2
        monkeypatch.setattr(served_model, "RETRY_LOADING_SECONDS", 25)
        model.versions[2].failed_at -= 99
        await model.refresh()
        assert model.versions[2].failures == 2  # the second failure doubles the pause
        model.versions[2].failures = 10**6
        assert not model._is_due(2)
        (tmp_path / "2/saved_model.pb").unlink()
        await model.refresh()
        assert states(model) == {1: "AVAILABLE"}
        (tmp_path / "2/saved_model.pb").touch()  # loaded without a pause
        cluster.broken = set()
        await model.refresh()
        assert states(model) == {1: "END", 2: "AVAILABLE"}
        assert model.versions[2].error == ""

    run(scenario, tmp_path)


def test_several_versions_side_by_side(tmp_path):
    async def scenario(model, cluster):
        add(tmp_path, 1, 2, 3)
        await model.refresh()
        assert states(model) == {1: "AVAILABLE", 3: "AVAILABLE"}
        assert model.available().number == 3
        assert model.available(1).number == 1
        with pytest.raises(RequestError, match="m, version 2, is not av") as found:
            model.available(2)
        assert found.value.status == 404
        await model.unload_all()
        assert cluster.done[2:] == ["-m-1", "-m-3"]

    run(scenario, tmp_path, versions=[1, 3])


def test_all_versions_are_loading_at_the_start(tmp_path):
    async def scenario(model, cluster):
        add(tmp_path, 1, 2)
        cluster.loading.clear()
        refreshing = asyncio.create_task(model.refresh())
        while not model.versions:
            await asyncio.sleep(0.01)
        assert states(model) == {1: "LOADING", 2: "LOADING"}
        cluster.loading.set()
        await refreshing
        assert states(model) == {1: "AVAILABLE", 2: "AVAILABLE"}

    run(scenario, tmp_path, versions="all")


def test_unloading_versions_are_unloaded_at_the_end(tmp_path):
    async def scenario(model, cluster):
        add(tmp_path, 1)
        await model.refresh()
        model.versions[1].state = "UNLOADING"
        await model.unload_all()
        assert cluster.done == ["+m-1", "-m-1"]

    run(scenario, tmp_path)


def test_lost_replicas_are_reported_until_one_is_running(tmp_path, caplog):
    async def scenario(model, cluster):
        add(tmp_path, 1)
        await model.refresh()
        await model.refresh()
        assert model.ready
        version = model.available()
        version.loaded.replicas.count = 0
        for _ in range(2):
            await model.refresh()
            assert not model.ready
            assert version.error == "no replica is running"
        assert caplog.messages.count("m, version 1: no replica is running") == 1
        version.loaded.replicas.count = None
        await model.refresh()
        assert version.error == "the state of the replicas is unknown: no status"
        add(tmp_path, 2)  # a new version is loaded nevertheless
        await model.refresh()
        assert model.ready and model.available().number == 2

    run(scenario, tmp_path, versions=[1, 2])


def test_a_replaced_replica_is_ready(tmp_path):
    async def scenario(model, cluster):
        add(tmp_path, 1)
        await model.refresh()
        for count in (0, 1):
            model.available().loaded.replicas.count = count
            await model.refresh()
            assert model.ready == bool(count)
        assert cluster.done == ["+m-1"]

    run(scenario, tmp_path)


def test_warns_once_of_a_folder_without_versions(tmp_path, caplog):
    async def scenario(model, cluster):
        await model.refresh()
        await model.refresh()

    run(scenario, tmp_path)
    (message,) = caplog.messages
    assert f"{tmp_path} has no version to serve" in message


def test_a_removed_folder_keeps_its_version(tmp_path):
    async def scenario(model, cluster):
        add(tmp_path, 1)
        await model.refresh()
        (tmp_path / "1/saved_model.pb").unlink()
        await model.refresh()
        assert model.available().number == 1

    run(scenario, tmp_path)


COMPILING = [
    Progress(1, 3, "batch 16 × length 8"),
    Progress(2, 3, "batch 4 × length 8"),
    Progress(2, 3, "batch 4 × length 8"),
]


def test_the_first_version_answers_while_it_compiles(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(served_model, "PROGRESS_POLL_SECONDS", 0)
    caplog.set_level("INFO")

    async def scenario(model, cluster):
        add(tmp_path, 1)
        cluster.states["m-1"] = list(COMPILING)
        await model.refresh()
        assert model.ready and "compil" not in caplog.text
        assert not model.versions[1].compiled
        await model.versions[1].compilation
        assert model.versions[1].compiled
        lines = [record.message for record in caplog.records]
        assert lines[2:] == [
            "m, version 1: compiling batch 16 × length 8 (1 of 3)",
            "m, version 1: compiling batch 4 × length 8 (2 of 3)",
            "m, version 1: compiled all shapes (3) in 0 s",
        ]

    run(scenario, tmp_path)


def test_a_new_version_takes_over_when_it_is_compiled(tmp_path, monkeypatch):
    monkeypatch.setattr(served_model, "PROGRESS_POLL_SECONDS", 0)

    async def scenario(model, cluster):
        add(tmp_path, 1)
        await model.refresh()
        add(tmp_path, 2)
        states = cluster.states["m-2"] = list(COMPILING)
        refreshing = asyncio.create_task(model.refresh())
        while states:
            assert model.available().number == 1
            await asyncio.sleep(0)
        await refreshing
        assert model.available().number == 2

    run(scenario, tmp_path)


def test_a_shape_that_cannot_be_compiled(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(served_model, "PROGRESS_POLL_SECONDS", 0)
    failed = Progress(2, 3, "batch 4", "out of memory")

    async def scenario(model, cluster):
        add(tmp_path, 1)
        cluster.states["m-1"] = [failed]
        await model.refresh()
        await model.versions[1].compilation
        assert model.ready
        message = "batch 4 cannot be compiled; see the log"
        assert f"m, version 1: {message}" in caplog.text
        assert "m, version 1: batch 4: out of memory" in caplog.text
        add(tmp_path, 2)
        cluster.states["m-2"] = [failed]
        await model.refresh()
        assert model.available().number == 1
        assert model.versions[2].error == message
        assert cluster.done == ["+m-1", "+m-2", "-m-2"]

    run(scenario, tmp_path)


def test_a_dictionary_with_a_term_that_the_model_cannot_spell(tmp_path):
    class Constrained(Replicas):
        signatures = {"constrained": None}

        async def predict(self, signature, requests):
            assert signature == "check_constraints"
            (request,) = requests
            return [{"spelled": [text != "漢字" for text in request["constraints"]]}]

    async def scenario(model, cluster):
        cluster.replicas = Constrained
        add(tmp_path, 1)
        await model.refresh()
        assert cluster.done == ["+m-1", "-m-1"]
        assert "received 1 others: '漢字'" in model.versions[1].error

    (tmp_path / "terms.tsv").write_text("snow\t漢字\ndog\tHund\n", "utf-8")
    run(scenario, tmp_path, dictionary=tmp_path / "terms.tsv")


def test_unloading_ends_the_log_of_the_compilation(tmp_path):
    async def scenario(model, cluster):
        add(tmp_path, 1)
        cluster.states["m-1"] = COMPILING * 100
        await model.refresh()
        compilation = model.versions[1].compilation
        await model.unload_all()
        with pytest.raises(asyncio.CancelledError):
            await compilation

    run(scenario, tmp_path)


def test_a_dictionary_requires_its_signature(tmp_path):
    async def scenario(model, cluster):
        add(tmp_path, 1)
        await model.refresh()
        assert cluster.done == ["+m-1", "-m-1"]
        assert "requires the signature 'constrained'" in model.versions[1].error
        assert not model.ready

    (tmp_path / "terms.tsv").write_text("York\tYorck\n")
    run(scenario, tmp_path, dictionary=tmp_path / "terms.tsv")
    (tmp_path / "terms.tsv").write_text("York\n")
    with pytest.raises(ValueError, match="line 1 of"):
        run(scenario, tmp_path, dictionary=tmp_path / "terms.tsv")
