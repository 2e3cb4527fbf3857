"""Checks of texts before a model decodes them: words, and language tokens."""

import abc
import functools
import re
from collections.abc import Sequence
from typing import ClassVar

from keras_transformer_runtime.tokenizers.invisible_characters import BLANK


class TextChecks:
    """Checks of the texts of a tokenizer."""

    special_tokens: tuple[str, ...]
    language_token_pattern: ClassVar[str | None] = None
    """Regular expression (of Python and RE2) of the token at the beginning of a text
    that sets the target language of a multilingual model, such as `>>deu<<`; `None`
    without such tokens. It begins with `^`."""

    _vocabulary: tuple[str, ...]

    @property
    @abc.abstractmethod
    def unknown_token_id(self) -> int:
        """Id of `<unk>`, which replaces tokens that the vocabulary lacks."""

    @property
    @abc.abstractmethod
    def end_token_id(self) -> int:
        """Id of `</s>`, the last token of a text."""

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
