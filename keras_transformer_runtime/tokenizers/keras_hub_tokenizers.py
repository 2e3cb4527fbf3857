"""Tokenizers of KerasHub, in plain Python."""

import abc
import functools
import itertools
import re
from collections.abc import Iterable, Sequence

import regex

from keras_transformer_runtime.tokenizers.piece_model import PieceModel
from keras_transformer_runtime.tokenizers.text_tokenizer import TextTokenizer
from keras_transformer_runtime.tokenizers.token_vocabulary import SPECIAL_TOKENS
from keras_transformer_runtime.tokenizers.unicode_versions import (
    NEW_LETTERS_AND_NUMBERS,
)

# White space that KerasHub's `BytePairTokenizer` takes for punctuation, and all but the
# space. These are parts of regular expressions of Python and of RE2.
_RARE_SPACE = r"\v" + "\u0085\u1680\u2000-\u2008\u200a\u2028\u2029\u205f"
_NO_BLANK = r"\t-\r" + "\u00a0\u2009\u202f\u3000" + _RARE_SPACE
SEPARATOR = "\U0010ffff\U0010fffe"
# Characters that it drops, NUL with the text behind it, as words of bytes.
DROPPED = {"\x00": "Ā", "\u096c": "à¥¬"}
# Where GPT-2 splits a text and `BytePairTokenizer` does not, and with what: in front
# of rare white space, and around the last white space of several.
SPLITS = {
    rf"([^ {_NO_BLANK}])([{_RARE_SPACE}])": rf"\1{SEPARATOR}\2",
    rf"([{_NO_BLANK}])([^ {_NO_BLANK}])": rf"{SEPARATOR}\1{SEPARATOR}\2",
    r"(\x00|" + "\u096c)": rf"{SEPARATOR}\1{SEPARATOR}",
}

UNUSED = "<unused {}>"  # The token of an id that a vocabulary lacks.

# The regular expressions of `BytePairTokenizer`. It marks words with this digit.
_MARK = "\u096c"
_SPACE, _WIDE_SPACE = r"\t\n\f\r ", "\u00a0\u2009\u202f\u3000"
_WORD = re.compile(rf" (?=[^{_SPACE}{_WIDE_SPACE}])")
_END = re.compile(rf"[{_SPACE}]{_WIDE_SPACE}\Z")
_PIECE = regex.compile(
    r"('s|'t|'re|'ve|'m|'ll|'d"
    rf"|[{_SPACE}{_WIDE_SPACE}]+[\n\r\t\f{_MARK}{_WIDE_SPACE}]"
    rf"| ?[\p{{L}}--[{NEW_LETTERS_AND_NUMBERS}]]+"
    rf"| ?[\p{{N}}--[{NEW_LETTERS_AND_NUMBERS}]]+"
    rf"| ?[[^{_SPACE}{_WIDE_SPACE}\p{{L}}\p{{N}}]||[{NEW_LETTERS_AND_NUMBERS}]]+)",
    regex.VERSION1,
)
_LAST = frozenset(" \t\r\f\v" + _MARK + _WIDE_SPACE)

# The visible characters of Latin-1 stand for their own bytes in the tokens, those from
# U+0100 for the others.
_VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _VISIBLE]
BYTES = {chr(byte): byte for byte in _VISIBLE}
BYTES |= {chr(0x100 + number): byte for number, byte in enumerate(_OTHERS)}
_CHARACTERS = [character for character, _ in sorted(BYTES.items(), key=lambda x: x[1])]


class _KerasHubTokenizer(TextTokenizer):
    """Base class of the tokenizers of KerasHub.

    Args:
        vocabulary: list of str, KerasHub's tokens in the order of their ids.
        pad_token_id: int, the id in the vocabulary; `None` = a new one after it.
        unknown_token_id: the same.
        start_token_id: the same.
        end_token_id: the same.
    """

    def __init__(
        self,
        vocabulary: Sequence[str],
        pad_token_id: int | None = None,
        unknown_token_id: int | None = None,
        start_token_id: int | None = None,
        end_token_id: int | None = None,
    ) -> None:
        tokens, ids = [*vocabulary], []
        given = (pad_token_id, unknown_token_id, start_token_id, end_token_id)
        for token_id, token in zip(given, SPECIAL_TOKENS, strict=True):
            if token_id is not None and not 0 <= token_id < len(vocabulary):
                raise ValueError(
                    f"The id of `{token}` must be from 0 to {len(vocabulary) - 1}; "
                    f"received {token_id}. Export the model again."
                )
            ids.append(len(tokens) if token_id is None else token_id)
            tokens += [token] if token_id is None else []
        super().__init__(tokens, ids)
        self._own_size = len(vocabulary)
        self._framing = {self.pad_token_id, self.start_token_id, self.end_token_id}

    @abc.abstractmethod
    def _own_ids(self, text: str) -> Iterable[int]:
        """Returns KerasHub's ids of a text."""

    @abc.abstractmethod
    def _own_text(self, token_ids: list[int]) -> str:
        """Returns KerasHub's text of ids of its vocabulary."""

    def encode(self, text: str) -> list[int]:
        framing, unknown = self._framing, self.unknown_token_id
        return [unknown if id in framing else id for id in self._own_ids(text)]

    def _decode(self, token_ids: list[int]) -> str:
        return self._own_text([id for id in token_ids if id < self._own_size])


