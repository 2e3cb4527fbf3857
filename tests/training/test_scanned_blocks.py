"""Blocks that a training step calls in a loop (`compile(scan_blocks=True)`)."""

import keras
import numpy as np
import pytest
from layer_contract import with_mask

import keras_transformer as kt
from keras_transformer.layers.stack import blocks_called_by, scan_blocks

OPTIONS = {
    "num_layers": 2,
    "hidden_dim": 8,
    "intermediate_dim": 12,
    "num_heads": 2,
    "dropout": 0.2,
}
IDS = np.array([[5, 6, 7, 4, 8, 3], [6, 4, 3, 0, 0, 0], [7, 3, 0, 0, 0, 0]], "int32")
needs_jax = pytest.mark.skipif(
    keras.backend.backend() != "jax", reason="a loop over blocks needs JAX"
)


def seq2seq(**options):
    model = kt.Seq2Seq(vocabulary_size=9, **{**OPTIONS, **options})
    return model, {"encoder_token_ids": IDS[::-1], "decoder_token_ids": IDS}


def causal_lm(**options):
    return kt.CausalLM(vocabulary_size=9, **OPTIONS, max_length=8, **options), IDS


def losses_and_weights(make, scan_blocks, compile_options, **options):
    keras.utils.set_random_seed(0)
    model, inputs = make(**options)
    model.compile(
        keras.optimizers.SGD(0.5),
        kt.LabelSmoothedCrossEntropy(0.1),
        scan_blocks=scan_blocks,
        **compile_options,
    )
    targets = np.roll(IDS, -1, axis=1)
    losses = [model.train_on_batch(inputs, targets) for _ in range(3)]
    return model, losses, model.get_weights()


@needs_jax
@pytest.mark.parametrize(
    ("make", "options", "compile_options"),
    [
        (
            seq2seq,
            {"rematerialize": True, "normalize_first": True},
            {"micro_batches": 2},
        ),
        (causal_lm, {"positions": kt.RotaryEmbedding()}, {}),
    ],
    ids=["seq2seq", "causal"],
)
def test_training_is_that_of_blocks_one_after_another(make, options, compile_options):
    """With dropout, whose seeds go on, and with padding."""
    model, losses, weights = losses_and_weights(make, True, compile_options, **options)
    _, expected, others = losses_and_weights(make, False, compile_options, **options)
    assert losses[0] != losses[1]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for weight, other in zip(weights, others, strict=True):
        np.testing.assert_allclose(weight, other, atol=1e-5)
    assert model.get_compile_config()["scan_blocks"]


@needs_jax
def test_the_mask_of_the_input():
    """Keras does not pass it as an argument to a layer of several tensors."""
    stack = kt.DecoderStack(num_layers=2, intermediate_dim=6, num_heads=2)
    x, source = np.random.default_rng(0).normal(size=(2, 3, 6, 8))
    x = with_mask(x, IDS != 0)
    expected = stack(x, source, use_causal_mask=False)
    with blocks_called_by(scan_blocks):
        found = stack(x, source, use_causal_mask=False)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_array_equal(found._keras_mask, IDS != 0)


@needs_jax
def test_a_step_has_the_operations_of_one_block():
    import jax

    def size(num_layers, scan_blocks):
        model, inputs = seq2seq(num_layers=num_layers)
        model.compile("sgd", kt.LabelSmoothedCrossEntropy(), scan_blocks=scan_blocks)
        model.build({name: ids.shape for name, ids in inputs.items()})
        model.optimizer.build(model.trainable_variables)
        state = tuple([v.value for v in each] for each in model_variables(model))
        step = jax.make_jaxpr(model.train_step)(state, (inputs, IDS))
        return str(step).count("dot_general")

    def model_variables(model):
        return (
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        )

    assert size(4, True) == size(2, True) < size(2, False) < size(4, False)


@needs_jax
def test_blocks_that_differ():
    options = {"residual_options": {"stochastic_depth": 0.2}}
    with pytest.raises(ValueError, match="`scan_blocks` must be `False` for a stack"):
        losses_and_weights(seq2seq, True, {}, **options)


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="JAX has the loop")
def test_another_backend():
    model, _ = causal_lm()
    with pytest.raises(ValueError, match="`scan_blocks` must be `False` on .*JAX|jax"):
        model.compile("sgd", scan_blocks=True)
