"""Tokenizers that look up characters, words or bytes in a vocabulary."""

import abc
import collections
import itertools
from collections.abc import Iterable, Sequence
from typing import Self, final

import keras
import tensorflow as tf
import tensorflow_text as tf_text

from keras_transformer.text.tokenizer import PACKAGE, Tokenizer
from keras_transformer.text.training_text import training_lines
from keras_transformer.types import Config
from keras_transformer_runtime.arguments import check_ints
from keras_transformer_runtime.text_files import Paths
from keras_transformer_runtime.tokenizers.token_vocabulary import SPECIAL_TOKENS

# Capitals whose lower case depends on the locale: `SpecialCasing.txt` of Unicode.
_OF_LOCALES = "IİJĮÌÍĨ"


class _LookupTokenizer(Tokenizer):
    """Base class of the tokenizers that look up tokens in a vocabulary."""

    _separator: str

    def __init__(self, vocabulary: Sequence[str], lowercase: bool = False) -> None:
        super().__init__(vocabulary)
        first = self._vocabulary[: len(SPECIAL_TOKENS)]
        if first != SPECIAL_TOKENS:
            raise ValueError(
                f"`vocabulary` must begin with {list(SPECIAL_TOKENS)}; received "
                f"`vocabulary={list(first)}…`. Put the special tokens first."
            )
        self._lowercase = lowercase
        self._tokens = tf.constant(self._vocabulary)
        self._table = self._table_of_ids()

    @classmethod
    def _train(
        cls,
        files: Paths | None,
        vocabulary_size: int | None,
        lines: Iterable[str] | None,
        **settings: bool,
    ) -> Self:
        """Builds a vocabulary of the most frequent tokens of a text."""
        check_ints(
            len(SPECIAL_TOKENS) + 1,
            optional=True,
            remedy="The special tokens are included; `None` is no limit.",
            vocabulary_size=vocabulary_size,
        )
        counts: collections.Counter[bytes] = collections.Counter()
        remaining = training_lines(files, lines)
        while batch := list(itertools.islice(remaining, 4096)):
            tokens = cls._split(tf.constant(batch), **settings).flat_values
            counts.update(tokens.numpy().tolist())
        ranked = sorted(counts, key=lambda token: (-counts[token], token))
        found = [token.decode() for token in ranked]
        vocabulary = [*SPECIAL_TOKENS, *(t for t in found if t not in SPECIAL_TOKENS)]
        return cls(vocabulary[:vocabulary_size], **settings)

    @classmethod
    def _split(
        cls, texts: tf.Tensor, lowercase: bool, **settings: bool
    ) -> tf.RaggedTensor:
        """Splits string `(batch,)` into tokens, ragged string `(batch, None)`."""
        texts = _lower_case(texts) if lowercase else texts
        return cls._split_texts(texts, **settings)

    @staticmethod
    @abc.abstractmethod
    def _split_texts(texts: tf.Tensor, **settings: bool) -> tf.RaggedTensor:
        """Splits string `(batch,)` into tokens, ragged string `(batch, None)`."""

    def _settings(self) -> dict[str, bool]:
        return {"lowercase": self._lowercase}

    def get_config(self) -> Config:
        return {"vocabulary": self.get_vocabulary(), **self._settings()}

    def _encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return tf.ragged.map_flat_values(
            self._table.lookup, self._split(texts, **self._settings())
        )

    def _decode(self, token_ids: tf.RaggedTensor) -> tf.Tensor:
        tokens = tf.gather(self._tokens, token_ids)
        return tf.strings.reduce_join(tokens, axis=-1, separator=self._separator)