class BytePairTokenizer(_KerasHubTokenizer):
    """Splits texts into byte pairs.

    Args:
        vocabulary: list of str, the tokens in the order of their ids.
        merges: list of str, pairs of tokens with a space between, the first one first.
        add_prefix_space: bool, whether a space is added in front of each text.
        unsplittable_tokens: list of str, tokens that are not split.
        special_ids: the special ids; see the base class.
    """

    def __init__(
        self,
        vocabulary: Sequence[str],
        merges: Sequence[str],
        add_prefix_space: bool = False,
        unsplittable_tokens: Sequence[str] = (),
        **special_ids: int,
    ) -> None:
        super().__init__(vocabulary, **special_ids)
        self._add_prefix_space = add_prefix_space
        # KerasHub replaces each of these tokens by two letters or more.
        self._unsplittable = {
            token: "Ĵ" + "".join(chr(ord("A") + int(digit)) for digit in str(number))
            for number, token in enumerate(unsplittable_tokens)
        }
        self._ids = {
            token: id
            for id, token in enumerate(vocabulary)
            if token != UNUSED.format(id)
        }
        self._ranks = {pair: rank for rank, pair in enumerate(merges)}
        self._word_ids = functools.lru_cache(2**16)(self._find_word_ids)

    def _own_ids(self, text: str) -> Iterable[int]:
        if self._add_prefix_space:
            return self._ids_of_pieces(f" {text}")
        for pattern, parted in SPLITS.items():
            text = re.sub(pattern, parted, text)
        return itertools.chain.from_iterable(
            self._byte_ids(part) if part in DROPPED else self._ids_of_pieces(part)
            for part in text.split(SEPARATOR)
        )

    def _ids_of_pieces(self, text: str) -> Iterable[int]:
        return itertools.chain.from_iterable(map(self._word_ids, self._pieces(text)))

    def _pieces(self, text: str) -> Iterable[str]:
        """Splits a text into words, numbers and the like."""
        text = _WORD.sub(f"{_MARK} ", text)
        text = _END.sub(rf"\g<0>{_MARK}", text)
        parts = [text.partition("\x00")[0]]
        for token, stand_in in self._unsplittable.items():
            parts = [
                stand_in if part == token else part
                for each in parts
                for part in re.split(f"({re.escape(token)})", each)
            ]
        for piece in itertools.chain.from_iterable(map(_PIECE.split, parts)):
            has_end = piece[-1:] in _LAST and len(piece) > 1
            for part in (piece[:-1], piece[-1]) if has_end else (piece,):
                for token, stand_in in self._unsplittable.items():
                    part = part.replace(stand_in, token)
                if part not in ("", _MARK):
                    yield part

    def _find_word_ids(self, word: str) -> list[int]:
        if word in self._unsplittable:
            return self._ids_of(word.split(" "))
        return self._byte_ids(word)

    def _byte_ids(self, text: str) -> list[int]:
        return self._ids_of(self._merged([_CHARACTERS[byte] for byte in text.encode()]))

    def _ids_of(self, tokens: Iterable[str]) -> list[int]:
        unknown = self.unknown_token_id
        return [self._ids.get(token, unknown) for token in tokens]

    def _merged(self, symbols: list[str]) -> list[str]:
        """Merges symbols to tokens, by the first of the merges that applies."""
        never = len(self._ranks)
        ranks = [self._rank(*pair) for pair in itertools.pairwise(symbols)]
        while ranks and (first := min(ranks)) < never:
            place = ranks.index(first)
            symbols[place : place + 2] = ["".join(symbols[place : place + 2])]
            del ranks[place]
            for start in {place - 1, place}.intersection(range(len(ranks))):
                ranks[start] = self._rank(*symbols[start : start + 2])
        return symbols

    def _rank(self, left: str, right: str) -> int:
        return self._ranks.get(f"{left} {right}", len(self._ranks))

    def _own_text(self, token_ids: list[int]) -> str:
        tokens = [(id, self.tokens[id]) for id in token_ids]
        characters = "".join(t for id, t in tokens if t != UNUSED.format(id))
        found = bytes(BYTES[each] for each in characters if each in BYTES)
        return found.decode("utf-8", "replace")


class PieceTokenizer(_KerasHubTokenizer):
    """Splits texts into the pieces of a SentencePiece model, special tokens included.

    Args:
        proto: bytes, the serialised model.
        special_ids: the special ids; see the base class.
    """

    def __init__(self, proto: bytes, **special_ids: int) -> None:
        self._model = PieceModel(proto)
        super().__init__(self._model.pieces, **special_ids)

    def _own_ids(self, text: str) -> Iterable[int]:
        return self._model.encode(text)

    def _own_text(self, token_ids: list[int]) -> str:
        return self._model.decode(token_ids)
