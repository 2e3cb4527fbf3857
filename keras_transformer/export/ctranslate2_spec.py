"""Describes the architecture and the weights of a model as a `ModelSpec`."""

import functools
from collections.abc import Callable
from typing import TypeAlias

import keras
import numpy as np
from ctranslate2.specs import transformer_spec
from ctranslate2.specs.attention_spec import MultiHeadAttentionSpec, RotaryScalingType
from ctranslate2.specs.common_spec import Activation, LayerNormSpec, LinearSpec
from keras import ops

from keras_transformer.export.model_support import (
    Transformer,
    embedding_vocabulary,
    require_no_pattern,
    require_supported,
    tokenizers_of,
)
from keras_transformer.layers import (
    AlibiBias,
    DecoderBlock,
    DecoderStack,
    EncoderStack,
    FeedForward,
    MultiHeadAttention,
    PositionScheme,
    RelativePositionBias,
    Residual,
    RotaryEmbedding,
)
from keras_transformer.layers.activations import gelu_new
from keras_transformer.layers.positions.scheme import position_pair
from keras_transformer.models import CausalLM, Seq2Seq
from keras_transformer.types import Tensor

Spec: TypeAlias = (
    transformer_spec.TransformerSpec | transformer_spec.TransformerDecoderModelSpec
)

ACTIVATIONS: dict[Callable[[Tensor], Tensor], int] = {
    keras.activations.relu: Activation.RELU,
    keras.activations.gelu: Activation.GELU,
    gelu_new: Activation.GELUTanh,
    keras.activations.silu: Activation.SWISH,
    keras.activations.tanh: Activation.Tanh,
    keras.activations.sigmoid: Activation.Sigmoid,
}
SCHEMES_IN_ATTENTION = (RotaryEmbedding, RelativePositionBias)
# Encoders of CTranslate2 do not support ALiBi, whose slopes it computes.
DECODER_SCHEMES_IN_ATTENTION = (*SCHEMES_IN_ATTENTION, AlibiBias)
ALIBI_MAX_BIAS = 8
DEFAULT_TABLE_LENGTH = 2048

_require = functools.partial(require_supported, "ctranslate2")


def make_spec(model: Transformer) -> Spec:
    """Describes a model with tokenizers to CTranslate2, with float32 weights.

    Raises `ValueError` if CTranslate2 does not support a part of the model.
    """
    _check_architecture(model)
    if isinstance(model, Seq2Seq):
        spec = _encoder_decoder_spec(model)
    else:
        spec = _decoder_only_spec(model)
    tokens = _target_tokens(model)
    spec.config.layer_norm_epsilon = _residuals(model)[0].layer_norm_epsilon
    spec.config.unk_token = tokens[tokenizers_of(model).target.unknown_token_id]
    spec.config.eos_token = tokens[model.end_token_id]
    if model.start_token_id != model.pad_token_id:
        spec.config.bos_token = tokens[model.start_token_id]
    return spec


def _encoder_decoder_spec(
    model: Seq2Seq,
) -> transformer_spec.TransformerSpec:
    source, target = map(
        functools.partial(_architecture_options, model), position_pair(model.positions)
    )
    spec = transformer_spec.TransformerSpec(
        transformer_spec.TransformerEncoderSpec(model.num_layers, **source),
        transformer_spec.TransformerDecoderSpec(
            model.num_decoder_layers,
            **target,
            alignment_layer=max(model.num_decoder_layers - 2, 0),  # as in `align`
            alignment_heads=0,  # the mean of all
        ),
    )
    targets = _target_tokens(model)
    spec.config.add_source_eos = True
    spec.config.decoder_start_token = targets[model.start_token_id]
    tokenizer = tokenizers_of(model).source
    sources = embedding_vocabulary(tokenizer, model.source_vocabulary_size)
    spec.register_source_vocabulary(sources)
    spec.register_target_vocabulary(targets)
    _set_encoder(spec.encoder, model)
    _set_decoder(spec.decoder, model, model.target_encoding, model.target_norm)
    return spec


