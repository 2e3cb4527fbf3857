"""Base class of the tokenizers: token ids, special tokens, saving and loading."""

import abc
import base64
import itertools
import json
import os
import pathlib
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, NoReturn, Self, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.types import Config, Tensor
from keras_transformer_runtime.arguments import check_ints, check_unicode
from keras_transformer_runtime.files import (
    read_file,
    read_json,
    write_json,
    written_whole,
)
from keras_transformer_runtime.tokenizers.invisible_characters import BLANK
from keras_transformer_runtime.tokenizers.token_vocabulary import TokenVocabulary

SHOWN_TOKENS = 7  # In descriptions; `reprlib` abbreviates lists of more than 6.
PACKAGE = "keras_transformer"  # Of the names under which Keras registers tokenizers.

Texts: TypeAlias = Sequence[str | bytes] | np.ndarray | tf.Tensor
Rows: TypeAlias = Sequence[Sequence[int]] | np.ndarray | tf.RaggedTensor | Tensor


class Tokenizer(TokenVocabulary, keras.layers.Layer, tf.Module):
    """Base class of the tokenizers.

    A tokenizer converts texts to token ids and token ids to texts, eagerly and inside
    a `tf.function` or a `tf.data` pipeline, with every Keras backend. The vocabulary
    contains the special tokens `<pad>`, `<unk>`, `<s>` (start) and `</s>` (end). They
    have the ids 0 to 3, except in models that were not trained with this library.

    A tokenizer is a Keras layer without weights. `tokenizer(texts)` returns the ids of
    a batch in one padded tensor. With the TensorFlow backend it also precedes other
    layers, in `keras.Sequential([tokenizer, model])` and in the functional API; the
    inputs are then `keras.Input((), dtype="string")`. With JAX and PyTorch, whose
    tensors contain no strings, map a `tf.data` dataset with the tokenizer.

    To write a tokenizer of your own, implement `_encode` and `_decode` with TensorFlow
    operations, and `get_config`. Decorate the class with
    `keras.saving.register_keras_serializable("keras_transformer")`, so that `load`
    finds it.

    Args:
        vocabulary: iterable of str, all tokens, special tokens included, in the order
            of their ids.
        special_ids: ids of the tokens of padding, unknown text, start and end; `None`
            for those of `special_tokens`.

    Call arguments:
        texts: a text or a batch of texts: str, list of str, NumPy array or string
            tensor, `()` or `(batch,)`.
        add_start: bool, whether each row begins with `start_token_id`.
        add_end: bool, whether each row ends with `end_token_id`.
        sequence_length: int, the length of the rows. Longer rows lose their last
            tokens, but not the start and the end. `None`: the length of the longest
            row.

    Returns:
        int32 tensor `(batch, length)`, or `(length,)` for one text, padded with
        `pad_token_id`: a tensor of the Keras backend; inside a `tf.function` or a
        `tf.data` pipeline, a tensor of TensorFlow.

    Raises:
        ValueError: if `vocabulary` lacks a special token, or a call argument is out of
            range; in a model, if the Keras backend is not TensorFlow.

    Example:

    >>> import tensorflow as tf
    >>> class ASCIITokenizer(Tokenizer):
    ...     def __init__(self):
    ...         super().__init__([*self.special_tokens, *map(chr, range(128))])
    ...
    ...     def _encode(self, texts):
    ...         return tf.strings.unicode_decode(texts, "UTF-8") + 4
    ...
    ...     def _decode(self, token_ids):
    ...         return tf.strings.unicode_encode(token_ids - 4, "UTF-8")
    ...
    ...     def get_config(self):
    ...         return {}
    >>> tokenizer = ASCIITokenizer()
    >>> tokenizer.tokenize(["AB", ""], add_end=True).to_list()
    [[69, 70, 3], [3]]
    >>> tokenizer.detokenize([[69, 70, 3]]).numpy()
    array([b'AB'], dtype=object)

    The tokenizer as a layer:

    >>> keras.ops.convert_to_numpy(tokenizer(["AB", ""], add_end=True)).tolist()
    [[69, 70, 3], [3, 0, 0]]
    >>> dataset = tf.data.Dataset.from_tensors((["AB", "C"], [1, 0]))
    >>> dataset = dataset.map(lambda text, label: (tokenizer(text), label))
    >>> [ids.tolist() for ids, label in dataset.as_numpy_iterator()]
    [[[69, 70], [71, 0]]]
    """

    # The property of `tf.Module` could not be set.
    name: str = ""

    # Constructor arguments that a preset stores in separate files, and the extensions
    # of these files. Their values are bytes, which `get_config` encodes in base64.
    assets: ClassVar[dict[str, str]] = {}

    def __init__(
        self, vocabulary: Iterable[str], special_ids: Sequence[int] | None = None
    ) -> None:
        super().__init__(vocabulary, special_ids)
        self.dtype_policy = keras.DTypePolicy("string")  # of the inputs
        # Elsewhere it is not a part of what a model compiles.
        self.supports_jit = keras.backend.backend() != "tensorflow"
        self.built = True

    @abc.abstractmethod
    def _encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Converts string `(batch,)` to int32 `(batch, None)` without start and end."""

    @abc.abstractmethod
    def _decode(self, token_ids: tf.RaggedTensor) -> tf.Tensor:
        """Converts int32 `(batch, None)`, without special ids, to string `(batch,)`."""

    @abc.abstractmethod
    def get_config(self) -> Config:
        """Returns the arguments of the constructor as JSON values."""

    @property
    def in_graph(self) -> bool:
        """Whether TensorFlow computes the tokenizer, so a SavedModel can contain it."""
        return True

    @classmethod
    def from_config(cls, config: Config) -> Self:
        """Creates a tokenizer from the configuration that `get_config` returned."""
        return cls(**config)

    @property
    def input_shape(self) -> tuple[int | None, ...]:
        """Shape of the inputs, with which `keras.Sequential` builds a model."""
        return (None,)

    def _table_of_ids(self) -> tf.lookup.StaticHashTable:
        """Returns `_ids_of_tokens` as a table. All other tokens have the unknown id."""
        ids = self._ids_of_tokens()
        tokens = tf.constant([*ids], tf.string)
        values = tf.constant([*ids.values()], tf.int32)
        entries = tf.lookup.KeyValueTensorInitializer(tokens, values)
        return tf.lookup.StaticHashTable(entries, self.unknown_token_id)

    def describe(self) -> Config:
        """Describes the tokenizer in a few words, as its `repr` does.

        Returns:
            Values by name: the size of the vocabulary, settings of the class, the
            special ids, and `"tokens"`, the first tokens that are not special.
        """
        ids = ("pad_token_id", "unknown_token_id", "start_token_id", "end_token_id")
        tokens = (t for t in self._vocabulary if t not in self.special_tokens)
        return {
            "vocabulary_size": self.vocabulary_size,
            **self._settings(),
            **{name: getattr(self, name) for name in ids},
            "tokens": [*itertools.islice(tokens, SHOWN_TOKENS)],
        }

    def _settings(self) -> Mapping[str, object]:
        """Returns the settings that `describe` includes, by name."""
        return {}

    def __repr__(self) -> str:
        facts = self.describe().items()
        arguments = ", ".join(f"{name}={reprlib.repr(value)}" for name, value in facts)
        return f"<{type(self).__name__} {arguments}>"

    def __reduce__(self) -> tuple[Callable[[Config], Self], tuple[Config]]:
        """Pickles the configuration, as tables of TensorFlow cannot be pickled."""
        # The lists of a layer refer to the layer; those of JSON do not.
        config: Config = json.loads(json.dumps(self.get_config()))
        return type(self).from_config, (config,)

    def get_vocabulary(self) -> list[str]:
        """Returns all tokens in the order of their ids."""
        return list(self._vocabulary)

    def id_to_token(self, id: int) -> str:
        """Returns the token of an id.

        Args:
            id: int, from 0 to `vocabulary_size - 1`.

        Returns:
            str, the token.

        Raises:
            ValueError: if no token has this id.
        """
        if not 0 <= id < self.vocabulary_size:
            raise ValueError(
                f"`id` must be from 0 to {self.vocabulary_size - 1}; "
                f"received `id={id}`. Use an id that this tokenizer returned."
            )
        return self._vocabulary[id]

    def token_to_id(self, token: str) -> int:
        """Returns the id of a token.

        Args:
            token: str, the token.

        Returns:
            int, its id; `unknown_token_id` if the vocabulary lacks it.
        """
        if token not in self._vocabulary:
            return self.unknown_token_id
        return self._vocabulary.index(token)

    def tokenize(
        self, texts: Texts, add_start: bool = False, add_end: bool = False
    ) -> tf.RaggedTensor:
        """Converts texts to token ids.

        Args:
            texts: string tensor, array or list `(batch,)`.
            add_start: bool, whether each row begins with `start_token_id`.
            add_end: bool, whether each row ends with `end_token_id`.

        Returns:
            Ragged int32 tensor `(batch, None)`. The row of an empty text has no ids.

        Raises:
            ValueError: if `texts` does not have shape `(batch,)`, or a text has a lone
                surrogate.
        """
        texts = _to_strings(texts)
        if texts.shape.rank != 1:
            raise ValueError(
                "`texts` must be a batch of strings, of shape (batch,); received "
                f"`texts` of shape {texts.shape}. Wrap a single text in a list."
            )
        return self._frame(self._encode(texts), add_start, add_end)

    def _frame(
        self, rows: tf.RaggedTensor, add_start: bool, add_end: bool
    ) -> tf.RaggedTensor:
        """Adds the tokens around each text."""
        column = tf.ones([rows.nrows(), 1], tf.int32)
        start = [column * self.start_token_id] if add_start else []
        end = [column * self.end_token_id] if add_end else []
        return tf.concat([*start, rows, *end], axis=1) if start or end else rows

    def __call__(
        self,
        texts: "str | bytes | Texts | keras.KerasTensor",
        *,
        add_start: bool = False,
        add_end: bool = False,
        sequence_length: int | None = None,
        training: bool | None = None,  # which Keras passes to every layer
    ) -> Tensor:
        options: Config = {
            "add_start": add_start,
            "add_end": add_end,
            "sequence_length": sequence_length,
        }
        if isinstance(texts, keras.KerasTensor):
            return self._symbolic_ids(texts, options)
        ids = self.call(texts, **options)
        if keras.backend.backend() == "tensorflow" or not tf.executing_eagerly():
            return ids
        return keras.ops.convert_to_tensor(ids.numpy())

    def call(
        self,
        texts: str | bytes | Texts,
        *,
        add_start: bool = False,
        add_end: bool = False,
        sequence_length: int | None = None,
    ) -> tf.Tensor:
        """Converts texts to padded token ids, a tensor of TensorFlow.

        Args:
            texts: see the arguments of a call.
            add_start: bool, whether each row begins with `start_token_id`.
            add_end: bool, whether each row ends with `end_token_id`.
            sequence_length: int, the length of the rows, or `None`.

        Returns:
            int32 tensor `(batch, length)`, or `(length,)` for one text.
        """
        texts = _to_strings(texts)
        if texts.shape.rank not in (0, 1):
            raise ValueError(
                "`texts` must be a text or a batch of strings, of shape (batch,); "
                f"received `texts` of shape {texts.shape}."
            )
        rows = self._encode(tf.reshape(texts, [-1]))
        if sequence_length is not None:
            rows = rows[:, : self._room(sequence_length, add_start, add_end)]
        rows = self._frame(rows, add_start, add_end)
        ids = rows.to_tensor(self.pad_token_id, shape=[None, sequence_length])
        return ids if texts.shape.rank else ids[0]

    def _room(self, sequence_length: int, add_start: bool, add_end: bool) -> int:
        """Returns how many tokens of a text a row has, apart from those around it."""
        with tf.init_scope():
            rows = tf.RaggedTensor.from_row_lengths([self.unknown_token_id], [1])
            rows = self._frame(rows, add_start, add_end)
            around: int = rows.row_lengths().numpy().item() - 1
        remedy = f"The tokens around a text are {around}."
        check_ints(around + 1, remedy=remedy, sequence_length=sequence_length)
        return sequence_length - around

    def _symbolic_ids(self, texts: keras.KerasTensor, options: Config) -> Tensor:
        """Adds the tokenizer to the layers of a model."""
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                "`tokenizer` must not be a layer of a model with the "
                f"{keras.backend.backend()!r} backend, whose tensors contain no "
                f"strings; received a {type(self).__name__}. Map the dataset with the "
                "tokenizer: "
                "`dataset.map(lambda text, label: (tokenizer(text), label))`."
            )
        if texts.dtype != "string" or len(texts.shape) != 1:
            raise ValueError(
                "`texts` must be strings of shape (batch,); received a tensor of dtype "
                f"{texts.dtype!r} and shape {tuple(texts.shape)}. Use "
                '`keras.Input((), dtype="string")`.'
            )
        if not self.in_graph:
            # TensorFlow traces it when a SavedModel is written.
            self._saved_model = tf.function(
                self._refuse_saved_model, input_signature=[], autograph=False
            )
        ids: Tensor = super().__call__(texts, **options)
        return ids

    def compute_output_spec(
        self,
        texts: keras.KerasTensor,
        *,
        add_start: bool = False,
        add_end: bool = False,
        sequence_length: int | None = None,
    ) -> keras.KerasTensor:
        """Returns shape and dtype of the ids, whose length is known if it is given."""
        if sequence_length is not None:
            self._room(sequence_length, add_start, add_end)
        return keras.KerasTensor((texts.shape[0], sequence_length), "int32")

    def _refuse_saved_model(self) -> NoReturn:
        raise ValueError(
            "A SavedModel must contain tokenizers that TensorFlow computes; received a "
            f"{type(self).__name__} that runs on the host (`in_graph` is `False`). "
            "Export the model without it, and tokenize the texts in Python."
        )

    def find_blank(self, texts: tf.Tensor) -> tf.Tensor:
        """Returns which texts are white space and invisible characters alone.

        Args:
            texts: string tensor `(batch,)`. A language token at the beginning of a
                text does not count.

        Returns:
            Boolean tensor `(batch,)`. The output of such a text is empty.
        """
        if self.language_token_pattern is not None:
            texts = tf.strings.regex_replace(
                texts, self.language_token_pattern, "", replace_global=False
            )
        return tf.strings.regex_full_match(texts, BLANK)

    def detokenize(self, token_ids: Rows) -> tf.Tensor:
        """Converts token ids to texts.

        Padding and start tokens are dropped. The first end token ends the text. An id
        outside the vocabulary, which a model with a larger vocabulary can predict, is
        replaced by `unknown_token_id`.

        Args:
            token_ids: int array or list, or dense or ragged tensor, `(batch, length)`.

        Returns:
            String tensor `(batch,)`. The text of a row without ids is empty.
        """
        if isinstance(token_ids, tf.RaggedTensor):
            token_ids = token_ids.to_tensor(self.pad_token_id)
        token_ids = tf.cast(token_ids, tf.int32)
        known = (token_ids >= 0) & (token_ids < self.vocabulary_size)
        token_ids = tf.where(known, token_ids, self.unknown_token_id)
        ends = tf.cast(token_ids == self.end_token_id, tf.int32)
        kept = (
            (tf.cumsum(ends, axis=1) == 0)
            & (token_ids != self.pad_token_id)
            & (token_ids != self.start_token_id)
        )
        return self._decode(tf.ragged.boolean_mask(token_ids, kept))

    def token_texts(self) -> list[bytes]:
        """Returns the text that each token adds to an output, in UTF-8.

        The space before or after a word is part of a token, except at both ends of the
        output. Tokens that `detokenize` drops have no text.

        Returns:
            List of bytes, in the order of the ids.

        Raises:
            ValueError: if the text of an output is not the concatenation of those of
                its tokens.
        """
        ids, special = range(self.vocabulary_size), {*self._special_ids}
        ordinary = [id for id in ids if id not in special]
        alone = self.detokenize([[id] for id in ordinary]).numpy().tolist()
        around = next(
            (i for i, text in zip(ordinary, alone, strict=True) if text.strip()), None
        )
        if around is not None:
            pair = [[around, self.pad_token_id], [around, around]]
            before, both = self.detokenize(pair).numpy().tolist()
            after = both[len(before) :] if both.startswith(before) else b""
            rows = self.detokenize([[around, id, around] for id in ids]).numpy()
            texts: list[bytes] = []
            for id, row in zip(ids, rows.tolist(), strict=True):
                inner = row[len(before) : len(row) - len(after)]
                if id in special - {self.unknown_token_id}:
                    texts.append(b"")
                elif after and row == before + inner + after:
                    texts.append(inner)
                else:
                    self._refuse_token_texts()
            others = [i for i in ordinary if texts[i] not in (b"", texts[around])][:1]
            pairs = self.detokenize([[around, other] for other in others] or [[around]])
            in_order = pairs.numpy()[0].startswith(before)
            if in_order:
                return texts
        self._refuse_token_texts()

    def _refuse_token_texts(self) -> NoReturn:
        raise ValueError(
            "`tokenizer` must join the texts of tokens to the text of an output; "
            f"`{type(self).__name__}` does not. Implement its method `token_texts`."
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Saves the tokenizer to one JSON file, atomically.

        Args:
            path: path of the file. `Tokenizer.load` reads it.
        """
        content = {"class_name": type(self).__name__, "config": self.get_config()}
        with written_whole(path) as file:
            file.write(json.dumps(content, ensure_ascii=False).encode())

    def save_files(self, path: str | os.PathLike[str]) -> None:
        """Saves the tokenizer to files that other programs can read, for a preset.

        Args:
            path: path of a `.json` file for the configuration without the assets. The
                assets are saved next to it under the same name, a SentencePiece model
                with the extension `.model`.
        """
        path, config = pathlib.Path(path), self.get_config()
        for name, ending in self.assets.items():
            with written_whole(path.with_suffix(ending)) as file:
                file.write(base64.b64decode(config.pop(name)))
        content = {"class_name": type(self).__name__, "config": config}
        write_json(path, content)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Loads a tokenizer from the files of `save` or `save_files`.

        Args:
            path: path of the JSON file.

        Returns:
            A tokenizer of the class that was saved.

        Raises:
            OSError: if the file cannot be read.
            ValueError: if the file does not contain a tokenizer of this class.
        """
        try:
            content = read_json(pathlib.Path(path))
            name = f"{PACKAGE}>{content['class_name']}"
            kind, config = keras.saving.get_registered_object(name), content["config"]
            for argument, ending in kind.assets.items():
                if argument not in config:
                    asset = read_file(pathlib.Path(path).with_suffix(ending))
                    config[argument] = base64.b64encode(asset).decode()
            tokenizer = kind.from_config(config)
        except (OSError, MemoryError):
            raise
        except Exception as error:  # a damaged file can raise almost anything
            raise ValueError(
                f"`path` must be a file that `Tokenizer.save` wrote; `{path}` is not "
                f"or is damaged ({error}). Save the tokenizer again."
            ) from error
        if not isinstance(tokenizer, cls):
            raise ValueError(
                f"`path` must contain a {cls.__name__}; `{path}` contains a "
                f"{type(tokenizer).__name__}. `Tokenizer.load` loads every class."
            )
        return tokenizer


def _to_strings(texts: str | bytes | Texts) -> tf.Tensor:
    """Converts texts to a string tensor."""
    try:
        return tf.convert_to_tensor(texts, tf.string)
    except (TypeError, ValueError) as error:
        rows = [texts] if isinstance(texts, str) else texts
        for number, text in enumerate(rows if isinstance(rows, Sequence) else ()):
            if isinstance(text, str):
                check_unicode(text, "texts", f"row {number}")
        raise ValueError(
            f"`texts` must be strings; received `texts={reprlib.repr(texts)}`."
        ) from error


def check_tokenizer(name: str, tokenizer: object) -> None:
    """Raises `ValueError` unless an argument has the interface of a `Tokenizer`."""
    bases = type(tokenizer).__mro__
    is_of_keras_hub = any(base.__module__.startswith("keras_hub.") for base in bases)
    if hasattr(tokenizer, "tokenize") and not is_of_keras_hub:
        return
    remedy = "Train one, for example with `SentencePieceTokenizer.train`."
    if is_of_keras_hub:
        remedy = f"Pass `{name}=KerasHubTokenizer(tokenizer)`."
    raise ValueError(
        f"`{name}` must be a `keras_transformer.Tokenizer`; received "
        f"`{name}={tokenizer!r}`. {remedy}"
    )
