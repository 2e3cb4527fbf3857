"""Numbers that would make every output NaN are refused, wherever they come from."""

import json
import math
import zipfile

import keras
import pytest

from keras_transformer import Seq2Seq
from keras_transformer.layers import (
    AlibiBias,
    DecoderBlock,
    EncoderBlock,
    EncoderStack,
    PositionalEncoding,
    Residual,
    RotaryEmbedding,
)
from keras_transformer_runtime.arguments import check_positive

pytestmark = pytest.mark.once("torch")

SIZES = {"intermediate_dim": 7, "num_heads": 3}
MODEL = {"num_layers": 1, "hidden_dim": 6, **SIZES}
MODEL |= {"source_vocabulary_size": 9, "target_vocabulary_size": 9}
# 1e-46 is 0 in float32, 1e39 is infinite.
WRONG = [math.nan, math.inf, -math.inf, 0, -1e-5, 1e-46, 1e39, 10**400, "1e-5", True]


def test_a_number_above_0():
    for number in (1e-12, 1, 2.0**-126, 3.4e38):
        check_positive(epsilon=number)
    for number in (*WRONG, None, [1e-5]):
        with pytest.raises(ValueError, match="`epsilon` must be a finite number above"):
            check_positive(epsilon=number)


@pytest.mark.parametrize(
    ("layer", "name", "arguments"),
    [
        (Residual, "layer_norm_epsilon", {}),
        (EncoderBlock, "layer_norm_epsilon", SIZES),
        (DecoderBlock, "layer_norm_epsilon", SIZES),
        (EncoderStack, "layer_norm_epsilon", {"num_layers": 1, **SIZES}),
        (Seq2Seq, "layer_norm_epsilon", MODEL),
        (PositionalEncoding, "max_wavelength", {}),
        (RotaryEmbedding, "max_wavelength", {}),
        (AlibiBias, "max_bias", {}),
    ],
)
def test_layers(layer, name, arguments):
    for number in (math.nan, 0.0):
        with pytest.raises(ValueError, match=f"`{name}` must be a finite number"):
            layer(**arguments, **{name: number})


def test_a_file(tmp_path):
    good, bad = tmp_path / "good.keras", tmp_path / "bad.keras"
    Seq2Seq(**MODEL, layer_norm_epsilon=0.015625).save(good)
    with zipfile.ZipFile(good) as source, zipfile.ZipFile(bad, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name == "config.json":
                assert json.loads(content)
                content = content.replace(b"0.015625", b"NaN")
            target.writestr(name, content)
    with pytest.raises((ValueError, TypeError), match="layer_norm_epsilon.* must be a"):
        keras.saving.load_model(bad, compile=False)
