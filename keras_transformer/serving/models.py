"""The models of a server: which versions there are, and which one answers."""

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import Any

from keras_transformer.serving.batching import Batcher
from keras_transformer.serving.options import ModelOptions
from keras_transformer.serving.rest import RequestError
from keras_transformer.serving.versions import wanted_versions

logger = logging.getLogger(__name__)

RETRY_LOADING_SECONDS = 5.0  # twice as long after each failure
MOST_DOUBLINGS = 9
SLOW_LOADING_SECONDS = 180.0
DRAIN_POLL_SECONDS = 0.05


@dataclass
class Version:
    """One version of a model.

    Attributes:
        number: int, the name of its folder.
        state: TF Serving's `"LOADING"`, `"AVAILABLE"`, `"UNLOADING"` or `"END"`.
        error: why it could not be loaded, or `""`.
        workers: its replicas, when it is available.
        batcher: a `Batcher` that requests go through, when it is available.
        failed_at: seconds of the monotonic clock, when it could not be loaded.
        failures: how often it could not.
    """

    number: int
    state: str = "LOADING"
    error: str = ""
    workers: Any = None
    batcher: Any = None
    failed_at: float = field(default=0.0, repr=False)
    failures: int = 0


class Model:
    """A model with its versions.

    Args:
        name: str.
        options: `ModelOptions`.
        cluster: a `Cluster`.

    Attributes:
        versions: `Version`s by their numbers.
    """

    def __init__(self, name: str, options: ModelOptions, cluster: Any):
        self.name = name
        self.options = options
        self.versions: dict[int, Version] = {}
        self._cluster = cluster
        self._wanted: list[int] | None = None

    def active(self) -> list[Version]:
        """The versions that answer."""
        return [v for v in self.versions.values() if v.state == "AVAILABLE"]

    def available(self, number: int | None = None) -> Version:
        """Says which version answers a request.

        Args:
            number: of the version; `None` = the latest.

        Returns:
            A `Version` that is available.

        Raises:
            RequestError: with status 404 if there is none, 503 if it is being loaded.
        """
        ready = [v for v in self.active() if number in (None, v.number)]
        if ready:
            return max(ready, key=lambda version: version.number)
        wanted = self.name if number is None else f"{self.name}, version {number},"
        loading = [v for v in self.versions.values() if v.state == "LOADING"]
        if any(number in (None, version.number) for version in loading):
            raise RequestError(503, f"{wanted} is being loaded: try again later")
        raise RequestError(404, f"{wanted} is not available")

    async def refresh(self) -> None:
        """Loads what should be served now, then lets go of what should not.

        A version gets no request before all its replicas are warm, and answers those
        it has before it goes. If a new one cannot be loaded, the old one stays.
        """
        wanted = await asyncio.to_thread(wanted_versions, self.options)
        if not wanted and wanted != self._wanted:
            logger.warning(
                "%s: there is no version to serve in %s (versions=%s): it must hold "
                "SavedModels in folders named 1, 2, …",
                self.name,
                self.options.folder,
                self.options.versions,
            )
        self._wanted = wanted
        for number, version in list(self.versions.items()):
            if number not in wanted and version.failures:
                del self.versions[number]  # the next of this number is another one
        due = [number for number in wanted if self._is_due(number)]
        for number in due:
            before = self.versions.get(number, Version(number))
            self.versions[number] = Version(
                number, error=before.error, failures=before.failures
            )
        for number in due:
            await self._load(self.versions[number])
        if any(self.versions[number].state == "AVAILABLE" for number in wanted):
            for number, version in list(self.versions.items()):
                if number not in wanted and version.state == "AVAILABLE":
                    await self._unload(version)

    async def unload_all(self) -> None:
        """Lets go of every version when it has answered what it has."""
        for version in list(self.versions.values()):
            if version.state in ("AVAILABLE", "UNLOADING"):
                await self._unload(version)

    def _is_due(self, number: int) -> bool:
        version = self.versions.get(number)
        if version is None:
            return True
        waited = time.monotonic() - version.failed_at
        pause = RETRY_LOADING_SECONDS * 2 ** min(version.failures, MOST_DOUBLINGS)
        return version.state == "END" and waited > pause

    async def _load(self, version: Version) -> None:
        number = version.number
        folder = self.options.folder / str(number)
        logger.info("loading %s, version %d", self.name, number)
        started = time.monotonic()
        slow = asyncio.get_running_loop().call_later(
            SLOW_LOADING_SECONDS,
            logger.warning,
            "%s, version %d: still loading; does the cluster have %d free cores?",
            self.name,
            number,
            self.options.replicas * self.options.cpus,
        )
        try:
            version.workers = await self._cluster.deploy(
                f"{self.name}-{number}", folder, self.options
            )
        except Exception as error:
            version.state, version.error = "END", str(error)
            version.failed_at, version.failures = time.monotonic(), version.failures + 1
            logger.error("%s, version %d: %s", self.name, number, error)
            return
        finally:
            slow.cancel()
        version.batcher = Batcher(
            version.workers.predict,
            version.workers.slots,
            self.options.batch_sizes[-1],
            self.options.max_waiting,
        )
        version.state, version.error, version.failures = "AVAILABLE", "", 0
        seconds = time.monotonic() - started
        logger.info("%s, version %d: ready in %.0f s", self.name, number, seconds)

    async def _unload(self, version: Version) -> None:
        version.state = "UNLOADING"
        while not version.batcher.idle:
            await asyncio.sleep(DRAIN_POLL_SECONDS)
        await self._cluster.remove(f"{self.name}-{version.number}")
        version.state, version.workers, version.batcher = "END", None, None
        logger.info("%s, version %d: unloaded", self.name, version.number)
