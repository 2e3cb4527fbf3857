"""A run on several workers, with Ray Train.

The driver starts no JAX, so it needs no accelerator: one task prepares the run, the
workers train together, and one task selects, evaluates and exports. They meet in the
folder of the run.
"""

import contextlib
import logging
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

from keras_transformer.recipe.progress import Reporter
from keras_transformer.recipe.recipe import Recipe

# Times that Ray starts the workers again after one of them has died.
RESTARTS = 10


def train_with_workers(recipe: Recipe, reporter: Reporter) -> None:
    """Trains a model with several workers on a Ray cluster, until the run is complete.

    The cluster is that of the environment variable `RAY_ADDRESS`; without it, a cluster
    on this machine is started, and ended afterwards. If a worker dies, all start again
    from the last checkpoint.

    Args:
        recipe: the options; `workers` is above 1.
        reporter: prints what is done.

    Raises:
        ValueError: if the cluster has too few accelerators, or as `prepare`.
        RuntimeError: if workers have died too often, or cannot reach one another.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with _cluster(), contextlib.ExitStack() as removed:
        resources = _resources_of_worker(recipe)
        if "CPU" in resources:
            reporter.print(
                f"The cluster has no accelerators. {recipe.workers} workers of "
                f"{recipe.devices} virtual devices train on processors."
            )
        verbose = 2 if reporter.verbose else 0  # Ray does not draw progress bars.
        _run(_prepare, recipe, verbose, num_cpus=0, env={"JAX_PLATFORMS": "cpu"})
        state = pathlib.Path(recipe.output, "ray").absolute()
        removed.callback(shutil.rmtree, state, ignore_errors=True)
        _fit(recipe, verbose, resources, state)
        _run(_finish, recipe, verbose, **_options_of_task(resources))


@contextlib.contextmanager
def _cluster() -> Iterator[None]:
    import ray

    if ray.is_initialized():
        yield
        return
    local = {} if os.environ.get("RAY_ADDRESS") else {"include_dashboard": False}
    ray.init(logging_level=logging.ERROR, **local)
    try:
        yield
    finally:
        ray.shutdown()


def _resources_of_worker(recipe: Recipe) -> dict[str, float]:
    """Returns the resources of Ray that a worker needs."""
    import ray

    found = ray.cluster_resources()
    needed = recipe.workers * recipe.devices
    for kind in ("TPU", "GPU"):
        if count := found.get(kind, 0):
            if count < needed:
                raise ValueError(
                    "`workers` times `devices` must be at most the number of "
                    f"accelerators of the Ray cluster; received `workers="
                    f"{recipe.workers}`, `devices={recipe.devices}`, and a cluster "
                    f"with {count:g} {kind}s."
                )
            return {kind: recipe.devices}
    # Workers share the cores if there are few.
    return {"CPU": min(1.0, found.get("CPU", 1) / recipe.workers)}


def _options_of_task(resources: dict[str, float]) -> dict[str, Any]:
    if "GPU" in resources:
        return {"num_gpus": 1}
    if "TPU" in resources:
        return {"resources": {"TPU": resources["TPU"]}}
    return {"num_cpus": 0}


def _environment(recipe: Recipe, resources: dict[str, float]) -> dict[str, str]:
    environment = {"KERAS_BACKEND": "jax"}
    if "CPU" in resources:
        flag = f"--xla_force_host_platform_device_count={recipe.devices}"
        flags = os.environ.get("XLA_FLAGS", "")
        environment |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{flags} {flag}".strip()}
    return environment


def _run(
    function: Callable[[Recipe, int], None],
    recipe: Recipe,
    verbose: int,
    env: dict[str, str] | None = None,
    **options: Any,
) -> None:
    """Calls a function in a process of its own; raises the error that it raises."""
    import ray
    from ray.exceptions import RayTaskError

    environment = {"KERAS_BACKEND": "jax", **(env or {})}
    task = ray.remote(function).options(
        runtime_env={"env_vars": environment}, max_retries=0, **options
    )
    try:
        ray.get(task.remote(recipe, verbose))
    except RayTaskError as error:
        raise error.cause from None


def _prepare(recipe: Recipe, verbose: int) -> None:
    from keras_transformer.recipe.stages import prepare

    prepare(recipe, Reporter(verbose))


def _fit(
    recipe: Recipe, verbose: int, resources: dict[str, float], state: pathlib.Path
) -> None:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2.jax import JaxTrainer
    from ray.train.v2.jax.config import JaxConfig

    uses = {f"use_{kind.lower()}": True for kind in ("GPU", "TPU") if kind in resources}
    trainer = JaxTrainer(
        _fit_in_worker,
        train_loop_config={"recipe": recipe, "verbose": verbose},
        # Without an accelerator, Ray connects the workers only with this flag.
        jax_config=JaxConfig(
            use_gpu="TPU" not in resources, use_tpu="TPU" in resources
        ),
        scaling_config=ScalingConfig(
            num_workers=recipe.workers, resources_per_worker=resources, **uses
        ),
        run_config=RunConfig(
            name="fit",
            storage_path=str(state),
            failure_config=FailureConfig(max_failures=RESTARTS),
            worker_runtime_env={"env_vars": _environment(recipe, resources)},
        ),
    )
    trainer.fit()


def _fit_in_worker(config: dict[str, Any]) -> None:
    from keras_transformer.backend.processes import count_processes, is_first_process
    from keras_transformer.distribution import distribute
    from keras_transformer.recipe.stages import fit, prepare

    recipe: Recipe = config["recipe"]
    if count_processes() != recipe.workers:  # Each worker would train alone.
        raise RuntimeError(
            f"Ray has connected {count_processes()} of {recipe.workers} workers. Use "
            "another version of Ray."
        )
    verbose = config["verbose"] if is_first_process() else 0
    with distribute(model_parallel=recipe.model_parallel):
        fit(prepare(recipe, Reporter(0)), Reporter(verbose))


def _finish(recipe: Recipe, verbose: int) -> None:
    from keras_transformer.recipe.stages import finish, fit, prepare

    prepared = prepare(recipe, Reporter(0))
    fit(prepared, Reporter(0))  # All epochs are complete: it only loads the weights.
    finish(prepared, Reporter(verbose))
