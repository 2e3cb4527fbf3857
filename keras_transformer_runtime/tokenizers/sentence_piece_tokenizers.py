"""Subword tokenizers of the package sentencepiece."""

import re
from collections.abc import Sequence

import sentencepiece

from keras_transformer_runtime.tokenizers.text_tokenizer import TextTokenizer

LANGUAGE_TOKEN = r"^(?s:>>.*?<<)"
WORD_MARK = "▁"


class SentencePieceTokenizer(TextTokenizer):
    """Splits texts into the pieces of a SentencePiece model."""

    def __init__(self, proto: bytes) -> None:
        self._processor = load_processor(proto)
        super().__init__(pieces_of(self._processor))

    def encode(self, text: str) -> list[int]:
        token_ids: list[int] = self._processor.encode(text)
        return token_ids

    def _decode(self, token_ids: list[int]) -> str:
        text: str = self._processor.decode(token_ids)
        return text


class MarianTokenizer(TextTokenizer):
    """Splits texts into pieces whose ids come from a separate vocabulary."""

    special_tokens = ("<pad>", "<unk>", "<pad>", "</s>")
    language_token_pattern = LANGUAGE_TOKEN

    def __init__(self, proto: bytes, vocabulary: Sequence[str]) -> None:
        super().__init__(vocabulary)
        self._processor = load_processor(proto)
        self._ids = self._ids_of_tokens()

    def encode(self, text: str) -> list[int]:
        match = re.match(LANGUAGE_TOKEN, text)
        language = [match.group()] if match else []
        pieces = self._processor.encode(
            text[match.end() if match else 0 :], out_type=str
        )
        unknown = self.unknown_token_id
        return [self._ids.get(token, unknown) for token in (*language, *pieces)]

    def _decode(self, token_ids: list[int]) -> str:
        tokens = [self.tokens[i] for i in token_ids if i != self.unknown_token_id]
        # Tokens that the SentencePiece model lacks keep their word mark.
        text: str = self._processor.decode(tokens).replace(WORD_MARK, " ")
        return text.strip("\t\n\v\f\r ")


def load_processor(proto: bytes) -> sentencepiece.SentencePieceProcessor:
    """Loads a serialised SentencePiece model."""
    try:
        return sentencepiece.SentencePieceProcessor(model_proto=proto)
    except (RuntimeError, ValueError, TypeError) as error:
        raise ValueError(
            f"`proto` must be a serialised SentencePiece model; received {len(proto)} "
            "bytes that are not. Export the model again."
        ) from error


def pieces_of(processor: sentencepiece.SentencePieceProcessor) -> list[str]:
    """Returns the pieces of a model in the order of their ids."""
    pieces: list[str] = processor.id_to_piece([*range(processor.vocab_size())])
    return pieces
