"""Writes the graphs of a model for ONNX Runtime."""

import itertools
import json
import os
import pathlib
import warnings
from collections.abc import Sequence
from typing import TypeAlias

import keras
import numpy as np
import onnxruntime

from keras_transformer.decoding import Search
from keras_transformer.export.checking import (
    SCORE_TOLERANCE,
    best_hypotheses,
    check_log_probabilities,
    check_weights,
    checked_length,
    sample_texts,
)
from keras_transformer.export.model_support import (
    Transformer,
    check_transformer,
    require_supported,
    tokenizers_of,
    tokenizers_to_write,
)
from keras_transformer.export.onnx_graphs import Graph, graphs_of, known_activations
from keras_transformer.export.tensorflow_process import write_with_tensorflow
from keras_transformer.models import CausalLM, GenerativeModel
from keras_transformer.text import (
    MarianTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
)
from keras_transformer.training.lora import without_lora
from keras_transformer.types import Config
from keras_transformer_runtime.files import new_folder, write_json

OPSET_VERSION = 18
CHECKED_LENGTHS = (37, 67)  # of sources, besides those of the texts
SPECIAL_IDS = ("pad_token_id", "start_token_id", "end_token_id")
ENCODER_DECODER_SETTINGS = (
    "source_vocabulary_size",
    "target_vocabulary_size",
    "max_source_length",
    "max_target_length",
    "num_decoder_layers",
)
ATTENTION_SETTINGS = ("num_key_value_heads", "key_dim", "value_dim")

# Arrays by the names of the inputs and outputs of a graph.
Arrays: TypeAlias = dict[str, np.ndarray]
# Token ids of sequences.
Rows: TypeAlias = list[list[int]]


def export_onnx(
    model: GenerativeModel,
    filepath: str | os.PathLike,
    search: Search,
    *,
    check_texts: Sequence[str] | None = None,
) -> None:
    """Writes the graphs that ONNX Runtime needs to decode, with tokenizers.

    The folder of an encoder-decoder Transformer contains:

    - `encoder.onnx`: `encoder_token_ids`, int32 `(batch, source_length)`. It returns
      for each block of the decoder `source_keys_<i>`, float32
      `(batch, num_heads, key_dim, source_length)`, and `source_values_<i>`, float32
      `(batch, num_heads, source_length, value_dim)`.
    - `decoder_step.onnx`: `token_ids`, int32 `(batch, 1)`, the newest tokens, which
      are the start token at the first step; `encoder_token_ids` and the outputs of the
      encoder; and the outputs of the previous step, `past_keys_<i>`,
      `(batch, num_heads, key_dim, length)`, and `past_values_<i>`,
      `(batch, num_heads, length, value_dim)`, of length 0 at the first step. It returns
      `logits`, float32 `(batch, vocabulary_size)`, and `keys_<i>` and `values_<i>`,
      whose length is greater by 1.
    - `config.json`: special tokens, vocabulary sizes, limits, numbers of blocks and
      heads, and head sizes.
    - `source.model` and `target.model` for the package sentencepiece, if the tokenizers
      are `SentencePieceTokenizer`s or `MarianTokenizer`s; otherwise `source.json` and
      `target.json`, which `Tokenizer.load` reads.
    - `source_vocabulary.json` and `target_vocabulary.json`, lists of the tokens in the
      order of their ids, if the tokenizers are `MarianTokenizer`s.

    The folder of a decoder-only Transformer contains:

    - `decoder.onnx`: `token_ids`, int32 `(batch, length)`, the prompts at the first
      step, padded at the start, and the newest tokens `(batch, 1)` later;
      `attention_mask`, bool `(batch, past_length + length)`, `True` for each token of
      this step and of all earlier steps that is not padding; and the outputs of the
      previous step, `past_keys_<i>` and `past_values_<i>`, of length 0 at the first
      step. It returns `logits`, float32 `(batch, vocabulary_size)`, of the token after
      the last one, and `keys_<i>` and `values_<i>`, whose length is greater by
      `length`.
    - `config.json`, as above.
    - `tokenizer.model`, `tokenizer_vocabulary.json` or `tokenizer.json`, as above.

    The sizes of batches and sequences are dynamic. `num_heads` is the number of heads
    of keys and values. The search is not part of the folder: it is a loop around the
    decoder step.

    The graphs are run and checked before the folder is moved to `filepath`, so that
    `filepath` holds correct graphs or nothing: the log-probabilities of the hypotheses
    of `search` must equal those of `score` up to 1e-4 per token, for the texts and for
    longer sources of 37 and 67 of their tokens. Keras and tf2onnx
    write the graphs with the TensorFlow backend. On JAX and PyTorch this happens in a
    child process.

    Args:
        model: a Transformer, such as a `Seq2Seq` or a `CausalLM`, in float32, with
            tokenizers.
        filepath: folder to write. It must be new or empty.
        search: search that finds the hypotheses whose scores are checked.
        check_texts: texts for the check. `None` = texts created from the source
            vocabulary.

    Raises:
        ValueError: if the model is not a Transformer in float32 with tokenizers.
        FileExistsError: if `filepath` exists and is not an empty folder.
        RuntimeError: if ONNX Runtime does not compute the outputs of the model.

    Example:

    ```python
    export_onnx(model, "en-de-onnx", GreedySearch())
    encoder = onnxruntime.InferenceSession("en-de-onnx/encoder.onnx")
    encoder.run(None, {"encoder_token_ids": np.array([[17, 25, 3]], "int32")})
    ```
    """
    model = without_lora(model)
    transformer = check_transformer(model, "onnx")
    check_float32(model)
    tokenizers_of(model)
    check_weights(model)
    texts = check_texts or sample_texts(model)
    with new_folder(filepath) as folder:
        write_with_tensorflow(_write, model, folder)
        _check(transformer, folder, search, texts)


