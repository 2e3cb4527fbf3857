"""Base class of the tokenizers in plain Python."""

import abc
from collections.abc import Sequence

from keras_transformer_runtime.tokenizers.text_checks import TextChecks

SPECIAL_TOKENS = ("<pad>", "<unk>", "<s>", "</s>")


class TextTokenizer(TextChecks, abc.ABC):
    """Converts texts to token ids and back as a class of `keras_transformer.text` does.

    Args:
        vocabulary: all tokens, special tokens included, in the order of their ids.
        special_ids: ids of the tokens of padding, unknown text, start and end; `None` =
            those of `special_tokens`.

    Attributes:
        tokens: tuple of str, all tokens in the order of their ids.
    """

    special_tokens: tuple[str, ...] = SPECIAL_TOKENS

    def __init__(
        self, vocabulary: Sequence[str], special_ids: Sequence[int] | None = None
    ) -> None:
        self.tokens = self._vocabulary = tuple(vocabulary)
        if special_ids is not None:
            self.special_tokens = tuple(self.tokens[id] for id in special_ids)
        missing = {*self.special_tokens} - {*self.tokens}
        if missing:
            raise ValueError(f"`vocabulary` lacks the special tokens {sorted(missing)}")
        self._special_ids = tuple(
            special_ids or map(self.tokens.index, self.special_tokens)
        )

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

    @abc.abstractmethod
    def encode(self, text: str) -> list[int]:
        """Converts a text to token ids, without those of start and end."""

    @abc.abstractmethod
    def _decode(self, token_ids: list[int]) -> str:
        """Converts token ids without special ids, except that of `<unk>`, to a text."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Converts token ids to a text.

        It ends in front of the end token. The ids of padding and start are left out;
        an id outside the vocabulary is that of unknown text.
        """
        kept = []
        for token_id in token_ids:
            if token_id == self.end_token_id:
                break
            if token_id not in (self.pad_token_id, self.start_token_id):
                is_known = 0 <= token_id < len(self.tokens)
                kept.append(token_id if is_known else self.unknown_token_id)
        return self._decode(kept)
