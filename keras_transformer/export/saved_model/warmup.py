"""Writes the warm-up requests of a SavedModel."""

import pathlib
from collections.abc import Collection, Sequence
from typing import TypeAlias

import numpy as np
import tensorflow as tf

from keras_transformer.export.checking import sample_texts, sample_tokens
from keras_transformer.export.model_support import (
    array_input,
    source_kind,
    tokenizers_of,
)
from keras_transformer.models import GenerativeModel
from keras_transformer_runtime.engines.warmup_requests import (
    FILE,
    WarmupRequest,
    prediction_log,
    warmup_requests,
)

__all__ = ["WarmupRequest", "WarmupShapes", "check_warmup", "warmup_requests"]

# Pairs of a number of texts and their length in tokens.
WarmupShapes: TypeAlias = Sequence[tuple[int, int]]


def write_warmup(
    model: GenerativeModel,
    folder: pathlib.Path,
    shapes: WarmupShapes,
    signatures: Collection[str] = (),
) -> None:
    """Writes warm-up requests into a SavedModel that has the given signatures.

    The first request is a text. The others are token ids, which have exactly the given
    shapes, up to `max_source_length`. The requests compile the search, which all
    signatures that decode share, except for `continue` and `constrained`. If the
    sources are token ids, there is no text. If they are arrays, the length is the size
    of axes of unknown size.
    """
    limit = model.max_source_length
    limited = ((batch, min(length, limit or length)) for batch, length in shapes)
    shapes = list(dict.fromkeys(limited))
    if not shapes:
        return
    match source_kind(model):
        case "arrays":
            _write(folder, _array_requests(model, shapes))
            return
        case "token_ids":
            (row, *_) = sample_tokens(model)
            rows = [_token_rows(model, row, *shape) for shape in shapes]
            _write(
                folder,
                [WarmupRequest("serving_default", {"token_ids": x}) for x in rows],
            )
            return
    text, *_ = sample_texts(model)
    (row,) = tokenizers_of(model).source.tokenize([text]).to_list()
    texts, empty = np.array([text], object), np.array([""], object)
    requests = [WarmupRequest("serving_default", {"text": texts})]
    if "continue" in signatures:
        inputs = {"text": texts, "state": empty, "seed": np.zeros(1, "int32")}
        requests.append(WarmupRequest("continue", inputs))
    if "constrained" in signatures:
        inputs = {"text": texts, "prefix": empty, "constraints": empty}
        requests.append(WarmupRequest("constrained", inputs))
    for batch, length in shapes:
        token_ids = _token_rows(model, row, batch, length)
        requests.append(WarmupRequest("tokens", {"token_ids": token_ids}))
    _write(folder, requests)


def _token_rows(
    model: GenerativeModel, row: Sequence[int], batch: int, length: int
) -> np.ndarray:
    """Returns int32 token ids `(batch, length)` that repeat those of a row."""
    token_ids = [*np.resize(row, length - 1), model.end_token_id]
    return np.array([token_ids] * batch, "int32")


def _array_requests(
    model: GenerativeModel, shapes: WarmupShapes
) -> list[WarmupRequest]:
    """Returns requests of zeros; the lengths are those of axes of unknown size."""
    shape, dtype = array_input(model)
    sizes = [
        (batch, *(length if size is None else size for size in shape))
        for batch, length in shapes
    ]
    return [
        WarmupRequest("serving_default", {"source": np.zeros(size, dtype)})
        for size in dict.fromkeys(sizes)
    ]


def _write(folder: pathlib.Path, requests: Sequence[WarmupRequest]) -> None:
    file = folder / FILE
    file.parent.mkdir()
    with tf.io.TFRecordWriter(str(file)) as writer:
        for request in requests:
            writer.write(_serialize(request))


def check_warmup(shapes: WarmupShapes) -> None:
    """Raises `ValueError` unless shapes are pairs of numbers of at least 1."""
    for shape in shapes:
        if len(shape) != 2 or min(shape) < 1:
            raise ValueError(
                "`warmup` must hold pairs of a number of texts and a length in tokens, "
                f"both at least 1; received {shape}."
            )


def _serialize(request: WarmupRequest) -> bytes:
    """Returns a serialized PredictionLog."""
    log = prediction_log()()
    message = log.predict_log.request
    message.model_spec.signature_name = request.signature
    for name, value in request.inputs.items():
        tensor = tf.make_tensor_proto(value)
        message.inputs.add(key=name, value=tensor.SerializeToString())
    return log.SerializeToString()
