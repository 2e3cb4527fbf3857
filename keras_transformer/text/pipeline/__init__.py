"""The parts of a `tokenizer.json`, computed inside TensorFlow graphs.

A text is split at added tokens, normalized and split into words. A model converts each
word to token ids. `TokenizerPipeline` joins these parts.
"""

from collections.abc import Sequence

import tensorflow as tf

from keras_transformer.text.pipeline.added_tokens import AddedTokens
from keras_transformer.text.pipeline.byte_pairs import BytePairEncoder
from keras_transformer.text.pipeline.decoders import TokenTexts, token_texts
from keras_transformer.text.pipeline.normalizers import normalizer
from keras_transformer.text.pipeline.operations import NoGraphForm, merge_parts
from keras_transformer.text.pipeline.pre_tokenizers import is_byte_level, pre_tokenizer
from keras_transformer.text.pipeline.unigrams import UnigramEncoder
from keras_transformer.text.pipeline.word_pieces import WordPieceEncoder
from keras_transformer.types import Config

__all__ = ["NoGraphForm", "TokenTexts", "TokenizerPipeline", "token_texts"]


class TokenizerPipeline(tf.Module):
    """Converts texts to token ids as the package `tokenizers` does.

    Args:
        config: the content of a `tokenizer.json`.

    Raises:
        NoGraphForm: if TensorFlow cannot compute a part with equal results.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        added: Sequence[Config] = config["added_tokens"]
        self._normalize = normalizer(config["normalizer"])
        raw = [token for token in added if not token["normalized"]]
        normalized = [token for token in added if token["normalized"]]
        self._raw_tokens = AddedTokens(raw, tf.identity)
        self._normalized_tokens = AddedTokens(normalized, self._normalize)
        self._pre_tokenize = pre_tokenizer(config["pre_tokenizer"])
        self._model = _encoder(config["model"], is_byte_level(config["pre_tokenizer"]))

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Converts string `(batch,)` to int32 `(batch, None)`."""
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8")
        parts, added = self._raw_tokens.split(texts)
        is_first = tf.ragged.range(parts.row_lengths()).flat_values == 0
        plain = self._normalize(tf.where(added < 0, parts.flat_values, ""))
        inner, inner_added = self._normalized_tokens.split(plain)
        is_first = tf.gather(is_first, inner.value_rowids()) & (
            tf.ragged.range(inner.row_lengths()).flat_values == 0
        )
        plain = tf.where(inner_added < 0, inner.flat_values, "")
        ids = self._ids(plain, is_first)
        ids = merge_parts(_with_added(ids, inner_added), inner)
        return merge_parts(_with_added(ids, added), parts)

    def _ids(self, texts: tf.Tensor, is_first: tf.Tensor) -> tf.RaggedTensor:
        words = self._pre_tokenize(texts, is_first)
        words = merge_parts(self._model.split(words.flat_values), words)
        unique, places = tf.unique(words.flat_values)
        ids = tf.gather(self._model.ids(unique), places)
        return merge_parts(ids, words)


def _with_added(ids: tf.RaggedTensor, added: tf.Tensor) -> tf.RaggedTensor:
    """Adds the ids of added tokens to the rows, which have no other ids."""
    tokens = tf.ragged.boolean_mask(added[:, None], added[:, None] >= 0)
    return tf.concat([ids, tokens], axis=1)


def _encoder(
    config: Config, is_byte_level: bool
) -> BytePairEncoder | UnigramEncoder | WordPieceEncoder:
    if config["type"] == "BPE":
        return BytePairEncoder(config, is_byte_level)
    if config["type"] == "Unigram" and not is_byte_level:
        return UnigramEncoder(config)
    if config["type"] == "WordPiece" and not is_byte_level:
        return WordPieceEncoder(config)
    raise NoGraphForm(f"the model {config['type']} with this pre-tokenizer")
