"""The order of the packages, and the packages that each one may require."""

import ast
import subprocess
import sys

import keras
import pytest
from documented import PACKAGE, ROOT, RUNTIME

import keras_transformer

LIBRARY_FILES = sorted(PACKAGE.rglob("*.py"))
RUNTIME_FILES = sorted(RUNTIME.rglob("*.py"))
FILES = LIBRARY_FILES + RUNTIME_FILES

# A part imports only parts of the rows after its own. Parts of
# `keras_transformer_runtime` begin with "runtime.".
ORDER = (
    {"__main__", "runtime.__main__"},
    {"runtime.command"},
    {"runtime.commands"},
    {"interoperability", "recipe", "serving"},
    {"models"},
    {"export"},
    {"inference"},
    {"dataset"},
    {"training"},
    {"decoding", "layers", "text"},
    {"distribution"},
    {"backend"},
    {"evaluation", "plotting", "types"},
    {"runtime.runs"},
    {"runtime.bleu", "runtime.hub", "runtime.model_paths"},
    {"runtime.arguments", "runtime.files", "runtime.packages", "runtime.presets"},
)
RANK = {part: rank for rank, parts in enumerate(ORDER) for part in parts}

# Packages that a part imports at module level, the standard library apart.
REQUIRED = {
    "__init__": set(),
    "__main__": set(),
    "backend": {"keras", "numpy"},
    "dataset": {"numpy", "tensorflow"},
    "decoding": {"keras", "numpy"},
    "distribution": {"keras"},
    "evaluation": {"rapidfuzz", "sacrebleu"},
    "export": {"ctranslate2", "google", "keras", "numpy", "onnxruntime", "tensorflow"},
    "inference": {"keras", "numpy", "ray", "sacrebleu", "tqdm"},
    "interoperability": {"keras", "numpy"},
    "layers": {"keras", "numpy"},
    "models": {"keras"},
    "plotting": {"matplotlib", "numpy", "seaborn"},
    "recipe": {"keras", "numpy", "tqdm"},
    "serving": {
        *("google", "numpy", "prometheus_client", "pydantic", "ray"),
        *("sentencex", "starlette", "tensorflow", "tensorflow_text", "uvicorn"),
    },
    "text": {"keras", "numpy", "sentencepiece", "tensorflow", "tensorflow_text"},
    "training": {"keras", "numpy"},
    "types": set(),
    "runtime.bleu": {"sacrebleu"},
    "runtime.command": {"typer"},
    "runtime.commands": {"typer"},
}
BY_NAME = {"__import__", "import_module", "importlib.import_module"}
USE_A_BACKEND = {"backend", "dataset", "export", "serving", "text"}


def relative(path):
    return path.relative_to(ROOT).as_posix()


def part_of(path):
    """The folder of a module of a package, or its own name."""
    package, prefix = (
        (PACKAGE, "") if PACKAGE in path.parents else (RUNTIME, "runtime.")
    )
    first, *rest = path.relative_to(package).parts
    return prefix + (first if rest else path.stem)


