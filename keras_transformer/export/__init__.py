"""A trained model in the formats of others: texts in, texts out, without this library.

`export_saved_model` writes a SavedModel, `export_ctranslate2` a model of CTranslate2.
Each is imported when it is first used, and with it what it needs.
"""

from importlib import import_module
from typing import Any

_LAZY = {"export_ctranslate2": "ctranslate2", "export_saved_model": "saved_model"}

__all__ = ["export_ctranslate2", "export_saved_model"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"keras_transformer.export.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