def _decoder_only_spec(
    model: CausalLM,
) -> transformer_spec.TransformerDecoderModelSpec:
    options = _architecture_options(model, model.positions)
    decoder = transformer_spec.TransformerDecoderSpec(
        model.num_layers, with_encoder_attention=False, **options
    )
    spec = transformer_spec.TransformerDecoderModelSpec(decoder)
    spec.register_vocabulary(_target_tokens(model))
    _set_decoder(spec.decoder, model, model.target_encoding, model.target_norm)
    return spec


def _target_tokens(model: Transformer) -> list[str]:
    tokenizer = tokenizers_of(model).target
    return embedding_vocabulary(tokenizer, model.target_vocabulary_size)


def _check_architecture(model: Transformer) -> None:
    """Raises `ValueError` if CTranslate2 does not support the architecture."""
    block = model.decoder.blocks[0]
    attention, residuals = block.self_attention, _residuals(model)
    _check_positions(model)
    require_no_pattern("ctranslate2", model)
    _check_query_key_normalization(model, attention)
    _require(not attention.use_gate, "use_gate", attention.use_gate, "`False`")
    same_width = attention.value_dim == attention.key_dim
    _require(same_width, "value_dim", attention.value_dim, "`key_dim`")
    activation = block.feed_forward.activation
    names = ", ".join(
        repr(getattr(function, "__name__", "")) for function in ACTIVATIONS
    )
    name = getattr(activation, "__name__", activation)
    _require(activation in ACTIVATIONS, "activation", name, f"one of {names}")
    normalization = residuals[0].normalization
    is_normalized = normalization is not None
    _require(is_normalized, "normalization", normalization, "'layer' or 'rms'")
    for name in ("normalize_first", "layer_norm_epsilon"):
        values = {getattr(residual, name) for residual in residuals}
        is_same = values == {getattr(model, name)}
        expected = "the same in the model and `residual_options`"
        _require(is_same, name, values, expected)
    dtype = model.dtype_policy.name
    _require(dtype == "float32", "dtype", dtype, "'float32'")


def _check_query_key_normalization(
    model: Transformer, attention: MultiHeadAttention
) -> None:
    kind, epsilon = attention.query_key_normalization, attention.layer_norm_epsilon
    if kind is None:
        return
    expected = "`None` in a model with cross-attention"
    is_supported = isinstance(model, CausalLM)
    _require(is_supported, "query_key_normalization", kind, expected)
    is_same = epsilon == model.layer_norm_epsilon
    expected = "the same in the model and `attention_options`"
    _require(is_same, "layer_norm_epsilon", epsilon, expected)


def _check_positions(model: Transformer) -> None:
    schemes: tuple[type[PositionScheme], ...] = DECODER_SCHEMES_IN_ATTENTION
    if isinstance(model, Seq2Seq):
        schemes = SCHEMES_IN_ATTENTION
        source, _ = position_pair(model.positions)
        if isinstance(source, RelativePositionBias):
            both = source.bidirectional
            _require(both, "bidirectional", both, "`True` in the encoder")
    for scheme in position_pair(model.positions):
        is_encoding = scheme is not None and scheme.added_to_inputs
        supported = is_encoding or isinstance(scheme, schemes)
        names = ", ".join(f"`{known.__name__}`" for known in schemes)
        name = type(scheme).__name__
        _require(supported, "positions", name, f"an encoding, {names}")
        if isinstance(scheme, RotaryEmbedding) and scheme.scaling is not None:
            # CTranslate2 4.8 does not apply the factor of the type "llama3".
            kind = scheme.scaling["type"]
            _require(kind == "linear", "scaling", kind, "`None` or of type 'linear'")
        if isinstance(scheme, AlibiBias):
            is_same = scheme.max_bias == ALIBI_MAX_BIAS
            _require(is_same, "max_bias", scheme.max_bias, str(ALIBI_MAX_BIAS))


def _residuals(model: Transformer) -> list[Residual]:
    blocks = [*model.decoder.blocks]
    if isinstance(model, Seq2Seq):
        blocks += model.encoder.blocks
    return [block.feed_forward_residual for block in blocks]


