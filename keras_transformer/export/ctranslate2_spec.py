"""A model's architecture and weights as CTranslate2's `TransformerSpec`."""

from typing import Any

import keras
import numpy as np
from ctranslate2.specs import transformer_spec
from ctranslate2.specs.common_spec import LayerNormSpec, LinearSpec
from keras import ops

from keras_transformer.export.ctranslate2_activations import ACTIVATIONS
from keras_transformer.export.vocabulary import vocabulary
from keras_transformer.layers import RelativePositionBias, RotaryEmbedding
from keras_transformer.models import Seq2Seq

# Its encoders have no ALiBi.
IN_ATTENTION = (RelativePositionBias, RotaryEmbedding)
DEFAULT_POSITIONS = 2048


def make_spec(model: Seq2Seq) -> transformer_spec.TransformerSpec:
    """Describes a model to CTranslate2.

    Args:
        model: a `Seq2Seq` with tokenizers.

    Returns:
        A `TransformerSpec` with configuration, vocabularies and weights in
        float32.

    Raises:
        ValueError: if CTranslate2 does not support a part of the model.
    """
    check_architecture(model)
    architecture = _architecture(model)
    spec = transformer_spec.TransformerSpec(
        transformer_spec.TransformerEncoderSpec(model.num_layers, **architecture),
        transformer_spec.TransformerDecoderSpec(
            model.num_decoder_layers, **architecture
        ),
    )
    spec.config.layer_norm_epsilon = _residuals(model)[0].layer_norm_epsilon
    spec.config.add_source_eos = True
    targets = vocabulary(model, "target")
    spec.config.decoder_start_token = targets[model.start_token_id]
    spec.register_source_vocabulary(vocabulary(model, "source"))
    spec.register_target_vocabulary(targets)
    _set_encoder(spec.encoder, model)
    _set_decoder(spec.decoder, model)
    return spec


def check_architecture(model: Seq2Seq) -> None:
    """Makes sure that CTranslate2 can compute what the model computes.

    Args:
        model: a `Seq2Seq`.

    Raises:
        ValueError: if it cannot.
    """
    block = model.encoder.blocks[0]
    attention, residuals = block.self_attention, _residuals(model)
    positions = model.positions
    known = positions.added_to_inputs or isinstance(positions, IN_ATTENTION)
    scheme, names = (
        type(positions).__name__,
        "`RotaryEmbedding`, `RelativePositionBias`",
    )
    _require(known, "positions", scheme, f"an encoding, {names}")
    _require(attention.pattern is None, "pattern", attention.pattern, "`None`")
    _require(not attention.use_gate, "use_gate", attention.use_gate, "`False`")
    same_width = attention.value_dim == attention.key_dim
    _require(same_width, "value_dim", attention.value_dim, "`key_dim`")
    activation = block.feed_forward.activation
    names = ", ".join(repr(function.__name__) for function in ACTIVATIONS)
    name = getattr(activation, "__name__", activation)
    _require(activation in ACTIVATIONS, "activation", name, f"one of {names}")
    normalization = residuals[0].normalization
    normalized = normalization is not None
    _require(normalized, "normalization", normalization, "'layer' or 'rms'")
    for name in ("normalize_first", "layer_norm_epsilon"):
        values = {getattr(residual, name) for residual in residuals}
        one = values == {getattr(model, name)}
        _require(one, name, values, "the same in the model and `residual_options`")
    dtype = model.dtype_policy.name
    _require(dtype == "float32", "dtype", dtype, "'float32'")


def _require(supported: bool, name: str, received: Any, wanted: str) -> None:
    if not supported:
        raise ValueError(
            f"`{name}` must be {wanted} for CTranslate2; received "
            f"`{name}={received!r}`. Export a SavedModel, which can hold any model, or "
            "build and train one that CTranslate2 can compute."
        )


def _residuals(model: Seq2Seq) -> list[Any]:
    blocks = [*model.encoder.blocks, *model.decoder.blocks]
    return [block.feed_forward_residual for block in blocks]


def _architecture(model: Seq2Seq) -> dict[str, Any]:
    """The arguments that the specifications of encoder and decoder share."""
    block = model.encoder.blocks[0]
    attention = block.self_attention
    architecture = {
        "num_heads": attention.num_heads,
        "num_heads_kv": attention.num_key_value_heads,
        "head_dim": attention.key_dim,
        "pre_norm": model.normalize_first,
        "rms_norm": block.feed_forward_residual.normalization == "rms",
        "activation": ACTIVATIONS[block.feed_forward.activation],
        "ffn_glu": block.feed_forward.gated,
    }
    if isinstance(model.positions, RotaryEmbedding):
        architecture["rotary_dim"] = attention.key_dim
        architecture["rotary_interleave"] = False
        architecture["rotary_base"] = model.positions.max_wavelength
    if isinstance(model.positions, RelativePositionBias):
        architecture["relative_attention_bias"] = True
    return architecture


