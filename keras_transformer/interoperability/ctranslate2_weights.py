"""Sets the weights of a model to those of a CTranslate2 model."""

from collections.abc import Sequence

import keras
import numpy as np

from keras_transformer.interoperability.ctranslate2_architecture import (
    BIAS,
    OUTPUT,
    SOURCE,
    TARGET,
    position_table,
)
from keras_transformer.interoperability.ctranslate2_file import Variables
from keras_transformer.interoperability.tensors import (
    LOGIT_OF_ADDED_TOKENS,
    padded_rows,
)
from keras_transformer.layers import (
    DecoderBlock,
    DecoderStack,
    EncoderBlock,
    EncoderStack,
    FeedForward,
    LearnedPositionalEncoding,
    MultiHeadAttention,
    PositionScheme,
    RelativePositionBias,
)
from keras_transformer.models import CausalLM, Seq2Seq


def assign(model: Seq2Seq | CausalLM, variables: Variables) -> None:
    """Sets all weights of a model that has the architecture of the variables.

    It may have more tokens than the variables. It never chooses them.
    """
    target = padded_rows(variables.weight(TARGET), model.target_vocabulary_size)
    _assign(model.target_embedding.embeddings, target)
    if isinstance(model, Seq2Seq):
        source = padded_rows(variables.weight(SOURCE), model.source_vocabulary_size)
        _assign(model.source_embedding.embeddings, source)
        _assign_stack(model.encoder, variables, "encoder")
        _assign_inputs(model.source_encoding, model.source_norm, variables, "encoder")
        _assign_inputs(model.target_encoding, model.target_norm, variables, "decoder")
    else:
        _assign_inputs(model.target_encoding, model.target_norm, variables, "decoder")
    _assign_stack(model.decoder, variables, "decoder")
    _assign_output(model, variables)


def _assign_inputs(
    encoding: PositionScheme | None,
    norm: keras.layers.Layer | None,
    variables: Variables,
    side: str,
) -> None:
    """Sets the table of positions and the normalisation of the embeddings."""
    if isinstance(encoding, LearnedPositionalEncoding):
        table = position_table(variables, side)
        _assign(encoding.embeddings, padded_rows(table, encoding.max_length))
    _assign_norm(norm, variables, f"{side}/layernorm_embedding")


def _assign_stack(
    stack: EncoderStack | DecoderStack, variables: Variables, side: str
) -> None:
    for number, block in enumerate(stack.blocks):
        _assign_block(block, variables, f"{side}/layer_{number}")
    _assign_norm(stack.norm, variables, f"{side}/layer_norm")


def _assign_output(model: Seq2Seq | CausalLM, variables: Variables) -> None:
    if model.output_dense is not None:
        weight = variables.weight(OUTPUT)
        kernel = padded_rows(weight, model.target_vocabulary_size).T
        _assign(model.output_dense.kernel, kernel)
    bias = model.logits_bias
    if bias is not None:
        count = variables.shape(OUTPUT)[0]
        values = np.full(bias.shape, LOGIT_OF_ADDED_TOKENS, "float32")
        values[:count] = variables.weight(BIAS) if BIAS in variables else 0
        _assign(bias, values)


def _assign_block(
    block: EncoderBlock | DecoderBlock, variables: Variables, prefix: str
) -> None:
    attention, name = block.self_attention, f"{prefix}/self_attention"
    projections = [attention.query_dense, attention.key_dense, attention.value_dense]
    _assign_linear(projections, variables, f"{name}/linear_0")
    _assign_linear([attention.output_dense], variables, f"{name}/linear_1")
    _assign_norm(block.self_attention_residual.norm, variables, f"{name}/layer_norm")
    if isinstance(attention.positions, RelativePositionBias):
        bias = variables.weight(f"{name}/relative_attention_bias")
        # A decoder does not store the buckets of later keys.
        table = attention.positions.embeddings
        _assign(table, padded_rows(bias, table.shape[0]))
    if isinstance(block, DecoderBlock) and block.cross_attention is not None:
        name = f"{prefix}/attention"
        _assign_cross_attention(block.cross_attention, variables, name)
        norm = block.cross_attention_residual.norm
        _assign_norm(norm, variables, f"{name}/layer_norm")
    _assign_feed_forward(block.feed_forward, variables, f"{prefix}/ffn")
    norm = block.feed_forward_residual.norm
    _assign_norm(norm, variables, f"{prefix}/ffn/layer_norm")


def _assign_cross_attention(
    attention: MultiHeadAttention, variables: Variables, name: str
) -> None:
    keys_and_values = [attention.key_dense, attention.value_dense]
    _assign_linear([attention.query_dense], variables, f"{name}/linear_0")
    _assign_linear(keys_and_values, variables, f"{name}/linear_1")
    _assign_linear([attention.output_dense], variables, f"{name}/linear_2")


def _assign_feed_forward(
    feed_forward: FeedForward, variables: Variables, name: str
) -> None:
    intermediate = [feed_forward.intermediate_dense]
    if feed_forward.gate_dense is None:
        _assign_linear(intermediate, variables, f"{name}/linear_0")
    else:
        _assign_linear([feed_forward.gate_dense], variables, f"{name}/linear_0")
        _assign_linear(intermediate, variables, f"{name}/linear_0_noact")
    _assign_linear([feed_forward.output_dense], variables, f"{name}/linear_1")


def _assign_linear(
    layers: Sequence[keras.layers.Layer], variables: Variables, name: str
) -> None:
    """Splits one matrix `(outputs, width)` into the kernels of layers of one input."""
    weight = variables.weight(f"{name}/weight")
    width = weight.shape[-1]
    sizes = [int(np.prod(layer.kernel.shape)) // width for layer in layers]
    if weight.shape != (sum(sizes), width):
        raise ValueError(
            f"'{name}/weight' in model.bin must have {sum(sizes)} rows; it has shape "
            f"{weight.shape}."
        )
    ends = np.cumsum(sizes)[:-1]
    for layer, rows in zip(layers, np.split(weight, ends), strict=True):
        _assign(layer.kernel, rows.T.reshape(layer.kernel.shape))
    if layers[0].bias is not None:
        biases = np.split(variables.weight(f"{name}/bias"), ends)
        for layer, bias in zip(layers, biases, strict=True):
            _assign(layer.bias, bias.reshape(layer.bias.shape))


def _assign_norm(
    norm: keras.layers.Layer | None, variables: Variables, name: str
) -> None:
    if norm is None:
        return
    if isinstance(norm, keras.layers.RMSNormalization):
        _assign(norm.scale, variables.weight(f"{name}/gamma"))
        return
    _assign(norm.gamma, variables.weight(f"{name}/gamma"))
    _assign(norm.beta, variables.weight(f"{name}/beta"))


def _assign(variable: keras.Variable, values: np.ndarray) -> None:
    if tuple(variable.shape) != values.shape:
        raise ValueError(
            f"The weight {variable.path!r} must have shape {tuple(variable.shape)}; "
            f"model.bin has {values.shape}."
        )
    variable.assign(values)