def imported_modules(nodes):
    """The full names in import statements, and in calls that import by name."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in BY_NAME:
            yield ast.unparse(node.args[0]).removeprefix("f").strip("'\"")


def imported_parts(nodes):
    """The parts of the packages that are imported, public names resolved."""
    for name in imported_modules(nodes):
        package, _, rest = name.partition(".")
        part = rest.partition(".")[0]
        if rest == "__version__":
            continue
        if package == RUNTIME.name:
            yield f"runtime.{part}"
        elif package == PACKAGE.name:
            if part not in RANK:
                public = getattr(keras_transformer, part)
                part = public.__module__.split(".")[1]
            yield part


def module_level(tree):
    for statement in tree.body:
        is_definition = isinstance(statement, ast.FunctionDef | ast.ClassDef)
        if not is_definition and "TYPE_CHECKING" not in ast.unparse(statement)[:20]:
            yield from ast.walk(statement)


def parsed(path):
    return ast.parse(path.read_text("utf-8"))


ROOTS = {PACKAGE / "__init__.py", RUNTIME / "__init__.py"}
PARTS = [path for path in FILES if path not in ROOTS]


@pytest.mark.once
@pytest.mark.parametrize("path", PARTS, ids=relative)
def test_imports_run_one_way(path):
    part = part_of(path)
    found = {*imported_parts(ast.walk(parsed(path)))} - {part}
    upwards = {other for other in found if RANK[other] <= RANK[part]}
    assert not upwards, f"{part} must not import {upwards}"


@pytest.mark.once
@pytest.mark.parametrize(
    "code",
    [
        "from keras_transformer.models import Seq2Seq",
        "import keras_transformer.models.ensemble",
        "def f():\n    from keras_transformer import models",
        "def f():\n    from keras_transformer import Seq2Seq",
        "import_module('keras_transformer.models')",
        "importlib.import_module(f'keras_transformer.models.{name}')",
    ],
)
def test_every_way_to_import_is_seen(code):
    assert [*imported_parts(ast.walk(ast.parse(code)))] == ["models"]


@pytest.mark.once
@pytest.mark.parametrize("path", FILES, ids=relative)
def test_packages_that_a_part_requires(path):
    part = part_of(path)
    names = imported_modules(module_level(parsed(path)))
    found = {name.partition(".")[0] for name in names} - sys.stdlib_module_names
    allowed = {RUNTIME.name} if path in RUNTIME_FILES else {PACKAGE.name, RUNTIME.name}
    assert found <= REQUIRED.get(part, set()) | allowed


@pytest.mark.once
@pytest.mark.parametrize("path", FILES, ids=relative)
def test_few_parts_use_a_backend(path):
    names = {
        name.partition(".")[0] for name in imported_modules(ast.walk(parsed(path)))
    }
    if part_of(path) not in USE_A_BACKEND:
        assert not names & {"jax", "keras_nlp", "tensorflow", "torch"}


def imported_by(code, **options):
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, **options
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.split()


def test_import_loads_nothing_that_it_does_not_need():
    code = "import keras_transformer, sys; print(*sys.modules)"
    loaded = {*imported_by(code, cwd=ROOT)}
    unneeded = {"keras_hub", "keras_nlp", "sacrebleu", "seaborn", "sentencepiece"}
    unneeded |= {"keras_transformer.text", "tensorflow_text"}
    if keras.backend.backend() != "tensorflow":
        unneeded.add("tensorflow")
    assert "keras_transformer" in loaded
    assert not unneeded & loaded


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="needs TensorFlow")
def test_training_and_decoding_without_tensorflow(tmp_path):
    """As on a machine on which TensorFlow is not installed."""
    code = (
        "import sys; sys.modules.update(tensorflow=None, tensorflow_text=None)\n"
        "import keras, numpy as np, keras_transformer as kt\n"
        "model = kt.Seq2Seq(num_layers=1, hidden_dim=8, intermediate_dim=8,"
        " num_heads=2, vocabulary_size=11)\n"
        "model.compile('adam', kt.LabelSmoothedCrossEntropy(),"
        " metrics=[kt.Perplexity()])\n"
        "ids = np.ones((4, 3), 'int32')\n"
        "inputs = {'encoder_token_ids': ids, 'decoder_token_ids': ids}\n"
        "history = model.fit(inputs, ids, batch_size=2, verbose=0).history\n"
        f"model.save({str(tmp_path / 'model.keras')!r})\n"
        f"loaded = keras.saving.load_model({str(tmp_path / 'model.keras')!r})\n"
        "found = [m.generate([[5, 3]], kt.BeamSearch(2), 4).token_ids.tolist()"
        " for m in (model, loaded)]\n"
        "print(len(history['loss']), len(found[0][0]), found[0] == found[1])"
    )
    assert imported_by(code, cwd=ROOT) == ["1", "1", "True"]


@pytest.mark.once
def test_the_runtime_imports_neither_keras_nor_the_library():
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in RUNTIME_FILES
        if path.stem != "__init__"
    ]
    code = f"import sys, {', '.join(names)}; print(*sys.modules)"
    loaded = {*imported_by(code, cwd=ROOT)}
    assert {*names} <= loaded
    assert not {"keras", "keras_transformer", "tensorflow"} & loaded
