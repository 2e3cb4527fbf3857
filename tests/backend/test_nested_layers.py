import keras

from keras_transformer import RelativePositionBias, Seq2Seq
from keras_transformer.backend import nested_layers as module
from keras_transformer.backend.nested_layers import nested_layers


def test_layers_at_any_depth():
    inner = keras.layers.Dense(3)
    model = keras.Sequential([keras.layers.Dense(2), keras.Sequential([inner])])
    found = nested_layers(model)
    assert found[0] is model and inner in found
    assert len(found) == len({id(layer) for layer in found})


def test_the_attributes_hold_the_same_layers():
    model = Seq2Seq(
        num_layers=2,
        hidden_dim=6,
        intermediate_dim=7,
        num_heads=3,
        vocabulary_size=11,
        positions=RelativePositionBias(),
    )
    expected = {id(layer) for layer in nested_layers(model) if layer.weights}
    found = list(module._layers_in_attributes(model, set()))
    assert {id(layer) for layer in found if layer.weights} == expected
    assert len(found) == len({id(layer) for layer in found})
