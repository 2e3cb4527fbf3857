"""Tokens around each text, as a tokenizer."""

from collections.abc import Sequence
from typing import Self

import keras
import tensorflow as tf

from keras_transformer.text.tokenizer import Texts, Tokenizer
from keras_transformer.types import Config


@keras.saving.register_keras_serializable("keras_transformer")
class FramedTokenizer(Tokenizer):
    """Adds tokens in front of each text and behind it.

    Published models have such tokens: BART begins every text with `<s>`, and models of
    several languages have the token of the language in front of a text (M2M-100, NLLB,
    mBART-50) or behind its end token (mBART).

    Args:
        tokenizer: the tokenizer of the texts, whose tokens and ids it has.
        first_token_ids: list of int, the tokens in front of each text.
        last_token_ids: list of int, the tokens behind the end token.

    Example:

    >>> tokenizer = FramedTokenizer(ByteTokenizer(), first_token_ids=[2])
    >>> tokenizer.tokenize(["AB", ""], add_end=True).to_list()
    [[2, 69, 70, 3], [2, 3]]
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        first_token_ids: Sequence[int] = (),
        last_token_ids: Sequence[int] = (),
    ):
        names = ("pad_token_id", "unknown_token_id", "start_token_id", "end_token_id")
        super().__init__(
            tokenizer.get_vocabulary(), [getattr(tokenizer, name) for name in names]
        )
        self.tokenizer = tokenizer
        self.first_token_ids = [*map(int, first_token_ids)]
        self.last_token_ids = [*map(int, last_token_ids)]

    @property
    def in_graph(self) -> bool:
        return self.tokenizer.in_graph

    def tokenize(
        self, texts: Texts, add_start: bool = False, add_end: bool = False
    ) -> tf.RaggedTensor:
        """Converts texts to token ids.

        Args:
            texts: string tensor, array or list `(batch,)`.
            add_start: bool, whether each row begins with `start_token_id`, in front of
                the first tokens.
            add_end: bool, whether each row ends with `end_token_id` and the last
                tokens.

        Returns:
            Ragged int32 tensor `(batch, None)`. Without `add_end`, a text without
            tokens has none.

        Raises:
            ValueError: see `Tokenizer.tokenize`.
        """
        return super().tokenize(texts, add_start, add_end)

    def _frame(
        self, rows: tf.RaggedTensor, add_start: bool, add_end: bool
    ) -> tf.RaggedTensor:
        rows = super()._frame(rows, add_start=False, add_end=add_end)
        first = [self.start_token_id] if add_start else []
        last = self.last_token_ids if add_end else []
        has_tokens = rows.row_lengths() > 0
        parts = [_repeated(first, tf.ones_like(has_tokens))]
        parts += [_repeated(self.first_token_ids, has_tokens), rows]
        return tf.concat([*parts, _repeated(last, has_tokens)], axis=1)

    def token_texts(self) -> list[bytes]:
        return self.tokenizer.token_texts()

    def _encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self.tokenizer._encode(texts)

    def _decode(self, token_ids: tf.RaggedTensor) -> tf.Tensor:
        return self.tokenizer._decode(token_ids)

    def has_words(self, text: str | bytes, token_ids: Sequence[int]) -> bool:
        """Returns whether a text has tokens apart from those around it."""
        framing = {*self.first_token_ids, *self.last_token_ids}
        own = [token_id for token_id in token_ids if token_id not in framing]
        return self.tokenizer.has_words(text, own)

    def get_config(self) -> Config:
        return {
            "tokenizer": keras.saving.serialize_keras_object(self.tokenizer),
            "first_token_ids": [*self.first_token_ids],
            "last_token_ids": [*self.last_token_ids],
        }

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Creates a tokenizer from the configuration that `get_config` returned."""
        tokenizer = keras.saving.deserialize_keras_object(config["tokenizer"])
        return cls(**{**config, "tokenizer": tokenizer})


def _repeated(token_ids: Sequence[int], is_used: tf.Tensor) -> tf.RaggedTensor:
    """Returns the same token ids for each row that uses them."""
    used = tf.cast(is_used, tf.int64)
    ids = tf.tile(tf.constant(token_ids, tf.int32), [tf.reduce_sum(used)])
    return tf.RaggedTensor.from_row_lengths(ids, used * len(token_ids))
