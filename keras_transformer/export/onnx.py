"""Writes a trained model for ONNX Runtime: an encoder and a step of the decoder."""

import json
import os
import pathlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import onnxruntime
from keras import ops

from keras_transformer.decoding import Search
from keras_transformer.export.checking import (
    SCORE_TOLERANCE,
    best_hypotheses,
    check_has_tokenizers,
    check_log_probabilities,
    longest_checked,
    sample_texts,
)
from keras_transformer.export.writing import in_tensorflow
from keras_transformer.files import new_folder
from keras_transformer.layers import KeyValues, padding_mask
from keras_transformer.models import Seq2Seq
from keras_transformer.text import SentencePieceTokenizer

OPSET = 18
OF_THE_MODEL = (
    "pad_token_id",
    "start_token_id",
    "end_token_id",
    "source_vocabulary_size",
    "target_vocabulary_size",
    "max_source_length",
    "max_target_length",
    "num_decoder_layers",
)
OF_ATTENTION = ("num_key_value_heads", "key_dim", "value_dim")


def export_onnx(
    model: Seq2Seq,
    filepath: str | os.PathLike,
    search: Search,
    *,
    check_texts: Sequence[str] | None = None,
) -> None:
    """Writes a folder with what ONNX Runtime needs to decode, with tokenizers.

    - `encoder.onnx`: `encoder_token_ids`, int32 `(batch, source_length)`; returns for
      each block of the decoder `source_keys_<i>`, float32
      `(batch, num_heads, key_dim, source_length)`, and `source_values_<i>`,
      `(batch, num_heads, source_length, value_dim)`.
    - `decoder_step.onnx`: `token_ids`, int32 `(batch, 1)`, the newest tokens, at first
      the start token; `encoder_token_ids` and what the encoder returned; and what the
      step before returned, `past_keys_<i>`, `(batch, num_heads, key_dim, length)`,
      and `past_values_<i>`, `(batch, num_heads, length, value_dim)`, at first of length
      0. It returns `logits`, float32 `(batch, vocabulary_size)`, and `keys_<i>` and
      `values_<i>`, one longer.
    - `config.json`: special tokens, vocabulary sizes, limits, numbers of blocks, heads
      and widths.
    - `source.model` and `target.model` for the package sentencepiece, where the
      tokenizers are `SentencePieceTokenizer`s; else `source.json` and `target.json`,
      which `Tokenizer.load` reads.

    Batch and lengths are free. The search is not part of the folder: it is the loop
    around the step. `num_heads` is that of keys and values.

    What was written is run before it takes its place, so that `filepath` holds a good
    folder or nothing: step by step, it must give the hypotheses that `search` finds the
    log-probabilities of `Seq2Seq.score`, to 1e-4 a token. Keras and tf2onnx write it
    with the TensorFlow backend, under JAX and PyTorch in a child process.

    Args:
        model: a `Seq2Seq` with tokenizers, in float32.
        filepath: folder to write; it must not exist or be empty.
        search: how to find the hypotheses that are scored in the check.
        check_texts: texts to check with; some made of the source vocabulary if
            `None`.

    Raises:
        ValueError: if the model is not a `Seq2Seq` in float32 with tokenizers, or has
            a part that cannot be written: an attention pattern, or fewer heads of keys
            and values than of queries.
        FileExistsError: if `filepath` exists and is not an empty folder.
        RuntimeError: if ONNX Runtime computes something else than the model.

    Example:

    ```python
    export_onnx(model, "en-de-onnx", GreedySearch())
    encoder = onnxruntime.InferenceSession("en-de-onnx/encoder.onnx")
    encoder.run(None, {"encoder_token_ids": np.array([[17, 25, 3]], "int32")})
    ```
    """
    _check_parts(model)
    check_has_tokenizers(model)
    texts = check_texts or sample_texts(model)
    with new_folder(filepath) as folder:
        in_tensorflow(_write, model, folder)
        _check(model, folder, search, texts)


def _check_parts(model: Any) -> None:
    """Makes sure that ONNX can express the parts of a model."""
    if not isinstance(model, Seq2Seq):
        raise ValueError(
            "`model` must be a `Seq2Seq` for `format='onnx'`, which has one encoder; "
            f"received {model}. Use `format='saved_model'`."
        )
    attention = model.decoder.blocks[0].self_attention
    wanted = {
        "dtype": (model.dtype_policy.name, "float32"),
        "num_key_value_heads": (attention.num_key_value_heads, model.num_heads),
        "pattern": (attention.pattern, None),
    }
    for name, (received, expected) in wanted.items():
        if received != expected:
            raise ValueError(
                f"`{name}` must be {expected!r} for ONNX; received "
                f"`{name}={received!r}`. Use `format='saved_model'`, which can hold "
                "any model."
            )


