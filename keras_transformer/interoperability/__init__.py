"""Models of other toolkits, loaded as a `Seq2Seq`, a `CausalLM` or a `TextEncoder`.

- `load_pretrained`, `save_pretrained`: folders of Hugging Face's transformers
- `load_ctranslate2`: folders of CTranslate2, for a `Translator` or a `Generator`
- `load_adapter`, `save_adapter`: adapters of LoRA in the form of PEFT

`keras_transformer.export` writes those of CTranslate2. Files are read as data; nothing
in them is executed. Each function is imported at its first use, together with the
packages that it requires.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from keras_transformer_runtime.packages import require_extra

if TYPE_CHECKING:
    from keras_transformer.interoperability.adapters import load_adapter, save_adapter
    from keras_transformer.interoperability.ctranslate2 import load_ctranslate2
    from keras_transformer.interoperability.pretrained import (
        load_pretrained,
        save_pretrained,
    )

_MODULES = {
    "load_adapter": "adapters",
    "load_ctranslate2": "ctranslate2",
    "load_pretrained": "pretrained",
    "save_adapter": "adapters",
    "save_pretrained": "pretrained",
}

__all__ = [
    "load_adapter",
    "load_ctranslate2",
    "load_pretrained",
    "save_adapter",
    "save_pretrained",
]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        require_extra("tensorflow", f"`{name}`")
        module = import_module(f"keras_transformer.interoperability.{_MODULES[name]}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
