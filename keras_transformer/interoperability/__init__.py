"""Models of other toolkits, loaded as a `Seq2Seq` or a `CausalLM`.

- `load_marian`: folders of Marian models in the form of Hugging Face, such as OPUS-MT
- `load_ctranslate2`: folders of CTranslate2, for a `Translator` or a `Generator`
- `load_gpt2`: folders of GPT-2 in the form of Hugging Face

- `load_adapter` and `save_adapter`: adapters of LoRA in the form of PEFT

`keras_transformer.export` writes the first two. Files are read as data; nothing in them
is executed. Each function is imported at its first use, together with the packages that
it requires.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from keras_transformer_runtime.packages import require_extra

if TYPE_CHECKING:
    from keras_transformer.interoperability.adapters import load_adapter, save_adapter
    from keras_transformer.interoperability.ctranslate2 import load_ctranslate2
    from keras_transformer.interoperability.gpt2 import load_gpt2
    from keras_transformer.interoperability.marian import load_marian

_MODULES = {
    "load_adapter": "adapters",
    "load_ctranslate2": "ctranslate2",
    "load_gpt2": "gpt2",
    "load_marian": "marian",
    "save_adapter": "adapters",
}

__all__ = [
    "load_adapter",
    "load_ctranslate2",
    "load_gpt2",
    "load_marian",
    "save_adapter",
]


def __getattr__(name: str) -> object:
    if name in _MODULES:
        require_extra("tensorflow", f"`{name}`")
        module = import_module(f"keras_transformer.interoperability.{_MODULES[name]}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
