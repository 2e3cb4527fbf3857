"""Prompts of a language model, as a tokenizer."""

from collections.abc import Sequence
from typing import Self

import keras
import tensorflow as tf

from keras_transformer.text.tokenizer import Texts, Tokenizer
from keras_transformer.types import Config


@keras.saving.register_keras_serializable("keras_transformer")
class PromptTokenizer(Tokenizer):
    """Prompts: beginnings of texts, tokenized without an end token.

    It is the `source_tokenizer` of a `CausalLM`. It has the tokens and the ids of
    another tokenizer. `add_end=True` has no effect, since a prompt has no end: the
    model continues it. A prompt without tokens is the start token.

    Args:
        tokenizer: the tokenizer of the texts.
        add_start_token: bool, whether every prompt begins with the start token.

    Example:

    >>> prompts = PromptTokenizer(ByteTokenizer(), add_start_token=True)
    >>> prompts.tokenize(["AB", ""], add_end=True).to_list()
    [[2, 69, 70], [2]]
    """

    def __init__(self, tokenizer: Tokenizer, add_start_token: bool = False):
        ids = ("pad_token_id", "unknown_token_id", "start_token_id", "end_token_id")
        super().__init__(
            tokenizer.get_vocabulary(), [getattr(tokenizer, name) for name in ids]
        )
        self.tokenizer = tokenizer
        self.add_start_token = add_start_token

    @property
    def in_graph(self) -> bool:
        return self.tokenizer.in_graph

    def tokenize(
        self, texts: Texts, add_start: bool = False, add_end: bool = False
    ) -> tf.RaggedTensor:
        """Converts prompts to token ids.

        Args:
            texts: string tensor, array or list `(batch,)`.
            add_start: bool, whether each row begins with `start_token_id`, also
                without `add_start_token`.
            add_end: ignored.

        Returns:
            Ragged int32 tensor `(batch, None)`, whose rows have at least one id.

        Raises:
            ValueError: see `Tokenizer.tokenize`.
        """
        return super().tokenize(texts, add_start, add_end)

    def _frame(
        self, rows: tf.RaggedTensor, add_start: bool, add_end: bool
    ) -> tf.RaggedTensor:
        rows = super()._frame(rows, add_start or self.add_start_token, add_end=False)
        return with_first_token(rows, self.start_token_id)

    def _encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self.tokenizer.tokenize(texts)

    def _decode(self, token_ids: tf.RaggedTensor) -> tf.Tensor:
        return self.tokenizer.detokenize(token_ids)

    def has_words(self, text: str | bytes, token_ids: Sequence[int]) -> bool:
        """Returns `True`: a model also continues a prompt without words."""
        return True

    def get_config(self) -> Config:
        return {
            "tokenizer": keras.saving.serialize_keras_object(self.tokenizer),
            "add_start_token": self.add_start_token,
        }

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Creates a tokenizer from the configuration that `get_config` returned."""
        own = keras.saving.deserialize_keras_object(config["tokenizer"])
        return cls(own, config["add_start_token"])


def with_first_token(rows: tf.RaggedTensor, token_id: int) -> tf.RaggedTensor:
    """Adds a token to rows without tokens, in a ragged int32 tensor `(batch, None)`."""
    missing = tf.cast(rows.row_lengths() == 0, rows.row_splits.dtype)
    tokens = tf.repeat(tf.constant([token_id]), tf.reduce_sum(missing))
    return tf.concat([tf.RaggedTensor.from_row_lengths(tokens, missing), rows], axis=1)