def _architecture_options(
    model: Transformer, positions: PositionScheme | None
) -> dict[str, object]:
    """Returns the arguments of the specification of an encoder or a decoder."""
    block = model.decoder.blocks[0]
    attention = block.self_attention
    options: dict[str, object] = {
        "num_heads": attention.num_heads,
        "num_heads_kv": attention.num_key_value_heads,
        "head_dim": attention.key_dim,
        "pre_norm": model.normalize_first,
        "rms_norm": block.feed_forward_residual.normalization == "rms",
        "activation": ACTIVATIONS[block.feed_forward.activation],
        "ffn_glu": block.feed_forward.gated,
        "qk_norm": attention.query_norm is not None,
        "layernorm_embedding": model.normalize_embeddings,
    }
    if isinstance(positions, RotaryEmbedding):
        options["rotary_dim"] = positions.rotary_dim or attention.key_dim
        options["rotary_interleave"] = False
        options["rotary_base"] = positions.max_wavelength
        if positions.scaling is not None:
            options["rotary_scaling_type"] = RotaryScalingType.Linear
            options["rotary_scaling_factor"] = positions.scaling["factor"]
    if isinstance(positions, AlibiBias):
        options["alibi"] = True
    if isinstance(positions, RelativePositionBias):
        options["relative_attention_bias"] = True
    return options


def length_limits(model: Transformer) -> tuple[int | None, int | None]:
    """Returns the maximum lengths of sources and targets, as the tables limit them."""
    source, target = model.max_source_length, model.max_target_length
    if model.target_encoding is not None:
        target = target or _target_table_length(model.target_encoding, model)
    if isinstance(model, CausalLM):
        return target, target
    if model.source_encoding is not None:
        source = source or DEFAULT_TABLE_LENGTH
    return source, target


def _target_table_length(encoding: PositionScheme, model: Transformer) -> int:
    return encoding.max_length or max(
        DEFAULT_TABLE_LENGTH, model.max_target_length or 0
    )


def _set_encoder(spec: transformer_spec.TransformerEncoderSpec, model: Seq2Seq) -> None:
    spec.embeddings[0].weight = _array(model.source_embedding.embeddings)
    spec.scale_embeddings = model.scale_embeddings
    if model.source_encoding is not None:
        length = model.max_source_length or DEFAULT_TABLE_LENGTH
        table = _position_table(model.source_encoding, length, model.hidden_dim)
        spec.position_encodings.encodings = table
    if model.source_norm is not None:
        _set_norm(spec.layernorm_embedding, model.source_norm)
    _set_layers(spec, model.encoder)


def _set_decoder(
    spec: transformer_spec.TransformerDecoderSpec,
    model: Transformer,
    encoding: PositionScheme | None,
    norm: keras.layers.Layer | None,
) -> None:
    spec.embeddings.weight = _array(model.target_embedding.embeddings)
    spec.scale_embeddings = model.scale_embeddings
    if encoding is not None:
        length = _target_table_length(encoding, model)
        table = _position_table(encoding, length, model.hidden_dim)
        spec.position_encodings.encodings = table
    if norm is not None:
        _set_norm(spec.layernorm_embedding, norm)
    _set_layers(spec, model.decoder)
    if model.output_dense is not None:
        _set_linear(spec.projection, model.hidden_dim, model.output_dense)
    else:
        spec.projection.weight = _array(model.target_embedding.embeddings)
    if model.logits_bias is not None:
        spec.projection.bias = _array(model.logits_bias)


def _position_table(
    encoding: PositionScheme, length: int, hidden_dim: int
) -> np.ndarray:
    """Returns the vectors that an encoding adds: float32 `(length, hidden_dim)`."""
    return _array(encoding(ops.zeros((1, length, hidden_dim), "float32"))[0])


def _set_layers(
    spec: transformer_spec.TransformerEncoderSpec
    | transformer_spec.TransformerDecoderSpec,
    stack: EncoderStack | DecoderStack,
) -> None:
    for layer, block in zip(spec.layer, stack.blocks, strict=True):
        _set_self_attention(layer.self_attention, block.self_attention)
        positions = block.self_attention.positions
        if isinstance(positions, RelativePositionBias):
            is_causal = isinstance(block, DecoderBlock)
            _set_relative_bias(layer.self_attention, positions, is_causal)
        _set_norm(layer.self_attention.layer_norm, block.self_attention_residual.norm)
        if isinstance(block, DecoderBlock) and block.cross_attention is not None:
            _set_cross_attention(layer.attention, block.cross_attention)
            _set_norm(layer.attention.layer_norm, block.cross_attention_residual.norm)
        _set_feed_forward(layer.ffn, block.feed_forward)
        _set_norm(layer.ffn.layer_norm, block.feed_forward_residual.norm)
    if stack.norm is not None:  # post-norm specifications have no `layer_norm`
        _set_norm(spec.layer_norm, stack.norm)


