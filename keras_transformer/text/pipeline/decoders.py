"""The decoders of a `tokenizer.json`: the text of each token."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from keras_transformer.text.pipeline.operations import NoGraphForm
from keras_transformer.types import Config
from keras_transformer_runtime.tokenizers.keras_hub_tokenizers import BYTES

# Replacements of the decoder `WordPiece` with `cleanup`, in their order.
_CLEANUP = {
    **{" .": ".", " ?": "?", " !": "!", " ,": ",", " ' ": "'", " n't": "n't"},
    **{" 'm": "'m", " do not": " don't", " 's": "'s", " 've": "'ve", " 're": "'re"},
}


class TokenTexts(NamedTuple):
    """The texts of tokens in UTF-8, which join to the text of an output.

    Attributes:
        first: list of bytes, the texts of tokens at the beginning of an output.
        others: list of bytes, those of tokens elsewhere.
        strips_space: bool, whether a space at the beginning of an output is removed.
    """

    first: list[bytes]
    others: list[bytes]
    strips_space: bool


def token_texts(config: Config | None, tokens: Sequence[str]) -> TokenTexts:
    """Returns the texts of tokens for a decoder."""
    kind = None if config is None else config["type"]
    if kind == "ByteLevel":
        texts = [*map(_text_of_bytes, tokens)]
        return TokenTexts(texts, texts, False)
    if config is not None and kind == "Metaspace":
        mark = config["replacement"]
        others = [token.replace(mark, " ") for token in tokens]
        first = [token.replace(mark, "") for token in tokens]
        keeps = config.get("prepend_scheme") == "never"
        return TokenTexts(_encoded(others if keeps else first), _encoded(others), False)
    if config is not None and kind == "WordPiece":
        prefix, cleanup = config["prefix"], config["cleanup"]
        first = [_cleaned(token) if cleanup else token for token in tokens]
        others = [
            token.removeprefix(prefix) if token.startswith(prefix) else f" {token}"
            for token in tokens
        ]
        others = [*map(_cleaned, others)] if cleanup else others
        return TokenTexts(_encoded(first), _encoded(others), False)
    if config is not None and kind == "Sequence":
        return _of_sequence(config["decoders"], tokens)
    raise NoGraphForm(f"the decoder {kind}")


def _of_sequence(steps: Sequence[Config], tokens: Sequence[str]) -> TokenTexts:
    """Returns the texts of replacements, bytes and a space that is removed, if any."""
    texts, has_bytes, strips = [*tokens], False, False
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": new}:
                texts = [text.replace(old, new) for text in texts]
            case {"type": "ByteFallback"}:
                has_bytes = True
            case {"type": "Fuse"}:
                pass
            case {"type": "Strip", "content": " ", "start": 1, "stop": 0}:
                strips = True
            case _:
                raise NoGraphForm(f"the decoder {step['type']} in a Sequence")
    joined = [
        bytes([int(token[3:5], 16)])
        if has_bytes and re.fullmatch("<0x[0-9A-F]{2}>", token)
        else text.encode()
        for token, text in zip(tokens, texts, strict=True)
    ]
    return TokenTexts(joined, joined, strips)


def _text_of_bytes(token: str) -> bytes:
    if all(character in BYTES for character in token):
        return bytes(map(BYTES.__getitem__, token))
    return token.encode()


def _cleaned(text: str) -> str:
    for old, new in _CLEANUP.items():
        text = text.replace(old, new)
    return text


def _encoded(texts: Sequence[str]) -> list[bytes]:
    return [text.encode() for text in texts]