def _set_encoder(spec: transformer_spec.TransformerEncoderSpec, model: Seq2Seq) -> None:
    spec.embeddings[0].weight = _array(model.source_embedding.embeddings)
    spec.scale_embeddings = model.scale_embeddings
    if model.source_encoding is not None:
        longest = model.max_source_length or DEFAULT_POSITIONS
        table = _position_table(model, model.source_encoding, longest)
        spec.position_encodings.encodings = table
    _set_layers(spec, model.encoder)


def _set_decoder(spec: transformer_spec.TransformerDecoderSpec, model: Seq2Seq) -> None:
    spec.embeddings.weight = _array(model.target_embedding.embeddings)
    spec.scale_embeddings = model.scale_embeddings
    if model.target_encoding is not None:
        longest = model.positions.max_length or max(
            DEFAULT_POSITIONS, model.max_target_length or 0
        )
        table = _position_table(model, model.target_encoding, longest)
        spec.position_encodings.encodings = table
    _set_layers(spec, model.decoder)
    if model.output_dense is None:
        spec.projection.weight = _array(model.target_embedding.embeddings)
        if model.output_bias:
            spec.projection.bias = _array(model.tied_output_bias)
    else:
        _set_linear(spec.projection, model.hidden_dim, model.output_dense)


def _position_table(model: Seq2Seq, encoding: Any, length: int) -> np.ndarray:
    """The vectors that an encoding adds: float32 `(length, hidden_dim)`."""
    return _array(encoding(ops.zeros((1, length, model.hidden_dim), "float32"))[0])


def _set_layers(spec: Any, stack: Any) -> None:
    for layer, block in zip(spec.layer, stack.blocks, strict=True):
        _set_self_attention(layer.self_attention, block.self_attention)
        if isinstance(stack.positions, RelativePositionBias):
            causal = hasattr(layer, "attention")
            _set_relative_bias(layer.self_attention, block.self_attention, causal)
        _set_norm(layer.self_attention.layer_norm, block.self_attention_residual.norm)
        if hasattr(layer, "attention"):
            _set_cross_attention(layer.attention, block.cross_attention)
            _set_norm(layer.attention.layer_norm, block.cross_attention_residual.norm)
        _set_feed_forward(layer.ffn, block.feed_forward)
        _set_norm(layer.ffn.layer_norm, block.feed_forward_residual.norm)
    if stack.norm is not None:
        _set_norm(spec.layer_norm, stack.norm)


def _set_self_attention(spec: Any, attention: Any) -> None:
    projections = (attention.query_dense, attention.key_dense, attention.value_dense)
    width = attention.query_dense.kernel.shape[0]
    _set_linear(spec.linear[0], width, *projections)
    _set_attention_output(spec.linear[1], attention)


def _set_relative_bias(spec: Any, attention: Any, causal: bool) -> None:
    """A causal one has no buckets of later keys, which ours has but never uses."""
    scheme = attention.positions
    buckets = scheme.num_buckets // 2 if causal else scheme.num_buckets
    spec.relative_attention_bias = _array(scheme.embeddings)[:buckets]
    spec.relative_attention_max_distance = np.dtype("int32").type(scheme.max_distance)


def _set_cross_attention(spec: Any, attention: Any) -> None:
    width = attention.query_dense.kernel.shape[0]
    _set_linear(spec.linear[0], width, attention.query_dense)
    _set_linear(spec.linear[1], width, attention.key_dense, attention.value_dense)
    _set_attention_output(spec.linear[2], attention)


def _set_attention_output(spec: LinearSpec, attention: Any) -> None:
    width = attention.num_heads * attention.value_dim
    _set_linear(spec, width, attention.output_dense)


def _set_feed_forward(spec: Any, feed_forward: Any) -> None:
    width, intermediate_dim = feed_forward.intermediate_dense.kernel.shape
    activated = feed_forward.intermediate_dense
    if feed_forward.gated:
        activated = feed_forward.gate_dense
        linear = feed_forward.intermediate_dense
        _set_linear(spec.linear_0_noact, width, linear)
    _set_linear(spec.linear_0, width, activated)
    _set_linear(spec.linear_1, intermediate_dim, feed_forward.output_dense)


def _set_linear(spec: LinearSpec, width: int, *layers: Any) -> None:
    """Makes one matrix `(outputs, width)` of the kernels of layers with one input."""
    kernels = [_array(layer.kernel).reshape(width, -1) for layer in layers]
    spec.weight = np.concatenate(kernels, axis=1).T
    if layers[0].bias is not None:
        biases = [_array(layer.bias).reshape(-1) for layer in layers]
        spec.bias = np.concatenate(biases)


def _set_norm(spec: LayerNormSpec, norm: Any) -> None:
    if isinstance(norm, keras.layers.RMSNormalization):
        spec.gamma = _array(norm.scale)
    else:
        spec.gamma, spec.beta = _array(norm.gamma), _array(norm.beta)


def _array(weight: Any) -> np.ndarray:
    return np.array(ops.convert_to_numpy(weight), "float32")
