"""The one place that knows Ray: replicas of models on the machines of a cluster."""

import asyncio
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# A call costs a third of one through Ray's object store.
os.environ.setdefault("RAY_SERVE_USE_GRPC_BY_DEFAULT", "1")
os.environ.setdefault("RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP", "0")
# Attention maps of a batch of long texts are more than Ray's 4 MiB.
os.environ.setdefault("RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH", str(2**31 - 1))
# A call behind `ray.shutdown` fails, and does not start another Ray.
os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")

import ray  # noqa: E402 (reads the environment)
from ray import serve  # noqa: E402
from ray.exceptions import RayActorError  # noqa: E402
from ray.serve.exceptions import (  # noqa: E402
    DeploymentUnavailableError,
    ReplicaUnavailableError,
)

from keras_transformer.serving.options import ModelOptions  # noqa: E402
from keras_transformer.serving.rest import (  # noqa: E402
    Columns,
    RequestError,
    Signature,
)

logger = logging.getLogger(__name__)

# Batches that Ray may have with a replica; another one is sent only when one is back,
# so that it is as large as can be.
MOST_ONGOING = 2
REPLICA_LOST = (RayActorError, DeploymentUnavailableError, ReplicaUnavailableError)
ATTEMPTS = 5
RETRY_SECONDS = 0.2
HEALTH_CHECK_SECONDS = 1.0
DRAIN_SECONDS = 30.0
STATUS_POLL_SECONDS = 0.2


class SavedModelReplica:
    """A process with one version of one model, ready when it is warm.

    Args:
        folder: of the version, on every machine of the cluster.
        batch_sizes: ints, see `ModelOptions`.
        threads: int, of TensorFlow.
        cache: folder where what XLA compiles is kept, for the next replica.
    """

    def __init__(
        self, folder: str, batch_sizes: tuple[int, ...], threads: int, cache: str
    ):
        os.makedirs(cache, mode=0o700, exist_ok=True)
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
        os.environ["TF_XLA_FLAGS"] = (
            f"--tf_xla_persistent_cache_directory='{cache}' "  # it may hold spaces
            "--tf_xla_persistent_cache_device_types=CPU"
        )
        from keras_transformer.serving.replica import Replica

        self._replica = Replica(folder, batch_sizes, threads)
        self._replica.warm_up()

    async def predict(
        self, signature: str, requests: list[Columns]
    ) -> list[Columns | str]:
        """Answers several requests; see `Replica.predict`."""
        return await asyncio.to_thread(self._replica.predict, signature, requests)

    async def describe(self) -> tuple[dict[str, Signature], dict[str, Any]]:
        """The signatures, for us and as TF Serving's metadata."""
        return self._replica.signatures, self._replica.metadata()


class Cluster:
    """Ray, on this machine or on many.

    Args:
        address: of a cluster; `None` starts one here, which ends with `stop`.
        cpus: int, how many cores to count on this machine: replicas of an old and a
            new version must fit side by side.
        cache: folder where what XLA compiles is kept, on every machine; `None` = one
            that ends with `stop`.
    """

    def __init__(
        self,
        address: str | None = None,
        cpus: int = 1,
        cache: Path | None = None,
    ):
        local: dict[str, Any] = {"num_cpus": cpus, "include_dashboard": False}
        ray.init(
            address=address or "local",
            namespace="keras_transformer",
            logging_level=logging.ERROR,
            log_to_driver=False,
            **({} if address else local),
        )
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        serve.start(proxy_location="Disabled", logging_config={"log_level": "ERROR"})
        self._temporary = tempfile.TemporaryDirectory(prefix="keras_transformer-")
        self._cache = str(Path(cache or self._temporary.name).resolve())

    async def deploy(self, name: str, folder: Path, options: ModelOptions) -> "Workers":
        """Starts the replicas of a version; returns when all are warm.

        Args:
            name: of the version, unique in the cluster.
            folder: of the version.
            options: the model's.

        Returns:
            The `Workers`.

        Raises:
            RuntimeError: if they do not start.
        """
        deployment: Any = serve.deployment(SavedModelReplica)
        application = deployment.options(**_deployment_options(options)).bind(
            str(folder), options.batch_sizes, options.cpus, self._cache
        )
        target = serve.RunTarget(application, name=name, route_prefix=None)
        try:
            (handle,) = await call_ray(
                serve.run_many, [target], wait_for_applications_running=False
            )
            await _until_running(name)
            replicas = max(options.replicas, options.max_replicas or 0)
            described = await handle.describe.remote()
            return Workers(name, handle, replicas, *described)
        except BaseException:
            await self.remove(name)
            raise

    async def remove(self, name: str) -> None:
        """Stops the replicas of a version when they have answered what they have.

        Args:
            name: of the version.
        """
        try:
            await call_ray(serve.delete, name)
        except TimeoutError:
            logger.warning("%s: its replicas take long to end", name)

    async def stop(self) -> None:
        """Ends a cluster that was started here; leaves any other one as it is."""
        await call_ray(ray.shutdown)
        self._temporary.cleanup()


