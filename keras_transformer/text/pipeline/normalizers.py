"""The normalizers of a `tokenizer.json`, in TensorFlow: texts to texts."""

import re
from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf
import tensorflow_text as tf_text

from keras_transformer.text.pipeline.characters import (
    BERT_SPACE,
    CONTROL,
    IDEOGRAPH,
    MARK,
    SPACE,
)
from keras_transformer.text.pipeline.operations import NoGraphForm, replace
from keras_transformer.text.pipeline.precompiled import PrecompiledNormalizer
from keras_transformer.types import Config

TextOp: TypeAlias = Callable[[tf.Tensor], tf.Tensor]

# Patterns with the same meaning in RE2: characters that stand for themselves, their
# repetitions, alternatives, and both ends of a text.
_CHARACTER = r"(?:[^\\.^$*?()\[\]{}+|]|\\[^\w\s]|\\ )"
_PLAIN = re.compile(rf"(?:\\A|\\z|\||{_CHARACTER}(?:\{{\d+,?\d*\}}|\+)?)+")
_NUL = "\U0010fffe"  # a code point without a character


def normalizer(config: Config | None) -> TextOp:
    """Returns the operations of a normalizer on a string tensor `(batch,)`."""
    if config is None:
        return tf.identity
    make = _MAKERS.get(config["type"])
    if make is None:
        raise NoGraphForm(f"the normalizer {config['type']}")
    return make(config)


def regular_expression(pattern: Config) -> str:
    """Returns a pattern, a text or a plain regular expression, for RE2."""
    if "String" in pattern:
        return re.escape(pattern["String"])
    expression: str = pattern["Regex"]
    if not _PLAIN.fullmatch(expression):
        raise NoGraphForm(f"the pattern {expression!r:.80}")
    return expression


class _Sequence(tf.Module):
    """Normalizers one after another, with their tables for a SavedModel."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._steps = tuple(normalizer(each) for each in config["normalizers"])

    def __call__(self, texts: tf.Tensor) -> tf.Tensor:
        for step in self._steps:
            texts = step(texts)
        return texts


def _unicode(config: Config) -> TextOp:
    return lambda texts: tf_text.normalize_utf8(texts, config["type"])


def _replace(config: Config) -> TextOp:
    pattern = regular_expression(config["pattern"])
    content = config["content"].replace("\\", r"\\")
    return lambda texts: replace(texts, pattern, content)


def _prepend(config: Config) -> TextOp:
    return lambda texts: tf.where(texts == "", "", config["prepend"] + texts)


def _strip(config: Config) -> TextOp:
    left = rf"\A[{SPACE}]+" if config["strip_left"] else None
    right = rf"[{SPACE}]+\z" if config["strip_right"] else None
    pattern = "|".join(filter(None, (left, right))) or r"\z"
    return lambda texts: replace(texts, pattern, "")


def _lower_case(texts: tf.Tensor) -> tf.Tensor:
    # TensorFlow writes the last sigma of a word as "ς", other programs as "σ". It drops
    # NUL with the text behind it.
    texts = replace(replace(texts, "Σ", "σ"), r"\x00", _NUL)
    return replace(tf.strings.lower(texts, encoding="utf-8"), _NUL, b"\x00")


def _bert(config: Config) -> TextOp:
    strip = config.get("strip_accents")
    strip = config["lowercase"] if strip is None else strip

    def run(texts: tf.Tensor) -> tf.Tensor:
        if config["clean_text"]:
            texts = replace(texts, f"[{CONTROL}]", "")
            texts = replace(texts, f"[{BERT_SPACE}]", " ")
        if config["handle_chinese_chars"]:
            texts = replace(texts, f"([{IDEOGRAPH}])", r" \1 ")
        if strip:
            texts = replace(tf_text.normalize_utf8(texts, "NFD"), f"[{MARK}]", "")
        return _lower_case(texts) if config["lowercase"] else texts

    return run


_MAKERS: dict[str, Callable[[Config], TextOp]] = {
    "BertNormalizer": _bert,
    "Lowercase": lambda config: _lower_case,
    "NFC": _unicode,
    "NFD": _unicode,
    "NFKC": _unicode,
    "NFKD": _unicode,
    "Precompiled": PrecompiledNormalizer,
    "Prepend": _prepend,
    "Replace": _replace,
    "Sequence": _Sequence,
    "Strip": _strip,
}
