"""Replicas of models as Ray Serve deployments on the machines of a Ray cluster."""

import asyncio
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# gRPC takes a third of the time of a call through the object store of Ray.
os.environ.setdefault("RAY_SERVE_USE_GRPC_BY_DEFAULT", "1")
os.environ.setdefault("RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP", "0")
# Attention maps of a batch of long texts exceed the default of 4 MiB.
os.environ.setdefault("RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH", str(2**31 - 1))
# A call after `ray.shutdown` must fail instead of starting Ray again.
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")

import ray  # noqa: E402 (after setting the environment that it reads)
from ray import serve  # noqa: E402
from ray.exceptions import RayActorError  # noqa: E402
from ray.serve.exceptions import (  # noqa: E402
    DeploymentUnavailableError,
    ReplicaUnavailableError,
)

from keras_transformer.backend.ray_connection import connect  # noqa: E402
from keras_transformer.serving.rest import (  # noqa: E402
    Columns,
    RequestError,
    Result,
    Signature,
)
from keras_transformer.serving.server_options import ModelOptions  # noqa: E402
from keras_transformer.serving.warm_up import Progress, WarmUp  # noqa: E402

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

# Batches that a replica may hold. Further requests wait in the `Batcher`, so that the
# next batch is as large as possible.
MAX_ONGOING_REQUESTS = 2
REPLICA_LOST = (RayActorError, DeploymentUnavailableError, ReplicaUnavailableError)
ATTEMPTS = 5
RETRY_SECONDS = 0.2
HEALTH_CHECK_SECONDS = 1.0
DRAIN_SECONDS = 30.0
STATUS_POLL_SECONDS = 0.1
# Part of the message of a deployment whose replicas Ray has not scheduled for 30 s.
NOT_SCHEDULED = "to be scheduled"


class Description(NamedTuple):
    """The signatures of the SavedModel of a replica, in two forms."""

    signatures: dict[str, Signature]
    metadata: dict[str, object]


class SavedModelReplica:
    """A process with one version of one model.

    It is ready when it is compiled for the first shape of a batch, and compiles the
    others while it processes requests.
    """

    def __init__(
        self,
        folder: str,
        batch_sizes: tuple[int, ...],
        threads: int,
        stuck_seconds: float,
    ):
        self._stuck_seconds = stuck_seconds
        self._started: dict[object, float] = {}  # when each running batch started
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        from keras_transformer.serving.replica import Replica  # imports TensorFlow

        self._replica = Replica(folder, batch_sizes, threads)
        self._warm_up = WarmUp(self._replica)
        self._warm_up.compile_first()
        threading.Thread(target=self._warm_up.compile_others, daemon=True).start()

    async def predict(self, signature: str, requests: list[Columns]) -> list[Result]:
        """Computes several requests; see `Replica.predict`."""
        return await asyncio.to_thread(self._compute, signature, requests)

    def _compute(self, signature: str, requests: list[Columns]) -> list[Result]:
        batch = object()
        self._started[batch] = time.monotonic()
        try:
            return self._replica.predict(signature, requests)
        finally:
            del self._started[batch]

    async def check_health(self) -> None:
        """Raises an error if a batch is stuck; Ray Serve calls it repeatedly."""
        now = time.monotonic()
        seconds = now - min(list(self._started.values()), default=now)
        if seconds > self._stuck_seconds:
            raise RuntimeError(f"a batch has not ended after {seconds:.0f} s")

    async def progress(self) -> Progress:
        """Returns the progress of the warm-up."""
        return self._warm_up.progress

    async def describe(self) -> Description:
        """Returns the signatures."""
        return Description(self._replica.signatures, self._replica.metadata())


