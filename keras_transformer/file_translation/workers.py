"""Processes of Ray that decode batches with copies of a model, in order."""

import contextlib
import itertools
import os
import pathlib
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from typing import Any, TypeAlias, TypeVar

import keras

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import ray  # noqa: E402 (after setting the environment that it reads)
from ray.actor import ActorHandle  # noqa: E402
from ray.exceptions import (  # noqa: E402
    GetTimeoutError,
    RayActorError,
    RayTaskError,
)

from keras_transformer.backend.ray_connection import connection  # noqa: E402
from keras_transformer.models import GenerativeModel  # noqa: E402

Batch: TypeAlias = list[str]
T = TypeVar("T")
Decode: TypeAlias = Callable[[GenerativeModel, Batch], T]

_THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "NPROC")

START_SECONDS = 300.0  # in which all workers load their models
BATCH_SECONDS = 3600.0  # in which one of the running batches must end
STARTS = 4  # of a worker that dies, and of a batch whose worker dies
RUNNING = 2  # batches of a worker: one computed, the next one sent already
AHEAD = 8  # batches for each worker after the first one that is not complete


class Worker:
    """A process with a copy of a model, loaded from the bytes of a `.keras` file."""

    def __init__(self, file: list[ray.ObjectRef], decode: Decode[object]):
        self._file = file
        self._decode = decode

    @cached_property
    def _model(self) -> GenerativeModel:
        with tempfile.TemporaryDirectory(prefix="keras_transformer-") as folder:
            path = pathlib.Path(folder, "model.keras")
            path.write_bytes(ray.get(self._file[0]))
            model: GenerativeModel = keras.saving.load_model(path, compile=False)
            return model

    def load(self) -> None:
        """Loads the model."""
        assert self._model is not None

    def decode(self, batch: Batch) -> object:
        """Returns the result of a batch."""
        return self._decode(self._model, batch)


@contextlib.contextmanager
def started_workers(
    model: GenerativeModel, decode: Decode[T], workers: int
) -> Iterator[Callable[[Iterable[Batch]], Iterator[T]]]:
    """Starts processes that decode batches with copies of a model.

    They are actors of the cluster of Ray to which this process is connected, or of that
    of the environment variable RAY_ADDRESS, or of a new one on this machine, which ends
    with the context. They share its cores and GPUs equally.
    """
    file = _bytes_of(model)
    with connection() as remains:
        # A list, since a worker that starts again cannot get the object as an argument.
        stored = [ray.put(file)]
        kind: Any = ray.remote(Worker).options(**_options(workers))
        actors: list[ActorHandle] = [
            kind.remote(stored, decode) for _ in range(workers)
        ]
        try:
            _wait_until_loaded(actors)
            yield partial(_decode_in_order, actors)
        finally:
            for actor in actors if remains else ():
                ray.kill(actor)


def _bytes_of(model: object) -> bytes:
    if not isinstance(model, keras.Model):
        raise ValueError(
            "`model` must be a Keras model, of which `workers` load copies; received "
            f"`model={model!r}`. Use `workers=1` for other models."
        )
    with tempfile.TemporaryDirectory(prefix="keras_transformer-") as folder:
        path = pathlib.Path(folder, "model.keras")
        model.save(path)
        return path.read_bytes()


def _options(workers: int) -> dict[str, object]:
    """Returns options of the actors: equal shares of the cores and of the GPUs."""
    found = ray.cluster_resources()
    cpus, gpus = (_share(found.get(kind, 0.0), workers) for kind in ("CPU", "GPU"))
    # More threads than cores wait for each other. The variables are those of PyTorch,
    # TensorFlow and JAX, whose results do not depend on the number of threads.
    defaults = dict.fromkeys(_THREADS, str(max(int(cpus), 1)))
    defaults["TF_CPP_MIN_LOG_LEVEL"] = "3"
    variables = {name: os.environ.get(name, v) for name, v in defaults.items()}
    variables["KERAS_BACKEND"] = keras.backend.backend()
    return {
        "num_cpus": cpus,
        "num_gpus": gpus,
        "max_restarts": STARTS - 1,
        "max_task_retries": STARTS - 1,
        "runtime_env": {"env_vars": variables},
    }


def _share(count: float, workers: int) -> float:
    """Returns an equal share, whole above 1; Ray counts in steps of 0.0001."""
    share = count / workers
    return float(int(share)) if share >= 1 else int(share * 10_000) / 10_000


def _wait_until_loaded(actors: list[ActorHandle]) -> None:
    loaded: list[Any] = [actor.load.remote() for actor in actors]
    try:
        with _clear_errors():
            ray.get(loaded, timeout=START_SECONDS)
    except GetTimeoutError:
        ready, _ = ray.wait(loaded, num_returns=len(loaded), timeout=0)
        raise TimeoutError(
            f"`workers` must start within {START_SECONDS:.0f} s; of "
            f"`workers={len(actors)}`, {len(ready)} did. The cluster of Ray may have "
            f"too few free cores or GPUs: {ray.available_resources()}."
        ) from None


def _decode_in_order(
    actors: list[ActorHandle], batches: Iterable[Batch]
) -> Iterator[Any]:
    """Yields the results of batches in their order, for any order in which they end."""
    # Memory does not grow with their number: few batches after the first one that is
    # not complete are read.
    free = deque(actors * RUNNING)
    running: dict[ray.ObjectRef, ActorHandle] = {}  # by their unfinished results
    results: deque[ray.ObjectRef] = deque()
    for batch in itertools.chain(batches, [None]):  # `None` is the end
        while results and (
            batch is None or not free or len(results) == AHEAD * len(actors)
        ):
            if results[0] not in running:
                with _clear_errors():
                    result = ray.get(results.popleft())
                yield result
                continue
            ended, _ = ray.wait([*running], timeout=BATCH_SECONDS)
            if not ended:
                raise TimeoutError(f"No batch has ended for {BATCH_SECONDS:.0f} s")
            free.append(running.pop(ended[0]))
        if batch is not None:
            actor = free.popleft()
            result = actor.decode.remote(batch)
            running[result] = actor
            results.append(result)


@contextlib.contextmanager
def _clear_errors() -> Iterator[None]:
    """Raises the error of a worker as it is in a single process."""
    try:
        yield
    except RayTaskError as error:
        raise error.cause from None
    except RayActorError as error:
        raise RuntimeError(
            f"A worker has died {STARTS} times; each worker needs memory for a copy of "
            f"the model. Use fewer `workers`. Ray reports: {error}"
        ) from None
