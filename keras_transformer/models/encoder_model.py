"""What `TextEncoder`, `TextClassifier` and `TokenClassifier` share."""

import warnings
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self, TypeAlias

import keras
import numpy as np
from keras import ops

from keras_transformer.backend.processes import written_by_first_process
from keras_transformer.inference.token_ids import length_buckets, power_of_two
from keras_transformer.models import preset_folders
from keras_transformer.models.vocabularies import TOKENIZERS
from keras_transformer.types import Data, Mask, Options, Path, Tensor
from keras_transformer_runtime.arguments import check_ints, check_one_of, check_unicode

if TYPE_CHECKING:
    from keras_transformer.text import Tokenizer

LONGEST_BUCKET = 8192  # tokens; a longer batch has the length of its longest row
POOLINGS = ("cls", "mean", "max", "pooler")

# The inputs of a model for one text, by name and without padding.
Row: TypeAlias = dict[str, list[int]]

# A text; or texts, pairs of texts or rows of token ids.
Texts: TypeAlias = str | Iterable[Data]


class Entries(NamedTuple):
    """Texts, the second ones of pairs, or else rows of token ids."""

    first: list[str]
    second: list[str] | None = None
    token_ids: list[list[int]] | None = None


def as_texts(texts: Texts, argument: str) -> Entries:
    """Returns texts, pairs of texts or rows of token ids as lists.

    Raises `ValueError` for anything else, and for a mixture.
    """
    if isinstance(texts, str | bytes):
        texts = [texts]
    to_array: Data = getattr(texts, "numpy", None)  # of a tensor of TensorFlow
    values: Iterable[Data] = to_array() if to_array else texts
    rows = [_plain(row) for row in values]
    kinds = {_kind(row) for row in rows}
    if kinds <= {"text"}:
        for number, row in enumerate(rows):
            check_unicode(row, argument, f"row {number}")
        return Entries(rows)
    if kinds == {"pair"}:
        for number, (first, second) in enumerate(rows):
            check_unicode(first + second, argument, f"row {number}")
        return Entries([row[0] for row in rows], [row[1] for row in rows])
    if kinds == {"token ids"}:
        return Entries([], None, rows)
    number = next(
        n
        for n, row in enumerate(rows)
        if _kind(row) != _kind(rows[0]) or not _kind(row)
    )
    raise ValueError(
        f"`{argument}` must be texts, pairs of texts or rows of token ids; received "
        f"{rows[number]!r:.80} in row {number}."
    )


def _plain(row: Data) -> Data:
    if isinstance(row, bytes):
        return row.decode("utf-8", "replace")
    if isinstance(row, str):
        return str(row)
    if isinstance(row, list | tuple | np.ndarray):
        return [_plain(each) for each in row]
    return int(row) if isinstance(row, Integral) else row


def _kind(row: object) -> str:
    if isinstance(row, str):
        return "text"
    if not isinstance(row, list):
        return ""
    if row and all(isinstance(x, int) for x in row):
        return "token ids"
    return "pair" if len(row) == 2 and all(isinstance(x, str) for x in row) else ""


def warn_of_cut_data(limit: int | None, kind: str = "texts") -> None:
    """Warns that training data have texts that are longer than the model takes."""
    warnings.warn(
        f"Some {kind} have more than {limit} tokens. Their ends are left out.",
        stacklevel=2,
    )


