"""Writes a Marian folder, which Hugging Face's transformers loads."""

import functools
import math
import os
import pathlib

from keras_transformer.backend.keras_internals import check_not_quantized
from keras_transformer.export.checking import check_weights
from keras_transformer.export.marian_format import (
    ACTIVATIONS,
    DEFAULT_SETTINGS,
    LAYER_NORM_EPSILON,
    WEIGHTS_FILE,
    mapped_weights,
)
from keras_transformer.export.model_support import (
    check_encoder_decoder,
    require_supported,
    tokenizers_of,
)
from keras_transformer.layers import PositionalEncoding
from keras_transformer.models import GenerativeModel, Seq2Seq
from keras_transformer.text import MarianTokenizer
from keras_transformer.training.lora import without_lora
from keras_transformer.types import Config
from keras_transformer_runtime.files import new_folder, write_json

# The length limit of a model without limits.
DEFAULT_MAX_LENGTH = 512


def export_marian(model: GenerativeModel, filepath: str | os.PathLike) -> None:
    """Writes a model as a Marian folder of Hugging Face.

    `transformers.MarianMTModel.from_pretrained` and `MarianTokenizer.from_pretrained`
    load the folder, and so does `load_marian`. All weights are float32. The search is
    not part of the folder: its `generation_config.json` sets 4 beams, a length penalty
    of 1, and outputs without padding.

    The folder is written atomically.

    Args:
        model: an encoder-decoder Transformer, such as a `Seq2Seq`, with
            `MarianTokenizer`s. It must have the architecture of Marian's models:
            post-norm, `PositionalEncoding(interleaved=False)`, biases in all layers,
            and no extensions of the original Transformer.
        filepath: folder to write. It must be new or empty.

    Raises:
        ValueError: if the model has other tokenizers, or a part that Marian does not
            support.
        FileExistsError: if `filepath` exists and is not an empty folder.

    Example:

    ```python
    model = load_marian("Helsinki-NLP/opus-mt-en-de")
    model.compile(keras.optimizers.Adam(1e-5), loss, jit_compile=True)
    model.fit(train.dataset, shuffle=False)
    export_marian(model, "my-en-de")
    ```
    """
    model = without_lora(model)
    transformer = check_encoder_decoder(model, "marian")
    check_not_quantized(model)
    tokenizers = _marian_tokenizers(model)
    config = marian_config(transformer)
    check_weights(model)
    with new_folder(filepath) as folder:
        folder.mkdir()
        _write_tokenizers(folder, config, tokenizers)
        _write_settings(folder, config)
        _write_weights(folder / WEIGHTS_FILE, transformer)


def _marian_tokenizers(model: GenerativeModel) -> dict[str, MarianTokenizer]:
    """Returns the tokenizers of `"source"` and `"target"`."""
    tokenizers = {}
    for side, tokenizer in tokenizers_of(model)._asdict().items():
        if not isinstance(tokenizer, MarianTokenizer):
            raise ValueError(
                f"`{side}_tokenizer` must be a `MarianTokenizer` for Marian; received "
                f"a `{type(tokenizer).__name__}`. Use `format='saved_model'`, which "
                "supports all tokenizers."
            )
        tokenizers[side] = tokenizer
    return tokenizers


def marian_config(model: Seq2Seq) -> Config:
    """Returns the settings of Marian's `config.json`.

    Raises `ValueError` if Marian does not support a part of the model.
    """
    _check_architecture(model)
    block = model.encoder.blocks[0]
    names = {function: name for name, function in reversed(ACTIVATIONS.items())}
    limits = (model.max_source_length, model.max_target_length)
    return {
        **DEFAULT_SETTINGS,
        "activation_dropout": block.feed_forward.dropout,
        "activation_function": names[model.activation],
        "attention_dropout": block.self_attention.dropout,
        "d_model": model.hidden_dim,
        "decoder_attention_heads": model.num_heads,
        "decoder_ffn_dim": model.intermediate_dim,
        "decoder_layers": model.num_decoder_layers,
        "decoder_start_token_id": model.start_token_id,
        "decoder_vocab_size": model.target_vocabulary_size,
        "dropout": model.dropout,
        "encoder_attention_heads": model.num_heads,
        "encoder_ffn_dim": model.intermediate_dim,
        "encoder_layers": model.num_layers,
        "eos_token_id": model.end_token_id,
        "max_position_embeddings": max(limit or DEFAULT_MAX_LENGTH for limit in limits),
        "model_type": "marian",
        "pad_token_id": model.pad_token_id,
        "scale_embedding": model.scale_embeddings,
        "share_encoder_decoder_embeddings": model.tie_embeddings == "all",
        "tie_word_embeddings": model.tie_embeddings != "none",
        "vocab_size": model.source_vocabulary_size,
    }


