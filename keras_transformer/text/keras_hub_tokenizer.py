"""Tokenizers of KerasHub, with the interface of the tokenizers of this library."""

import base64
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self, final

import keras
import sentencepiece
import tensorflow as tf

from keras_transformer.backend.sentencepiece import keep_keras_hub_model
from keras_transformer.text.tokenizer import PACKAGE, Tokenizer
from keras_transformer.types import Config
from keras_transformer_runtime.tokenizers.keras_hub_tokenizers import (
    DROPPED,
    SEPARATOR,
    SPLITS,
    UNUSED,
)
from keras_transformer_runtime.tokenizers.token_vocabulary import SPECIAL_TOKENS

BASES = ("BytePairTokenizer", "WordPieceTokenizer", "SentencePieceTokenizer")
# Settings that determine the tokens of a text, apart from the vocabulary.
_SETTINGS = {
    *("add_prefix_space", "unsplittable_tokens", "pad_with_end_token"),
    *("lowercase", "strip_accents", "suffix_indicator", "oov_token"),
    *("special_tokens", "special_tokens_in_strings"),
}
_TEXT_SETTINGS = {"suffix_indicator", "oov_token"}
# Settings that must have one value, as the id of a text must not depend on its batch
# and the library adds the ids of start and end.
_FIXED = {"sequence_length": None, "add_bos": False, "add_eos": False, "split": True}
# Settings that are saved elsewhere, or that no token depends on.
_OTHERS = {
    *("name", "trainable", "dtype", "config_file", "vocabulary", "merges", "proto"),
}


class BytePairs(NamedTuple):
    """The vocabulary of byte-pair encoding.

    Attributes:
        vocabulary: dictionary of the tokens and their ids.
        merges: list of str, pairs of tokens with a space between, the first one first.
    """

    vocabulary: dict[str, int]
    merges: list[str]


class _SpecialIds(NamedTuple):
    """Ids of the special tokens, in the order of `Tokenizer.special_tokens`."""

    pad_token_id: int | None
    unknown_token_id: int | None
    start_token_id: int | None
    end_token_id: int | None