@final
@keras.saving.register_keras_serializable(PACKAGE)
class CharacterTokenizer(_LookupTokenizer):
    """Splits texts into characters (Unicode code points).

    Args:
        vocabulary: list of str, `<pad>`, `<unk>`, `<s>`, `</s>` and the characters, in
            the order of their ids.
        lowercase: bool, whether texts are lower-cased first.
        decompose: bool, whether characters are decomposed (normalisation form NFD): the
            syllables of Hangul into letters, and letters with accents into letters and
            marks. Decoded texts have composed characters (NFC).

    Raises:
        ValueError: if `vocabulary` begins with other tokens or repeats a token.

    Example:

    ```python
    from keras_transformer.text import CharacterTokenizer

    tokenizer = CharacterTokenizer.train(lines=["banana"])
    print(tokenizer.tokenize(["nab"]).to_list())  # [[5, 4, 6]]
    print(tokenizer.detokenize([[5, 4, 6, 3]]).numpy())  # [b'nab']
    ```
    """

    _separator = ""

    def __init__(
        self,
        vocabulary: Sequence[str],
        lowercase: bool = False,
        decompose: bool = False,
    ) -> None:
        super().__init__(vocabulary, lowercase)
        self._decompose = decompose

    @classmethod
    def train(
        cls,
        files: Paths | None = None,
        vocabulary_size: int | None = None,
        *,
        lines: Iterable[str] | None = None,
        lowercase: bool = False,
        decompose: bool = False,
    ) -> Self:
        """Builds a vocabulary of the most frequent tokens of a text.

        The text is read once, line by line, so it may be larger than the memory.

        Args:
            files: one path or several paths of files, plain or gzip (`.gz`), with one
                sentence per line.
            vocabulary_size: int above 4, the maximum number of tokens, special tokens
                included. `None`: no limit.
            lines: iterable of str, the lines of the text, instead of `files`.
            lowercase: bool, whether texts are lower-cased, for training and in
                `tokenize`.
            decompose: bool, whether characters are decomposed, for training and in
                `tokenize`.

        Returns:
            The tokenizer. Its vocabulary is sorted by frequency, the most frequent
            token first, and tokens of equal frequency are sorted alphabetically.

        Raises:
            ValueError: if both or neither of `files` and `lines` are given, if the text
                is blank or not UTF-8, or if `vocabulary_size` is 4 or less.
            OSError: if a file cannot be read.
        """
        settings = {"lowercase": lowercase, "decompose": decompose}
        return cls._train(files, vocabulary_size, lines, **settings)

    @staticmethod
    def _split_texts(texts: tf.Tensor, **settings: bool) -> tf.RaggedTensor:
        if settings["decompose"]:
            texts = _normalize(texts, "NFD")
        return tf.strings.unicode_split(texts, "UTF-8")

    def _settings(self) -> dict[str, bool]:
        return {**super()._settings(), "decompose": self._decompose}

    def _decode(self, token_ids: tf.RaggedTensor) -> tf.Tensor:
        texts = super()._decode(token_ids)
        return _normalize(texts, "NFC") if self._decompose else texts


@final
@keras.saving.register_keras_serializable(PACKAGE)
class WordTokenizer(_LookupTokenizer):
    """Splits texts into words at white space, and joins words with a space.

    Args:
        vocabulary: list of str, `<pad>`, `<unk>`, `<s>`, `</s>` and the words, in the
            order of their ids.
        lowercase: bool, whether texts are lower-cased first.

    Raises:
        ValueError: if `vocabulary` begins with other tokens or repeats a token.

    Example:

    ```python
    from keras_transformer.text import WordTokenizer

    tokenizer = WordTokenizer.train(lines=["HH AH L OW", "AH"])
    print(tokenizer.tokenize(["AH L"]).to_list())  # [[4, 6]]
    print(tokenizer.detokenize([[4, 6, 3]]).numpy())  # [b'AH L']
    ```
    """

    _separator = " "

    @classmethod
    def train(
        cls,
        files: Paths | None = None,
        vocabulary_size: int | None = None,
        *,
        lines: Iterable[str] | None = None,
        lowercase: bool = False,
    ) -> Self:
        """Builds a vocabulary of the most frequent tokens of a text.

        The text is read once, line by line, so it may be larger than the memory.

        Args:
            files: one path or several paths of files, plain or gzip (`.gz`), with one
                sentence per line.
            vocabulary_size: int above 4, the maximum number of tokens, special tokens
                included. `None`: no limit.
            lines: iterable of str, the lines of the text, instead of `files`.
            lowercase: bool, whether texts are lower-cased, for training and in
                `tokenize`.

        Returns:
            The tokenizer. Its vocabulary is sorted by frequency, the most frequent
            token first, and tokens of equal frequency are sorted alphabetically.

        Raises:
            ValueError: if both or neither of `files` and `lines` are given, if the text
                is blank or not UTF-8, or if `vocabulary_size` is 4 or less.
            OSError: if a file cannot be read.
        """
        return cls._train(files, vocabulary_size, lines, lowercase=lowercase)

    @staticmethod
    def _split_texts(texts: tf.Tensor, **settings: bool) -> tf.RaggedTensor:
        return tf.strings.split(texts)


