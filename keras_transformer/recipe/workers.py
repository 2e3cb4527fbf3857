"""A run on several workers, with Ray Train: processes of JAX or PyTorch.

The driver uses no device, so it needs no accelerator: one task prepares the run, the
workers train together, and one task selects, evaluates and exports. They meet in the
folder of the run. A worker has all its devices on JAX, and one device on PyTorch.
"""

import collections
import contextlib
import dataclasses
import os
import pathlib
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING

import keras

from keras_transformer.backend.ray_connection import connection
from keras_transformer.types import Data
from keras_transformer_runtime.display import Display
from keras_transformer_runtime.runs.folder import latest_position
from keras_transformer_runtime.runs.recipe import Recipe
from keras_transformer_runtime.runs.run_position import RunPosition

if TYPE_CHECKING:
    from ray.train.torch import TorchTrainer
    from ray.train.v2.jax import JaxTrainer

ATTEMPTS = 3  # to train until the next checkpoint, if workers die
SECONDS_BETWEEN_READS = 0.5  # of the output of the workers


def needs_workers(recipe: Recipe) -> bool:
    """Returns whether a run requires other processes than that of the command."""
    return _count_workers(recipe) > 1


def _count_workers(recipe: Recipe) -> int:
    is_torch = keras.backend.backend() == "torch"
    return recipe.workers * (recipe.devices if is_torch else 1)


def train_with_workers(recipe: Recipe, display: Display) -> None:
    """Trains a model with several workers on a Ray cluster, until the run is complete.

    The cluster is that of the environment variable `RAY_ADDRESS`; without it, a cluster
    on this machine is started, and ended afterwards. If a worker dies, all start again
    from the last checkpoint, unless they have tried `ATTEMPTS` times from there.
    """
    # The processes have other working folders.
    recipe = dataclasses.replace(recipe, output=os.path.abspath(recipe.output))
    state = pathlib.Path(recipe.output, "ray")
    state.mkdir(parents=True, exist_ok=True)
    output = _Output(state / "output.txt", 2 if display.verbose else 0)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, state, ignore_errors=True)
        stack.enter_context(connection())
        stack.enter_context(output.printed())
        resources = _resources_of_worker(recipe)
        if "CPU" in resources:
            devices = ""
            if keras.backend.backend() == "jax":
                devices = f" of {recipe.devices} virtual devices"
            display.print(
                f"The cluster has no accelerators. {_count_workers(recipe)} workers"
                f"{devices} train on processors."
            )
        without_devices = {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""}
        _run(_prepare, recipe, output, {"num_cpus": 0}, without_devices)
        try:
            _fit(recipe, output, resources, state)
        except KeyboardInterrupt as interrupt:
            position = latest_position(recipe.output) or RunPosition(0)
            raise type(interrupt)(
                f"Stopped. The same code resumes at {position.resumes_at}."
            ) from None
        _run(_finish, recipe, output, _options_of_task(resources))


