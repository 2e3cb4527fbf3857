"""What the package documents: its modules, their names, the code of a page."""

import importlib
import pathlib
import pkgutil
import re

import keras
import numpy as np

import keras_transformer

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "keras_transformer"
RUNTIME = ROOT / "keras_transformer_runtime"
MODULES = [
    importlib.import_module(info.name)
    for package in (PACKAGE, RUNTIME)
    for info in pkgutil.walk_packages([str(package)], f"{package.name}.")
]
NAMES = {
    "keras": keras,
    "np": np,
    "ops": keras.ops,
    **{name: getattr(keras_transformer, name) for name in keras_transformer.__all__},
}
TOY_MODEL = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 16, "num_heads": 2}


def python_blocks(text):
    return re.findall(r"^( *)```python\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL)


def write_toy_text(folder):
    """Parallel text of a few lines, whose vocabulary has 29 subwords."""
    for language, text in {"en": "a man sees two dogs", "de": "ki lu ozo mep"}.items():
        for part, words in {"train": text, "valid": text, "more": text[::-1]}.items():
            lines = [words[i:] + " " + words[:i] for i in range(13)]
            (folder / f"{part}.{language}").write_text("\n".join(lines), "utf-8")
