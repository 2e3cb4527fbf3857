"""Writes trained models in formats that run without this library.

- `export_saved_model`: a SavedModel of TensorFlow, strings in and strings out
- `export_ctranslate2`: a model of CTranslate2 and its tokenizers
- `export_onnx`: an encoder and a decoder step for ONNX Runtime
- `export_encoder_saved_model`, `export_encoder_onnx`: a classifier or an encoder
- `export_model`: any of them, by the name of the format
- `describe_model`, `describe_signatures`, `warmup_requests`: information on models and
  SavedModels

A SavedModel can be written from any `GenerativeModel`; CTranslate2 and ONNX support
`Seq2Seq` and `CausalLM`. `TextClassifier`, `TokenClassifier` and `TextEncoder` have
functions of their own. Each function is imported at its first use,
together with the packages that it requires.
"""

import inspect
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, get_args

from keras_transformer.decoding import BeamSearch, Search
from keras_transformer.decoding.generation_options import (
    chosen_search,
    is_option_name,
)
from keras_transformer_runtime.arguments import check_one_of
from keras_transformer_runtime.engines.generation_options import SearchOptions
from keras_transformer_runtime.packages import require_extra

if TYPE_CHECKING:
    from keras_transformer.export.ctranslate2 import export_ctranslate2
    from keras_transformer.export.encoder_onnx import export_encoder_onnx
    from keras_transformer.export.encoder_saved_model import export_encoder_saved_model
    from keras_transformer.export.onnx import export_onnx
    from keras_transformer.export.saved_model.model_card import (
        describe_model,
        describe_signatures,
    )
    from keras_transformer.export.saved_model.warmup import warmup_requests
    from keras_transformer.export.saved_model.writer import export_saved_model
    from keras_transformer.models import GenerativeModel
    from keras_transformer.models.encoder_model import EncoderModel

FORMATS = ("saved_model", "ctranslate2", "onnx")
# Keras's names of formats.
ALIASES = {"tf_saved_model": "saved_model"}
# Formats of Keras that this library does not write.
KERAS_FORMATS = ("litert", "openvino", "torch")

_MODULES = {
    "export_saved_model": "saved_model.writer",
    "export_ctranslate2": "ctranslate2",
    "export_onnx": "onnx",
    "export_encoder_saved_model": "encoder_saved_model",
    "export_encoder_onnx": "encoder_onnx",
    "describe_model": "saved_model.model_card",
    "describe_signatures": "saved_model.model_card",
    "warmup_requests": "saved_model.warmup",
}

# Arguments of the writers that are not options of `export_model`.
_COMMON = ("model", "filepath", "search")

__all__ = [
    "describe_model",
    "describe_signatures",
    "export_ctranslate2",
    "export_encoder_onnx",
    "export_encoder_saved_model",
    "export_model",
    "export_onnx",
    "export_saved_model",
    "warmup_requests",
]


# The extras whose packages the writers require; `tensorflow` for the others.
_EXTRAS = {
    "export_ctranslate2": "ctranslate2",
    "export_onnx": "onnx",
    "export_encoder_onnx": "onnx",
}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        require_extra(_EXTRAS.get(name, "tensorflow"), f"`{name}`")
        module = import_module(f"keras_transformer.export.{_MODULES[name]}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def export_model(
    model: "GenerativeModel | EncoderModel",
    filepath: str | os.PathLike,
    search: Search | None = None,
    format: str = "saved_model",
    verbose: bool | None = None,
    input_signature: None = None,
    **options: object,
) -> None:
    """Writes a model in a format that runs without this library.

    The method `export` of a model calls it. The arguments have the names of
    `keras.Model.export`. Unlike `keras.Model.export`, which writes the forward pass,
    this function writes everything that is required to decode.

    Args:
        model: the model.
        filepath: folder to write. It must be new or empty. TensorFlow Serving
            requires `<name>/<version>`.
        search: the search; `None` = `model.default_search`, which is `BeamSearch()`, or
            sampling of a language model, changed by `options`. `"saved_model"` contains
            it, `"ctranslate2"` records its options; `"onnx"` checks the model with it,
            with `BeamSearch()` if it is `None`.
        format: `"saved_model"`, for TensorFlow (Keras's name `"tf_saved_model"` is
            accepted), `"ctranslate2"` or `"onnx"`. For Hugging Face's transformers,
            see `save_pretrained`.
        verbose: bool or `None`, whether to print a message when the model is written.
            `None` = no message.
        input_signature: must be `None`. Each format has fixed inputs.
        **options: options of the search by name, such as `num_beams`, as in
            `GenerativeModel.generate`; and further arguments of `export_saved_model`,
            `export_ctranslate2` or `export_onnx`, such as `quantization`.

    Raises:
        TypeError: if an option of a search has another name here.
        ValueError: if `format` or an option is unknown, options are given together with
            a search, or the format does not support the model.

    Example:

    ```python
    export_model(model, "saved_models/en-de/1", num_beams=5, no_repeat_ngram_size=3)
    export_model(model, "en-de", BeamSearch(5), format="ctranslate2")
    ```
    """
    format = _check_format(format)
    if isinstance(search, str):  # `format` is the second argument of Keras
        raise ValueError(
            "`search` must be a search such as `BeamSearch()`; received "
            f"`search={search!r}`. Pass the format by name: `format={search!r}`."
        )
    if input_signature is not None:
        raise ValueError(
            "`input_signature` must be `None`, since the inputs of the format are "
            f"fixed; received `input_signature={input_signature!r}`. To write the "
            "forward pass alone, call `keras.Model.export(model, filepath, "
            "input_signature=...)`."
        )
    write = getattr(sys.modules[__name__], f"export_{_kind(model)}{format}", None)
    if write is None:
        raise ValueError(
            f"`format` must be 'saved_model' or 'onnx' for a {type(model).__name__}; "
            f"received `format={format!r}`."
        )
    parameters = inspect.signature(write).parameters
    known = {*parameters}
    if "options" in parameters:
        [named] = get_args(parameters["options"].annotation)
        known |= {*named.__annotations__} - {*SearchOptions.__annotations__}
    of_search = {
        name: value
        for name, value in options.items()
        if "search" in known and name not in known and is_option_name(name)
    }
    others = {name: options[name] for name in options if name not in of_search}
    for name, value in others.items():
        if name not in known:
            expected = [f"`{n}`" for n in sorted(known - {"options", *_COMMON})]
            raise ValueError(
                f"`{name}` must not be given for `format={format!r}`; received "
                f"`{name}={value!r}`. The options of this format are: "
                f"{', '.join(expected) or 'none'}."
            )
    default: Search = BeamSearch()
    if format != "onnx":
        default = getattr(model, "default_search", default)
    searches = []
    if "search" in known:
        searches = [chosen_search("export", search, default, of_search)]
    write(model, filepath, *searches, **others)
    if verbose:
        print(f"Saved the model at {str(filepath)!r} in the format {format!r}.")


def _kind(model: object) -> str:
    """Returns the part of the names of functions that write a model."""
    from keras_transformer.models.encoder_model import EncoderModel

    return "encoder_" if isinstance(model, EncoderModel) else ""


def _check_format(format: str) -> str:
    """Returns the library's name of a format."""
    remedy = ""
    if format in KERAS_FORMATS:
        remedy = (
            "To write the forward pass alone, call `keras.Model.export(model, "
            f"filepath, format={format!r})`."
        )
    name = ALIASES.get(format, format)
    check_one_of(FORMATS, remedy=remedy, format=name)
    return name
