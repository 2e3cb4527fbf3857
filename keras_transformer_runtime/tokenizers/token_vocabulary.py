"""The vocabulary of a tokenizer: special tokens, language tokens, texts with words."""

import collections
import functools
import re
from collections.abc import Iterable, Sequence
from typing import ClassVar

from keras_transformer_runtime.tokenizers.invisible_characters import BLANK

SPECIAL_TOKENS = ("<pad>", "<unk>", "<s>", "</s>")


class TokenVocabulary:
    """Base class of all tokenizers: the tokens and their ids.

    Args:
        vocabulary: iterable of str, all tokens, special tokens included, in the order
            of their ids.
        special_ids: ids of the tokens of padding, unknown text, start and end; `None`
            for those of `special_tokens`.

    Raises:
        ValueError: if `vocabulary` lacks a special token, or their ids collide.
    """

    special_tokens: tuple[str, ...] = SPECIAL_TOKENS
    """Tokens of padding, unknown text, start and end."""

    language_token_pattern: ClassVar[str | None] = None
    """Regular expression (of Python and RE2) of the token at the beginning of a text
    that sets the target language of a multilingual model, such as `>>deu<<`; `None`
    without such tokens. It begins with `^`."""

    _vocabulary: tuple[str, ...]

    def __init__(
        self, vocabulary: Iterable[str], special_ids: Sequence[int] | None = None
    ) -> None:
        super().__init__()
        # Not by an assignment: a layer of Keras would look at each token.
        vars(self)["_vocabulary"] = tuple(vocabulary)
        if special_ids is not None:
            self.special_tokens = tuple(self._vocabulary[id] for id in special_ids)
        special = self.special_tokens
        missing = [token for token in special if token not in self._vocabulary]
        if missing:
            raise ValueError(
                f"`vocabulary` must contain the special tokens {list(special)}; "
                f"received a `vocabulary` without {missing}. Train the tokenizer with "
                "this library, or train the SentencePiece model with the options "
                "`--pad_id=0 --unk_id=1 --bos_id=2 --eos_id=3`."
            )
        self._special_ids = tuple(special_ids or map(self._vocabulary.index, special))
        pad, unknown, start, end = self._special_ids
        if end in (pad, unknown) or unknown in (pad, start):
            raise ValueError(
                "The ids of padding, unknown text and end must differ, and those of "
                f"unknown text and start; received `pad_token_id={pad}`, "
                f"`unknown_token_id={unknown}`, `start_token_id={start}` and "
                f"`end_token_id={end}`. Use other tokens of the vocabulary, or `None` "
                "for a new one."
            )

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens, special tokens included."""
        return len(self._vocabulary)

    @property
    def pad_token_id(self) -> int:
        """Id of `<pad>`, which pads the rows of a batch to the same length."""
        return self._special_ids[0]

    @property
    def unknown_token_id(self) -> int:
        """Id of `<unk>`, which replaces tokens that the vocabulary lacks."""
        return self._special_ids[1]

    @property
    def start_token_id(self) -> int:
        """Id of `<s>`, the first token of the decoder."""
        return self._special_ids[2]

    @property
    def end_token_id(self) -> int:
        """Id of `</s>`, the last token of a text."""
        return self._special_ids[3]

    @functools.cached_property
    def language_token_ids(self) -> tuple[int, ...]:
        """Ids of the language tokens; see `language_token_pattern`.

        A text that has no other tokens has no words: its output is empty.
        """
        if self.language_token_pattern is None:
            return ()
        matches = re.compile(self.language_token_pattern).fullmatch
        special = self.special_tokens
        return tuple(
            id
            for id, token in enumerate(self._vocabulary)
            if token not in special and matches(token)
        )

    def _ids_of_tokens(self) -> dict[str, int]:
        """Returns the ids of all tokens, each of which must occur once.

        It lacks the special tokens, so text is never converted to one.
        """
        counts = collections.Counter(self._vocabulary)
        repeated = [token for token, count in counts.items() if count > 1]
        if repeated:
            raise ValueError(
                "`vocabulary` must contain each token once; received a `vocabulary` "
                f"that repeats {repeated[:5]}. Remove the repetitions."
            )
        ids = {token: id for id, token in enumerate(self._vocabulary)}
        for token in self.special_tokens:
            ids.pop(token, None)
        return ids

    def has_words(self, text: str | bytes, token_ids: Sequence[int]) -> bool:
        """Returns whether a text has tokens apart from a language token.

        White space and invisible characters are no words; see `docs/data.md`.

        Args:
            text: the text.
            token_ids: its token ids, with or without the end token.

        Returns:
            bool. The output of a text without words is empty.
        """
        decoded = text if isinstance(text, str) else text.decode("utf-8", "replace")
        if self.language_token_pattern is not None:
            decoded = re.sub(self.language_token_pattern, "", decoded)
        is_blank = re.fullmatch(BLANK, decoded) is not None
        without_words = {self.end_token_id, *self.language_token_ids}
        return not is_blank and not {*token_ids} <= without_words

    def unknown_language_token(
        self, text: str | bytes, token_ids: Sequence[int]
    ) -> str | None:
        """Returns the language token of a text if the vocabulary lacks it.

        Args:
            text: the text.
            token_ids: its token ids without the start token.

        Returns:
            str, such as `">>xyz<<"`; `None` if the text has no language token or one
            of the vocabulary.
        """
        known = not len(token_ids) or token_ids[0] != self.unknown_token_id
        if known or self.language_token_pattern is None:
            return None
        decoded = text if isinstance(text, str) else text.decode("utf-8", "replace")
        match = re.match(self.language_token_pattern, decoded)
        return match and match.group()

    def check_language_token(
        self, text: str | bytes, token_ids: Sequence[int], argument: str, where: str
    ) -> None:
        """Checks that the vocabulary has the language token of a text, if any.

        Args:
            text: the text.
            token_ids: its token ids without the start token.
            argument: name of the argument, for the error message.
            where: place of the text in the argument, such as `"row 3"`.

        Raises:
            ValueError: if the vocabulary lacks it.
        """
        unknown = self.unknown_language_token(text, token_ids)
        if unknown is not None:
            names = [self._vocabulary[id] for id in self.language_token_ids[:20]]
            known = f"one of {names}" if names else "of which there are none"
            raise ValueError(
                f"`{argument}` must begin with a language token of the vocabulary, "
                f"{known}; received {unknown!r:.80} in {where}. Replace it, or remove "
                "it; if it is a part of the text, write a space before it."
            )
