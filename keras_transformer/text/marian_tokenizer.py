"""Tokenizer of Marian models: SentencePiece with a separate vocabulary."""

import base64
from collections.abc import Sequence
from typing import ClassVar, final

import keras
import tensorflow as tf

from keras_transformer.text.sentence_piece_tokenizer import load_pieces, model_type
from keras_transformer.text.tokenizer import PACKAGE, Tokenizer
from keras_transformer.types import Config
from keras_transformer_runtime.tokenizers.sentence_piece_tokenizers import (
    LANGUAGE_TOKEN,
    WORD_MARK,
)


@final
@keras.saving.register_keras_serializable(PACKAGE)
class MarianTokenizer(Tokenizer):
    """Splits texts into subwords whose ids come from a separate vocabulary.

    Marian models, such as those of OPUS-MT, have a SentencePiece model for the source
    and one for the target, and often one vocabulary for both. A subword that the
    vocabulary lacks has the id of `<unk>`; `detokenize` drops it. There is no start
    token: the first token of the decoder is `<pad>`.

    A text may begin with a token such as `>>fra<<`, which sets the target language of
    a multilingual model. It is looked up without splitting it into subwords. If the
    vocabulary lacks the token, `tokenize` converts it to `<unk>`, and `generate` raises
    an error.

    Args:
        proto: the serialised SentencePiece model of one language (`source.spm` or
            `target.spm`), as `bytes` or as a base64 string.
        vocabulary: list of str, all tokens in the order of their ids, `<pad>`, `<unk>`
            and `</s>` included.

    Raises:
        ValueError: if `proto` is not a SentencePiece model, or if `vocabulary` lacks a
            special token or repeats a token.

    Example:

    ```python
    from keras_transformer.text import MarianTokenizer, SentencePieceTokenizer

    pieces = SentencePieceTokenizer.train(lines=["a cat sat"], vocabulary_size=14)
    vocabulary = ["</s>", "<unk>", "▁a", "▁cat", ">>fra<<", "<pad>"]
    tokenizer = MarianTokenizer(pieces.proto, vocabulary)
    print(tokenizer.tokenize([">>fra<< a cat"]).to_list())  # [[4, 2, 3]]
    print(tokenizer.detokenize([[5, 2, 3, 0]]).numpy())  # [b'a cat']
    ```

    References:
        - [Junczys-Dowmunt et al., 2018](https://arxiv.org/abs/1804.00344) (Marian)
        - [Tiedemann and Thottingal, 2020](https://aclanthology.org/2020.eamt-1.61)
          (OPUS-MT)
    """

    special_tokens = ("<pad>", "<unk>", "<pad>", "</s>")
    language_token_pattern: ClassVar[str | None] = LANGUAGE_TOKEN

    def __init__(self, proto: bytes | str, vocabulary: Sequence[str]) -> None:
        super().__init__(vocabulary)
        self._proto, self._model = load_pieces(proto, tf.string)
        self._tokens = tf.constant(self._vocabulary)
        self._table = self._table_of_ids()

    @property
    def proto(self) -> bytes:
        """The serialised SentencePiece model, as in a `.spm` file."""
        return self._proto

    def _settings(self) -> dict[str, object]:
        return {
            "model_type": model_type(self._proto),
            "language_tokens": len(self.language_token_ids),
        }

    def get_config(self) -> Config:
        proto = base64.b64encode(self._proto).decode()
        return {"proto": proto, "vocabulary": self.get_vocabulary()}

    def _encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        rest = tf.strings.regex_replace(texts, LANGUAGE_TOKEN, "", replace_global=False)
        size = tf.strings.length(texts) - tf.strings.length(rest)
        language = tf.strings.substr(texts, tf.zeros_like(size), size)[:, None]
        language = tf.ragged.boolean_mask(language, language != "")
        tokens = tf.concat([language, self._model.tokenize(rest)], axis=1)
        return tf.ragged.map_flat_values(self._table.lookup, tokens)

    def _decode(self, token_ids: tf.RaggedTensor) -> tf.Tensor:
        known = tf.ragged.boolean_mask(token_ids, token_ids != self.unknown_token_id)
        texts = self._model.detokenize(tf.gather(self._tokens, known))
        # Tokens that the SentencePiece model lacks keep their word mark.
        return tf.strings.strip(tf.strings.regex_replace(texts, WORD_MARK, " "))
