"""Models whose blocks are divided among devices, by `Pipeline`."""

import keras
import numpy as np
import pytest
from child_process import figures_of

import keras_transformer as kt

JAX = pytest.mark.once("jax")


@pytest.fixture(scope="module")
def figures():
    return figures_of("pipelines.py")


@pytest.mark.slow
@JAX
def test_gradients_and_seeds_are_those_of_the_model(figures):
    """With dropout, rematerialization and padding.

    The blocks compute in float64, the logits and the gradient of the embedding, which
    is their matrix, in float32.
    """
    assert figures["greatest_gradient"] > 0.1
    assert figures["loss"] < 1e-6
    assert figures["blocks"] < 1e-7
    assert figures["others"] < 1e-6
    assert figures["seeds"] == 0
    assert figures["drawn"] == 2  # a seed goes on by one for each part


@pytest.mark.slow
@JAX
def test_the_devices_divide_the_blocks(figures):
    encoder_block, decoder_block = 16, 26
    assert figures["divided"] == encoder_block + decoder_block
    assert figures["whole"] == 1 + 2 * 2  # embedding, two normalizations
    assert figures["bubble"] == 3 / 5


@pytest.mark.slow
@JAX
def test_outputs_are_those_of_the_model(figures):
    """With two blocks on a device, and positions in the attention."""
    assert figures["outputs"] < 1e-5


@pytest.mark.slow
@JAX
def test_the_documented_code_trains(figures):
    before, after = figures["documented"]
    assert after < before


def language_model(**options):
    return kt.CausalLM(
        num_layers=2,
        hidden_dim=4,
        intermediate_dim=4,
        num_heads=1,
        vocabulary_size=7,
        **options,
    )


@JAX
def test_one_device():
    model = language_model()
    ids = np.array([[4, 5, 6], [5, 6, 0]])
    expected = model(ids)
    pipeline = kt.Pipeline(model, devices=1, micro_batches=2)
    found, _ = pipeline.stateless_call(*pipeline.values(), ids)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    with pytest.raises(ValueError, match="`micro_batches` must divide the rows of a b"):
        pipeline.stateless_call(*pipeline.values(), ids[:1])


@JAX
def test_errors():
    depth = language_model(residual_options={"stochastic_depth": 0.1})
    frozen = language_model()
    frozen.decoder.blocks[0].trainable = False
    for model in (depth, frozen):
        with pytest.raises(ValueError, match="must have equal blocks in each stack"):
            kt.Pipeline(model, devices=1)
    with pytest.raises(ValueError, match="`model` must be built and have an `Encod"):
        kt.Pipeline(keras.Sequential([keras.layers.Dense(2)]), devices=1)
    count = len(keras.distribution.list_devices())
    with pytest.raises(ValueError, match=f"`devices` must be at most {count}, the nu"):
        kt.Pipeline(language_model(), devices=count + 1)


@pytest.mark.slow
@JAX
def test_devices_that_do_not_divide_the_blocks(figures):
    message = "`devices` must divide the number of blocks of each stack; received"
    assert message in figures["error"]


@pytest.mark.once("torch")
def test_other_backends_are_refused():
    with pytest.raises(ValueError, match="KERAS_BACKEND=jax"):
        kt.Pipeline(keras.Sequential())
