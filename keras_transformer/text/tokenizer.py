"""The base class of all tokenizers: ids, special tokens, saving, loading."""

import abc
import base64
import json
import os
import pathlib
from collections.abc import Iterable
from typing import Any, ClassVar, Self

import keras
import tensorflow as tf

from keras_transformer.files import write_json, written_whole

SPECIAL_TOKENS = ("<pad>", "<unk>", "<s>", "</s>")
PACKAGE = "keras_transformer"


class Tokenizer(tf.Module):
    """The base class of the tokenizers.

    A tokenizer turns texts into token ids and back, eagerly and inside a
    `tf.function` or a `tf.data` pipeline, whatever the Keras backend. The vocabulary
    holds the special tokens `<pad>`, `<unk>`, `<s>` (start) and `</s>` (end); they
    have the ids 0 to 3, except in models trained elsewhere.

    Use one of its final classes, or write another one: a subclass implements
    `_encode` and `_decode`, of TensorFlow operations, and `get_config`. `load` finds it
    if `keras.saving.register_keras_serializable("keras_transformer")` decorates it.

    Args:
        vocabulary: iterable of str, all tokens, including the special ones, in the
            order of their ids.

    Raises:
        ValueError: if a special token is missing.

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
    """

    special_tokens: ClassVar[tuple[str, ...]] = SPECIAL_TOKENS
    """The tokens for padding, unknown text, start and end."""

    # Constructor arguments that a preset keeps in files of their own, and the file
    # extensions of these. They are bytes, which `get_config` gives in base64.
    assets: ClassVar[dict[str, str]] = {}

    def __init__(self, vocabulary: Iterable[str]):
        super().__init__()
        self._vocabulary = tuple(vocabulary)
        special = self.special_tokens
        missing = [token for token in special if token not in self._vocabulary]
        if missing:
            raise ValueError(
                f"`vocabulary` must hold the special tokens {list(special)}; "
                f"received a `vocabulary` without {missing}. Train the tokenizer with "
                "this library, or a SentencePiece model with the options `--pad_id=0 "
                "--unk_id=1 --bos_id=2 --eos_id=3`."
            )
        self._special_ids = tuple(map(self._vocabulary.index, special))

    @abc.abstractmethod
    def _encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Maps string `(batch,)` to int32 `(batch, None)`, without start and end."""

    @abc.abstractmethod
    def _decode(self, token_ids: tf.RaggedTensor) -> tf.Tensor:
        """Maps int32 `(batch, None)` of plain tokens to string `(batch,)`."""

    @abc.abstractmethod
    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments as JSON values, which are all of its state."""

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Creates the tokenizer that `get_config` described."""
        return cls(**config)

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens, including the special ones."""
        return len(self._vocabulary)

    @property
    def pad_token_id(self) -> int:
        """Id of `<pad>`, which pads rows to a common length."""
        return self._special_ids[0]

    @property
    def unknown_token_id(self) -> int:
        """Id of `<unk>`, which stands for anything the vocabulary lacks."""
        return self._special_ids[1]

    @property
    def start_token_id(self) -> int:
        """Id of `<s>`, with which the decoder starts."""
        return self._special_ids[2]

    @property
    def end_token_id(self) -> int:
        """Id of `</s>`, which ends a text."""
        return self._special_ids[3]

    def __reduce__(self) -> Any:
        """Lets other processes have a copy, tables of TensorFlow and all."""
        return type(self).from_config, (self.get_config(),)

    def get_vocabulary(self) -> list[str]:
        """All tokens in the order of their ids."""
        return list(self._vocabulary)

    def id_to_token(self, id: int) -> str:
        """The token with this id; `ValueError` if there is none."""
        if not 0 <= id < self.vocabulary_size:
            raise ValueError(
                f"`id` must be from 0 to {self.vocabulary_size - 1}; "
                f"received `id={id}`. Use an id that this tokenizer gave."
            )
        return self._vocabulary[id]

    def token_to_id(self, token: str) -> int:
        """The id of a token; `unknown_token_id` if the vocabulary lacks it."""
        if token not in self._vocabulary:
            return self.unknown_token_id
        return self._vocabulary.index(token)

    def tokenize(
        self, texts: Any, add_start: bool = False, add_end: bool = False
    ) -> tf.RaggedTensor:
        """Turns texts into token ids.

        Args:
            texts: string tensor, array or list `(batch,)`.
            add_start: bool, whether each row begins with `start_token_id`.
            add_end: bool, whether each row ends with `end_token_id`.

        Returns:
            Ragged int32 tensor `(batch, None)`. The row of an empty text is empty.

        Raises:
            ValueError: if `texts` does not have shape `(batch,)`.
        """
        texts = tf.convert_to_tensor(texts, tf.string)
        if texts.shape.rank != 1:
            raise ValueError(
                "`texts` must be a batch of strings, of shape (batch,); received "
                f"`texts` of shape {texts.shape}. Wrap a single text in a list."
            )
        rows = self._encode(texts)
        column = tf.ones([rows.nrows(), 1], tf.int32)
        start = [column * self.start_token_id] if add_start else []
        end = [column * self.end_token_id] if add_end else []
        return tf.concat([*start, rows, *end], axis=1) if start or end else rows

    def detokenize(self, token_ids: Any) -> tf.Tensor:
        """Turns token ids into texts.

        Padding and start tokens are dropped; the first end token ends the text. An id
        outside the vocabulary, which a model with a larger one may produce, counts as
        `unknown_token_id`.

        Args:
            token_ids: int array, or dense or ragged tensor, `(batch, length)`.

        Returns:
            String tensor `(batch,)`. The text of an empty row is empty.
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

    def save(self, path: str | os.PathLike) -> None:
        """Writes the tokenizer to one JSON file, whole or not at all.

        Args:
            path: path of the file, which `Tokenizer.load` reads.
        """
        content = {"class_name": type(self).__name__, "config": self.get_config()}
        with written_whole(path) as file:
            file.write(json.dumps(content, ensure_ascii=False).encode())

    def save_assets(self, path: str | os.PathLike) -> None:
        """Writes the tokenizer to files that other programs can open, for a preset.

        Args:
            path: path of a `.json` file for everything but the assets. These go next
                to it under the same name: a SentencePiece model in `.model`.
        """
        path, config = pathlib.Path(path), self.get_config()
        for name, ending in self.assets.items():
            path.with_suffix(ending).write_bytes(base64.b64decode(config.pop(name)))
        content = {"class_name": type(self).__name__, "config": config}
        write_json(path, content)

    @classmethod
    def load(cls, path: str | os.PathLike) -> Self:
        """Reads the file that `save` wrote, or the files that `save_assets` wrote.

        Args:
            path: path of the JSON file.

        Returns:
            A tokenizer of the class that was saved.

        Raises:
            OSError: if the file cannot be read.
            ValueError: if the file does not hold a tokenizer of this class.
        """
        try:
            content = json.loads(pathlib.Path(path).read_text("utf-8"))
            name = f"{PACKAGE}>{content['class_name']}"
            kind, config = keras.saving.get_registered_object(name), content["config"]
            for argument, ending in kind.assets.items():
                if argument not in config:
                    asset = pathlib.Path(path).with_suffix(ending).read_bytes()
                    config[argument] = base64.b64encode(asset).decode()
            tokenizer = kind.from_config(config)
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
        ) as error:
            raise ValueError(
                f"`path` must be a file that `Tokenizer.save` wrote; `{path}` is not, "
                f"or is damaged ({error}). Save the tokenizer again."
            ) from error
        if not isinstance(tokenizer, cls):
            raise ValueError(
                f"`path` must hold a {cls.__name__}; `{path}` holds a "
                f"{type(tokenizer).__name__}. Use `Tokenizer.load` for any class."
            )
        return tokenizer
