"""Writes the encoder and the decoder step of a model for ONNX Runtime."""

import json
import os
import pathlib
import warnings
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import keras
import numpy as np
import onnxruntime
from keras import ops

from keras_transformer.decoding import Search
from keras_transformer.export.checking import (
    SCORE_TOLERANCE,
    best_hypotheses,
    check_log_probabilities,
    check_weights,
    checked_length,
    sample_texts,
)
from keras_transformer.export.protocols import (
    EncoderDecoderTransformer,
    ExportableModel,
    check_encoder_decoder,
    tokenizers_of,
)
from keras_transformer.export.tensorflow_process import write_with_tensorflow
from keras_transformer.files import new_folder
from keras_transformer.layers import KeyValues, padding_mask
from keras_transformer.text import MarianTokenizer, SentencePieceTokenizer
from keras_transformer.types import Config, Size, Tensor

OPSET_VERSION = 18
MODEL_SETTINGS = (
    "pad_token_id",
    "start_token_id",
    "end_token_id",
    "source_vocabulary_size",
    "target_vocabulary_size",
    "max_source_length",
    "max_target_length",
    "num_decoder_layers",
)
ATTENTION_SETTINGS = ("num_key_value_heads", "key_dim", "value_dim")

# Tensors or arrays by the names of the inputs and outputs of a graph.
Tensors: TypeAlias = dict[str, Tensor]
Arrays: TypeAlias = dict[str, np.ndarray]


def export_onnx(
    model: ExportableModel,
    filepath: str | os.PathLike,
    search: Search,
    *,
    check_texts: Sequence[str] | None = None,
) -> None:
    """Writes the graphs that ONNX Runtime needs to decode, with tokenizers.

    The folder contains:

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

    The sizes of batches and sequences are dynamic. `num_heads` is the number of heads
    of keys and values. The search is not part of the folder: it is a loop around the
    decoder step.

    The graphs are run and checked before the folder is moved to `filepath`, so that
    `filepath` holds correct graphs or nothing: the log-probabilities of the hypotheses
    of `search` must equal those of `score` up to 1e-4 per token. Keras and tf2onnx
    write the graphs with the TensorFlow backend. On JAX and PyTorch this happens in a
    child process.

    Args:
        model: an encoder-decoder Transformer, such as a `Seq2Seq`, in float32, with
            tokenizers.
        filepath: folder to write. It must not exist or be empty.
        search: search that finds the hypotheses whose scores are checked.
        check_texts: texts for the check. `None` = texts created from the source
            vocabulary.

    Raises:
        ValueError: if the model is not an encoder-decoder Transformer in float32 with
            tokenizers, or has an attention pattern, or fewer heads of keys and values
            than of queries.
        FileExistsError: if `filepath` exists and is not an empty folder.
        RuntimeError: if ONNX Runtime does not compute the outputs of the model.

    Example:

    ```python
    export_onnx(model, "en-de-onnx", GreedySearch())
    encoder = onnxruntime.InferenceSession("en-de-onnx/encoder.onnx")
    encoder.run(None, {"encoder_token_ids": np.array([[17, 25, 3]], "int32")})
    ```
    """
    transformer = check_encoder_decoder(model, "onnx")
    _check_architecture(transformer)
    tokenizers_of(model)
    check_weights(model)
    texts = check_texts or sample_texts(model)
    with new_folder(filepath) as folder:
        write_with_tensorflow(_write, model, folder)
        _check(transformer, folder, search, texts)


def _check_architecture(model: EncoderDecoderTransformer) -> None:
    """Raises `ValueError` if the graphs do not support a part of the model."""
    attention = model.decoder.blocks[0].self_attention
    settings = {
        "dtype": (model.dtype_policy.name, "float32"),
        "num_key_value_heads": (attention.num_key_value_heads, model.num_heads),
        "pattern": (attention.pattern, None),
    }
    for name, (received, expected) in settings.items():
        if received != expected:
            raise ValueError(
                f"`{name}` must be {expected!r} for ONNX; received "
                f"`{name}={received!r}`. Use `format='saved_model'`, which supports "
                "any model with tokenizers."
            )


class _Encoder(keras.Model):
    """Computes the keys and values of the sources for all blocks of the decoder."""

    def __init__(self, model: EncoderDecoderTransformer):
        super().__init__(name="encoder")
        self.model = model

    def call(self, inputs: Tensors) -> Tensors:
        encoded = self.model.encode(inputs["encoder_token_ids"], training=False)
        caches = [
            block.cross_attention.compute_key_values(encoded)
            for block in self.model.decoder.blocks
        ]
        return _by_name(caches, "source_")


class _DecoderStep(keras.Model):
    """Computes the logits of the next tokens of one beam."""

    def __init__(self, model: EncoderDecoderTransformer):
        super().__init__(name="decoder_step")
        self.model = model

    def call(self, inputs: Tensors) -> Tensors:
        model, source = self.model, inputs["encoder_token_ids"]
        caches = [
            (_cache(inputs, "past_", i), _cache(inputs, "source_", i))
            for i in range(model.num_decoder_layers)
        ]
        past = ops.shape(inputs["past_keys_0"])[3]
        position = ops.reshape(past, (1,))
        x, caches = model.decoder.step(
            model.embed_target(inputs["token_ids"], position, training=False),
            caches,
            past,
            attention_mask=ops.ones((ops.shape(source)[0], 1, past + 1), "bool"),
            encoder_padding_mask=padding_mask(source, model.pad_token_id),
            positions=position,
            cache_positions=ops.arange(past + 1, dtype="int32"),
        )
        own = _by_name([cache for cache, _ in caches], "")
        return {"logits": model.compute_logits(x)[:, 0], **own}


