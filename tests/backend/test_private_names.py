"""Private names of dependencies are in `backend/` and its table, and none is needed."""

import ast
import os
import pathlib
import re
import subprocess
import sys

import keras
import pytest

import keras_transformer

PACKAGE = pathlib.Path(keras_transformer.__file__).parent
# Modules that a dependency may move or remove in any version. `tensorflow.core` holds
# the protocol buffers of TensorFlow's file formats, which stay.
PRIVATE_MODULES = (
    *("keras.src", "keras_hub.src", "keras_nlp.src"),
    *("tensorflow.python", "tensorflow.compiler", "tensorflow_text.python"),
    *("jax._src", "jax.extend", "jax.interpreters", "jaxlib"),
    *("torch.fx", "torch.ops"),
    *("ray._private", "ray._common", "ray._raylet", "ray.serve._private"),
)
# Methods of named tuples, which Python documents.
DOCUMENTED = {"_asdict", "_exit", "_fields", "_make", "_replace"}


def trees():
    for folder in (PACKAGE, PACKAGE.with_name("keras_transformer_runtime")):
        for path in sorted(folder.rglob("*.py")):
            yield path.relative_to(folder), ast.parse(path.read_text("utf-8"))


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def is_hidden_name(name):
    return is_private(name) or name in ("__internal__",)


def own_names(every_tree):
    """The private names that the package itself defines."""
    names = set()
    for _, tree in every_tree:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and isinstance(node.value, ast.Name)
                and node.value.id in ("self", "cls")
            ):
                names.add(node.attr)
    return names


def modules(node):
    """The modules that a node imports, or refers to as attributes of one another."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Attribute):
        return [ast.unparse(node)]
    return []


def in_module(name, module):
    return f"{name}.".startswith(f"{module}.")


def private_uses(node, own):
    is_import = not isinstance(node, ast.Attribute)
    for name in modules(node):
        is_hidden = is_import and "._" in name.replace(".__", ".")
        if is_hidden or any(in_module(name, module) for module in PRIVATE_MODULES):
            yield name
    if isinstance(node, ast.Attribute):
        is_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        allowed = DOCUMENTED | (own if is_self else own - PRIVATE_OF_KERAS)
        if is_private(node.attr) and node.attr not in allowed:
            yield node.attr
        if node.attr in ("f_locals", "f_back"):
            yield node.attr
    # Names of attributes, as `getattr` and `vars` take them.
    if isinstance(node, ast.Constant) and node.value in PRIVATE_OF_KERAS - own:
        yield node.value
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
        name = node.args[1].value if isinstance(node.args[1], ast.Constant) else ""
        if is_hidden_name(name) and name not in own:
            yield name
    if isinstance(node, ast.Call):
        yield from (
            keyword.arg
            for keyword in node.keywords
            if is_private(keyword.arg or "") and keyword.arg not in own | DOCUMENTED
        )


def private_names_of_keras():
    """The private attributes of what Keras gives to its users."""
    optimizer = keras.optimizers.SGD()
    loss = keras.losses.SparseCategoricalCrossentropy()
    layer = keras.layers.Dense(1)
    model = keras.Sequential([layer])
    callbacks = (
        keras.callbacks.ModelCheckpoint("a.keras"),
        keras.callbacks.EarlyStopping(),
        keras.callbacks.ReduceLROnPlateau(),
        keras.callbacks.SwapEMAWeights(),
        keras.callbacks.TensorBoard(),
        keras.callbacks.CallbackList(),
    )
    objects = (optimizer, loss, layer, model, *callbacks)
    names = {name for each in objects for name in dir(each) if is_private(name)}
    # Of variables.
    return names | {"_value"}


PRIVATE_OF_KERAS = private_names_of_keras()


@pytest.mark.once("torch")
def test_private_names_are_used_in_backend_alone():
    every_tree = list(trees())
    own = own_names(every_tree)
    uses = {
        (path.as_posix(), use)
        for path, tree in every_tree
        if path.parts[0] != "backend"
        for node in ast.walk(tree)
        for use in private_uses(node, own)
    }
    assert uses == set()


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    "code",
    [
        "from keras.src.backend import get_keras_mask",
        "import keras.src",
        "device = keras.src.backend.torch.core.get_device()",
        "from jax._src import core",
        "from torch import _dynamo",
        "from tensorflow.python.framework import op_def_registry",
        "model._symbolic_build()",
        "getattr(loss, '_fn_kwargs', {})",
        "self._loss_tracker.update_state(0)",
        "getattr(tf, '__internal__')",
        "ray.init(_node_ip_address='127.0.0.1')",
        "frame.f_locals",
    ],
)
def test_the_search_finds_them(code):
    assert any(set(private_uses(node, set())) for node in ast.walk(ast.parse(code)))


def shortest(uses):
    """Leaves out the parts of longer names."""
    return {
        use
        for use in uses
        if not any(
            other.startswith(f"{use}.") or other.endswith(f".{use}") for other in uses
        )
    }


def listed():
    """The private names of each module, in the table of the README."""
    names = {}
    for line in (PACKAGE / "backend" / "README.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 7 and cells[1].startswith("`"):
            module = cells[1].strip("`")
            names.setdefault(module, set()).update(re.findall(r"`([^`]+)`", cells[2]))
    return names


@pytest.mark.once("torch")
def test_the_table_lists_the_private_names_of_the_code():
    every_tree = list(trees())
    own = own_names(every_tree) - PRIVATE_OF_KERAS
    found = {}
    for path, tree in every_tree:
        if path.parts[0] == "backend":
            uses = {u for node in ast.walk(tree) for u in private_uses(node, own)}
            found[path.stem] = shortest(uses)
    table = listed()
    assert table.keys() <= found.keys()
    assert {module: names for module, names in table.items() if names} == {
        module: names for module, names in found.items() if names
    }


WITHOUT_PRIVATE_NAMES = """
import importlib, sys

import keras, tensorflow, tensorflow_text

for name in [*sys.modules]:
    if any(f"{name}.".startswith(f"{module}.") for module in %r):
        sys.modules[name] = None
del keras.src
import keras_transformer
for name in keras_transformer.__all__:
    getattr(keras_transformer, name)
for name in %r:
    importlib.import_module(f"keras_transformer.backend.{name}")
print(keras.backend.backend())
"""


@pytest.mark.slow
def test_the_package_is_imported_without_private_names():
    names = [path.stem for path in (PACKAGE / "backend").glob("[!_]*.py")]
    code = WITHOUT_PRIVATE_NAMES % (PRIVATE_MODULES, names)
    environment = {**os.environ, "KERAS_BACKEND": keras.backend.backend()}
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
    )
    assert found.stdout.strip() == keras.backend.backend(), found.stderr[-2000:]
