import os
import tempfile

import pytest

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("MPLBACKEND", "Agg")
# The tensors of the tests are so small that more threads only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The tests compile much and compute little: XLA spends no time on optimising.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true",
)
# Commands store figures of their runs and compiled code in the user's cache.
if "XDG_CACHE_HOME" not in os.environ:
    USER_CACHE = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    os.environ["XDG_CACHE_HOME"] = USER_CACHE.name
# Workers and child processes share the programs that JAX compiles.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    JAX_CACHE = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = JAX_CACHE.name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


def pytest_collection_modifyitems(config, items):
    """Deselects the tests that are marked `once` and run on another backend."""
    backend = os.environ["KERAS_BACKEND"]
    others = []
    for item in items:
        once = item.get_closest_marker("once")
        if once and backend != (once.args[0] if once.args else "tensorflow"):
            others.append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in set(others)]


@pytest.fixture(autouse=True)
def fresh_session():
    """Every test begins with the same seed, fresh layer names and default policies."""
    import keras

    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(7)
