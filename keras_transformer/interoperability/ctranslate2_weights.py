"""Gives a `Seq2Seq` the weights of a CTranslate2 model."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_transformer.interoperability.ctranslate2_design import (
    BIAS,
    OUTPUT,
    SOURCE,
    TARGET,
    position_table,
)
from keras_transformer.interoperability.ctranslate2_file import SIDES, Variables
from keras_transformer.layers import LearnedPositionalEncoding, RelativePositionBias
from keras_transformer.models import Seq2Seq

# The logit of a token that the stored model lacks: its probability is 0.
NEVER = -1e9


def assign(model: Seq2Seq, variables: Variables) -> None:
    """Copies the weights.

    Args:
        model: a `Seq2Seq` of the `architecture` of the variables; its vocabularies may
            have more tokens, which it will never choose.
        variables: those of the model.

    Raises:
        ValueError: if one is not there, or has another shape.
    """
    _assign(
        model.source_embedding.embeddings, _rows(model, "source", variables, SOURCE)
    )
    _assign(
        model.target_embedding.embeddings, _rows(model, "target", variables, TARGET)
    )
    _assign_output(model, variables)
    for side in SIDES:
        stack = getattr(model, side)
        for number, block in enumerate(stack.blocks):
            _assign_block(block, variables, f"{side}/layer_{number}")
        if stack.norm is not None:
            _assign_norm(stack.norm, variables, f"{side}/layer_norm")
    if isinstance(model.positions, LearnedPositionalEncoding):
        _assign_tables(model, variables)


def _rows(model: Seq2Seq, side: str, variables: Variables, name: str) -> np.ndarray:
    """A weight with a row for each token; zeros for those that it lacks."""
    weight = variables.weight(name)
    more = getattr(model, f"{side}_vocabulary_size") - len(weight)
    return np.pad(weight, ((0, more), *((0, 0),) * (weight.ndim - 1)))


def _assign_output(model: Seq2Seq, variables: Variables) -> None:
    bias = model.tied_output_bias
    if model.output_dense is not None:
        kernel = _rows(model, "target", variables, OUTPUT)
        _assign(model.output_dense.kernel, kernel.T)
        bias = model.output_dense.bias
    if bias is not None:
        count = variables.shape(OUTPUT)[0]
        values = np.full(bias.shape, NEVER, "float32")
        values[:count] = variables.weight(BIAS) if BIAS in variables else 0
        _assign(bias, values)


def _assign_block(block: Any, variables: Variables, prefix: str) -> None:
    for kind, name in {"self": "self_attention", "cross": "attention"}.items():
        attention = getattr(block, f"{kind}_attention", None)
        if attention is None:
            continue
        query, *others = (
            getattr(attention, f"{part}_dense") for part in ("query", "key", "value")
        )
        groups = [[query, *others]] if kind == "self" else [[query], others]
        for i, layers in enumerate([*groups, [attention.output_dense]]):
            _assign_linear(layers, variables, f"{prefix}/{name}/linear_{i}")
        norm = getattr(block, f"{kind}_attention_residual").norm
        _assign_norm(norm, variables, f"{prefix}/{name}/layer_norm")
        if isinstance(attention.positions, RelativePositionBias):
            bias = variables.weight(f"{prefix}/{name}/relative_attention_bias")
            table = attention.positions.embeddings
            unused = table.shape[0] - len(bias)  # buckets of later keys
            _assign(table, np.pad(bias, ((0, unused), (0, 0))))
    network = block.feed_forward
    dense = {"linear_0": network.intermediate_dense, "linear_1": network.output_dense}
    if network.gated:
        dense = {**dense, "linear_0": network.gate_dense}
        dense["linear_0_noact"] = network.intermediate_dense
    for name, layer in dense.items():
        _assign_linear([layer], variables, f"{prefix}/ffn/{name}")
    norm = block.feed_forward_residual.norm
    _assign_norm(norm, variables, f"{prefix}/ffn/layer_norm")


def _assign_linear(layers: Sequence[Any], variables: Variables, name: str) -> None:
    """Divides one matrix `(outputs, width)` among layers with one input."""
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


def _assign_norm(norm: Any, variables: Variables, name: str) -> None:
    if hasattr(norm, "scale") and not hasattr(norm, "gamma"):
        _assign(norm.scale, variables.weight(f"{name}/gamma"))
        return
    _assign(norm.gamma, variables.weight(f"{name}/gamma"))
    _assign(norm.beta, variables.weight(f"{name}/beta"))


def _assign_tables(model: Seq2Seq, variables: Variables) -> None:
    for side, encoding in {
        "encoder": model.source_encoding,
        "decoder": model.target_encoding,
    }.items():
        table = position_table(variables, side)
        missing = encoding.max_length - len(table)
        _assign(encoding.embeddings, np.pad(table, ((0, missing), (0, 0))))


def _assign(variable: Any, values: np.ndarray) -> None:
    if tuple(variable.shape) != values.shape:
        raise ValueError(
            f"the weight {variable.path!r} must have shape {tuple(variable.shape)}; "
            f"model.bin has {values.shape}."
        )
    variable.assign(values)
