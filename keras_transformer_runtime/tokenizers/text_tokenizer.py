"""Base class of the tokenizers in plain Python."""

import abc
from collections.abc import Sequence

from keras_transformer_runtime.tokenizers.token_vocabulary import TokenVocabulary


class TextTokenizer(TokenVocabulary, abc.ABC):
    """Converts texts to token ids and back as a class of `keras_transformer.text` does.

    Args:
        vocabulary: all tokens, special tokens included, in the order of their ids.
        special_ids: ids of the tokens of padding, unknown text, start and end; `None` =
            those of `special_tokens`.
    """

    @property
    def tokens(self) -> tuple[str, ...]:
        """All tokens in the order of their ids."""
        return self._vocabulary

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
