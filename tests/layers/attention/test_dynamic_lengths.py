"""Graphs of other tools, whose lengths are open, give the numbers of the layers.

They are written by Keras and PyTorch themselves, without the checks of this package.
"""

import keras
import numpy as np
import pytest

from keras_transformer.layers import (
    AlibiBias,
    GlobalLocal,
    MultiHeadAttention,
    RelativePositionBias,
    Strided,
)

WIDTH, TRACED_LENGTH = 5, 41


def model_of(layers):
    """A model of self-attention layers; the flag says whether one is causal."""
    inputs = keras.Input((None, WIDTH), name="x")
    return keras.Model(
        inputs,
        [
            layer(inputs, inputs, use_causal_mask=is_causal)
            for layer, is_causal in layers
        ],
    )


def sequences(length, batch=2):
    values = np.random.default_rng(length).normal(size=(batch, length, WIDTH))
    return values.astype("float32")


def check_onnx(model, folder):
    onnxruntime = pytest.importorskip("onnxruntime")
    model(sequences(TRACED_LENGTH))
    model.export(str(folder / "1.onnx"), format="onnx", verbose=False)
    session = onnxruntime.InferenceSession(folder / "1.onnx")
    [source] = session.get_inputs()
    for length in (1, 31, 64, 67):
        x = sequences(length)
        outputs = session.run(None, {source.name: x})
        for output, expected in zip(outputs, model(x), strict=True):
            expected = keras.ops.convert_to_numpy(expected)
            np.testing.assert_allclose(output, expected, atol=1e-5)


def layers_of_onnx():
    return [
        (MultiHeadAttention(2, 3, sliding_window=5), True),
        (MultiHeadAttention(2, 3, pattern=Strided(3, 7)), False),
        (MultiHeadAttention(2, 3, pattern=GlobalLocal(2, 3)), True),
        (MultiHeadAttention(4, 3, num_key_value_heads=1), True),
        (MultiHeadAttention(2, 3, positions=RelativePositionBias()), False),
        (MultiHeadAttention(1, 3), True),
    ]


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.filterwarnings("ignore:In the future `np.object`:FutureWarning")
def test_onnx(tmp_path):
    check_onnx(model_of(layers_of_onnx()), tmp_path)


@pytest.mark.once("torch")
@pytest.mark.filterwarnings("ignore")  # The tracer of PyTorch warns of each size.
def test_onnx_of_pytorch(tmp_path):
    check_onnx(model_of(layers_of_onnx()), tmp_path)


@pytest.mark.once("torch")
def test_torch_export():
    import torch

    grouped = {"num_heads": 4, "key_dim": 3, "num_key_value_heads": 2}
    model = model_of(
        [
            (MultiHeadAttention(**grouped), True),
            (MultiHeadAttention(**grouped, positions=AlibiBias()), False),
            (MultiHeadAttention(**grouped, positions=RelativePositionBias()), True),
            (MultiHeadAttention(4, 3, num_key_value_heads=1), True),
        ]
    ).eval()
    sizes = {0: torch.export.Dim("batch", min=2), 1: torch.export.Dim("length", min=2)}
    example = (torch.from_numpy(sequences(TRACED_LENGTH, batch=3)),)
    program = torch.export.export(
        model, example, dynamic_shapes=((sizes,),), strict=False
    ).module()
    with torch.no_grad():
        for length in (2, 67):
            x = torch.from_numpy(sequences(length))
            for output, expected in zip(program(x), model(x), strict=True):
                np.testing.assert_allclose(output, expected, atol=1e-5)