class Cluster:
    """A Ray cluster, on this machine or on several."""

    def __init__(
        self,
        address: str | None = None,
        cpus: int = 1,
        stuck_seconds: float = 120.0,
    ):
        self._temporary = tempfile.TemporaryDirectory(prefix="keras_transformer-")
        self._stuck_seconds = stuck_seconds
        folder = Path(self._temporary.name, "working_folder")
        folder.mkdir()
        connect(address, folder, namespace="keras_transformer", num_cpus=cpus)
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        serve.start(proxy_location="Disabled", logging_config={"log_level": "ERROR"})

    async def deploy(
        self, name: str, folder: Path, options: ModelOptions
    ) -> "Replicas":
        """Starts the replicas of a version and waits until one is ready."""
        deployment: Any = serve.deployment(SavedModelReplica)
        application = deployment.options(**_deployment_options(options)).bind(
            str(folder),
            options.batch_sizes,
            options.cpus,
            self._stuck_seconds,
        )
        target = serve.RunTarget(application, name=name, route_prefix=None)
        try:
            (handle,) = await call_ray(
                serve.run_many, [target], wait_for_applications_running=False
            )
            await _until_one_runs(name, options.cpus)
            replicas = max(options.replicas, options.max_replicas or 0)
            description = Description(*await handle.describe.remote())
            return Replicas(name, handle, replicas, description)
        except BaseException:
            await self.remove(name)
            raise

    async def remove(self, name: str) -> None:
        """Stops the replicas of a version after they have finished their batches."""
        try:
            await call_ray(serve.delete, name)
        except TimeoutError:
            logger.warning("%s: the replicas take a long time to stop", name)

    async def stop(self) -> None:
        """Ends the cluster if `Cluster` started it; otherwise disconnects from it."""
        await call_ray(ray.shutdown)
        self._temporary.cleanup()


class Replicas:
    """The replicas of one version."""

    def __init__(self, name: str, handle: Any, slots: int, description: Description):
        self._name = name
        self._handle = handle
        self.slots = slots
        self.signatures = description.signatures
        self.metadata = description.metadata

    async def predict(self, signature: str, requests: list[Columns]) -> list[Result]:
        """Computes requests. If the replica dies, another one repeats them."""
        results: list[Result] = await self._repeat("predict", signature, requests)
        return results

    async def progress(self) -> Progress:
        """Returns the progress of the warm-up of one replica."""
        progress: Progress = await self._repeat("progress")
        return progress

    async def _repeat(self, method: str, *args: object) -> Any:
        """Calls a method of a replica, and of another one if the replica dies."""
        for _ in range(ATTEMPTS):
            try:
                return await getattr(self._handle, method).remote(*args)
            except REPLICA_LOST:
                logger.warning(
                    "%s: a replica was lost; the request is repeated", self._name
                )
                await asyncio.sleep(RETRY_SECONDS)
        raise RequestError(
            503, f"{ATTEMPTS} replicas were lost in succession; try again later"
        )

    async def running(self) -> int:
        """Returns the number of replicas that are running."""
        status = await call_ray(serve.status)
        (deployment,) = status.applications[self._name].deployments.values()
        return _running(deployment)


async def call_ray(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Calls a function of Ray in a thread. A cancellation waits until it returns.

    A call that is still active during `ray.shutdown` ends the process with an error.
    """
    call = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        await asyncio.gather(call, return_exceptions=True)
        raise


async def _until_one_runs(name: str, cpus: int) -> None:
    warned = False
    while True:
        status = await call_ray(serve.status)
        application = status.applications.get(name)
        if application is None:
            raise RuntimeError("the version was deleted while it was loading")
        deployments = application.deployments.values()
        if any(map(_running, deployments)):
            return
        if application.status == "DEPLOY_FAILED":
            # These messages contain paths, which clients must not see.
            for deployment in deployments:
                logger.error("%s: %s", name, deployment.message)
            raise RuntimeError(application.message)
        waiting = any(NOT_SCHEDULED in each.message for each in deployments)
        if waiting and not warned and await call_ray(_free_cpus) < cpus:
            warned = True
            logger.warning(
                "%s: Ray has no free cores for a replica. Reduce `cpus` or the number "
                "of replicas, or add a machine to the cluster",
                name,
            )
        await asyncio.sleep(STATUS_POLL_SECONDS)


def _free_cpus() -> float:
    resources: dict[str, float] = ray.available_resources()
    return resources.get("CPU", 0.0)


def _running(deployment: Any) -> int:
    """Returns the number of running replicas of the status of a deployment."""
    counts = deployment.replica_states.items()
    return sum(count for state, count in counts if state == "RUNNING")


def _deployment_options(options: ModelOptions) -> dict[str, object]:
    deployment: dict[str, object] = {
        "ray_actor_options": {"num_cpus": options.cpus},
        "max_ongoing_requests": MAX_ONGOING_REQUESTS,
        "health_check_period_s": HEALTH_CHECK_SECONDS,
        "graceful_shutdown_timeout_s": DRAIN_SECONDS,
        "graceful_shutdown_wait_loop_s": 0.1,
    }
    most = options.max_replicas or options.replicas
    if most == options.replicas:
        return {**deployment, "num_replicas": most}
    autoscaling = {
        "min_replicas": options.replicas,
        "max_replicas": most,
        "target_ongoing_requests": 1,
    }
    return {**deployment, "autoscaling_config": autoscaling}
