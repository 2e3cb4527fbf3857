"""What an export of an encoder or a classifier computes, and its check."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from keras import ops

from keras_transformer.models import TextClassifier, TextEncoder, TokenClassifier
from keras_transformer.models.encoder_model import Row, check_pooling
from keras_transformer.types import Tensor, TokenIds
from keras_transformer_runtime.engines.encoder_description import EncoderDescription

TOLERANCE = 1e-4  # of probabilities, and of vectors relative to their greatest number
NUM_ROWS, NUM_IDS = 8, 12  # of a check of token ids, at most

AnyEncoder: TypeAlias = TextEncoder | TextClassifier | TokenClassifier
Inputs: TypeAlias = Mapping[str, TokenIds]


class Output(NamedTuple):
    """The output of a model that an export computes.

    Attributes:
        model: the model.
        pooling: str, see `TextEncoder.embed`.
        normalize: bool, whether vectors are divided by their length.
    """

    model: AnyEncoder
    pooling: str = "mean"
    normalize: bool = False

    @property
    def name(self) -> str:
        """The name of the output: `"probabilities"` or `"vector"`."""
        return "vector" if isinstance(self.model, TextEncoder) else "probabilities"

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the int32 inputs, each `(batch, length)`."""
        if isinstance(self.model, TokenClassifier):
            return ("token_ids", "first_pieces")
        return tuple(encoder_of(self.model).paddings)

    def compute(self, inputs: Inputs) -> Tensor:
        """Returns float32 probabilities or vectors of inputs with their padding."""
        model = self.model
        if not isinstance(model, TextEncoder):
            return model.probabilities(inputs)
        found = model.pool_texts(inputs, model(inputs, training=False), self.pooling)
        return ops.normalize(found, axis=-1) if self.normalize else found

    def description(self) -> EncoderDescription:
        """Returns the content of `keras_transformer.json`."""
        model = self.model
        if isinstance(model, TextEncoder):
            return EncoderDescription("embed", max_length=model.max_length)
        task = "tag" if isinstance(model, TokenClassifier) else "classify"
        several = isinstance(model, TextClassifier) and model.multi_label
        names = tuple(model.class_names)
        return EncoderDescription(task, names, several, model.max_length)


def checked_output(model: AnyEncoder, pooling: str | None, normalize: bool) -> Output:
    """Returns the output of an export, or raises `ValueError`."""
    if isinstance(model, TextEncoder):
        return Output(
            model, check_pooling(pooling or "mean", model.use_pooler), normalize
        )
    if pooling is not None or normalize:
        raise ValueError(
            "`pooling` and `normalize` must be given for a `TextEncoder` alone; "
            f"received `pooling={pooling!r}`, `normalize={normalize}` and a "
            f"`{type(model).__name__}`. Remove them, or export `model.encoder`."
        )
    return Output(model)


def encoder_of(model: AnyEncoder) -> TextEncoder:
    """Returns the encoder of a classifier, or the encoder itself."""
    return model if isinstance(model, TextEncoder) else model.encoder


def sample_inputs(output: Output, texts: Sequence[str] | None) -> dict[str, np.ndarray]:
    """Returns inputs of texts or, without texts, of ids of the whole vocabulary."""
    model = output.model
    encoder = encoder_of(model)
    if texts is None:
        rows = _id_rows(model, encoder.vocabulary_size)
        if isinstance(model, TokenClassifier):
            for row in rows:
                row["first_pieces"] = [*range(1, len(row["token_ids"]))]
    elif isinstance(model, TokenClassifier):
        rows = model.rows_of_words([text.split() for text in texts])
    else:
        rows = encoder.rows_of_texts(texts, "texts")
    paddings = {"token_ids": model.pad_token_id}
    return {
        name: _padded([row[name] for row in rows], paddings.get(name, 0))
        for name in output.input_names
    }


def _id_rows(model: AnyEncoder, size: int) -> list[Row]:
    """Returns rows of ids of the whole vocabulary."""
    ids = [x for x in range(size) if x != model.pad_token_id]
    length = min(NUM_IDS, model.max_length or NUM_IDS)
    places = np.linspace(0, len(ids) - 1, NUM_ROWS * length).astype(int)
    return [
        {"token_ids": [ids[x] for x in row], "segment_ids": [0] * length}
        for row in places.reshape(NUM_ROWS, length).tolist()
    ]


def _padded(rows: Sequence[Sequence[int]], padding: int) -> np.ndarray:
    """Returns rows as an int32 array `(rows, length)`."""
    padded = np.full((len(rows), max(1, *map(len, rows))), padding, "int32")
    for row, ids in zip(padded, rows, strict=True):
        row[: len(ids)] = ids
    return padded


def check_outputs(
    software: str, output: Output, inputs: Inputs, found: np.ndarray
) -> None:
    """Compares outputs of an export with those of the model.

    Raises `RuntimeError` if they differ, and `FloatingPointError` if the model computes
    a NaN.
    """
    tensors = {name: ops.convert_to_tensor(value) for name, value in inputs.items()}
    expected = ops.convert_to_numpy(output.compute(tensors))
    if not np.isfinite(expected).all():
        raise FloatingPointError(
            "The outputs of the model must be finite; they have NaN or infinity. "
            "Nothing was written."
        )
    if isinstance(output.model, TokenClassifier):
        is_word = np.asarray(inputs["first_pieces"]) > 0
        expected, found = expected[is_word], found[is_word]
    limit = TOLERANCE * max(1.0, float(np.abs(expected).max(initial=0)))
    error = float(np.abs(found - expected).max(initial=0))
    if found.shape != expected.shape or not error <= limit:
        raise RuntimeError(
            f"{software} gives {output.name} that differ by {error:.3g} from those of "
            "the model; nothing was written."
        )
