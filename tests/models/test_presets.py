import pytest

from keras_transformer import Seq2Seq
from keras_transformer.models import PRESETS

pytestmark = pytest.mark.once("torch")


def test_sizes_and_parameters():
    names = ("num_layers", "hidden_dim", "intermediate_dim", "num_heads")
    sizes = {
        "transformer_tiny": (4, 128, 256, 4),
        "transformer_small": (3, 256, 1024, 4),
        "transformer_base": (6, 512, 2048, 8),
        "transformer_big": (6, 1024, 4096, 16),
    }
    for preset, values in sizes.items():
        assert tuple(PRESETS[preset][name] for name in names) == values
    assert PRESETS["transformer_big"]["dropout"] == 0.3
    tiny = Seq2Seq.from_preset("transformer_tiny", vocabulary_size=9544)
    assert tiny.count_params() == 2_547_200


def test_every_argument_is_an_override():
    model = Seq2Seq.from_preset(
        "transformer_tiny", vocabulary_size=13, num_layers=1, dropout=0.2, name="mine"
    )
    assert (model.num_layers, model.hidden_dim, model.dropout) == (1, 128, 0.2)
    assert model.name == "mine"


def test_unknown_preset():
    message = (
        "`preset` must be one of 'transformer_tiny', 'transformer_small', "
        "'transformer_base', 'transformer_big', a folder .*; received `preset='tiny'`"
    )
    with pytest.raises(ValueError, match=message):
        Seq2Seq.from_preset("tiny", vocabulary_size=13)
