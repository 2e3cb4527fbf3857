"""A SentencePiece tokenizer with the token ids of a Marian model."""

import base64
import collections
from collections.abc import Sequence
from typing import Any, final

import keras
import tensorflow as tf

from keras_transformer.text.sentence_piece_tokenizer import load_pieces
from keras_transformer.text.tokenizer import PACKAGE, Tokenizer

LANGUAGE_TOKEN = r"^(?s:>>.*?<<)"
WORD_MARK = "▁"


@final
@keras.saving.register_keras_serializable(PACKAGE)
class MarianTokenizer(Tokenizer):
    """Splits texts into subwords, with ids from a separate vocabulary.

    This is how models trained with Marian work, as published by OPUS-MT: source and
    target each have a SentencePiece model, and often share one vocabulary. A piece
    that the vocabulary lacks is unknown, and left out of texts. There is no start
    token: the decoder starts with `<pad>`.

    A text may begin with a token such as `>>fra<<`, which tells a multilingual model
    what language to write. It is looked up as it is.

    Args:
        proto: the serialised SentencePiece model of one language (`source.spm` or
            `target.spm`): `bytes`, or the same as a base64 string.
        vocabulary: list of str, all tokens in the order of their ids, including
            `<pad>`, `<unk>` and `</s>`.

    Raises:
        ValueError: if `proto` is not a SentencePiece model, or `vocabulary` lacks a
            special token or holds a token twice.

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

    def __init__(self, proto: bytes | str, vocabulary: Sequence[str]):
        super().__init__(vocabulary)
        counts = collections.Counter(self._vocabulary)
        twice = [token for token, count in counts.items() if count > 1]
        if twice:
            raise ValueError(
                "`vocabulary` must hold each token once; received a `vocabulary` that "
                f"repeats {twice[:5]}."
            )
        self._proto, self._model = load_pieces(proto, tf.string)
        self._tokens = tf.constant(self._vocabulary)
        # The special tokens have no entry, so no text can spell one.
        entries = {
            token: id
            for id, token in enumerate(self._vocabulary)
            if token not in self.special_tokens
        }
        self._table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(
                tf.constant([*entries], tf.string), tf.constant([*entries.values()])
            ),
            default_value=self.unknown_token_id,
        )

    @property
    def proto(self) -> bytes:
        """The serialised SentencePiece model: the content of a `.spm` file."""
        return self._proto

    def get_config(self) -> dict[str, Any]:
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
        # A token that is not a piece of this language still has its mark.
        return tf.strings.strip(tf.strings.regex_replace(texts, WORD_MARK, " "))