class _Encoder(keras.Model):
    """From sources to the keys and values that the decoder attends to."""

    def __init__(self, model: Seq2Seq):
        super().__init__(name="encoder")
        self.model = model

    def call(self, inputs: dict[str, Any]) -> dict[str, Any]:
        encoded = self.model.encode(inputs["encoder_token_ids"], training=False)
        caches = [
            block.cross_attention.compute_key_values(encoded)
            for block in self.model.decoder.blocks
        ]
        return _named(caches, "source_")


class _DecoderStep(keras.Model):
    """From the newest tokens to the logits of the next ones, for one beam."""

    def __init__(self, model: Seq2Seq):
        super().__init__(name="decoder_step")
        self.model = model

    def call(self, inputs: dict[str, Any]) -> dict[str, Any]:
        model, source = self.model, inputs["encoder_token_ids"]
        numbers = range(model.num_decoder_layers)
        caches = [
            (_cache(inputs, "past_", i), _cache(inputs, "source_", i)) for i in numbers
        ]
        past = ops.shape(inputs["past_keys_0"])[3]
        position = ops.reshape(past, (1,))
        x = model.embed_target(inputs["token_ids"], position, training=False)
        x, caches = model.decoder.step(
            x,
            caches,
            past,
            attention_mask=ops.ones((ops.shape(source)[0], 1, past + 1), "bool"),
            encoder_padding_mask=padding_mask(source, model.pad_token_id),
            positions=position,
            cache_positions=ops.arange(past + 1, dtype="int32"),
        )
        own = _named([cache for cache, _ in caches], "")
        return {"logits": model.compute_logits(x)[:, 0], **own}


class _GrowingKeyValues(KeyValues):
    """A cache as long as what is in it."""

    def updated(self, keys: Any, values: Any, index: Any) -> KeyValues:
        new = KeyValues.of(keys, values)
        return _GrowingKeyValues(
            ops.concatenate([self.keys, new.keys], axis=3),
            ops.concatenate([self.values, new.values], axis=2),
        )


def _named(caches: Sequence[KeyValues], prefix: str) -> dict[str, Any]:
    named = {}
    for number, cache in enumerate(caches):
        named[f"{prefix}keys_{number}"] = cache.keys
        named[f"{prefix}values_{number}"] = cache.values
    return named


def _cache(inputs: Mapping[str, Any], prefix: str, number: int) -> KeyValues:
    return _GrowingKeyValues(
        inputs[f"{prefix}keys_{number}"], inputs[f"{prefix}values_{number}"]
    )


def _write(model: Seq2Seq, folder: pathlib.Path) -> None:
    folder.mkdir()
    ids = {"encoder_token_ids": keras.InputSpec("int32", (None, None))}
    _write_graph(_Encoder(model), folder / "encoder.onnx", ids)
    newest = {"token_ids": keras.InputSpec("int32", (None, 1))}
    caches = {**_cache_specs(model, "source_"), **_cache_specs(model, "past_")}
    step = {**newest, **ids, **caches}
    _write_graph(_DecoderStep(model), folder / "decoder_step.onnx", step)
    for side in ("source", "target"):
        tokenizer = getattr(model, f"{side}_tokenizer")
        if isinstance(tokenizer, SentencePieceTokenizer):
            (folder / f"{side}.model").write_bytes(tokenizer.proto)
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
            opset_version=OPSET,
        )


def _cache_specs(model: Seq2Seq, prefix: str) -> dict[str, keras.InputSpec]:
    attention = model.decoder.blocks[0].cross_attention
    heads = attention.num_key_value_heads
    specs = [
        KeyValues(
            keras.InputSpec("float32", (None, heads, attention.key_dim, None)),
            keras.InputSpec("float32", (None, heads, None, attention.value_dim)),
        )
        for _ in range(model.num_decoder_layers)
    ]
    return _named(specs, prefix)


def _config(model: Seq2Seq) -> dict[str, Any]:
    attention = model.decoder.blocks[0].self_attention
    return {
        **{name: getattr(model, name) for name in OF_THE_MODEL},
        **{name: getattr(attention, name) for name in OF_ATTENTION},
    }


def _check(
    model: Seq2Seq, folder: pathlib.Path, search: Search, texts: Sequence[str]
) -> None:
    """Compares the log-probabilities of what the search finds, a token."""
    rows = model.source_tokenizer.tokenize(list(texts), add_end=True).to_list()
    targets = best_hypotheses(model, rows, search, longest_checked(model))
    found = _score(folder, _padded(rows, model), _padded(targets, model))
    check_log_probabilities(
        "ONNX Runtime", model, rows, targets, found, SCORE_TOLERANCE
    )


def _padded(rows: list[list[int]], model: Seq2Seq) -> np.ndarray:
    padded = np.full((len(rows), max(map(len, rows))), model.pad_token_id, "int32")
    for row, tokens in zip(padded, rows, strict=True):
        row[: len(tokens)] = tokens
    return padded


def _score(folder: pathlib.Path, sources: np.ndarray, targets: np.ndarray) -> Any:
    """The log-probabilities of targets: float32 `(batch,)`."""
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


def _run(session: Any, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))
