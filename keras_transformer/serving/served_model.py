"""A model of the server: loads and unloads its versions."""

import asyncio
import logging
import pathlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from keras_transformer.serving import terminology
from keras_transformer.serving.batching import Batcher
from keras_transformer.serving.rest import RequestError
from keras_transformer.serving.server_options import ModelOptions
from keras_transformer.serving.versions import selected_versions

if TYPE_CHECKING:  # importing it sets the environment of Ray, or loads TensorFlow
    from keras_transformer.inference.phrase_dictionary import PhraseDictionary
    from keras_transformer.serving.cluster import Cluster, Replicas

logger = logging.getLogger(__name__)

RETRY_LOADING_SECONDS = 5.0  # doubled after each failure
MAX_DOUBLINGS = 9
SLOW_LOADING_SECONDS = 60.0
DRAIN_POLL_SECONDS = 0.05
PROGRESS_POLL_SECONDS = 0.5


class LoadedVersion(NamedTuple):
    """The replicas of an available version."""

    replicas: "Replicas"
    batcher: Batcher


@dataclass
class ModelVersion:
    """One version of a model."""

    number: int
    state: str = "LOADING"  # then AVAILABLE, UNLOADING, END
    error: str = ""
    failed_at: float = field(default=0.0, repr=False)
    failures: int = 0
    compilation: "asyncio.Task[None] | None" = field(default=None, repr=False)
    _loaded: LoadedVersion | None = field(default=None, repr=False)

    @property
    def loaded(self) -> LoadedVersion:
        """The `LoadedVersion`, if the version is available or unloading."""
        assert self._loaded is not None, f"version {self.number} is {self.state}"
        return self._loaded

    @property
    def compiled(self) -> bool:
        """Whether the compilation has ended, also by an error, which is in the log."""
        return self.compilation is None or self.compilation.done()

    def set_loaded(self, replicas: "Replicas", batcher: Batcher) -> None:
        """Makes the version available."""
        self._loaded = LoadedVersion(replicas, batcher)
        self.state, self.error, self.failures = "AVAILABLE", "", 0

    def set_unloaded(self) -> None:
        """Removes the replicas of the version, which has ended."""
        self._loaded, self.state = None, "END"


