"""Tokenizers that look up characters or words in a table."""

import abc
import collections
import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Self, final

import keras
import tensorflow as tf

from keras_transformer.text.lines import Paths, training_lines
from keras_transformer.text.tokenizer import PACKAGE, SPECIAL_TOKENS, Tokenizer


class _LookupTokenizer(Tokenizer):
    """A tokenizer whose tokens are looked up in a table.

    Args:
        vocabulary: list of str, all tokens in the order of their ids; the first four
            are `<pad>`, `<unk>`, `<s>` and `</s>`.
        lowercase: bool, whether texts are lower-cased before they are split.
    """

    _separator: str

    def __init__(self, vocabulary: Sequence[str], lowercase: bool = False):
        super().__init__(vocabulary)
        _check_vocabulary(self._vocabulary)
        self._lowercase = lowercase
        self._tokens = tf.constant(self._vocabulary)
        # The special tokens have no entry, so no text can spell one.
        first = len(SPECIAL_TOKENS)
        ids = tf.range(first, self.vocabulary_size)
        self._table = tf.lookup.StaticHashTable(
            tf.lookup.KeyValueTensorInitializer(self._tokens[first:], ids),
            default_value=self.unknown_token_id,
        )

    @classmethod
    def train(
        cls,
        files: Paths | None = None,
        vocabulary_size: int | None = None,
        *,
        lines: Iterable[str] | None = None,
        lowercase: bool = False,
    ) -> Self:
        """Builds a vocabulary of the most frequent tokens of a text of any size.

        Args:
            files: one path or several, plain or gzip (`.gz`), one sentence per line.
            vocabulary_size: int above 4, the most tokens, including the special ones;
                `None` keeps every token.
            lines: iterable of str, the text itself, instead of `files`.
            lowercase: bool, whether texts are lower-cased, here and by `tokenize`.

        Returns:
            The tokenizer. Its vocabulary lists the most frequent tokens first, and
            equally frequent ones in alphabetical order.

        Raises:
            ValueError: if not exactly one of `files` and `lines` is given, the text
                is blank or not UTF-8, or `vocabulary_size` leaves no room for a
                token.
            OSError: if a file cannot be read.
        """
        if vocabulary_size is not None and vocabulary_size <= len(SPECIAL_TOKENS):
            raise ValueError(
                f"`vocabulary_size` must be above {len(SPECIAL_TOKENS)}, the number of "
                f"special tokens; received `vocabulary_size={vocabulary_size}`. Use "
                "`None` to keep every token."
            )
        counts: collections.Counter[bytes] = collections.Counter()
        remaining = training_lines(files, lines)
        while batch := list(itertools.islice(remaining, 4096)):
            tokens = cls._split(tf.constant(batch), lowercase).flat_values
            counts.update(tokens.numpy().tolist())
        ranked = sorted(counts, key=lambda token: (-counts[token], token))
        found = [token.decode() for token in ranked]
        vocabulary = [*SPECIAL_TOKENS, *(t for t in found if t not in SPECIAL_TOKENS)]
        return cls(vocabulary[:vocabulary_size], lowercase)

    @classmethod
    def _split(cls, texts: tf.Tensor, lowercase: bool) -> tf.RaggedTensor:
        """Splits string `(batch,)` into tokens, ragged string `(batch, None)`."""
        if lowercase:
            texts = tf.strings.lower(texts, encoding="utf-8")
        return cls._split_texts(texts)

    @staticmethod
    @abc.abstractmethod
    def _split_texts(texts: tf.Tensor) -> tf.RaggedTensor:
        """Splits string `(batch,)` into tokens, ragged string `(batch, None)`."""

    def get_config(self) -> dict[str, Any]:
        return {"vocabulary": self.get_vocabulary(), "lowercase": self._lowercase}

    def _encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return tf.ragged.map_flat_values(
            self._table.lookup, self._split(texts, self._lowercase)
        )

    def _decode(self, token_ids: tf.RaggedTensor) -> tf.Tensor:
        tokens = tf.gather(self._tokens, token_ids)
        return tf.strings.reduce_join(tokens, axis=-1, separator=self._separator)


@final
@keras.saving.register_keras_serializable(PACKAGE)
class CharacterTokenizer(_LookupTokenizer):
    """Splits texts into characters (Unicode code points).

    Args:
        vocabulary: list of str: `<pad>`, `<unk>`, `<s>`, `</s>`, then the
            characters; their order gives the ids.
        lowercase: bool, whether texts are lower-cased first.

    Raises:
        ValueError: if `vocabulary` begins with other tokens or holds a token twice.

    Example:

    ```python
    from keras_transformer.text import CharacterTokenizer

    tokenizer = CharacterTokenizer.train(lines=["banana"])
    print(tokenizer.tokenize(["nab"]).to_list())  # [[5, 4, 6]]
    print(tokenizer.detokenize([[5, 4, 6, 3]]).numpy())  # [b'nab']
    ```
    """

    _separator = ""

    @staticmethod
    def _split_texts(texts: tf.Tensor) -> tf.RaggedTensor:
        return tf.strings.unicode_split(texts, "UTF-8")


@final
@keras.saving.register_keras_serializable(PACKAGE)
class WordTokenizer(_LookupTokenizer):
    """Splits texts at white space; joins tokens with a space.

    Args:
        vocabulary: list of str: `<pad>`, `<unk>`, `<s>`, `</s>`, then the words;
            their order gives the ids.
        lowercase: bool, whether texts are lower-cased first.

    Raises:
        ValueError: if `vocabulary` begins with other tokens or holds a token twice.

    Example:

    ```python
    from keras_transformer.text import WordTokenizer

    tokenizer = WordTokenizer.train(lines=["HH AH L OW", "AH"])
    print(tokenizer.tokenize(["AH L"]).to_list())  # [[4, 6]]
    print(tokenizer.detokenize([[4, 6, 3]]).numpy())  # [b'AH L']
    ```
    """

    _separator = " "

    @staticmethod
    def _split_texts(texts: tf.Tensor) -> tf.RaggedTensor:
        return tf.strings.split(texts)


def _check_vocabulary(vocabulary: tuple[str, ...]) -> None:
    first = vocabulary[: len(SPECIAL_TOKENS)]
    if first != SPECIAL_TOKENS:
        raise ValueError(
            f"`vocabulary` must begin with {list(SPECIAL_TOKENS)}; received "
            f"`vocabulary={list(first)}…`. Put the special tokens first."
        )
    twice = [t for t, count in collections.Counter(vocabulary).items() if count > 1]
    if twice:
        raise ValueError(
            "`vocabulary` must hold each token once; received a `vocabulary` that "
            f"repeats {twice[:5]}. Remove the repetitions."
        )