class Workers:
    """The replicas of one version.

    Args:
        name: of the version, unique in the cluster.
        handle: Ray Serve's.
        slots: int, batches that may be on the way to them.
        signatures: `Signature`s by name.
        metadata: as TF Serving's REST API has it.
    """

    def __init__(
        self,
        name: str,
        handle: Any,
        slots: int,
        signatures: dict[str, Signature],
        metadata: dict[str, Any],
    ):
        self._name = name
        self._handle = handle
        self.slots = slots
        self.signatures = signatures
        self.metadata = metadata

    async def predict(
        self, signature: str, requests: list[Columns]
    ) -> list[Columns | str]:
        """Answers requests; if a replica dies of them or otherwise, by another one.

        Args:
            signature: name of the function.
            requests: see `Replica.predict`.

        Returns:
            See `Replica.predict`.

        Raises:
            RequestError: with status 503, if several replicas died in turn.
        """
        for _ in range(ATTEMPTS):
            try:
                return await self._handle.predict.remote(signature, requests)
            except REPLICA_LOST:
                logger.warning("%s: lost a replica; asking another one", self._name)
                await asyncio.sleep(RETRY_SECONDS)
        raise RequestError(503, f"{ATTEMPTS} replicas were lost in turn: try later")

    async def running(self) -> int:
        """How many of the replicas are there and warm."""
        status = await call_ray(serve.status)
        (deployment,) = status.applications[self._name].deployments.values()
        counts = deployment.replica_states.items()
        return sum(count for state, count in counts if state == "RUNNING")


async def call_ray(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls Ray in a thread; who cancels waits until the call has ended.

    A call that goes on during `ray.shutdown` ends the process with an error.

    Args:
        function: that does not take long.
        *args: its.
        **kwargs: its.

    Returns:
        What it returns.
    """
    call = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        await asyncio.gather(call, return_exceptions=True)
        raise


async def _until_running(name: str) -> None:
    while True:
        status = await call_ray(serve.status)
        application = status.applications.get(name)
        if application is None:
            raise RuntimeError("it was deleted while it was loaded")
        if application.status == "RUNNING":
            return
        if application.status == "DEPLOY_FAILED":
            # With paths, which are for the log alone.
            for deployment in application.deployments.values():
                logger.error("%s: %s", name, deployment.message)
            raise RuntimeError(application.message)
        await asyncio.sleep(STATUS_POLL_SECONDS)


def _deployment_options(options: ModelOptions) -> dict[str, Any]:
    chosen: dict[str, Any] = {
        "ray_actor_options": {"num_cpus": options.cpus},
        "max_ongoing_requests": MOST_ONGOING,
        "health_check_period_s": HEALTH_CHECK_SECONDS,
        "graceful_shutdown_timeout_s": DRAIN_SECONDS,
        "graceful_shutdown_wait_loop_s": 0.1,
    }
    most = options.max_replicas or options.replicas
    if most == options.replicas:
        return {**chosen, "num_replicas": most}
    scaling = {
        "min_replicas": options.replicas,
        "max_replicas": most,
        "target_ongoing_requests": 1,
    }
    return {**chosen, "autoscaling_config": scaling}
