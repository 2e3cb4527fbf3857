"""Models of other toolkits: read as a `Seq2Seq`, and written.

`load_marian` and `save_marian` know the folders of OPUS-MT models, `load_ctranslate2`
those of CTranslate2 (which `Seq2Seq.export` writes). Each is imported when it is first
used, and with it what it needs. Files are read as data: nothing in them is executed.
"""

from importlib import import_module
from typing import Any

_LAZY = {
    "load_ctranslate2": "ctranslate2",
    "load_marian": "marian",
    "save_marian": "marian",
}

__all__ = ["load_ctranslate2", "load_marian", "save_marian"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        module = import_module(f"keras_transformer.interoperability.{_LAZY[name]}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
