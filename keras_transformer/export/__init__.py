"""A trained model in the formats of others, which run it without this library.

`export_saved_model` writes a SavedModel and `export_ctranslate2` a model of
CTranslate2: texts in, texts out. `export_onnx` writes an encoder and a step of the
decoder for ONNX Runtime. Each is imported when it is first used, and with it what it
needs.
"""

from importlib import import_module
from typing import Any

FORMATS = ("saved_model", "ctranslate2", "onnx")

_LAZY = {f"export_{format}": format for format in FORMATS}

__all__ = ["export_ctranslate2", "export_onnx", "export_saved_model"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"keras_transformer.export.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
