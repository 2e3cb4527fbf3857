"""WordPiece, in TensorFlow."""

import tensorflow as tf
import tensorflow_text as tf_text

from keras_transformer.text.pipeline.operations import NoGraphForm
from keras_transformer.types import Config

UNUSED = "<unused {}>"
_BYTES_OF_CHARACTER = 4  # at most, in UTF-8


class WordPieceEncoder(tf.Module):
    """Splits words into the longest tokens from the left.

    Args:
        config: the model of a `tokenizer.json`, of the type `WordPiece`.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        prefix, vocabulary = config["continuing_subword_prefix"], config["vocab"]
        if not prefix:
            raise NoGraphForm("the model WordPiece without continuing_subword_prefix")
        tokens = [*map(UNUSED.format, range(max(vocabulary.values()) + 1))]
        for token, id in vocabulary.items():
            tokens[id] = token
        self._unknown_id = vocabulary[config["unk_token"]]
        self._longest = config["max_input_chars_per_word"]
        self._tokenizer = tf_text.FastWordpieceTokenizer(
            tokens,
            suffix_indicator=prefix,
            max_bytes_per_word=_BYTES_OF_CHARACTER * self._longest + 1,
            token_out_type=tf.int32,
            unknown_token=config["unk_token"],
            no_pretokenization=True,
        )

    def split(self, words: tf.Tensor) -> tf.RaggedTensor:
        """Returns the words, `(words, 1)`."""
        return tf.RaggedTensor.from_uniform_row_length(words, 1)

    def ids(self, words: tf.Tensor) -> tf.RaggedTensor:
        """Converts words, string `(words,)`, to ids, int32 `(words, None)`."""
        is_long = tf.strings.length(words, "UTF8_CHAR") > self._longest
        ids = self._tokenizer.tokenize(tf.where(is_long, "", words))
        unknown = tf.fill([tf.size(words), 1], self._unknown_id)
        unknown = tf.ragged.boolean_mask(unknown, is_long[:, None])
        return tf.concat([ids, unknown], axis=1)
