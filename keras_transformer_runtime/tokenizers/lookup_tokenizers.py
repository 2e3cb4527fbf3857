"""Tokenizers that look up characters, words or bytes, in plain Python."""

import abc
import re
import unicodedata
from collections.abc import Sequence

from keras_transformer_runtime.tokenizers.text_tokenizer import TextTokenizer
from keras_transformer_runtime.tokenizers.token_vocabulary import SPECIAL_TOKENS
from keras_transformer_runtime.tokenizers.unicode_versions import NEW_CASES

_NEW_CASES = re.compile(f"([{NEW_CASES}]+)")


# The rule of the final sigma ignores the first one in Unicode 13 only, and always the
# second one, which Unicode deprecates.
_IGNORED, _STAND_IN = "\u1734", "\U000e0001"


def lower_case(text: str) -> str:
    """Lower-cases a text as `tf.strings.lower` does, in every locale of the process."""
    if text.isascii():
        return text.lower()
    if _IGNORED in text and _STAND_IN not in text:
        return lower_case(text.replace(_IGNORED, _STAND_IN)).replace(
            _STAND_IN, _IGNORED
        )
    parts = _NEW_CASES.split(text)
    return "".join(part if i % 2 else part.lower() for i, part in enumerate(parts))


class _LookupTokenizer(TextTokenizer):
    """Base class of the tokenizers that look up tokens in a vocabulary."""

    _separator: str

    def __init__(self, vocabulary: Sequence[str], lowercase: bool = False) -> None:
        super().__init__(vocabulary)
        self._lowercase = lowercase
        self._ids = self._ids_of_tokens()

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

    def __init__(
        self,
        vocabulary: Sequence[str],
        lowercase: bool = False,
        decompose: bool = False,
    ) -> None:
        super().__init__(vocabulary, lowercase)
        self._decompose = decompose

    def _split(self, text: str) -> Sequence[str]:
        return unicodedata.normalize("NFD", text) if self._decompose else text

    def _decode(self, token_ids: list[int]) -> str:
        text = super()._decode(token_ids)
        return unicodedata.normalize("NFC", text) if self._decompose else text


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