class ServedModel:
    """A model with its versions."""

    def __init__(self, name: str, options: ModelOptions, cluster: "Cluster"):
        self.name = name
        self.options = options
        self.versions: dict[int, ModelVersion] = {}
        self.dictionary = _read_dictionary(options.dictionary)
        self._cluster = cluster
        self._selected: list[int] | None = None

    @property
    def ready(self) -> bool:
        """Whether a version is available and has a running replica."""
        return any(not version.error for version in self.active())

    def active(self) -> list[ModelVersion]:
        """Returns the available versions."""
        return [v for v in self.versions.values() if v.state == "AVAILABLE"]

    def available(self, number: int | None = None) -> ModelVersion:
        """Returns the version that processes a request."""
        ready = [v for v in self.active() if number in (None, v.number)]
        if ready:
            return max(ready, key=lambda version: version.number)
        name = self.name if number is None else f"{self.name}, version {number},"
        loading = [v for v in self.versions.values() if v.state == "LOADING"]
        if any(number in (None, version.number) for version in loading):
            raise RequestError(503, f"{name} is loading; try again later")
        raise RequestError(404, f"{name} is not available")

    async def refresh(self) -> None:
        """Loads the selected versions, then unloads the others.

        The first version receives requests when one of its replicas has compiled its
        first shape. A version that replaces another receives requests when a replica
        has compiled all shapes, and the old one finishes its requests before it is
        unloaded. If no selected version can be loaded, the old versions stay.
        """
        await self._check_replicas()
        selected = await asyncio.to_thread(selected_versions, self.options)
        if not selected and selected != self._selected:
            logger.warning(
                "%s: %s has no version to serve (versions=%s). It must contain "
                "SavedModels in folders named 1, 2, …",
                self.name,
                self.options.folder,
                self.options.versions,
            )
        self._selected = selected
        for number, version in list(self.versions.items()):
            if number not in selected and version.failures:
                del self.versions[number]  # a new folder of this number is retried now
        due = [number for number in selected if self._is_due(number)]
        for number in due:
            before = self.versions.get(number, ModelVersion(number))
            self.versions[number] = ModelVersion(
                number, error=before.error, failures=before.failures
            )
        for number in due:
            await self._load(self.versions[number])
        if any(self.versions[number].state == "AVAILABLE" for number in selected):
            for number, version in list(self.versions.items()):
                if number not in selected and version.state == "AVAILABLE":
                    await self._unload(version)

    async def _check_replicas(self) -> None:
        """Reports the versions whose replicas are all lost, until Ray replaces one."""
        for version in self.active():
            try:
                running = await version.loaded.replicas.running()
                error = "" if running else "no replica is running"
            except Exception as reason:
                error = f"the state of the replicas is unknown: {reason}"
            if error and not version.error:
                logger.error("%s, version %d: %s", self.name, version.number, error)
            if version.error and not error:
                logger.info("%s, version %d: ready again", self.name, version.number)
            version.error = error

    async def unload_all(self) -> None:
        """Unloads every version after it has finished its requests."""
        for version in list(self.versions.values()):
            if version.state in ("AVAILABLE", "UNLOADING"):
                await self._unload(version)

    def _is_due(self, number: int) -> bool:
        version = self.versions.get(number)
        if version is None:
            return True
        waited = time.monotonic() - version.failed_at
        pause = RETRY_LOADING_SECONDS * 2 ** min(version.failures, MAX_DOUBLINGS)
        return version.state == "END" and waited > pause

    async def _load(self, version: ModelVersion) -> None:
        name = f"{self.name}, version {version.number}"
        logger.info("%s: loading", name)
        started = time.monotonic()
        replaces = bool(self.active())
        slow = asyncio.get_running_loop().call_later(
            SLOW_LOADING_SECONDS,
            logger.warning,
            "%s: still loading after %.0f s",
            name,
            SLOW_LOADING_SECONDS,
        )
        try:
            replicas = await self._deploy(version.number, wait=replaces)
        except Exception as error:
            version.state, version.error = "END", str(error)
            version.failed_at, version.failures = time.monotonic(), version.failures + 1
            logger.error("%s: %s", name, error)
            return
        finally:
            slow.cancel()
        batcher = Batcher(
            replicas.predict,
            replicas.slots,
            self.options.batch_sizes[-1],
            self.options.max_waiting,
        )
        version.set_loaded(replicas, batcher)
        logger.info("%s: ready in %.0f s", name, time.monotonic() - started)
        if not replaces:
            compilation = self._log_compilation(name, replicas)
            version.compilation = asyncio.create_task(compilation)

    async def _deploy(self, number: int, wait: bool) -> "Replicas":
        """Starts the replicas of a version; waits until all shapes are compiled."""
        unique_name = f"{self.name}-{number}"
        folder = self.options.folder / str(number)
        replicas = await self._cluster.deploy(unique_name, folder, self.options)
        try:
            if self.dictionary:
                await terminology.check(replicas, self.dictionary)
            if wait:
                await _until_compiled(f"{self.name}, version {number}", replicas)
        except BaseException:
            await self._cluster.remove(unique_name)
            raise
        return replicas

    async def _log_compilation(self, name: str, replicas: "Replicas") -> None:
        try:
            await _until_compiled(name, replicas)
        except Exception as error:
            logger.error("%s: %s", name, error)

    async def _unload(self, version: ModelVersion) -> None:
        version.state = "UNLOADING"
        if version.compilation is not None:
            version.compilation.cancel()
        while not version.loaded.batcher.idle:
            await asyncio.sleep(DRAIN_POLL_SECONDS)
        await self._cluster.remove(f"{self.name}-{version.number}")
        version.set_unloaded()
        logger.info("%s, version %d: unloaded", self.name, version.number)


def _read_dictionary(path: pathlib.Path | None) -> "PhraseDictionary | None":
    if path is None:
        return None
    from keras_transformer.inference import phrase_dictionary

    return phrase_dictionary.PhraseDictionary.from_file(path)


async def _until_compiled(name: str, replicas: "Replicas") -> None:
    """Waits until a replica has compiled all shapes, and logs the progress."""
    started, logged = time.monotonic(), {""}
    while True:
        compiled, shapes, current, error = progress = await replicas.progress()
        if error:
            # It may contain paths, which clients must not see.
            logger.error("%s: %s: %s", name, current, error)
            raise RuntimeError(f"{current} cannot be compiled; see the log")
        if progress.complete:
            break
        if current not in logged:
            logged.add(current)
            logger.info("%s: compiling %s (%d of %d)", name, current, compiled, shapes)
        await asyncio.sleep(PROGRESS_POLL_SECONDS)
    seconds = time.monotonic() - started
    logger.info("%s: compiled all shapes (%d) in %.0f s", name, shapes, seconds)