def _check_architecture(model: Seq2Seq) -> None:
    """Raises `ValueError` if Marian does not support the architecture of a model."""
    block = model.encoder.blocks[0]
    attention, feed_forward = block.self_attention, block.feed_forward
    residual = block.feed_forward_residual
    require = functools.partial(require_supported, "marian")
    positions = type(model.positions).__name__
    expected = "`PositionalEncoding(interleaved=False)`"
    require(_has_marian_positions(model), "positions", positions, expected)
    normalized = model.normalize_embeddings
    require(not normalized, "normalize_embeddings", normalized, "`False`")
    pre_norm = model.normalize_first or residual.normalize_first
    require(not pre_norm, "normalize_first", pre_norm, "`False`")
    kind, epsilon = residual.normalization, residual.layer_norm_epsilon
    require(kind == "layer", "normalization", kind, "'layer'")
    is_close = math.isclose(epsilon, LAYER_NORM_EPSILON)
    require(is_close, "layer_norm_epsilon", epsilon, f"{LAYER_NORM_EPSILON}")
    known = model.activation in ACTIVATIONS.values()
    name = getattr(model.activation, "__name__", model.activation)
    require(known, "activation", name, f"one of {', '.join(map(repr, ACTIVATIONS))}")
    require(not feed_forward.gated, "gated", feed_forward.gated, "`False`")
    for layer in (attention, feed_forward):
        require(layer.use_bias, "use_bias", layer.use_bias, "`True`")
    require(attention.pattern is None, "pattern", attention.pattern, "`None`")
    require(not attention.use_gate, "use_gate", attention.use_gate, "`False`")
    heads = attention.num_key_value_heads
    require(heads == model.num_heads, "num_key_value_heads", heads, "`num_heads`")
    width = model.hidden_dim // model.num_heads
    for name in ("key_dim", "value_dim"):
        size = getattr(attention, name)
        require(size == width, name, size, "`hidden_dim / num_heads`")


def _has_marian_positions(model: Seq2Seq) -> bool:
    """Returns whether all sines come before all cosines, at the usual wavelengths."""
    positions, expected = model.positions, PositionalEncoding(interleaved=False)
    return type(positions) is PositionalEncoding and (
        positions.interleaved == expected.interleaved
        and positions.max_wavelength == expected.max_wavelength
    )


def _write_tokenizers(
    folder: pathlib.Path, config: Config, tokenizers: dict[str, MarianTokenizer]
) -> None:
    vocabularies = {
        side: tokenizer.get_vocabulary() for side, tokenizer in tokenizers.items()
    }
    separate = vocabularies["source"] != vocabularies["target"]
    for side, tokenizer in tokenizers.items():
        (folder / f"{side}.spm").write_bytes(tokenizer.proto)
        if side == "source" or separate:
            name = "vocab.json" if side == "source" else "target_vocab.json"
            ids = {token: id for id, token in enumerate(vocabularies[side])}
            write_json(folder / name, ids)
    settings = {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": separate,
        "model_max_length": config["max_position_embeddings"],
    }
    write_json(folder / "tokenizer_config.json", settings)


def _write_settings(folder: pathlib.Path, config: Config) -> None:
    special = {
        name: config[name]
        for name in ("decoder_start_token_id", "eos_token_id", "pad_token_id")
    }
    search = {
        **special,
        "bad_words_ids": [[config["pad_token_id"]]],
        "forced_eos_token_id": config["eos_token_id"],
        "length_penalty": 1.0,
        "max_length": config["max_position_embeddings"],
        "num_beams": 4,
    }
    write_json(folder / "generation_config.json", search)
    architecture = {"architectures": ["MarianMTModel"], "dtype": "float32"}
    write_json(folder / "config.json", {**architecture, **config})


def _write_weights(file: pathlib.Path, model: Seq2Seq) -> None:
    from safetensors.numpy import save_file

    tensors = {weight.names[0]: weight.tensor() for weight in mapped_weights(model)}
    save_file(tensors, file, metadata={"format": "pt"})
