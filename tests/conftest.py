import functools
import gc
import os
import subprocess
import sys
import tempfile
import types
from importlib.metadata import version

import fork_server
import pytest
from fork_server import forked_python

# The modules have hundreds of thousands of objects, none of them garbage: see below.
gc.disable()

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("MPLBACKEND", "Agg")
# Their tensors are so small that more threads only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The tests compile much and compute little: spend no time on optimising.
XLA_FLAGS = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
    "--xla_cpu_parallel_codegen_split_count=1"
)
# A later XLA, which has no such flag, ends the process.
if os.environ["KERAS_BACKEND"] != "jax" or version("jaxlib").startswith("0.10."):
    XLA_FLAGS += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", XLA_FLAGS)


if os.environ["KERAS_BACKEND"] == "tensorflow":
    # TensorFlow keeps, for good, the Python stack of every operation that it compiles:
    # two thirds of what thousands of small graphs take. One stack does for all.
    from tensorflow.python.util import tf_stack

    STACK = tf_stack.extract_stack()
    tf_stack.extract_stack = lambda stacklevel=1: STACK


if os.environ["KERAS_BACKEND"] == "jax":
    # Models of one design compile to the same program; `jax.jit` knows only functions.
    # The workers and the processes that tests start share the compiled programs.
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        CACHE = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = CACHE.name
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

    # JAX makes a new MLIR context for each program that it compiles, which takes a
    # quarter of the time of a small one.
    from jax._src.interpreters import mlir

    mlir.make_ir_context = functools.cache(mlir.make_ir_context)


# The modules that take longest, which start first: the last of all keeps one worker
# waiting for the other.
LONGEST = (
    "test_server",
    "test_training_workers",
    "test_package",
    "test_workers",
    "test_nodes",
    "test_end_to_end",
    "test_examples",
    "test_docstring_examples",
    "test_distribution",
    "test_devices",
    "test_processes",
    "test_pipeline",
    "test_causal_lm",
    "test_load_marian",
    "test_load_own_marian",
    "test_keras_hub_tokenizer",
    "test_command",
    "test_generation",
    "test_ensemble",
    "test_preset_folders",
    "test_checkpoints",
    "test_design",
    "test_run",
    "test_saved_model",
    "test_onnx",
    "test_kill",
    "test_freezing",
    "test_learning",
    "test_non_finite_loss",
    "test_file_translation",
)


def pytest_addoption(parser):
    parser.addoption(
        "--share-cases",
        action="store_true",
        help="TensorFlow and JAX each run half of the cases of a parametrized test, "
        "and half of the tests that are marked `divided`; PyTorch runs all of them",
    )


def pytest_configure(config):
    """Starts the server of forked processes, unless this is a worker of its session."""
    if "FORK_SERVER" in os.environ:
        return
    folder = tempfile.TemporaryDirectory()
    server = subprocess.Popen(
        [sys.executable, fork_server.__file__, "--serve", folder.name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    server.stdout.readline()
    os.environ["FORK_SERVER"] = folder.name

    def end():
        del os.environ["FORK_SERVER"]
        server.communicate()
        folder.cleanup()

    config.add_cleanup(end)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    items.sort(key=lambda item: item.path.stem not in LONGEST)
    backend = os.environ["KERAS_BACKEND"]
    for item in items:
        if once := item.get_closest_marker("once"):
            wanted = once.args[0] if once.args else "tensorflow"
            if backend != wanted:
                item.add_marker(pytest.mark.skip(reason=f"runs with {wanted}"))
    if config.getoption("share_cases"):
        others = cases_of_others(items, backend)
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in set(others)]


def pytest_collection_finish():
    """Leaves what has been imported out of every garbage collection."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(10_000, 10, 10)


def cases_of_others(items, backend):
    """Finds the tests, and the cases of parametrized tests, that another backend runs.

    Most of the time of TensorFlow and JAX is compilation, by the same compiler. Each
    test runs on all backends, but if it has several cases, each of them on PyTorch and
    on one of the two. The cases alternate as the Thue-Morse sequence does, so that
    every value of every parameter meets both. The tests of a module that are marked
    `divided` alternate in the same way, unless the mark names the one of the two.
    """
    tests, found = {}, []
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if marks & {"once", "skipif", "every_case"}:
            continue
        divided = item.get_closest_marker("divided")
        if divided and divided.args:
            if backend not in ("torch", *divided.args):
                found.append(item)
        elif hasattr(item, "callspec"):
            tests.setdefault((item.path, item.cls, item.originalname), []).append(item)
        elif divided:
            tests.setdefault(item.path, []).append(item)
    parity = {"tensorflow": 0, "jax": 1}.get(backend)
    return found + [
        case
        for cases in tests.values()
        for number, case in enumerate(cases)
        if len(cases) >= 2 and parity not in (None, number.bit_count() % 2)
    ]


@pytest.fixture(autouse=True)
def fresh_session():
    """Every test begins with the same seed, fresh layer names and default policies."""
    import keras

    keras.utils.clear_session(free_memory=False)
    keras.utils.set_random_seed(7)


@pytest.fixture(scope="session", autouse=True)
def forked_exports():
    """The processes that write and check exports are forked from one with TensorFlow.

    `tests/export/test_tensorflow_process.py` tests those that users start.
    """
    from keras_transformer.export import tensorflow_process

    def popen(command, **options):
        imports_package = "import keras_transformer" in command[-1]
        python = forked_python("tensorflow" if imports_package else "saved_model")
        return subprocess.Popen([*python, *command[1:]], **options)

    names = {**vars(subprocess), "Popen": popen}
    tensorflow_process.subprocess = types.SimpleNamespace(**names)


@pytest.fixture
def no_collections(monkeypatch):
    """Keras collects garbage after each layer that it quantizes, which takes long."""
    monkeypatch.setattr(gc, "collect", lambda generation=2: 0)


@pytest.fixture
def unchecked_exports(monkeypatch):
    """`export` skips the comparison of texts or token ids, which takes seconds.

    For tests that compare them themselves, or that are not about them.
    """
    from keras_transformer.export.saved_model import writer

    for name in ("compare_texts", "compare_tokens"):
        monkeypatch.setattr(writer, name, lambda *_, **options: None)
