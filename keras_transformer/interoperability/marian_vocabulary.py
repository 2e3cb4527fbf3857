"""Reads the vocabularies of Marian, `vocab.yml`, and its SentencePiece models."""

import pathlib
import re
from collections.abc import Sequence

from keras_transformer.interoperability.files import file_named
from keras_transformer.text import MarianTokenizer
from keras_transformer_runtime.files import read_file

# The names of YAML's escapes in double quotes, apart from those with digits.
ESCAPES = {
    "0": "\0",
    "a": "\a",
    "b": "\b",
    "t": "\t",
    "\t": "\t",
    "n": "\n",
    "v": "\v",
    "f": "\f",
    "r": "\r",
    "e": "\x1b",
    "N": "\x85",
    "_": "\xa0",
    "L": "\u2028",
    "P": "\u2029",
}
ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)


def marian_tokenizer(path: pathlib.Path, tokens: Sequence[str]) -> MarianTokenizer:
    """Reads a SentencePiece model and gives it a vocabulary."""
    with file_named(path, "a SentencePiece model that suits the vocabulary"):
        return MarianTokenizer(read_file(path), tokens)


def read_vocabulary_file(path: pathlib.Path) -> list[str]:
    """Reads the tokens of a file of lines `token: id`, as Marian writes it.

    Unlike other YAML files, every token is a string, including `true`, `~` and `12`. A
    YAML parser would also reject some characters of tokens. Long tokens have two lines,
    `? token` and `: id`.
    """
    try:
        lines = read_file(path).decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be UTF-8; it is not: {error}.") from error
    ids: dict[str, int] = {}
    long_token: str | None = None
    for number, line in enumerate(lines, 1):
        line = line.removesuffix("\r")
        if line.startswith("? "):
            long_token = line[2:]
            continue
        if not line or line in ("---", "...") or line.startswith("# "):
            continue
        text, colon, digits = line.rpartition(":")
        if long_token is not None:
            text, long_token = text + long_token, None
        if not colon or not text or not re.fullmatch(r" *[0-9]{1,9} *", digits):
            raise ValueError(
                f"line {number} of {path} must be `token: id`; it is {line!r:.80}."
            )
        with file_named(path, "a vocabulary of Marian"):
            token = _unquoted(text)
        if token in ids:
            raise ValueError(
                f"{path} must hold each token once; line {number} repeats "
                f"{token!r:.80}."
            )
        ids[token] = int(digits)
    tokens = sorted(ids, key=ids.__getitem__)
    if sorted(ids.values()) != list(range(len(ids))) or not ids:
        raise ValueError(
            f"{path} must give its {len(ids)} tokens the ids from 0 to {len(ids) - 1}; "
            "it has others."
        )
    return tokens


def _unquoted(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] == '"':
        return ESCAPE.sub(_escaped, text[1:-1])
    if len(text) > 1 and text[0] == text[-1] == "'":
        return text[1:-1].replace("''", "'")
    return text


def _escaped(match: re.Match[str]) -> str:
    *digits, name = match.groups()
    if name is not None:
        return ESCAPES.get(name, name)
    code = int(next(filter(None, digits)), 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise ValueError(f"{match[0]!r} in a vocabulary is not a character.")
    return chr(code)
