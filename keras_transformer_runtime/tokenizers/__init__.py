"""Tokenizers in plain Python, without TensorFlow and Keras.

They give the token ids and the texts of the classes of `keras_transformer.text`, and
`read_tokenizer` creates one from its configuration.
"""

import base64
import importlib
import pathlib
from collections.abc import Mapping
from typing import Any, TypeAlias

from keras_transformer_runtime.files import read_file
from keras_transformer_runtime.tokenizers.text_tokenizer import TextTokenizer

Config: TypeAlias = dict[str, Any]  # JSON values

LOOKUP_CLASSES = ("CharacterTokenizer", "WordTokenizer", "ByteTokenizer")
CLASSES = (
    *("SentencePieceTokenizer", "MarianTokenizer", "KerasHubTokenizer"),
    "HuggingFaceTokenizer",
    *LOOKUP_CLASSES,
)
# Classes of KerasHub that convert texts as their base class does. The classes of
# WordPiece depend on more tables of Unicode, and are not among them.
BYTE_PAIR_CLASSES = (
    *("BytePairTokenizer", "BLIP2OPTTokenizer", "BartTokenizer", "BloomTokenizer"),
    *("FalconTokenizer", "GPT2Tokenizer", "GPTNeoXTokenizer", "GptOssTokenizer"),
    *("Llama3Tokenizer", "OPTTokenizer", "Qwen3MoeTokenizer", "Qwen3Tokenizer"),
    *("QwenMoeTokenizer", "QwenTokenizer", "RobertaTokenizer", "SmolLM3Tokenizer"),
)
PIECE_CLASSES = (
    *("SentencePieceTokenizer", "AlbertTokenizer", "FNetTokenizer", "GemmaTokenizer"),
    *("Gemma3nTokenizer", "LlamaTokenizer", "MistralTokenizer", "MixtralTokenizer"),
    *("Phi3Tokenizer", "SigLIPTokenizer", "T5Gemma2Tokenizer", "T5GemmaTokenizer"),
    *("T5Tokenizer", "VideoPrismTokenizer"),
)
# The types of the arguments that are not lists of str, ids apart.
_TYPES: dict[str, type] = {"lowercase": bool, "add_prefix_space": bool}
_TYPES |= {"decompose": bool, "proto": str, "tokenizer": str}


def read_tokenizer(
    content: Mapping[str, object], folder: pathlib.Path
) -> TextTokenizer:
    """Creates a tokenizer from its configuration.

    Args:
        content: a dictionary with the name of a class, `"class_name"`, and its
            arguments, `"config"`, as `Tokenizer.save` writes them. An argument
            `"proto"`, the SentencePiece model, is base64 text or the name of a
            `.model` file of `folder`; `"tokenizer"`, the content of a
            `tokenizer.json`, can be the name of a `.json` file.
        folder: folder of the file.

    Returns:
        A tokenizer with the ids and texts of the class of `keras_transformer.text`.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if the class has no form in plain Python, or an argument is wrong.
    """
    arguments = _dictionary(content, "config")
    name = _class_name("class_name", content, CLASSES)
    if name == "KerasHubTokenizer":
        name, arguments = _of_keras_hub(arguments)
    for argument, value in arguments.items():
        _check_type(argument, value)
    if "proto" in arguments:
        arguments["proto"] = _read_proto(arguments["proto"], folder)
    if str(arguments.get("tokenizer")).endswith(".json"):
        file = _file_of(folder, "tokenizer", arguments["tokenizer"])
        arguments["tokenizer"] = read_file(file).decode("utf-8")
    try:
        return _class_named(name)(**arguments)
    except TypeError as error:  # a missing argument, or one that the class lacks
        raise ValueError(
            f"`config` must have the arguments of a {name}; received "
            f"{[*arguments]} ({error}). Export the model again."
        ) from error


def _of_keras_hub(config: Config) -> tuple[str, Config]:
    """Returns the class of a tokenizer of KerasHub, and its arguments."""
    own = _dictionary(config, "tokenizer")
    name = _class_name("tokenizer", own, BYTE_PAIR_CLASSES + PIECE_CLASSES)
    settings = _dictionary(own, "settings")
    del config["tokenizer"], own["class_name"], own["settings"]
    kind = "BytePairTokenizer" if name in BYTE_PAIR_CLASSES else "PieceTokenizer"
    return kind, {**config, **own, **settings}


def _class_named(name: str) -> type[TextTokenizer]:
    """Returns a class. Its module imports the packages that it needs."""
    module = "keras_hub_tokenizers"
    if name in CLASSES:
        module = "sentence_piece_tokenizers"
    if name in LOOKUP_CLASSES:
        module = "lookup_tokenizers"
    if name == "HuggingFaceTokenizer":
        module = "hugging_face_tokenizers"
    module = f"keras_transformer_runtime.tokenizers.{module}"
    kind: type[TextTokenizer] = getattr(importlib.import_module(module), name)
    return kind


def _dictionary(content: Mapping[str, object], key: str) -> Config:
    value = content.get(key)
    if not isinstance(value, Mapping):
        raise ValueError(
            f"`{key}` must be a dictionary; received `{key}={value!r:.80}`. Export the "
            "model again."
        )
    return dict(value)


def _class_name(
    argument: str, content: Mapping[str, object], classes: tuple[str, ...]
) -> str:
    name = content.get("class_name")
    if not isinstance(name, str) or name not in classes:
        raise ValueError(
            f"`{argument}` must be one of {', '.join(classes)} to run without "
            f"TensorFlow; received {name!r:.80}. Use the SavedModel or the .keras file."
        )
    return name


def _check_type(argument: str, value: object) -> None:
    if argument.endswith("_id"):
        is_right, expected = type(value) is int, "an int"
    elif argument in _TYPES:
        is_right = isinstance(value, _TYPES[argument])
        expected = f"a {_TYPES[argument].__name__}"
    else:
        is_right = isinstance(value, list) and all(isinstance(x, str) for x in value)
        expected = "a list of str"
    if not is_right:
        raise ValueError(
            f"`{argument}` must be {expected}; received `{argument}={value!r:.80}`. "
            "Export the model again."
        )


def _file_of(folder: pathlib.Path, argument: str, name: str) -> pathlib.Path:
    if pathlib.PurePath(name).name != name:
        raise ValueError(
            f"`{argument}` must be the name of a file of the folder; received "
            f"`{argument}={name!r:.80}`. Export the model again."
        )
    return folder / name


def _read_proto(proto: str, folder: pathlib.Path) -> bytes:
    """Returns a SentencePiece model, given as base64 text or the name of a file."""
    if proto.endswith(".model"):
        return read_file(_file_of(folder, "proto", proto))
    try:
        return base64.b64decode(proto, validate=True)
    except ValueError as error:
        raise ValueError(
            "`proto` must be base64 text or the name of a `.model` file; received "
            f"`proto={proto!r:.80}`. Export the model again."
        ) from error
