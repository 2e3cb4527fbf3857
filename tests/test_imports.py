"""The order of the packages, and the packages that each one may require."""

import ast
import graphlib
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
    {"recipe"},
    {"interoperability"},
    {"export", "keras_engine"},
    {"file_translation"},
    {"models"},
    {"inference"},
    {"dataset"},
    {"training"},
    {"decoding", "layers", "text"},
    {"distribution"},
    {"backend"},
    {"evaluation", "plotting", "serving", "types"},
    {"runtime.runs"},
    {"runtime.evaluation", "runtime.file_translation", "runtime.serving"},
    {"runtime.engines", "runtime.phrase_dictionary"},
    {"runtime.labels"},
    {"runtime.text_rows", "runtime.tokenizers"},
    {"runtime.bleu", "runtime.hub", "runtime.model_paths", "runtime.text_files"},
    {"runtime.display", "runtime.tensorflow_import", "runtime.text_scores"},
    {"runtime.arguments", "runtime.files", "runtime.packages", "runtime.presets"},
)
# Methods of models call the writers, which know the classes of models.
UPWARDS = {
    ("keras_transformer/models/encoder_model.py", "export"),
    ("keras_transformer/models/generative_model.py", "export"),
    ("keras_transformer/models/generative_model.py", "interoperability"),
    ("keras_transformer/models/text_encoder.py", "interoperability"),
}
RANK = {part: rank for rank, parts in enumerate(ORDER) for part in parts}

# Packages that a part imports at module level, the standard library apart.
REQUIRED = {
    "__init__": set(),
    "__main__": set(),
    "backend": {"keras", "numpy"},
    "dataset": {"numpy", "tensorflow", "tensorflow_text"},
    "decoding": {"keras", "numpy"},
    "distribution": {"keras"},
    "export": {"ctranslate2", "google", "keras", "numpy", "onnxruntime", "tensorflow"},
    "file_translation": {"keras", "ray"},
    "inference": {"keras", "numpy", "sacrebleu"},
    "interoperability": {"keras", "numpy"},
    "keras_engine": {"numpy"},
    "layers": {"keras", "numpy"},
    "models": {"keras", "numpy"},
    "plotting": {"matplotlib", "numpy", "seaborn"},
    "recipe": {"ctranslate2", "keras", "numpy"},
    "text": {"keras", "numpy", "sentencepiece", "tensorflow", "tensorflow_text"},
    "training": {"keras", "numpy"},
    "types": set(),
    "runtime.bleu": {"sacrebleu"},
    "runtime.command": {"typer"},
    "runtime.commands": {"typer"},
    "runtime.display": {"rich"},
    "runtime.evaluation": {"rapidfuzz", "sacrebleu"},
    "runtime.engines": {
        *("ctranslate2", "google", "numpy", "tensorflow", "tensorflow_text"),
    },
    "runtime.file_translation": {"numpy"},
    "runtime.labels": {"numpy", "rich"},
    "runtime.phrase_dictionary": {"regex"},
    "runtime.serving": {
        *("google", "numpy", "prometheus_client", "pydantic", "ray"),
        *("sentencex", "starlette", "tensorflow", "uvicorn"),
    },
    "runtime.tokenizers": {"regex", "sentencepiece"},
}
# Modules of the runtime that import TensorFlow or Ray, or modules without a name.
NEED_TENSORFLOW = {
    *("__init__", "on_ray", "saved_model", "saved_model_encoder"),
    *("saved_model_engine", "saved_model_signatures", "signature_call"),
    "warmup_requests",
}
BY_NAME = {"__import__", "import_module", "importlib.import_module"}
USE_A_BACKEND = {
    # transformers, with which a folder is compared, computes with PyTorch.
    *("backend", "dataset", "export", "interoperability", "text"),
    *("runtime.engines", "runtime.serving"),
}


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


@pytest.mark.once("torch")
def test_imports_run_one_way():
    code = "def f():\n    importlib.import_module(f'keras_transformer.models.{name}')"
    assert [*imported_parts(ast.walk(ast.parse(code)))] == ["models"]
    assert len(PARTS) > 200
    for path in PARTS:
        part = part_of(path)
        found = {*imported_parts(ast.walk(parsed(path)))} - {part}
        upwards = {other for other in found if RANK[other] <= RANK[part]}
        upwards -= {other for module, other in UPWARDS if module == relative(path)}
        assert not upwards, f"{relative(path)} must not import {upwards}"


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in PARTS}


def own_modules(name):
    """The modules of the same part that a module imports, for types as well."""
    prefix = ".".join(name.split(".")[:2])
    for found in imported_modules(ast.walk(parsed(MODULES[name]))):
        while found.startswith(prefix) and found not in MODULES:
            found = found.rpartition(".")[0]
        is_own = found == prefix or found.startswith(f"{prefix}.")
        if is_own and found != name:
            yield found


@pytest.mark.once("torch")
@pytest.mark.parametrize("part", sorted(RANK))
def test_no_circle_of_imports_in_a_folder(part):
    names = [name for name, path in MODULES.items() if part_of(path) == part]
    graph = graphlib.TopologicalSorter({name: own_modules(name) for name in names})
    graph.prepare()  # raises CycleError with the modules of a circle


@pytest.mark.once("torch")
def test_packages_that_a_part_requires():
    for path in FILES:
        part, tree = part_of(path), parsed(path)
        names = imported_modules(module_level(tree))
        found = {name.partition(".")[0] for name in names} - sys.stdlib_module_names
        own = {RUNTIME.name} if path in RUNTIME_FILES else {PACKAGE.name, RUNTIME.name}
        assert found <= REQUIRED.get(part, set()) | own, relative(path)
        names = imported_modules(ast.walk(tree))
        backends = {name.partition(".")[0] for name in names}
        backends &= {"jax", "keras_nlp", "tensorflow", "torch"}
        assert not backends or part in USE_A_BACKEND, relative(path)


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


@pytest.mark.once("torch")
def test_the_runtime_imports_neither_keras_nor_the_library():
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in RUNTIME_FILES
        if path.stem not in NEED_TENSORFLOW
    ]
    code = f"import sys, {', '.join(names)}; print(*sys.modules)"
    loaded = {*imported_by(code, cwd=ROOT)}
    assert {*names} <= loaded
    assert not {"keras", "keras_transformer", "tensorflow"} & loaded
