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

from keras_transformer.backend.compiling import compile_function
from keras_transformer.decoding import RelativeLength, Search, SearchResult
from keras_transformer.export.writing import (
    check_tokenizers,
    new_folder,
    sample_texts,
)
from keras_transformer.generation import Request, check_request
from keras_transformer.seq2seq import Seq2Seq
from keras_transformer.token_ids import SMALLEST_ROWS, length_buckets, power_of_two

DEFAULT_MAX_SOURCE_LENGTH = 512
LARGEST_BATCH = 64
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
generate = tf.saved_model.load(folder).signatures["generate"]
prefix = tf.constant([""] * len(texts))
outputs = generate(text=tf.constant(texts), prefix=prefix, seed=tf.constant(seed))
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

    Its signature `serving_default` takes `text`, strings `(batch,)`, and returns
    `text`, strings `(batch,)`, and `score`, float32 `(batch,)`. The signature
    `generate` takes `text`, `prefix`, strings `(batch,)`, what each output begins
    with, and `seed`, an int32 scalar, where `Sampling` starts (in the other it
    starts anywhere); it returns all hypotheses: `text`, strings, `score`, float32,
    and `length`, int32, `(batch, num_hypotheses)`.

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


class _Served(tf.Module):
    """Tokenizers, model and search as one TensorFlow function of strings."""

    def __init__(self, model: Seq2Seq, request: Request):
        super().__init__()
        self.source_tokenizer = model.source_tokenizer
        self.target_tokenizer = model.target_tokenizer
        self.weights = [weight.value for weight in model.weights]
        self._limit = model.max_source_length or DEFAULT_MAX_SOURCE_LENGTH
        self._pad_token_id = model.pad_token_id
        self._fewest = -(-SMALLEST_ROWS // request.search.num_beams)
        self._most = lambda lengths: model.most_steps(lengths, request.max_length)

        def search(token_ids: Any, prefixes: Any, seed: Any) -> SearchResult:
            return model.search(token_ids, *request, prefixes=prefixes, seed=seed)

        self._search = compile_function(search, model)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def serve(self, text: Any) -> dict[str, Any]:
        """Decodes strings `(batch,)` to strings and scores `(batch,)`."""
        seed = tf.random.uniform((), maxval=tf.int32.max, dtype=tf.int32)
        outputs = self._decode(text, None, seed)
        return {name: outputs[name][:, 0] for name in ("text", "score")}

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.string, name="text"),
            tf.TensorSpec([None], tf.string, name="prefix"),
            tf.TensorSpec([], tf.int32, name="seed"),
        ]
    )
    def generate(self, text: Any, prefix: Any, seed: Any) -> dict[str, Any]:
        """Decodes strings `(batch,)` to hypotheses `(batch, num_hypotheses)`."""
        return self._decode(text, prefix, seed)

    def _decode(self, text: Any, prefix: Any, seed: Any) -> dict[str, Any]:
        tokens = self.source_tokenizer.tokenize(text, add_end=True)
        lengths = tokens.row_lengths()
        checked = tf.debugging.assert_less_equal(
            lengths,
            tf.constant(self._limit, tf.int64),
            f"`text` must have at most max_source_length={self._limit} tokens",
        )
        with tf.control_dependencies([checked]):
            token_ids = self._pad(tokens)
        prefixes = tf.zeros([tf.shape(token_ids)[0], 0], tf.int32)
        if prefix is not None:
            prefixes = self._prefixes(prefix, lengths, tf.shape(token_ids)[0])
        result = self._search(token_ids, prefixes, seed)
        count = tf.shape(text)[0]
        found = result.token_ids[:count]
        flat = tf.reshape(found, [-1, tf.shape(found)[2]])
        texts = self.target_tokenizer.detokenize(flat)
        empty = (lengths == 1)[:, None]
        return {
            "text": tf.where(empty, "", tf.reshape(texts, tf.shape(found)[:2])),
            "score": tf.where(empty, 0.0, result.scores[:count]),
            "length": result.lengths[:count],
        }

    def _prefixes(self, prefix: Any, source_lengths: Any, rows: Any) -> Any:
        """Token ids `(rows, prefix_length)`, whose length is a power of two."""
        tokens = self.target_tokenizer.tokenize(prefix)
        checked = tf.debugging.assert_less(
            tf.cast(tokens.row_lengths(), tf.int32),
            self._most(tf.cast(source_lengths, tf.int32)),
            "`prefix` must be shorter than the greatest output length",
        )
        with tf.control_dependencies([checked]):
            longest = tokens.bounding_shape(out_type=tf.int64)[1]
        length = _round_up(longest, _powers(4, self._limit))
        shape = tf.stack([tf.cast(rows, tf.int64), length])
        return tokens.to_tensor(self._pad_token_id, shape=shape)

    def _pad(self, tokens: Any) -> Any:
        rows, longest = tf.unstack(tokens.bounding_shape(out_type=tf.int64))
        length = _round_up(longest, length_buckets(self._limit))
        length = tf.minimum(length, tf.constant(self._limit, tf.int64))
        shape = [_round_up(rows, _powers(self._fewest, LARGEST_BATCH)), length]
        return tokens.to_tensor(self._pad_token_id, shape=tf.stack(shape))


def _round_up(size: Any, steps: list[int]) -> Any:
    """Rounds an int64 scalar up to one of `steps`, or to a multiple of the last."""
    every = tf.constant(steps, tf.int64)
    beyond = -(-size // steps[-1]) * steps[-1]
    return tf.where(
        size <= steps[-1],
        tf.reduce_min(tf.where(every >= size, every, tf.int64.max)),
        beyond,
    )


def _powers(smallest: int, largest: int) -> list[int]:
    """The powers of two from one to the other, or to the first beyond it."""
    powers = [power_of_two(smallest)]
    while powers[-1] < largest:
        powers.append(2 * powers[-1])
    return powers


def _write(model: Seq2Seq, folder: pathlib.Path, request: Request) -> None:
    served = _Served(model, request)
    signatures = {"serving_default": served.serve, "generate": served.generate}
    tf.saved_model.save(served, str(folder), signatures=signatures)


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