class EncoderModel(keras.Model):
    """Base class of models whose inputs are texts or their token ids.

    Attributes:
        tokenizer: the tokenizer of the texts, or `None`.
        pad_token_id: int, fills short rows of a batch.
        max_length: int, maximum number of tokens of a text, or `None`.
    """

    presets: ClassVar[dict[str, Options]] = {}
    tokenizer_arguments: ClassVar[dict[str, str]] = {"tokenizer.json": "tokenizer"}
    tokenizer: "Tokenizer | None"
    pad_token_id: int
    max_length: int | None

    def __setattr__(self, name: str, value: object) -> None:
        """Sets an attribute. A tokenizer does not become a layer of the model."""
        if name in TOKENIZERS:
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        """Returns the attributes among which Keras looks for layers to save."""
        return [name for name in super().__dir__() if name not in TOKENIZERS]

    def own_tokenizers(self) -> "dict[str, Tokenizer]":
        """Returns the tokenizer by the name of its argument, if there is one."""
        return {} if self.tokenizer is None else {"tokenizer": self.tokenizer}

    @written_by_first_process
    def export(
        self, filepath: Path, format: str = "saved_model", **options: Data
    ) -> None:
        """Writes a folder with which other software computes, without this library.

        Args:
            filepath: folder to write; it must be new or empty. TensorFlow Serving
                requires `<name>/<version>`.
            format: `"saved_model"`, for TensorFlow, or `"onnx"`, for ONNX Runtime.
            **options: further arguments of the function that writes the format:
                `export_encoder_saved_model` or `export_encoder_onnx` of
                `keras_transformer.export`.

        Raises:
            ValueError: if there is no such `format` or it has no such option.
        """
        from keras_transformer.export import export_model

        export_model(self, filepath, format=format, **options)

    @written_by_first_process
    def save_to_preset(self, preset_dir: Path) -> None:
        """Writes the model to a folder for `from_preset`, atomically.

        Args:
            preset_dir: path of the folder; it must be new or empty.

        Raises:
            FileExistsError: if the folder exists and is not empty.
            ValueError: if the model is quantized.
        """
        preset_folders.save_preset(self, preset_dir)

    @classmethod
    def from_preset(
        cls, preset: str, load_weights: bool = True, **overrides: object
    ) -> Self:
        """Loads a model from a folder that `save_to_preset` has written.

        Args:
            preset: the path of a folder, or `"hf://user/name"` on the Hugging Face Hub
                (extra `hub`). No code in a folder is run.
            load_weights: bool, whether to load the weights.
            **overrides: any constructor argument. With the weights, it must keep their
                shapes.

        Raises:
            ValueError: if there is no such folder, it is damaged or was written by a
                newer version, or an override needs other weights.
            FileNotFoundError: if a folder lacks a file.
        """
        return preset_folders.load_preset(cls, preset, load_weights, overrides)

    def _require_tokenizer(self, argument: str) -> "Tokenizer":
        """Returns the tokenizer, or raises `ValueError` for texts without one."""
        if self.tokenizer is None:
            raise ValueError(
                f"`{argument}` must be token ids for a model without `tokenizer`; "
                "received texts. Pass `tokenizer` to the model."
            )
        return self.tokenizer

    def row_lengths(self) -> list[int]:
        """Returns the lengths to which batches of rows are padded."""
        lengths = length_buckets(self.max_length or LONGEST_BUCKET)
        return [min(length, self.max_length or length) for length in lengths]

    def _apply_to_rows(
        self,
        function: Callable[..., Tensor],
        rows: Sequence[Row],
        paddings: dict[str, int],
        batch_size: int,
    ) -> list[np.ndarray]:
        """Applies a function to batches of rows of similar lengths.

        Args:
            function: function of the padded inputs `(batch, length)` by name.
            rows: list of the inputs of each text.
            paddings: dictionary of the padding of each input.
            batch_size: int, maximum number of rows of a batch.

        Returns:
            List of the output of each row.
        """
        check_ints(1, batch_size=batch_size)
        sizes = [len(row["token_ids"]) for row in rows]
        order = sorted(range(len(rows)), key=lambda place: sizes[place])
        outputs: list[np.ndarray] = [np.empty(0)] * len(rows)
        for start in range(0, len(order), batch_size):
            places = order[start : start + batch_size]
            count = min(power_of_two(len(places)), batch_size)
            filled = [rows[place] for place in places]
            filled += filled[-1:] * (count - len(places))
            inputs = {
                name: ops.convert_to_tensor(
                    self._padded([row[name] for row in filled], value, name)
                )
                for name, value in paddings.items()
            }
            found = ops.convert_to_numpy(function(inputs))
            for place, output in zip(places, found, strict=False):
                outputs[place] = output
        return outputs

    def _padded(self, rows: Sequence[list[int]], value: int, name: str) -> np.ndarray:
        length = length_buckets(max(map(len, rows)))[-1]
        if name != "first_pieces":
            length = min(length, self.max_length or length)
        padded = np.full((len(rows), length), value, "int32")
        for row, ids in zip(padded, rows, strict=True):
            row[: len(ids)] = ids
        return padded


def check_pooling(pooling: str, has_pooler: bool) -> str:
    """Returns the kind of pooling, or raises `ValueError`."""
    check_one_of(POOLINGS, pooling=pooling)
    if pooling == "pooler" and not has_pooler:
        raise ValueError(
            "`pooling` must be 'cls', 'mean' or 'max' for an encoder with "
            "`use_pooler=False`; received `pooling='pooler'`."
        )
    return pooling


def pool_tokens(encoded: Tensor, mask: Mask, pooling: str) -> Tensor:
    """Returns one vector for each text, float32 `(batch, hidden_dim)`.

    Args:
        encoded: tensor `(batch, length, hidden_dim)`.
        mask: boolean `(batch, length)`, `True` for tokens.
        pooling: `"cls"`, `"mean"` or `"max"`.
    """
    x = ops.cast(encoded, "float32")
    if pooling == "cls":
        return x[:, 0]
    is_token = ops.expand_dims(mask, -1)
    if pooling == "max":
        largest = ops.max(ops.where(is_token, x, -np.inf), axis=1)
        return ops.where(ops.any(is_token, axis=1), largest, 0.0)
    total = ops.sum(ops.where(is_token, x, 0.0), axis=1)
    count = ops.sum(ops.cast(is_token, "float32"), axis=1)
    return total / ops.maximum(count, 1.0)