def _set_self_attention(
    spec: MultiHeadAttentionSpec, attention: MultiHeadAttention
) -> None:
    projections = (attention.query_dense, attention.key_dense, attention.value_dense)
    width = attention.query_dense.kernel.shape[0]
    _set_linear(spec.linear[0], width, *projections)
    _set_attention_output(spec.linear[1], attention)
    _set_query_key_norms(spec, attention)


def _set_relative_bias(
    spec: MultiHeadAttentionSpec, positions: RelativePositionBias, is_causal: bool
) -> None:
    """Sets the table of a relative position bias.

    Causal attention of CTranslate2 stores no buckets of later keys. Those of a
    bidirectional `RelativePositionBias` are unused.
    """
    buckets = positions.num_buckets
    if is_causal and positions.bidirectional:
        buckets //= 2
    spec.relative_attention_bias = _array(positions.embeddings)[:buckets]
    max_distance = np.dtype("int32").type(positions.max_distance)
    spec.relative_attention_max_distance = max_distance


def _set_cross_attention(
    spec: MultiHeadAttentionSpec, attention: MultiHeadAttention
) -> None:
    width = attention.query_dense.kernel.shape[0]
    _set_linear(spec.linear[0], width, attention.query_dense)
    _set_linear(spec.linear[1], width, attention.key_dense, attention.value_dense)
    _set_attention_output(spec.linear[2], attention)


def _set_attention_output(spec: LinearSpec, attention: MultiHeadAttention) -> None:
    width = attention.num_heads * attention.value_dim
    _set_linear(spec, width, attention.output_dense)


def _set_query_key_norms(
    spec: MultiHeadAttentionSpec, attention: MultiHeadAttention
) -> None:
    if attention.query_key_normalization == "layer":
        spec.q_norm, spec.k_norm = LayerNormSpec(), LayerNormSpec()
    for name, norm in (
        ("q_norm", attention.query_norm),
        ("k_norm", attention.key_norm),
    ):
        if norm is not None:
            _set_norm(getattr(spec, name), norm)


def _set_feed_forward(
    spec: transformer_spec.FeedForwardSpec, feed_forward: FeedForward
) -> None:
    width, intermediate_dim = feed_forward.intermediate_dense.kernel.shape
    if feed_forward.gate_dense is None:
        _set_linear(spec.linear_0, width, feed_forward.intermediate_dense)
    else:
        _set_linear(spec.linear_0, width, feed_forward.gate_dense)
        _set_linear(spec.linear_0_noact, width, feed_forward.intermediate_dense)
    _set_linear(spec.linear_1, intermediate_dim, feed_forward.output_dense)


def _set_linear(spec: LinearSpec, width: int, *layers: keras.layers.Layer) -> None:
    """Joins the kernels of layers of one input to a matrix `(outputs, width)`."""
    kernels = [_array(layer.kernel).reshape(width, -1) for layer in layers]
    spec.weight = np.concatenate(kernels, axis=1).T
    if any(layer.bias is not None for layer in layers):
        biases = [
            np.zeros(kernel.shape[1], "float32")
            if layer.bias is None
            else _array(layer.bias).reshape(-1)
            for layer, kernel in zip(layers, kernels, strict=True)
        ]
        spec.bias = np.concatenate(biases)


def _set_norm(spec: LayerNormSpec, norm: keras.layers.Layer | None) -> None:
    if norm is None:
        return
    if isinstance(norm, keras.layers.RMSNormalization):
        spec.gamma = _array(norm.scale)
    else:
        spec.gamma, spec.beta = _array(norm.gamma), _array(norm.beta)


def _array(weight: keras.Variable | Tensor) -> np.ndarray:
    return np.array(ops.convert_to_numpy(weight), "float32")