def check_float32(model: keras.Model) -> None:
    """Raises `ValueError` if a model is not in float32."""
    dtype = model.dtype_policy.name
    require_supported("onnx", dtype == "float32", "dtype", dtype, "'float32'")


def _write(model: Transformer, folder: pathlib.Path) -> None:
    folder.mkdir()
    with known_activations(model):
        for name, graph in graphs_of(model).items():
            write_graph(graph, folder / f"{name}.onnx")
    for side, tokenizer in tokenizers_to_write(model).items():
        write_tokenizer(tokenizer, folder, side)
    write_json(folder / "config.json", _config(model))


def write_tokenizer(tokenizer: Tokenizer, folder: pathlib.Path, name: str) -> None:
    """Writes the files of a tokenizer; see `export_onnx`."""
    if not isinstance(tokenizer, SentencePieceTokenizer | MarianTokenizer):
        tokenizer.save(folder / f"{name}.json")
        return
    (folder / f"{name}.model").write_bytes(tokenizer.proto)
    if isinstance(tokenizer, MarianTokenizer):
        tokens = json.dumps(tokenizer.get_vocabulary(), ensure_ascii=False)
        (folder / f"{name}_vocabulary.json").write_text(tokens, "utf-8")


def write_graph(graph: Graph, file: pathlib.Path) -> None:
    """Writes a graph to a file of ONNX."""
    signature = {
        name: keras.InputSpec(spec.dtype, spec.shape, name=name)
        for name, spec in graph.inputs.items()
    }
    graph.model.built = True
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "In the future `np.object`", FutureWarning)
        graph.model.export(
            str(file),
            format="onnx",
            verbose=False,
            input_signature=[signature],
            opset_version=OPSET_VERSION,
        )


def _config(model: Transformer) -> Config:
    attention = model.decoder.blocks[0].self_attention
    if isinstance(model, CausalLM):
        settings: Config = {
            "vocabulary_size": model.target_vocabulary_size,
            "max_length": model.max_target_length,
            "num_layers": model.num_layers,
            "add_start_token": model.add_start_token,
        }
    else:
        settings = {name: getattr(model, name) for name in ENCODER_DECODER_SETTINGS}
    return {
        **{name: getattr(model, name) for name in SPECIAL_IDS},
        **settings,
        **{name: getattr(attention, name) for name in ATTENTION_SETTINGS},
    }


