"""Tokenizers that look up characters, words or bytes, in plain Python."""

import abc
import re
from collections.abc import Sequence

from keras_transformer_runtime.tokenizers.text_tokenizer import (
    SPECIAL_TOKENS,
    TextTokenizer,
)

# Characters of Unicode 14 to 17 that have a case, or that the rule of the final sigma
# ignores. TensorFlow's tables are those of Unicode 13, which lacks them, and those of
# Python depend on its version.
_NEWER = """
    558 58B-58C 5C8-5C9 888 890-891 897-89F 8C9-8D2 B53-B54 C3C ECE 180F
    1AC1-1AF0 1C89-1C8A 1DFA 208F 209D-209F 2C2F 2C5F A7C0-A7C1 A7CB-A7DD A7E2
    A7F1-A7F4 AB6C-AB6D FBC2 10570-1057A 1057C-1058A 1058C-10592 10594-10595
    10597-105A1 105A3-105B1 105B3-105B9 105BB-105BC 10780-10785 10787-107B0
    107B2-107BF 10D4E 10D50-10D65 10D69-10D6D 10D6F-10D85 10EC5 10EC9-10ECF
    10EF0-10EFF 10F82-10F85 11070 11073-11074 110C2 11241 113BB-113C0 113CE
    113D0 113D2 113E1-113E2 11B60 11B62-11B64 11B66 11DD9 11DF0 11F00-11F01
    11F36-11F3A 11F40 11F42 11F5A 13439-13440 13447-13455 1611E-16129
    1612D-1612F 16D40-16D42 16D6B-16D6C 16EA0-16EB8 16EBB-16ED3 16FF2-16FF3
    1AFF0-1AFF3 1AFF5-1AFFB 1AFFD-1AFFE 1CF00-1CF2D 1CF30-1CF46 1D127-1D128
    1D25B-1D25C 1D6A6 1DF00-1DF09 1DF0B-1DF7F 1DF90-1DF96 1DFCD-1DFFF
    1E030-1E06D 1E08F 1E2AE 1E4EB-1E4EF 1E5EE-1E5EF 1E6E3 1E6E6 1E6EE-1E6EF
    1E6F5 1E6FF
"""
_RANGES = re.sub("[0-9A-F]+", lambda number: chr(int(number[0], 16)), _NEWER)
_NEWER_TEXT = re.compile(f"([{''.join(_RANGES.split())}]+)")


def lower_case(text: str) -> str:
    """Lower-cases a text as `tf.strings.lower` does, in every locale of the process."""
    if text.isascii():
        return text.lower()
    parts = _NEWER_TEXT.split(text)
    return "".join(part if i % 2 else part.lower() for i, part in enumerate(parts))


class _LookupTokenizer(TextTokenizer):
    """Base class of the tokenizers that look up tokens in a vocabulary."""

    _separator: str

    def __init__(self, vocabulary: Sequence[str], lowercase: bool = False) -> None:
        super().__init__(vocabulary)
        self._lowercase = lowercase
        self._ids = {token: id for id, token in enumerate(self.tokens)}
        for token in SPECIAL_TOKENS:  # to which text is never converted
            self._ids.pop(token, None)

    @abc.abstractmethod
    def _split(self, text: str) -> Sequence[str]:
        """Splits a text into tokens."""

    def encode(self, text: str) -> list[int]:
        tokens = self._split(lower_case(text) if self._lowercase else text)
        unknown = self.unknown_token_id
        return [self._ids.get(token, unknown) for token in tokens]

    def _decode(self, token_ids: list[int]) -> str:
        return self._separator.join(self.tokens[token_id] for token_id in token_ids)


class CharacterTokenizer(_LookupTokenizer):
    """Splits texts into characters (Unicode code points)."""

    _separator = ""

    def _split(self, text: str) -> Sequence[str]:
        return text


class WordTokenizer(_LookupTokenizer):
    """Splits texts into words at the white space of ASCII."""

    _separator = " "

    def _split(self, text: str) -> Sequence[str]:
        return [word for word in re.split(r"[\t-\r ]+", text) if word]


class ByteTokenizer(TextTokenizer):
    """Splits texts into the bytes of UTF-8."""

    def __init__(self, lowercase: bool = False) -> None:
        super().__init__([*SPECIAL_TOKENS, *(f"<0x{byte:02X}>" for byte in range(256))])
        self._lowercase = lowercase

    def encode(self, text: str) -> list[int]:
        first = len(SPECIAL_TOKENS)
        text = lower_case(text) if self._lowercase else text
        return [byte + first for byte in text.encode()]

    def _decode(self, token_ids: list[int]) -> str:
        first, unknown = len(SPECIAL_TOKENS), b"<unk>"
        parts = (
            unknown if id == self.unknown_token_id else bytes([id - first])
            for id in token_ids
        )
        return b"".join(parts).decode("utf-8", "replace")
