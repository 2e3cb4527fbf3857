"""Subword tokenizers with a SentencePiece model, in plain Python."""

import re
from collections.abc import Sequence

from keras_transformer_runtime.tokenizers.piece_model import PieceModel
from keras_transformer_runtime.tokenizers.text_tokenizer import TextTokenizer

LANGUAGE_TOKEN = r"^(?s:>>.*?<<)"
WORD_MARK = "▁"


class SentencePieceTokenizer(TextTokenizer):
    """Splits texts into the pieces of a SentencePiece model.

    Args:
        proto: bytes, the serialised model.
    """

    def __init__(self, proto: bytes) -> None:
        self._model = PieceModel(proto)
        super().__init__(self._model.pieces)

    def encode(self, text: str) -> list[int]:
        return self._model.encode(text)

    def _decode(self, token_ids: list[int]) -> str:
        return self._model.decode(token_ids)


class MarianTokenizer(TextTokenizer):
    """Splits texts into pieces whose ids come from a separate vocabulary.

    Args:
        proto: bytes, the serialised SentencePiece model.
        vocabulary: list of str, all tokens in the order of their ids.
    """

    special_tokens = ("<pad>", "<unk>", "<pad>", "</s>")
    language_token_pattern = LANGUAGE_TOKEN

    def __init__(self, proto: bytes, vocabulary: Sequence[str]) -> None:
        super().__init__(vocabulary)
        self._model = PieceModel(proto)
        self._ids = self._ids_of_tokens()

    def encode(self, text: str) -> list[int]:
        match = re.match(LANGUAGE_TOKEN, text)
        language = [match.group()] if match else []
        pieces = self._model.split(text[match.end() if match else 0 :])
        unknown = self.unknown_token_id
        return [self._ids.get(token, unknown) for token in (*language, *pieces)]

    def _decode(self, token_ids: list[int]) -> str:
        tokens = [self.tokens[i] for i in token_ids if i != self.unknown_token_id]
        # Tokens that the SentencePiece model lacks keep their word mark.
        text = self._model.decode(tokens).replace(WORD_MARK, " ")
        return text.strip("\t\n\v\f\r ")
