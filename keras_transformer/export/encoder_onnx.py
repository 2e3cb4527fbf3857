"""Writes the graph of an encoder or a classifier for ONNX Runtime."""

import os
import pathlib
from collections.abc import Sequence
from typing import final

import keras
import onnxruntime

from keras_transformer.export.checking import check_weights, texts_of_vocabulary
from keras_transformer.export.encoder_checks import (
    AnyEncoder,
    Output,
    check_outputs,
    checked_output,
    encoder_of,
    sample_inputs,
)
from keras_transformer.export.onnx import (
    check_float32,
    run_graph,
    write_graph,
    write_tokenizer,
)
from keras_transformer.export.onnx_graphs import Graph, Tensors, known_activations
from keras_transformer.export.tensorflow_process import write_with_tensorflow
from keras_transformer.types import Config
from keras_transformer_runtime.files import new_folder, write_json


def export_encoder_onnx(
    model: AnyEncoder,
    filepath: str | os.PathLike,
    *,
    pooling: str | None = None,
    normalize: bool = False,
    check_texts: Sequence[str] | None = None,
) -> None:
    """Writes the graph of a classifier or an encoder, and its tokenizer.

    The folder contains:

    - `model.onnx`: the inputs of the model, int32 `(batch, length)`: `token_ids`, and
      `segment_ids` if the encoder has segments, or `first_pieces` of a
      `TokenClassifier`. It returns `probabilities`, float32, `(batch, classes)` or
      `(batch, words, classes)`, or `vector`, float32 `(batch, hidden_dim)`.
    - `config.json`: the task, the names of the classes, special tokens and limits. A
      row of token ids is the start token, a text and the end token.
    - `tokenizer.model` for the package sentencepiece, or `tokenizer.json`; see
      `export_onnx`. A model without a tokenizer has no such file.

    The sizes of batches and lengths are dynamic. The graph is run and checked before
    the folder is moved to `filepath`: its numbers must equal those of the model up to
    1e-4. On JAX and PyTorch, a child process with the TensorFlow backend writes it.

    Args:
        model: a `TextClassifier`, a `TokenClassifier` or a `TextEncoder`, in float32.
        filepath: folder to write. It must be new or empty.
        pooling: how an encoder pools, as in `TextEncoder.embed`; `None` = `"mean"`.
        normalize: bool, whether the vectors of an encoder are divided by their length.
        check_texts: texts for the check. `None` = texts, or rows of token ids, created
            from the vocabulary.

    Raises:
        ValueError: if an argument does not suit the model, or it is not in float32.
        FileExistsError: if `filepath` exists and is not an empty folder.
        RuntimeError: if ONNX Runtime does not compute the numbers of the model.

    Example:

    ```python
    classifier.export("films-onnx", format="onnx")
    session = onnxruntime.InferenceSession("films-onnx/model.onnx")
    session.run(None, {"token_ids": np.array([[2, 17, 25, 3]], "int32")})
    ```
    """
    output = checked_output(model, pooling, normalize)
    check_float32(model)
    check_weights(model)
    texts = None
    if model.tokenizer is not None:
        vocabulary = texts_of_vocabulary(model.tokenizer, model.max_length)
        texts = [*(check_texts or vocabulary)]
    with new_folder(filepath) as folder:
        options = {"pooling": output.pooling, "normalize": normalize}
        write_with_tensorflow(_write, model, folder, **options)
        session = onnxruntime.InferenceSession(folder / "model.onnx")
        for rows in (slice(None), slice(0, 1)):  # sizes are dynamic
            inputs = {n: x[rows] for n, x in sample_inputs(output, texts).items()}
            found = run_graph(session, inputs)[output.name]
            check_outputs("ONNX Runtime", output, inputs, found)


def _write(
    model: AnyEncoder, folder: pathlib.Path, pooling: str, normalize: bool
) -> None:
    folder.mkdir()
    output = Output(model, pooling, normalize)
    rows = keras.InputSpec("int32", (None, None))
    with known_activations(model):
        graph = Graph(_Graph(output), dict.fromkeys(output.input_names, rows))
        write_graph(graph, folder / "model.onnx")
    if model.tokenizer is not None:
        write_tokenizer(model.tokenizer, folder, "tokenizer")
    write_json(folder / "config.json", _config(output))


def _config(output: Output) -> Config:
    encoder = encoder_of(output.model)
    description = output.description()
    config: Config = {
        "task": description.task,
        "class_names": [*description.class_names],
        "multi_label": description.multi_label,
        "max_length": description.max_length,
        "vocabulary_size": encoder.vocabulary_size,
        "pad_token_id": encoder.pad_token_id,
        "pair_separators": encoder.pair_separators,
    }
    if encoder.tokenizer is not None:
        names = ("start_token_id", "end_token_id", "unknown_token_id")
        config |= {name: getattr(encoder.tokenizer, name) for name in names}
    return config


@final
class _Graph(keras.Model):
    """Computes the output of a model from token ids."""

    def __init__(self, output: Output):
        super().__init__(name="model")
        self.model = output.model
        self.compute_output = output.compute
        self.output_label = output.name

    def call(self, inputs: Tensors) -> Tensors:
        return {self.output_label: self.compute_output(inputs)}
