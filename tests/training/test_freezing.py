import keras
import numpy as np
import pytest

from keras_transformer import LabelSmoothedCrossEntropy, Seq2Seq, freeze

pytestmark = pytest.mark.once("torch")

RNG = np.random.default_rng(61)
SIZES = {"hidden_dim": 8, "intermediate_dim": 11, "num_heads": 2, "vocabulary_size": 13}


def seq2seq(**arguments):
    return Seq2Seq(**{"num_layers": 2, **SIZES, **arguments})


def data():
    inputs = {
        "encoder_token_ids": RNG.integers(1, 13, (6, 7)),
        "decoder_token_ids": RNG.integers(1, 13, (6, 5)),
    }
    return inputs, RNG.integers(1, 13, (6, 5))


def train(model):
    model.compile(keras.optimizers.Adam(0.01), loss=LabelSmoothedCrossEntropy())
    model.fit(*data(), batch_size=3, verbose=0)


def test_part_of_a_trained_model_is_trained_further(tmp_path):
    model = seq2seq(num_layers=1)
    model.compile(keras.optimizers.Adam(0.01), loss=LabelSmoothedCrossEntropy())
    model.optimizer.build(model.trainable_variables)
    model.optimizer.iterations.assign(17)
    model.save(tmp_path / "model.keras")
    model = keras.saving.load_model(tmp_path / "model.keras")
    assert int(model.optimizer.iterations) == 17
    frozen = freeze(model, ["encoder", "*embedding*"])
    before = {weight.path: weight.numpy() for weight in model.weights}
    train(model)
    assert int(model.optimizer.iterations) == 2
    assert len(model.optimizer.variables) == 2 + 2 * len(model.trainable_weights)
    for weight in model.weights:
        same = (weight.numpy() == before[weight.path]).all()
        # A bias of the keys shifts all logits of a query equally: it has no gradient.
        assert same == (weight.path in frozen) or "key/bias" in weight.path
    assert set(frozen) == {path for path in before if not path.startswith("decoder")}


@pytest.fixture(scope="module")
def untied():
    return seq2seq(tie_embeddings="none")


@pytest.fixture
def model(untied):
    """A model whose weights are all trainable."""
    for weight in untied.weights:
        weight.trainable = True
    return untied


def test_a_weight_can_be_trained_again(model):
    frozen = freeze(model, "decoder")
    for weight in model.decoder.blocks[0].weights:
        weight.trainable = True
    again = [path for path in frozen if not path.startswith("decoder/block_0")]
    assert 0 < len(again) < len(frozen)
    assert freeze(model, "decoder/block_1") == again


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("decoder/block_1/cross_attention/query/kernel", 1),
        ("decoder/block_1/cross_attention/query", 2),
        ("decoder/block_[01]/cross_attention", 16),
        ("decoder/block_*", 2 * 26),
        ("decoder/*/kernel", 2 * 10),
        ("*/query/bias", 6),
        ("output", 1),
        ("output*", 2),
        ("*", 2 + 2 + 2 * (16 + 26) + 4),
    ],
)
def test_patterns(model, pattern, expected):
    frozen = freeze(model, [pattern])
    assert len(frozen) == expected
    assert len(model.trainable_weights) == len(model.weights) - expected


def test_paths_are_relative_to_the_model():
    layers = [keras.layers.Dense(3, name="first"), keras.layers.Dense(2, name="last")]
    model = keras.Sequential([keras.Input((5,)), *layers])
    assert freeze(model, "first") == ["first/kernel", "first/bias"]
    assert freeze(model, ["last/b*"]) == ["first/kernel", "first/bias", "last/bias"]


def test_a_pattern_that_matches_nothing(model):
    message = (
        "`patterns` must be names of layers or weights; received `'encodr'`, which "
        "matches none. The first names are output_bias, target_embedding, "
        "source_embedding, encoder, decoder, output, .*, encoder/block_1, .*; `weight.p"
    )
    with pytest.raises(ValueError, match=message):
        freeze(model, ["decoder", "encodr"])
    assert len(model.trainable_weights) == len(model.weights)
