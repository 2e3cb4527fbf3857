import asyncio
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from keras_transformer.export.saved_model.warmup import WarmupRequest

pytest.importorskip("ray")
from keras_transformer_runtime.serving import cluster

pytestmark = [pytest.mark.slow, pytest.mark.once]


def test_a_cancelled_call_is_awaited():
    entered, may_end = threading.Event(), threading.Event()
    done = []

    def slow():
        entered.set()
        may_end.wait()
        done.append("slow")

    async def main():
        task = asyncio.create_task(cluster.call_ray(slow))
        await asyncio.to_thread(entered.wait)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done == ["slow"]

    asyncio.run(main())


def test_a_call_returns_the_result_and_raises_the_error():
    assert asyncio.run(cluster.call_ray(max, [2, 3], key=lambda x: -x)) == 2
    with pytest.raises(ZeroDivisionError):
        asyncio.run(cluster.call_ray(divmod, 1, 0))


def test_replicas_that_take_long_to_stop(caplog, monkeypatch):
    def delete(name):
        raise TimeoutError

    monkeypatch.setattr(cluster.serve, "delete", delete)
    asyncio.run(cluster.Cluster.remove(None, "m-1"))
    assert "m-1: the replicas take a long time to stop" in caplog.text


def test_a_replica_with_a_batch_that_does_not_end_is_unhealthy(monkeypatch, tmp_path):
    began, may_end = threading.Event(), threading.Event()
    clock = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(
        cluster, "time", SimpleNamespace(monotonic=lambda: clock.seconds)
    )

    class Stuck:
        batch_sizes = (1,)
        folder = "m/1"

        def __init__(self, folder, batch_sizes, threads):
            pass

        def warmup_requests(self):
            return [WarmupRequest("serving_default", {"text": np.array(["a"])})]

        def call(self, signature, inputs):
            pass

        def predict(self, signature, requests):
            began.set()
            may_end.wait()
            return requests

    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "")
    monkeypatch.setattr("keras_transformer_runtime.serving.replica.Replica", Stuck)
    replica = cluster.SavedModelReplica("m/1", (1,), 1, 5.0)

    async def main():
        await replica.check_health()
        task = asyncio.create_task(replica.predict("serving_default", [{}]))
        await asyncio.to_thread(began.wait)
        clock.seconds = 5.0
        await replica.check_health()
        clock.seconds = 6.0
        with pytest.raises(RuntimeError, match="a batch has not ended after 6 s"):
            await replica.check_health()
        may_end.set()
        assert await task == [{}]
        await replica.check_health()

    asyncio.run(main())


def test_the_log_has_the_reason_of_a_failed_start(caplog, monkeypatch):
    deployment = SimpleNamespace(
        message="OSError: /models/m/1 has no variables", replica_states={"STARTING": 1}
    )
    application = SimpleNamespace(
        status="DEPLOY_FAILED",
        message="Failed to update the deployments",
        deployments={"replica": deployment},
    )
    status = SimpleNamespace(applications={"m-1": application})
    monkeypatch.setattr(cluster.serve, "status", lambda: status)
    with pytest.raises(RuntimeError, match="^Failed to update the deployments$"):
        asyncio.run(cluster._until_one_runs("m-1", 1))
    assert "m-1: OSError: /models/m/1 has no variables" in caplog.text


def status_of(message, **states):
    deployment = SimpleNamespace(message=message, replica_states=states)
    application = SimpleNamespace(
        status="DEPLOYING", message="", deployments={"replica": deployment}
    )
    return SimpleNamespace(applications={"m-1": application})


def test_a_version_is_ready_when_one_replica_runs(caplog, monkeypatch):
    statuses = [status_of("", STARTING=2), status_of("", STARTING=1, RUNNING=1)]
    monkeypatch.setattr(cluster, "STATUS_POLL_SECONDS", 0)
    monkeypatch.setattr(cluster.serve, "status", lambda: statuses.pop(0))
    asyncio.run(cluster._until_one_runs("m-1", 1))
    assert not statuses and not caplog.text


@pytest.mark.parametrize(("free", "warnings"), [(0.0, 1), (1.0, 0)])
def test_the_log_tells_once_that_no_cores_are_free(caplog, monkeypatch, free, warnings):
    message = f"2 replicas have taken more than 30s {cluster.NOT_SCHEDULED}."
    waiting = status_of(message, STARTING=2)
    statuses = [waiting, waiting, status_of("", RUNNING=1)]
    monkeypatch.setattr(cluster, "STATUS_POLL_SECONDS", 0)
    monkeypatch.setattr(cluster.ray, "available_resources", lambda: {"CPU": free})
    monkeypatch.setattr(cluster.serve, "status", lambda: statuses.pop(0))
    asyncio.run(cluster._until_one_runs("m-1", 1))
    found = caplog.text.count("m-1: Ray has no free cores for a replica")
    assert found == warnings