@final
@keras.saving.register_keras_serializable(PACKAGE)
class KerasHubTokenizer(Tokenizer):
    """Splits texts into tokens as a tokenizer of KerasHub does.

    The ids of a text are those that KerasHub's tokenizer returns inside a TensorFlow
    graph, as in `tf.data`. (Outside graphs, its `BytePairTokenizer` splits numbers and
    punctuation by other rules.) A `BytePairTokenizer` is an exception: rare white space
    such as CRLF and U+0085 is split as in GPT-2, and NUL and U+096C are kept, unless it
    has `add_prefix_space`. The ids of the special tokens are arguments. `None` is
    the id of KerasHub's special token of this kind, or of the token `<pad>`, `<unk>`,
    `<s>` or `</s>`. If the vocabulary has neither, it is a new id after the vocabulary.

    A text is never converted to the id of padding, start or end. If it contains such a
    token, such as `<|endoftext|>` of GPT-2, or a byte that a `BytePairTokenizer` lacks,
    the id is `unknown_token_id`. `detokenize` drops ids that KerasHub's vocabulary
    lacks. Bytes that are not valid UTF-8 become "�".

    Args:
        tokenizer: a `BytePairTokenizer`, `WordPieceTokenizer` or
            `SentencePieceTokenizer` of `keras_nlp.tokenizers`, or one of the classes
            there that are derived from them, such as `GPT2Tokenizer`.
        pad_token_id: int, id of padding, which no text may contain.
        unknown_token_id: int, id of text that has no other id.
        start_token_id: int, first id of the decoder; it may be that of padding.
        end_token_id: int, last id of a text.

    Raises:
        ValueError: if `tokenizer` is another object, has no vocabulary, returns dense
            rows or ids of start and end, or if an id is outside the vocabulary or is
            that of ordinary text.

    Example:

    >>> import keras_nlp
    >>> words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "##s", "sat"]
    >>> bert = keras_nlp.tokenizers.WordPieceTokenizer(words, lowercase=True)
    >>> tokenizer = KerasHubTokenizer(
    ...     bert, pad_token_id=0, start_token_id=2, end_token_id=3
    ... )
    >>> tokenizer.tokenize(["The cats sat"], add_end=True).to_list()
    [[4, 5, 6, 7, 3]]
    >>> tokenizer.detokenize([[2, 4, 5, 6, 7, 3, 0]]).numpy()[0].decode()
    'the cats sat'

    References:
        - [KerasHub, tokenizers](https://keras.io/keras_hub/api/tokenizers/)
    """

    def __init__(
        self,
        tokenizer: keras.layers.Layer,
        pad_token_id: int | None = None,
        unknown_token_id: int | None = None,
        start_token_id: int | None = None,
        end_token_id: int | None = None,
    ) -> None:
        self._base = _base_of(tokenizer)
        settings = _settings_of(tokenizer)
        keep_keras_hub_model(tokenizer)
        self._ids = tf.function(
            tokenizer.tokenize,
            input_signature=[tf.TensorSpec([None], tf.string)],
            autograph=False,
        )
        self._texts = tf.function(
            tokenizer.detokenize,
            input_signature=[tf.RaggedTensorSpec([None, None], tf.int32)],
            autograph=False,
        )
        tokens = _tokens_of(tokenizer)
        self._own_size = len(tokens)
        given = _SpecialIds(
            pad_token_id, unknown_token_id, start_token_id, end_token_id
        )
        special = {*tokenizer.special_tokens}
        special |= {*(settings.get("unsplittable_tokens") or ())}
        self._check_ids(given, tokens, special)
        ids = []
        for id, name, token in zip(
            given, _SpecialIds._fields, SPECIAL_TOKENS, strict=True
        ):
            found = _special_id(tokenizer, name, token, tokens) if id is None else id
            ids.append(len(tokens) if found is None else found)
            tokens += [token] if found is None else []
        super().__init__(tokens, [int(id) for id in ids])
        self._tokenizer = tokenizer
        merges = [*getattr(tokenizer, "merges", ())]
        # Not those that add a space in front of each part.
        self._splits = bool(merges) and not tokenizer.add_prefix_space
        self._dropped = [
            [*map(self.token_to_id, _merged(symbols, merges))]
            for symbols in DROPPED.values()
        ]

    @classmethod
    def from_byte_pairs(
        cls, class_name: str, vocabulary: Mapping[str, int], merges: Sequence[str]
    ) -> Self:
        """Creates a tokenizer from the files of byte-pair encoding.

        Args:
            class_name: name of a class of `keras_nlp.tokenizers`, such as
                `"GPT2Tokenizer"`.
            vocabulary: dictionary of the tokens and their ids.
            merges: list of str, pairs of tokens with a space between.

        Returns:
            A `KerasHubTokenizer` with KerasHub's special ids.
        """
        from keras_nlp import tokenizers

        kind = getattr(tokenizers, class_name)
        return cls(kind(vocabulary=dict(vocabulary), merges=[*merges]))

    @property
    def tokenizer(self) -> keras.layers.Layer:
        """The tokenizer of KerasHub."""
        return self._tokenizer

    @property
    def byte_pairs(self) -> BytePairs | None:
        """`BytePairs` of a `BytePairTokenizer`; `None` for the other classes."""
        if self._base != "BytePairTokenizer":
            return None
        return BytePairs(dict(self._tokenizer.vocabulary), [*self._tokenizer.merges])

    def get_config(self) -> Config:
        content: Config = {"class_name": type(self._tokenizer).__name__}
        if self._base == "SentencePieceTokenizer":
            proto = base64.b64encode(self._tokenizer.proto).decode()
            content |= {"proto": proto}
        else:
            content |= {"vocabulary": list(self._vocabulary[: self._own_size])}
        if self._base == "BytePairTokenizer":
            content |= {"merges": list(self._tokenizer.merges)}
        ids = _SpecialIds(*self._special_ids)._asdict()
        own = {name: id for name, id in ids.items() if id < self._own_size}
        content |= {"settings": _settings_of(self._tokenizer)}
        return {"tokenizer": content, **own}

    @classmethod
    def from_config(cls, config: Config) -> Self:
        return cls(**{**config, "tokenizer": _read(config["tokenizer"])})

    def token_texts(self) -> list[bytes]:
        if self._base == "BytePairTokenizer":
            ids = [id for id in range(self._own_size) if id not in self._special_ids]
            found = self._texts(tf.ragged.constant([[id] for id in ids], tf.int32))
            texts = [b""] * self.vocabulary_size
            for id, text in zip(ids, found.numpy().tolist(), strict=True):
                texts[id] = text
            return texts
        texts = super().token_texts()
        if self._base == "SentencePieceTokenizer":
            processor = sentencepiece.SentencePieceProcessor(
                model_proto=self._tokenizer.proto
            )
            for id in filter(processor.is_byte, range(processor.vocab_size())):
                texts[id] = bytes([int(processor.id_to_piece(id)[1:-1], 16)])
        return texts

    def _encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        rows = self._byte_pair_ids(texts) if self._splits else self._ids(texts)
        ids = rows.flat_values
        framing = [self.pad_token_id, self.start_token_id, self.end_token_id]
        special = tf.reduce_any(ids[:, None] == tf.constant(framing), axis=1)
        ordinary = tf.where(special | (ids < 0), self.unknown_token_id, ids)
        return rows.with_flat_values(ordinary)

    def _byte_pair_ids(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Returns the ids of KerasHub, and those of the characters that it drops."""
        for pattern, parted in SPLITS.items():
            texts = tf.strings.regex_replace(texts, pattern, parted)
        parts = tf.strings.split(texts, SEPARATOR)
        flat = parts.flat_values
        numbers = tf.zeros_like(flat, tf.int32)
        for number, character in enumerate(DROPPED, start=1):
            numbers = tf.where(flat == character, number, numbers)
        dropped = tf.ragged.constant(
            [[], *self._dropped], tf.int32, row_splits_dtype="int64"
        )
        ids = self._ids(tf.where(numbers > 0, "", flat))
        ids = tf.concat([ids, tf.gather(dropped, numbers)], axis=1)
        return tf.RaggedTensor.from_nested_row_splits(
            ids.flat_values, [parts.row_splits, ids.row_splits]
        ).merge_dims(1, 2)

    def _decode(self, token_ids: tf.RaggedTensor) -> tf.Tensor:
        own = tf.ragged.boolean_mask(token_ids, token_ids < self._own_size)
        texts = self._texts(own)
        return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8")

    def _check_ids(
        self, given: _SpecialIds, tokens: Sequence[str], special: set[str]
    ) -> None:
        """Raises `ValueError` if an id does not belong to a special token."""
        for name, id in given._asdict().items():
            if id is None:
                continue
            if not 0 <= id < len(tokens):
                raise ValueError(
                    f"`{name}` must be from 0 to {len(tokens) - 1}, in the vocabulary "
                    f"of `tokenizer`, or `None` for a new id; received `{name}={id}`."
                )
            text = self._texts(tf.ragged.constant([[id]], tf.int32))
            is_text = id in self._ids(text).flat_values.numpy()
            if is_text and tokens[id] not in special and name != "unknown_token_id":
                raise ValueError(
                    f"`{name}` must be the id of a special token, or `None` for a new "
                    f"id; received `{name}={id}`, the id of {tokens[id]!r}, which "
                    "texts contain."
                )


def _base_of(tokenizer: object) -> str:
    """Returns the name of KerasHub's base class of a tokenizer."""
    from keras_nlp import tokenizers

    kind = type(tokenizer)
    bases = [name for name in BASES if issubclass(kind, getattr(tokenizers, name))]
    if not bases or getattr(tokenizers, kind.__name__, None) is not kind:
        raise ValueError(
            f"`tokenizer` must be a {', '.join(BASES)} or a class of "
            "`keras_nlp.tokenizers` that is derived from one of them; received an "
            f"object of type {kind.__module__}.{kind.__name__}. To use another "
            "tokenizer, derive a class from `keras_transformer.Tokenizer`."
        )
    return bases[0]


def _settings_of(tokenizer: keras.layers.Layer) -> Config:
    """Returns the settings of a tokenizer of KerasHub as JSON values."""
    config = tokenizer.get_config()
    name = type(tokenizer).__name__
    for setting, value in _FIXED.items():
        if config.get(setting, value) != value:
            raise ValueError(
                f"`tokenizer` must have `{setting}={value}`; received a {name} with "
                f"`{setting}={config[setting]!r}`. The library itself pads rows and "
                "adds the ids of start and end."
            )
    if keras.backend.standardize_dtype(tokenizer.compute_dtype) != "int32":
        raise ValueError(
            '`tokenizer` must have `dtype="int32"`; received a '
            f"{name} with `dtype={tokenizer.compute_dtype!r}`."
        )
    others = config.keys() - _SETTINGS - _FIXED.keys() - _OTHERS
    if others:
        raise ValueError(
            f"`tokenizer` must have no further settings than {sorted(_SETTINGS)}; "
            f"received a {name}, which has {sorted(others)}. Derive a class from "
            "`keras_transformer.Tokenizer` for it."
        )
    settings = {name: config[name] for name in sorted(config.keys() & _SETTINGS)}
    return {
        name: [*value] if isinstance(value, list | tuple) else value
        for name, value in settings.items()
    }


def _tokens_of(tokenizer: keras.layers.Layer) -> list[str]:
    """Returns the tokens in the order of their ids."""
    vocabulary = tokenizer.get_vocabulary()
    if not hasattr(tokenizer, "merges"):
        return [*vocabulary]
    ids = dict(tokenizer.vocabulary)
    tokens = [*map(UNUSED.format, range(max(ids.values()) + 1))]
    for token, id in ids.items():
        tokens[id] = token
    return tokens


def _special_id(
    tokenizer: keras.layers.Layer, name: str, token: str, tokens: Sequence[str]
) -> int | None:
    """Returns the id of a special token of KerasHub's vocabulary, if it has one."""
    id = getattr(tokenizer, name, None)
    if name == "pad_token_id" and id == getattr(tokenizer, "end_token_id", None):
        id = None  # KerasHub's `GPT2Tokenizer` pads with id 0, whichever token it is.
    if id is not None and id in tokenizer.special_token_ids:
        return int(id)
    if name == "unknown_token_id" and hasattr(tokenizer, "oov_token"):
        token = tokenizer.oov_token
    return tokens.index(token) if token in tokens else None


def _merged(symbols: Sequence[str], merges: Sequence[str]) -> list[str]:
    """Merges symbols to tokens, by the first of the merges that applies."""
    symbols = [*symbols]
    while pairs := {*map(" ".join, itertools.pairwise(symbols))}.intersection(merges):
        first = min(pairs, key=merges.index)
        place = [*map(" ".join, itertools.pairwise(symbols))].index(first)
        symbols[place : place + 2] = [first.replace(" ", "")]
    return symbols


def _read(content: Config) -> keras.layers.Layer:
    """Returns the tokenizer of KerasHub that `get_config` has described."""
    # KerasHub reads files whose paths it finds in place of a vocabulary or of special
    # tokens, so a description from a file must not contain one.
    from keras_nlp import tokenizers

    kind = getattr(tokenizers, content["class_name"], None)
    bases = tuple(getattr(tokenizers, name) for name in BASES)
    if not (isinstance(kind, type) and issubclass(kind, bases)):
        raise ValueError(
            f"this version of KerasHub has no tokenizer {content['class_name']!r}"
        )
    settings = {
        name: value if name in _TEXT_SETTINGS else _without_text(value)
        for name, value in content["settings"].items()
        if name in _SETTINGS
    }
    if "proto" in content:
        return kind(proto=base64.b64decode(content["proto"]), **settings)
    vocabulary = [str(token) for token in content["vocabulary"]]
    if "merges" not in content:
        return kind(vocabulary=vocabulary, **settings)
    ids = {t: id for id, t in enumerate(vocabulary) if t != UNUSED.format(id)}
    return kind(vocabulary=ids, merges=[*map(str, content["merges"])], **settings)


def _without_text(value: object) -> object:
    if isinstance(value, str):
        raise ValueError(f"a setting of the tokenizer is a text, {value!r:.80}")
    return value