class _GrowingKeyValues(KeyValues):
    """A cache without free entries, whose length grows at each step."""

    def updated(self, keys: Tensor, values: Tensor, index: Size) -> KeyValues:
        new = KeyValues.of(keys, values)
        return _GrowingKeyValues(
            ops.concatenate([self.keys, new.keys], axis=3),
            ops.concatenate([self.values, new.values], axis=2),
        )


def _by_name(caches: Sequence[KeyValues], prefix: str) -> Tensors:
    named = {}
    for number, cache in enumerate(caches):
        named[f"{prefix}keys_{number}"] = cache.keys
        named[f"{prefix}values_{number}"] = cache.values
    return named


def _cache(inputs: Mapping[str, Tensor], prefix: str, number: int) -> KeyValues:
    return _GrowingKeyValues(
        inputs[f"{prefix}keys_{number}"], inputs[f"{prefix}values_{number}"]
    )


def _write(model: EncoderDecoderTransformer, folder: pathlib.Path) -> None:
    folder.mkdir()
    ids = {"encoder_token_ids": keras.InputSpec("int32", (None, None))}
    _write_graph(_Encoder(model), folder / "encoder.onnx", ids)
    newest = {"token_ids": keras.InputSpec("int32", (None, 1))}
    caches = {**_cache_specs(model, "source_"), **_cache_specs(model, "past_")}
    step = {**newest, **ids, **caches}
    _write_graph(_DecoderStep(model), folder / "decoder_step.onnx", step)
    for side, tokenizer in tokenizers_of(model)._asdict().items():
        if isinstance(tokenizer, SentencePieceTokenizer | MarianTokenizer):
            (folder / f"{side}.model").write_bytes(tokenizer.proto)
            if isinstance(tokenizer, MarianTokenizer):
                names = json.dumps(tokenizer.get_vocabulary(), ensure_ascii=False)
                (folder / f"{side}_vocabulary.json").write_text(names, "utf-8")
        else:
            tokenizer.save(folder / f"{side}.json")
    config = json.dumps(_config(model), indent=1)
    (folder / "config.json").write_text(config + "\n", "utf-8")


def _write_graph(
    part: keras.Model, file: pathlib.Path, inputs: dict[str, keras.InputSpec]
) -> None:
    signature = {
        name: keras.InputSpec(spec.dtype, spec.shape, name=name)
        for name, spec in inputs.items()
    }
    part.built = True
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "In the future `np.object`", FutureWarning)
        part.export(
            str(file),
            format="onnx",
            verbose=False,
            input_signature=[signature],
            opset_version=OPSET_VERSION,
        )


def _cache_specs(
    model: EncoderDecoderTransformer, prefix: str
) -> dict[str, keras.InputSpec]:
    attention = model.decoder.blocks[0].cross_attention
    heads = attention.num_key_value_heads
    keys = keras.InputSpec("float32", (None, heads, attention.key_dim, None))
    values = keras.InputSpec("float32", (None, heads, None, attention.value_dim))
    return _by_name([KeyValues(keys, values)] * model.num_decoder_layers, prefix)


def _config(model: EncoderDecoderTransformer) -> Config:
    attention = model.decoder.blocks[0].self_attention
    return {
        **{name: getattr(model, name) for name in MODEL_SETTINGS},
        **{name: getattr(attention, name) for name in ATTENTION_SETTINGS},
    }


def _check(
    model: EncoderDecoderTransformer,
    folder: pathlib.Path,
    search: Search,
    texts: Sequence[str],
) -> None:
    """Compares the log-probabilities of the hypotheses of the search."""
    tokenizer = tokenizers_of(model).source
    rows = tokenizer.tokenize(list(texts), add_end=True).to_list()
    targets = best_hypotheses(model, rows, search, checked_length(model, rows))
    pad = model.pad_token_id
    found = _score(folder, _pad_rows(rows, pad), _pad_rows(targets, pad))
    check_log_probabilities(
        "ONNX Runtime", model, rows, targets, found, SCORE_TOLERANCE
    )


def _pad_rows(rows: list[list[int]], pad_token_id: int) -> np.ndarray:
    padded = np.full((len(rows), max(map(len, rows))), pad_token_id, "int32")
    for row, tokens in zip(padded, rows, strict=True):
        row[: len(tokens)] = tokens
    return padded


def _score(
    folder: pathlib.Path, sources: np.ndarray, targets: np.ndarray
) -> np.ndarray:
    """Returns the log-probabilities of targets: float32 `(batch,)`."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    encoder, step = (
        onnxruntime.InferenceSession(folder / f"{name}.onnx")
        for name in ("encoder", "decoder_step")
    )
    state = {"encoder_token_ids": sources}
    state |= _run(encoder, state)
    batch, heads = len(sources), config["num_key_value_heads"]
    for i in range(config["num_decoder_layers"]):
        keys = (batch, heads, config["key_dim"], 0)
        values = (batch, heads, 0, config["value_dim"])
        state[f"past_keys_{i}"] = np.zeros(keys, "float32")
        state[f"past_values_{i}"] = np.zeros(values, "float32")
    tokens = np.full((batch, 1), config["start_token_id"], "int32")
    total = np.zeros(batch, "float32")
    for column in targets.T:
        outputs = _run(step, {"token_ids": tokens, **state})
        logits = outputs.pop("logits").astype("float64")
        state |= {f"past_{name}": value for name, value in outputs.items()}
        scores = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        chosen = np.take_along_axis(scores, column[:, None], axis=1)[:, 0]
        total += np.where(column == config["pad_token_id"], 0, chosen)
        tokens = column[:, None]
    return total


def _run(session: onnxruntime.InferenceSession, inputs: Arrays) -> Arrays:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))
