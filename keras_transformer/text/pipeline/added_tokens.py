"""The added tokens of a `tokenizer.json`, which texts are split at, in TensorFlow."""

import re
from collections.abc import Mapping, Sequence

import tensorflow as tf

from keras_transformer.text.pipeline.characters import SPACE
from keras_transformer.text.pipeline.normalizers import TextOp
from keras_transformer.text.pipeline.operations import (
    NoGraphForm,
    lookup_table,
    split_texts,
)
from keras_transformer.types import Config


class AddedTokens(tf.Module):
    """Splits texts at added tokens.

    Args:
        tokens: the entries of `added_tokens`.
        normalize: operations on the contents of the tokens.
    """

    def __init__(self, tokens: Sequence[Config], normalize: TextOp) -> None:
        super().__init__()
        self._ids: dict[str, int] = {}
        options: dict[str, Config] = {}
        for token in tokens:
            if token["single_word"]:
                raise NoGraphForm("an added token with single_word")
            content = normalize(tf.constant([token["content"]])).numpy()[0].decode()
            if content:
                self._ids[content], options[content] = token["id"], token
        # The longest one of those that begin at the same place counts.
        names = sorted(self._ids, key=len, reverse=True)
        self._pattern = "|".join(_pattern(name, options[name]) for name in names)
        self._table = lookup_table([*self._ids], [*self._ids.values()], tf.string, -1)
        self._strips = _stripped(options)

    def split(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        """Splits texts; returns the parts `(texts, None)` and the ids of the parts.

        The id of a part that is not an added token is -1.
        """
        if not self._ids:
            parts = tf.RaggedTensor.from_uniform_row_length(texts, 1)
            return parts, tf.fill(tf.shape(texts), -1)
        parts = split_texts(texts, self._pattern)
        names = parts.flat_values
        if self._strips:
            names = tf.strings.regex_replace(
                names, rf"\A[{SPACE}]*({self._strips})[{SPACE}]*\z", r"\1"
            )
        return parts, self._table.lookup(names)


def _pattern(content: str, options: Config) -> str:
    left = f"[{SPACE}]*" if options["lstrip"] else ""
    right = f"[{SPACE}]*" if options["rstrip"] else ""
    return f"{left}{re.escape(content)}{right}"


def _stripped(options: Mapping[str, Config]) -> str:
    """Returns a pattern of the tokens that include the white space around them."""
    return "|".join(
        re.escape(name)
        for name, token in options.items()
        if token["lstrip"] or token["rstrip"]
    )
