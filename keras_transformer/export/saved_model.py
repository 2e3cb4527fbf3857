"""Writes a trained model as a SavedModel: strings in, strings out."""

import base64
import json
import os
import pathlib
import pickle
import subprocess
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_transformer.decoding import RelativeLength, Search
from keras_transformer.export.served import Served
from keras_transformer.export.writing import (
    check_tokenizers,
    new_folder,
    sample_texts,
)
from keras_transformer.inference.generation import Request, check_request
from keras_transformer.seq2seq import Seq2Seq

SCORE_TOLERANCE = 1e-4
CHECK_SEED = 1

_WRITE = """
from keras_transformer.export.saved_model import write_as_child
write_as_child()
"""

_LOAD_AND_TRANSLATE = """
import json, sys
import numpy as np
import tensorflow as tf
import tensorflow_text
folder, texts, seed = json.load(sys.stdin)
nbest = tf.saved_model.load(folder).signatures["nbest"]
prefix, seeds = tf.constant([""] * len(texts)), tf.constant([seed] * len(texts))
outputs = nbest(text=tf.constant(texts), prefix=prefix, seed=seeds)
assert "keras_transformer" not in sys.modules
print(json.dumps([
    [text.decode("utf-8") for text in outputs["text"].numpy()[:, 0]],
    outputs["score"].numpy()[:, 0].tolist(),
]))
"""


def export_saved_model(
    model: Seq2Seq,
    filepath: str | os.PathLike,
    search: Search,
    *,
    max_length: int | RelativeLength | None = None,
    min_length: int | RelativeLength = 0,
    check_texts: Sequence[str] | None = None,
) -> None:
    """Writes a SavedModel with tokenizers, search and detokenizer inside.

    Its signatures take tensors with one entry for each text, so that a server can put
    requests together:

    - `serving_default`: `text`, strings `(batch,)`; returns `text`, strings, and
      `score`, float32, `(batch,)`.
    - `nbest`: `text`; `prefix`, strings `(batch,)`, what each output begins with;
      `seed`, int32 `(batch,)`, where `Sampling` starts (in the others it starts
      anywhere). Returns all hypotheses: `text`, strings, `score`, float32, and
      `length`, int32, `(batch, num_hypotheses)`.
    - `tokens`: `token_ids`, int32 `(batch, source_length)`, padded; returns
      `token_ids`, int32 `(batch, num_hypotheses, target_length)`, `score` and
      `length`.
    - `score`: `source` and `target`, strings `(batch,)`; returns `score`, float32
      `(batch,)`, and its parts: `tokens`, strings, and `token_scores`, float32,
      `(batch, target_length)`, padded with `""` and 0.
    - `attention` (not of an `Ensemble`): `text`; returns the best `text` and `score`
      `(batch,)`, and how it is aligned: `source_tokens` and `tokens`, strings
      `(batch, source_length)` and `(batch, target_length)`, padded with `""`;
      `attention`, float32 `(batch, target_length, source_length)`, and `positions`,
      int32 `(batch, target_length)`, as in an `Alignment`.

    It runs wherever TensorFlow and tensorflow-text do, without this library. It is
    the trace of the very search that `Seq2Seq.generate` compiles; batches and
    lengths are padded to a few sizes, and each such shape is compiled at its first
    request.

    What was written is loaded in a fresh process, and its texts must equal
    those of `generate`, before it takes its place: `filepath` holds a good
    SavedModel or nothing. Under JAX and PyTorch a child process with the
    TensorFlow backend writes it.

    Args:
        model: a `Seq2Seq` with tokenizers.
        filepath: folder to write, such as `saved_models/en-de/1`; it must not
            exist or be empty.
        search: how to search.
        max_length: int or `RelativeLength`, greatest output length in tokens; 50
            more than the source's if `None`.
        min_length: int or `RelativeLength`, least output length.
        check_texts: texts to check the SavedModel with; some made of the source
            vocabulary if `None`.

    Raises:
        ValueError: if the model has no tokenizers, or a length is out of range.
        FileExistsError: if `filepath` exists and is not an empty folder.
        RuntimeError: if the SavedModel does not give the texts of `generate`.

    Example:

    ```python
    export_saved_model(model, "saved_models/en-de/1", BeamSearch())
    serve = tf.saved_model.load("saved_models/en-de/1").signatures["serving_default"]
    serve(text=tf.constant(["A man sleeps."]))["text"]
    ```
    """
    check_tokenizers(model)
    request = Request(search, max_length, min_length)
    check_request(request)
    with new_folder(filepath) as folder:
        if keras.backend.backend() == "tensorflow":
            _write(model, folder, request)
        else:
            _write_in_child(model, folder, request)
        _check(model, folder, request, check_texts or sample_texts(model))


def _write(model: Seq2Seq, folder: pathlib.Path, request: Request) -> None:
    served = Served(model, request)
    tf.saved_model.save(served, str(folder), signatures=served.functions)


def _write_in_child(model: Seq2Seq, folder: pathlib.Path, request: Request) -> None:
    file = folder.with_suffix(".keras")
    model.save(file)
    settings = {
        "model": str(file),
        "folder": str(folder),
        "request": base64.b64encode(pickle.dumps(request)).decode(),
    }
    _run_python(["-c", _WRITE], settings)


def write_as_child() -> None:
    """Writes a SavedModel in the child process: settings on standard input."""
    settings = json.load(sys.stdin)
    model = keras.saving.load_model(settings["model"], compile=False)
    request = pickle.loads(base64.b64decode(settings["request"]))
    _write(model, pathlib.Path(settings["folder"]), request)


def _run_python(arguments: list[str], standard_input: Any) -> str:
    environment = {
        **os.environ,
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "",
    }
    process = subprocess.run(
        [sys.executable, *arguments],
        input=json.dumps(standard_input),
        env=environment,
        capture_output=True,
        text=True,
    )
    if process.returncode:
        raise RuntimeError(
            "a child process of the export failed; its last words: "
            f"{process.stderr.strip()[-2000:]}"
        )
    return process.stdout


def _check(
    model: Seq2Seq, folder: pathlib.Path, request: Request, texts: Sequence[str]
) -> None:
    """Compares a fresh process's texts with those of `generate`."""
    settings = [str(folder), list(texts), CHECK_SEED]
    output = _run_python(["-c", _LOAD_AND_TRANSLATE], settings)
    served_texts, served_scores = json.loads(output.splitlines()[-1])
    expected, scores = model.generate(
        list(texts),
        request.search,
        request.max_length,
        min_length=request.min_length,
        return_scores=True,
        seed=CHECK_SEED,
    )
    if np.ndim(scores) == 2:
        expected, scores = [best for best, *_ in expected], scores[:, 0]
    ties = 0
    for text, served, wanted, score, other in zip(
        texts, served_texts, expected, served_scores, scores, strict=True
    ):
        if served != wanted and abs(score - other) > SCORE_TOLERANCE:
            raise RuntimeError(
                f"the SavedModel gives {served!r} (score {score}) for {text!r}, but "
                f"`generate` gives {wanted!r} (score {other}); nothing was written."
            )
        ties += served != wanted
    if ties:
        warnings.warn(
            f"{ties} of {len(texts)} texts differ from those of `generate`, with "
            f"scores closer than {SCORE_TOLERANCE}.",
            stacklevel=3,
        )