def _check(
    model: Transformer, folder: pathlib.Path, search: Search, texts: Sequence[str]
) -> None:
    """Compares the log-probabilities of the hypotheses of the search."""
    tokenizer = tokenizers_of(model).source
    rows = tokenizer.tokenize(list(texts), add_end=True).to_list()
    for batch in (rows, *_longer_rows(rows, model.max_source_length)):
        targets = best_hypotheses(model, batch, search, checked_length(model, batch))
        found = _score(folder, batch, targets)
        check_log_probabilities(
            "ONNX Runtime", model, batch, targets, found, SCORE_TOLERANCE
        )


def _longer_rows(rows: Rows, limit: int | None) -> list[Rows]:
    """Returns batches of one row whose lengths are no multiple of a block."""
    tokens = [token for row in rows for token in row]
    lengths = [n for n in CHECKED_LENGTHS if tokens and (limit is None or n < limit)]
    return [[list(itertools.islice(itertools.cycle(tokens), n))] for n in lengths]


class _Decoding:
    """Runs the graphs of a folder, first with `tokens`, int32 `(batch, length)`."""

    def __init__(self, folder: pathlib.Path, config: Config, rows: Rows):
        pad, batch = config["pad_token_id"], len(rows)
        self.state: Arrays = {}
        if (folder / "decoder.onnx").exists():
            self.graph = onnxruntime.InferenceSession(folder / "decoder.onnx")
            reversed_rows = pad_rows([row[::-1] for row in rows], pad)
            self.tokens = reversed_rows[:, ::-1].copy()  # padded at the start
            mask = pad_rows([[1] * len(row) for row in rows], 0)[:, ::-1]
            self.state["attention_mask"] = mask.astype(bool)
        else:
            self.graph = onnxruntime.InferenceSession(folder / "decoder_step.onnx")
            self.tokens = np.full((batch, 1), config["start_token_id"], "int32")
            self.state["encoder_token_ids"] = pad_rows(rows, pad)
            encoder = onnxruntime.InferenceSession(folder / "encoder.onnx")
            self.state |= run_graph(encoder, self.state)
        shapes = {argument.name: argument.shape for argument in self.graph.get_inputs()}
        for name, shape in shapes.items():
            if name.startswith("past_"):  # of length 0, the size that is not fixed
                sizes = [size if isinstance(size, int) else 0 for size in shape[1:]]
                self.state[name] = np.zeros((batch, *sizes), "float32")

    def step(self, tokens: np.ndarray) -> np.ndarray:
        """Returns the logits after the newest tokens `(batch, length)`."""
        outputs = run_graph(self.graph, {"token_ids": tokens, **self.state})
        logits = outputs.pop("logits")
        self.state |= {f"past_{name}": value for name, value in outputs.items()}
        if "attention_mask" in self.state:
            mask = self.state["attention_mask"]
            self.state["attention_mask"] = np.pad(
                mask, ((0, 0), (0, 1)), constant_values=True
            )
        return logits


def _score(folder: pathlib.Path, rows: Rows, targets: Rows) -> np.ndarray:
    """Returns the log-probabilities of targets: float32 `(batch,)`."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    pad = config["pad_token_id"]
    decoding = _Decoding(folder, config, rows)
    tokens, total = decoding.tokens, np.zeros(len(rows), "float32")
    for column in pad_rows(targets, pad).T:
        logits = decoding.step(tokens).astype("float64")
        scores = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        chosen = np.take_along_axis(scores, column[:, None], axis=1)[:, 0]
        total += np.where(column == pad, 0, chosen)
        tokens = column[:, None]
    return total


def pad_rows(rows: Rows, pad_token_id: int) -> np.ndarray:
    """Returns rows of token ids as an int32 array `(rows, length)`."""
    padded = np.full((len(rows), max(map(len, rows))), pad_token_id, "int32")
    for row, tokens in zip(padded, rows, strict=True):
        row[: len(tokens)] = tokens
    return padded


def run_graph(session: onnxruntime.InferenceSession, inputs: Arrays) -> Arrays:
    """Returns the outputs of a graph by name."""
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))
