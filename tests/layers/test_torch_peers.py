"""Outputs and gradients equal those of `torch.nn` with the same weights.

PyTorch computes in float64, so that only the layers of this library round.
"""

import keras
import numpy as np
import pytest
import torch
from keras import ops
from layer_contract import gradients, on_torch, to_numpy

from keras_transformer.layers import (
    DecoderBlock,
    EncoderBlock,
    MultiHeadAttention,
)

RNG = np.random.default_rng(29)
BATCH, LENGTH, SOURCE_LENGTH, NUM_HEADS, KEY_DIM, INTERMEDIATE_DIM = 2, 5, 7, 3, 2, 11
HIDDEN_DIM, SOURCE_KEY_DIM, SOURCE_VALUE_DIM = NUM_HEADS * KEY_DIM, 13, 10


def random(*shape):
    return RNG.normal(scale=0.5, size=shape).astype("float32")


INPUTS = random(BATCH, LENGTH, HIDDEN_DIM)
SOURCE = random(BATCH, SOURCE_LENGTH, HIDDEN_DIM)
PADDING = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
SOURCE_PADDING = np.array([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]], bool)

each_setting = pytest.mark.parametrize(
    ("normalize_first", "activation", "causal"),
    [(True, "gelu", True), on_torch(False, "relu", False)],
)


def attention_weights(state, name=""):
    """Weights of `MultiHeadAttention` from those of `torch.nn.MultiheadAttention`."""
    heads = NUM_HEADS, KEY_DIM
    kernels = [state.get(f"{name}{part}_proj_weight") for part in "qkv"]
    if kernels[0] is None:
        kernels = np.split(state[f"{name}in_proj_weight"], 3)
    weights = []
    biases = np.split(state[f"{name}in_proj_bias"], 3)
    for kernel, bias in zip(kernels, biases, strict=True):
        weights += [kernel.T.reshape(-1, *heads), bias.reshape(heads)]
    kernel, bias = dense_weights(state, f"{name}out_proj.")
    return [*weights, kernel.reshape(*heads, HIDDEN_DIM), bias]


def dense_weights(state, *names):
    weights = [(state[f"{n}weight"].T, state[f"{n}bias"]) for n in names]
    return [array for pair in weights for array in pair]


def norm_weights(state, name):
    return [state[f"{name}.weight"], state[f"{name}.bias"]]


def encoder_weights(state):
    return [
        *attention_weights(state, "self_attn."),
        *norm_weights(state, "norm1"),
        *norm_weights(state, "norm2"),
        *dense_weights(state, "linear1.", "linear2."),
    ]


def decoder_weights(state):
    return [
        *attention_weights(state, "self_attn."),
        *norm_weights(state, "norm1"),
        *attention_weights(state, "multihead_attn."),
        *norm_weights(state, "norm2"),
        *dense_weights(state, "linear1.", "linear2."),
        *norm_weights(state, "norm3"),
    ]


def with_random_parameters(module):
    for parameter in module.parameters():
        parameter.data = torch.tensor(random(*parameter.shape)).double()
    return module


def arrays(tensors):
    return {name: tensor.detach().numpy() for name, tensor in tensors}


def torch_mask(mask):
    """PyTorch's masks are `True` where attention is not allowed."""
    return None if mask is None else torch.tensor(~mask)


def not_causal(length, key_length, causal):
    return torch_mask(np.tri(length, key_length, dtype=bool)) if causal else None


def ours_by_torch(layer, convert, call, module, inputs, options):
    """Compares outputs and gradients by inputs and weights.

    Args:
        layer: ours, built.
        convert: from a dictionary of the module's parameters to our weights.
        call: calls the module with float64 tensors.
        module: the `torch.nn` module.
        inputs: float32 arrays, what both are called with.
        options: further arguments of our call.
    """
    layer.set_weights(convert(arrays(module.named_parameters())))
    tensors = [torch.tensor(x).double().requires_grad_() for x in inputs]
    output = call(*tensors)
    output.square().mean().backward()
    by_weights = convert(arrays((n, p.grad) for n, p in module.named_parameters()))
    expected = [tensor.grad.numpy() for tensor in tensors] + by_weights
    actual = input_and_weight_gradients(layer, inputs, options)
    assert_close(to_numpy(layer(*inputs, **options)), output.detach().numpy())
    for one, other in zip(actual, expected, strict=True):
        assert_close(one, other)


