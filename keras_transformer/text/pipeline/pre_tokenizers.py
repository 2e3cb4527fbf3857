"""The pre-tokenizers of a `tokenizer.json`, in TensorFlow: texts to words."""

import re
from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

from keras_transformer.text.pipeline.characters import (
    DIGIT,
    LETTER,
    NUMBER,
    PUNCTUATION,
    SPACE,
)
from keras_transformer.text.pipeline.normalizers import regular_expression
from keras_transformer.text.pipeline.operations import (
    NoGraphForm,
    merge_parts,
    replace,
    split_texts,
)
from keras_transformer.types import Config

# Converts string `(parts,)`, and whether each begins a text, to words `(parts, None)`.
SplitOp: TypeAlias = Callable[[tf.Tensor, tf.Tensor], tf.RaggedTensor]

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_NEWER = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3, QWEN2 = _NEWER % r"\p{N}{1,3}", _NEWER % r"\p{N}"

# RE2 has no lookahead. `_split` writes a mark before the last white space in front of
# other characters, where `\s+(?!\S)` ends. The mark is the code point of a surrogate,
# which UTF-8 texts do not have.
_MARK, _M = b"\xed\xa0\x80", r"\x{D800}"
_END = rf"|[{SPACE}]+|{_M}[{SPACE}]"
_NEWER_SPLIT = (
    rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|{_M}?[^\r\n{LETTER}{NUMBER}{_M}]?[{LETTER}]+"
    rf"|[{NUMBER}]%s|{_M}? ?[^{SPACE}{LETTER}{NUMBER}{_M}]+(?:{_M}?[\r\n])*"
    rf"|[{SPACE}]*(?:{_M}?[\r\n])+{_END}"
)
_PATTERNS = {
    GPT2: rf"'s|'t|'re|'ve|'m|'ll|'d|{_M}? ?[{LETTER}]+|{_M}? ?[{NUMBER}]+"
    rf"|{_M}? ?[^{SPACE}{LETTER}{NUMBER}{_M}]+{_END}",
    LLAMA3: _NEWER_SPLIT % "{1,3}",
    QWEN2: _NEWER_SPLIT % "",
}


def pre_tokenizer(config: Config | None) -> SplitOp:
    """Returns the operations of a pre-tokenizer."""
    if config is None:
        return lambda texts, _: _ragged(texts)
    make = _MAKERS.get(config["type"])
    if make is None:
        raise NoGraphForm(f"the pre-tokenizer {config['type']}")
    return make(config)


def is_byte_level(config: Config | None) -> bool:
    """Returns whether the words are split into bytes."""
    if config is None:
        return False
    if config["type"] == "Sequence":
        parts = [is_byte_level(each) for each in config["pretokenizers"]]
        if any(parts[:-1]):
            raise NoGraphForm("a pre-tokenizer after ByteLevel")
        return any(parts)
    kind: str = config["type"]
    return kind == "ByteLevel"


def _ragged(texts: tf.Tensor) -> tf.RaggedTensor:
    rows = tf.RaggedTensor.from_uniform_row_length(texts, 1)
    return tf.ragged.boolean_mask(rows, rows != "")


def _sequence(config: Config) -> SplitOp:
    steps = [pre_tokenizer(each) for each in config["pretokenizers"]]

    def run(texts: tf.Tensor, is_first: tf.Tensor) -> tf.RaggedTensor:
        rows = _ragged(texts)
        for step in steps:
            starts = tf.ones_like(rows.flat_values, tf.bool)
            starts = (tf.ragged.range(rows.row_lengths()).flat_values == 0) & starts
            first = starts & tf.gather(is_first, rows.value_rowids())
            rows = merge_parts(step(rows.flat_values, first), rows)
        return rows

    return run


def _split(pattern: str) -> SplitOp:
    expression = _PATTERNS[pattern]

    def run(texts: tf.Tensor, _: tf.Tensor) -> tf.RaggedTensor:
        marked = tf.strings.regex_replace(
            texts, f"([{SPACE}])([^{SPACE}])", _MARK + rb"\1\2"
        )
        rows = split_texts(marked, expression)
        return rows.with_flat_values(replace(rows.flat_values, _M, ""))

    return run


def _split_by_pattern(config: Config) -> SplitOp:
    if config["behavior"] != "Isolated" or config["invert"]:
        raise NoGraphForm(f"the pre-tokenizer Split with {config['behavior']}")
    pattern = config["pattern"].get("Regex")
    if pattern in _PATTERNS:
        return _split(pattern)
    expression = regular_expression(config["pattern"])
    return lambda texts, _: split_texts(texts, expression)


def _byte_level(config: Config) -> SplitOp:
    split = _split(GPT2) if config.get("use_regex", True) else pre_tokenizer(None)
    if not config["add_prefix_space"]:
        return split

    def run(texts: tf.Tensor, is_first: tf.Tensor) -> tf.RaggedTensor:
        has_space = tf.strings.regex_full_match(texts, r"(?s)( .*)?")
        return split(tf.where(has_space, texts, " " + texts), is_first)

    return run


def _metaspace(config: Config) -> SplitOp:
    mark, scheme = config["replacement"], config.get("prepend_scheme", "always")
    is_split = config.get("split", True)

    def run(texts: tf.Tensor, is_first: tf.Tensor) -> tf.RaggedTensor:
        texts = replace(texts, " ", mark)
        has_mark = tf.strings.regex_full_match(texts, f"(?s)({re.escape(mark)}.*)?")
        if scheme == "first":
            has_mark |= ~is_first
        if scheme != "never":
            texts = tf.where(has_mark, texts, mark + texts)
        if not is_split:
            return _ragged(texts)
        return split_texts(texts, f"{re.escape(mark)}?[^{mark}]+|{re.escape(mark)}")

    return run


def _digits(config: Config) -> SplitOp:
    pattern = f"[{DIGIT}]" if config["individual_digits"] else f"[{DIGIT}]+"
    return lambda texts, _: split_texts(texts, pattern)


def _white_space(config: Config) -> SplitOp:
    return lambda texts, _: split_texts(texts, f"[{SPACE}]+", "")


def _bert(config: Config) -> SplitOp:
    punctuation = f"[{PUNCTUATION}]"
    return lambda texts, _: split_texts(texts, f"[{SPACE}]+|{punctuation}", punctuation)


_MAKERS: dict[str, Callable[[Config], SplitOp]] = {
    "BertPreTokenizer": _bert,
    "ByteLevel": _byte_level,
    "Digits": _digits,
    "Metaspace": _metaspace,
    "Sequence": _sequence,
    "Split": _split_by_pattern,
    "WhitespaceSplit": _white_space,
}