@dataclasses.dataclass(frozen=True)
class _Output:
    """What the processes of a run print, in a file of the folder of the run."""

    # Ray would mix it with its own messages.

    path: pathlib.Path
    verbose: int  # of the recipe; a file has no progress bars

    @contextlib.contextmanager
    def printed(self) -> Iterator[None]:
        """Prints what is written to the file, in the process of the command."""
        self.path.write_text("")
        ended = threading.Event()
        thread = threading.Thread(target=self._print_until, args=(ended,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _print_until(self, ended: threading.Event) -> None:
        with self.path.open(encoding="utf-8") as file:
            while True:
                is_last = ended.wait(SECONDS_BETWEEN_READS)
                print(file.read(), end="", flush=True)
                if is_last:
                    return

    @contextlib.contextmanager
    def written(self) -> Iterator[None]:
        """Writes what this process prints, and its warnings, to the file."""
        with (
            self.path.open("a", encoding="utf-8", buffering=1) as file,
            contextlib.redirect_stdout(file),
            contextlib.redirect_stderr(file),
        ):
            yield


def _resources_of_worker(recipe: Recipe) -> dict[str, float]:
    """Returns the resources of Ray that a worker needs."""
    import ray

    found = ray.cluster_resources()
    needed = recipe.workers * recipe.devices
    workers = _count_workers(recipe)
    is_torch = keras.backend.backend() == "torch"
    for kind in ("GPU",) if is_torch else ("TPU", "GPU"):
        if count := found.get(kind, 0):
            if count < needed:
                raise ValueError(
                    "`workers` times `devices` must be at most the number of "
                    f"accelerators of the Ray cluster; received `workers="
                    f"{recipe.workers}`, `devices={recipe.devices}`, and a cluster "
                    f"with {count:g} {kind}s."
                )
            return {kind: needed // workers}
    # Workers share the cores if there are few.
    return {"CPU": min(1.0, found.get("CPU", 1) / workers)}


def _options_of_task(resources: dict[str, float]) -> dict[str, object]:
    if "GPU" in resources:
        return {"num_gpus": 1}
    if "TPU" in resources:
        return {"resources": {"TPU": resources["TPU"]}}
    return {"num_cpus": 0}


def _environment(recipe: Recipe, resources: dict[str, float]) -> dict[str, str]:
    # Ray would print each line twice.
    environment = {"KERAS_BACKEND": keras.backend.backend()}
    environment |= {"RAY_TRAIN_ENABLE_PRINT_PATCH": "0"}
    if "CPU" in resources and keras.backend.backend() == "jax":
        flag = f"--xla_force_host_platform_device_count={recipe.devices}"
        flags = os.environ.get("XLA_FLAGS", "")
        environment |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{flags} {flag}".strip()}
    return environment


def _run(
    function: Callable[[Recipe, _Output], None],
    recipe: Recipe,
    output: _Output,
    options: dict[str, object],
    env: dict[str, str] | None = None,
) -> None:
    """Calls a function in a separate process; raises the error that it raises."""
    import ray
    from ray.exceptions import RayTaskError

    environment = {"KERAS_BACKEND": keras.backend.backend(), **(env or {})}
    task = ray.remote(function).options(
        runtime_env={"env_vars": environment}, max_retries=0, **options
    )
    try:
        ray.get(task.remote(recipe, output))
    except RayTaskError as error:
        raise error.cause from None


def _prepare(recipe: Recipe, output: _Output) -> None:
    from keras_transformer.recipe.preparation import prepare

    with output.written():
        prepare(recipe, Display(output.verbose))


def _fit(
    recipe: Recipe, output: _Output, resources: dict[str, float], state: pathlib.Path
) -> None:
    """Trains until all epochs are complete."""
    from ray.train.v2.api.exceptions import TrainingFailedError

    attempts: collections.Counter[RunPosition | None] = collections.Counter()
    while True:
        position = latest_position(recipe.output)
        attempts[position] += 1
        folder = state / f"fit-{attempts.total()}"
        try:
            _interruptible(_trainer(recipe, output, resources, folder).fit)
            return
        except TrainingFailedError as error:
            reason = _reason(error)
            if attempts[latest_position(recipe.output)] == ATTEMPTS:
                raise RuntimeError(
                    f"The workers have stopped {ATTEMPTS} times without a new "
                    f"checkpoint in {recipe.output!r}. The last error: {reason}"
                ) from error
        if output.verbose:
            print(f"A worker has stopped: {reason} The workers start again.")


def _interruptible(function: Callable[[], object]) -> None:
    """Calls a function in a thread, so that Ctrl-C ends the wait for it."""
    # In the main thread, Ray Train handles the signal itself, and ends the process.
    future: Future[object] = Future()

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    future.result()


def _reason(error: Exception) -> str:
    """Returns the last line of the error of a worker."""
    failures = getattr(error, "worker_failures", None) or {0: error}
    (*_, first) = (each for _, each in sorted(failures.items(), reverse=True))
    return str(first).strip().splitlines()[-1]


def _trainer(
    recipe: Recipe, output: _Output, resources: dict[str, float], folder: pathlib.Path
) -> "JaxTrainer | TorchTrainer":
    from ray.train.v2.api.config import FailureConfig, RunConfig, ScalingConfig

    is_torch = keras.backend.backend() == "torch"
    kinds = {f"use_{kind.lower()}": kind in resources for kind in ("GPU", "TPU")}
    # Without an accelerator, Ray connects workers of JAX only if it is told of GPUs.
    connected = {**kinds, "use_gpu": "TPU" not in resources}
    make_trainer = _torch_trainer if is_torch else _jax_trainer
    return make_trainer(
        connected,
        train_loop_per_worker=_fit_in_worker,
        train_loop_config={"recipe": recipe, "output": output},
        scaling_config=ScalingConfig(
            num_workers=_count_workers(recipe),
            resources_per_worker=resources,
            use_gpu=kinds["use_gpu"],
            use_tpu=kinds["use_tpu"],
        ),
        run_config=RunConfig(
            name=folder.name,
            storage_path=str(folder.parent),
            failure_config=FailureConfig(max_failures=0),
            worker_runtime_env={"env_vars": _environment(recipe, resources)},
        ),
    )


def _jax_trainer(connected: dict[str, bool], **options: Data) -> "JaxTrainer":
    from ray.train.v2.jax import JaxTrainer
    from ray.train.v2.jax.config import JaxConfig

    return JaxTrainer(jax_config=JaxConfig(**connected), **options)


def _torch_trainer(connected: dict[str, bool], **options: Data) -> "TorchTrainer":
    from ray.train.torch import TorchConfig, TorchTrainer

    # Counts and times are on the CPU, gradients on the GPU.
    kinds = "cpu:gloo,cuda:nccl" if options["scaling_config"].use_gpu else "gloo"
    return TorchTrainer(torch_config=TorchConfig(backend=kinds), **options)


def _fit_in_worker(config: dict[str, Data]) -> None:
    from keras_transformer.backend.processes import count_processes, is_first_process
    from keras_transformer.distribution import distribute
    from keras_transformer.recipe.preparation import prepare
    from keras_transformer.recipe.stages import fit

    recipe: Recipe = config["recipe"]
    if count_processes() != (expected := _count_workers(recipe)):
        raise RuntimeError(  # Each worker would train alone.
            f"Ray has connected {count_processes()} of {expected} workers. Use another "
            "version of Ray."
        )
    output: _Output = config["output"]
    with output.written() if is_first_process() else contextlib.nullcontext():
        display = Display(output.verbose if is_first_process() else 0)
        with distribute(model_parallel=recipe.model_parallel):
            fit(prepare(recipe, Display(0)), display)


def _finish(recipe: Recipe, output: _Output) -> None:
    from keras_transformer.recipe.preparation import prepare
    from keras_transformer.recipe.stages import finish, fit

    with output.written():
        prepared = prepare(recipe, Display(0))
        fit(prepared, Display(0))  # All epochs are complete: it loads the weights.
        finish(prepared, Display(output.verbose))