def input_and_weight_gradients(layer, inputs, options):
    variables = layer.trainable_variables

    def loss(*tensors):
        calling, values = tensors[: len(inputs)], tensors[len(inputs) :]
        with keras.StatelessScope(zip(variables, values, strict=True)):
            return ops.mean(ops.square(layer(*calling, **options)))

    return gradients(loss, *inputs, *(variable.value for variable in variables))


def assert_close(actual, expected):
    assert actual.shape == expected.shape and expected.any()
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_multi_head_attention():
    key, value = (
        random(BATCH, SOURCE_LENGTH, dim) for dim in (SOURCE_KEY_DIM, SOURCE_VALUE_DIM)
    )
    layer = MultiHeadAttention(NUM_HEADS, KEY_DIM)
    layer.build(INPUTS.shape, value.shape, key.shape)
    module = torch.nn.MultiheadAttention(
        HIDDEN_DIM,
        NUM_HEADS,
        kdim=SOURCE_KEY_DIM,
        vdim=SOURCE_VALUE_DIM,
        batch_first=True,
    )
    mask = SOURCE_PADDING

    def call(query, value, key):
        output, _ = module(
            query,
            key,
            value,
            key_padding_mask=torch_mask(mask),
            attn_mask=not_causal(LENGTH, SOURCE_LENGTH, causal=True),
        )
        return output

    ours_by_torch(
        layer,
        attention_weights,
        call,
        with_random_parameters(module),
        [INPUTS, value, key],
        {"value_mask": mask, "use_causal_mask": True},
    )


@each_setting
def test_encoder_block(normalize_first, activation, causal):
    layer = EncoderBlock(
        INTERMEDIATE_DIM,
        NUM_HEADS,
        activation=activation,
        normalize_first=normalize_first,
    )
    layer.build(INPUTS.shape)
    module = torch.nn.TransformerEncoderLayer(
        HIDDEN_DIM,
        NUM_HEADS,
        INTERMEDIATE_DIM,
        dropout=0.0,
        activation=activation,
        batch_first=True,
        norm_first=normalize_first,
    )
    mask = PADDING

    def call(x):
        return module(
            x,
            src_mask=not_causal(LENGTH, LENGTH, causal),
            src_key_padding_mask=torch_mask(mask),
        )

    options = {"padding_mask": mask}
    if causal:
        options["attention_mask"] = np.tri(LENGTH, dtype=bool)[None]
    module = with_random_parameters(module)
    ours_by_torch(layer, encoder_weights, call, module, [INPUTS], options)


@each_setting
def test_decoder_block(normalize_first, activation, causal):
    layer = DecoderBlock(
        INTERMEDIATE_DIM,
        NUM_HEADS,
        activation=activation,
        normalize_first=normalize_first,
    )
    layer.build(INPUTS.shape, SOURCE.shape)
    module = torch.nn.TransformerDecoderLayer(
        HIDDEN_DIM,
        NUM_HEADS,
        INTERMEDIATE_DIM,
        dropout=0.0,
        activation=activation,
        batch_first=True,
        norm_first=normalize_first,
    )
    masks = PADDING, SOURCE_PADDING

    def call(x, memory):
        return module(
            x,
            memory,
            tgt_mask=not_causal(LENGTH, LENGTH, causal),
            tgt_key_padding_mask=torch_mask(masks[0]),
            memory_key_padding_mask=torch_mask(masks[1]),
        )

    options = {
        "decoder_padding_mask": masks[0],
        "encoder_padding_mask": masks[1],
        "use_causal_mask": causal,
    }
    module = with_random_parameters(module)
    ours_by_torch(layer, decoder_weights, call, module, [INPUTS, SOURCE], options)
