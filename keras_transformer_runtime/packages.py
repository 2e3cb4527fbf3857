"""The packages that the library requires: their import, and advice to install them.

The advice names packages and versions, and never this library: its name on PyPI may
belong to others.
"""

import importlib.util
from collections.abc import Iterable, Mapping

DISTRIBUTION = "keras-transformer-toolkit"

# The requirements of pyproject.toml, with the names under which they are imported.
DEPENDENCIES = {
    "keras": "keras>=3.15,<3.16",
    "numpy": "numpy>=2.0",
    "rich": "rich>=14.0",
    "typer": "typer>=0.20",
}
EXTRAS = {
    "tensorflow": {
        "ctranslate2": "ctranslate2>=4.8",
        "keras_nlp": "keras-nlp>=0.32",
        "rapidfuzz": "rapidfuzz>=3.14",
        "regex": "regex>=2025.10",
        "sacrebleu": "sacrebleu>=2.6",
        "sentencepiece": "sentencepiece>=0.2.1",
        "tensorflow": "tensorflow>=2.21",
        "tensorflow_text": "tensorflow-text>=2.21",
    },
    "jax": {"jax": "jax>=0.10"},
    "torch": {"torch": "torch>=2.13"},
    "distributed": {"pyarrow": "pyarrow>=17.0", "ray": "ray[train]>=2.60"},
    "serve": {
        "ctranslate2": "ctranslate2>=4.8",
        "google": "protobuf>=7.36",
        "httptools": "httptools>=0.9",
        "prometheus_client": "prometheus-client>=0.26",
        "pydantic": "pydantic>=2.13",
        "regex": "regex>=2025.10",
        "sentencepiece": "sentencepiece>=0.2.1",
        "sentencex": "sentencex>=1.0.32",
        "starlette": "starlette>=1.10",
        "uvicorn": "uvicorn>=0.54",
    },
    "ray": {"ray": "ray[serve]>=2.60"},
    "ctranslate2": {
        "ctranslate2": "ctranslate2>=4.8",
        "google": "protobuf>=7.36",
        "rapidfuzz": "rapidfuzz>=3.14",
        "sacrebleu": "sacrebleu>=2.6",
        "sentencepiece": "sentencepiece>=0.2.1",
    },
    "onnx": {"onnxruntime": "onnxruntime>=1.27", "tf2onnx": "tf2onnx>=1.17"},
    "hub": {
        "huggingface_hub": "huggingface_hub>=1.0",
        "yaml": "pyyaml>=6.0",
        "safetensors": "safetensors>=0.6",
        "tokenizers": "tokenizers>=0.23",
    },
    "plots": {"matplotlib": "matplotlib>=3.11", "seaborn": "seaborn>=0.13.2"},
}
# The extras that include another one.
INCLUDED = {"distributed": "tensorflow", "onnx": "tensorflow", "ray": "serve"}
REQUIREMENTS = {
    module: requirement
    for packages in (DEPENDENCIES, *EXTRAS.values())
    for module, requirement in packages.items()
}


def install_command(
    modules: Iterable[str], requirements: Mapping[str, str] = REQUIREMENTS
) -> str:
    """Returns the command that installs packages."""
    return " ".join(["pip install", *(f'"{requirements[name]}"' for name in modules)])


def require_extra(extra: str, needed_for: str) -> None:
    """Checks that the packages of an extra are installed, without importing them."""
    included = EXTRAS[INCLUDED[extra]] if extra in INCLUDED else {}
    packages = {**included, **EXTRAS[extra]}
    if extra not in ("ctranslate2", "ray", "serve"):
        packages.pop("ctranslate2", None)  # Only `train` and its engine require it.
    require_modules(packages, needed_for, packages)


def require_modules(
    modules: Iterable[str],
    needed_for: str,
    requirements: Mapping[str, str] = REQUIREMENTS,
) -> None:
    """Checks that packages are installed, without importing them."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        packages = "package" if len(missing) == 1 else "packages"
        raise ModuleNotFoundError(
            f"{needed_for} requires the {packages} {', '.join(missing)}. To install: "
            f"{install_command(missing, requirements)}",
            name=missing[0],
        )


def with_advice(error: ModuleNotFoundError) -> str:
    """Returns the message of an error, with the command that installs the package."""
    name = (error.name or "").partition(".")[0]
    if name not in REQUIREMENTS or "pip install" in str(error):
        return str(error)
    return f"{error}. To install: {install_command([name])}"