@final
@keras.saving.register_keras_serializable(PACKAGE)
class ByteTokenizer(Tokenizer):
    """Splits texts into the bytes of UTF-8.

    It needs no training, and no text has unknown tokens. The vocabulary consists of
    `<pad>`, `<unk>`, `<s>`, `</s>` and the 256 bytes. Bytes of an output that are not
    UTF-8 become U+FFFD.

    Args:
        lowercase: bool, whether texts are lower-cased first.

    Example:

    ```python
    from keras_transformer.text import ByteTokenizer

    tokenizer = ByteTokenizer()
    print(tokenizer.tokenize(["aé"]).to_list())  # [[101, 199, 173]]
    print(tokenizer.detokenize([[101, 199, 173, 3]]).numpy()[0].decode())  # aé
    ```

    References:
        - [Xue et al., 2022](https://arxiv.org/abs/2105.13626) (ByT5)
    """

    def __init__(self, lowercase: bool = False) -> None:
        super().__init__([*SPECIAL_TOKENS, *(f"<0x{byte:02X}>" for byte in range(256))])
        self._lowercase = lowercase
        self._texts = tf.constant(self.token_texts())

    def _settings(self) -> dict[str, object]:
        return {"lowercase": self._lowercase}

    def token_texts(self) -> list[bytes]:
        return [b"", b"<unk>", b"", b"", *(bytes([byte]) for byte in range(256))]

    def get_config(self) -> Config:
        return {"lowercase": self._lowercase}

    def _encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        if self._lowercase:
            texts = _lower_case(texts)
        first = len(SPECIAL_TOKENS)
        return tf.ragged.map_flat_values(
            lambda single: (
                tf.cast(tf.reshape(tf.io.decode_raw(single, tf.uint8), [-1]), tf.int32)
                + first
            ),
            tf.strings.bytes_split(texts),
        )

    def _decode(self, token_ids: tf.RaggedTensor) -> tf.Tensor:
        texts = tf.strings.reduce_join(tf.gather(self._texts, token_ids), axis=-1)
        return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8")


def _normalize(texts: tf.Tensor, form: str) -> tf.Tensor:
    """Normalizes texts; bytes that are not UTF-8 become U+FFFD."""
    valid = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8")
    return tf_text.normalize_utf8(valid, form)


def _lower_case(texts: tf.Tensor) -> tf.Tensor:
    """Lower-cases texts as `str.lower` does, in every locale of the process."""
    # `tf.strings.lower` applies the special rules of Turkish, Azeri and Lithuanian in
    # their locales. All of them begin with the capitals of `_OF_LOCALES`.
    for capital in _OF_LOCALES:
        texts = tf.strings.regex_replace(texts, capital, capital.lower())
    # `tf.strings.lower` ends a text at NUL.
    parts = tf.strings.split(texts, "\x00")
    lower = tf.strings.lower(parts.flat_values, encoding="utf-8")
    lower = parts.with_flat_values(tf.strings.join(["\x00", lower]))
    texts = tf.strings.reduce_join(lower, axis=-1)
    ones = tf.ones_like(texts, tf.int32)
    return tf.strings.substr(texts, ones, tf.strings.length(texts) - ones)
