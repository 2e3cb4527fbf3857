"""Tokenizers in plain Python, without TensorFlow and Keras.

They give the token ids and the texts of the classes of `keras_transformer.text` that
have their names, and `read_tokenizer` makes one of their configuration.
"""

import base64
import pathlib
from collections.abc import Mapping
from typing import Any

from keras_transformer_runtime.files import read_file
from keras_transformer_runtime.tokenizers.text_tokenizer import TextTokenizer

CLASSES = (
    *("SentencePieceTokenizer", "MarianTokenizer"),
    *("CharacterTokenizer", "WordTokenizer", "ByteTokenizer"),
)


def read_tokenizer(content: Mapping[str, Any], folder: pathlib.Path) -> TextTokenizer:
    """Creates a tokenizer from its configuration.

    Args:
        content: a dictionary with the name of a class, `"class_name"`, and its
            arguments, `"config"`. An argument `"proto"`, the SentencePiece model, is
            the name of a file of `folder`, or base64 text.
        folder: folder of the file.

    Raises:
        ValueError: if the class has no form in plain Python, or an argument is wrong.
    """
    name, config = content.get("class_name"), dict(content.get("config") or {})
    if name not in CLASSES:
        raise ValueError(
            f"The tokenizer must be a {', '.join(CLASSES)} to run without TensorFlow; "
            f"received a `{name}`. Use the SavedModel or the .keras file."
        )
    if name.endswith(("PieceTokenizer", "MarianTokenizer")):
        proto = str(config["proto"])
        is_file = proto.endswith(".model") and pathlib.PurePath(proto).name == proto
        config["proto"] = (
            read_file(folder / proto) if is_file else base64.b64decode(proto)
        )
        from keras_transformer_runtime.tokenizers import sentence_piece_tokenizers

        kind = getattr(sentence_piece_tokenizers, name)
    else:
        from keras_transformer_runtime.tokenizers import lookup_tokenizers

        kind = getattr(lookup_tokenizers, name)
    tokenizer: TextTokenizer = kind(**config)
    return tokenizer
