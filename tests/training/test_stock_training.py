"""Features of Keras's training with the model, the loss and the metrics."""

import keras
import numpy as np
import pytest

from keras_transformer import (
    LabelSmoothedCrossEntropy,
    MaskedTokenAccuracy,
    Perplexity,
    Seq2Seq,
    TrainingProgress,
)

RNG = np.random.default_rng(71)
INPUTS = {
    "encoder_token_ids": RNG.integers(1, 13, (8, 7)),
    "decoder_token_ids": RNG.integers(1, 13, (8, 5)),
}
INPUTS["encoder_token_ids"][::2, 4:] = 0
TARGETS = RNG.integers(1, 13, (8, 5))
TARGETS[::2, 3:] = 0


def seq2seq(optimizer, dtype="float32", dropout=0.1, **arguments):
    model = Seq2Seq(
        num_layers=1,
        hidden_dim=8,
        intermediate_dim=11,
        num_heads=2,
        vocabulary_size=13,
        dropout=dropout,
        dtype=dtype,
    )
    model.compile(
        optimizer,
        LabelSmoothedCrossEntropy(),
        metrics=[MaskedTokenAccuracy(), Perplexity()],
        **arguments,
    )
    return model


def fit(model, *callbacks, epochs=1, **arguments):
    arguments = {"batch_size": 4, "verbose": 0, "callbacks": callbacks, **arguments}
    return model.fit(INPUTS, TARGETS, epochs=epochs, **arguments).history


def assert_same(one, other, atol=0.0):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=atol)


@pytest.mark.once("torch")
@pytest.mark.parametrize("normalization", ["layer", "rms"])
def test_names_without_weight_decay(normalization):
    """The names of docs/training.md are those of the biases and normalisations."""
    model = Seq2Seq(
        num_layers=1,
        hidden_dim=8,
        intermediate_dim=11,
        num_heads=2,
        vocabulary_size=13,
        output_bias=True,
        residual_options={"normalization": normalization},
    )
    optimizer = keras.optimizers.AdamW(1.0, weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=["bias", "beta", "gamma", "scale"])
    weights = model.trainable_variables
    for weight in weights:
        weight.assign(np.ones(weight.shape))
    optimizer.apply([keras.ops.zeros(weight.shape) for weight in weights], weights)
    for weight in weights:
        is_matrix = weight.path.endswith(("kernel", "embeddings"))
        expected = 0.9 if is_matrix else 1.0
        np.testing.assert_allclose(keras.ops.convert_to_numpy(weight), expected)


@pytest.mark.once("torch")
def test_float16_skips_an_overflow_and_halves_the_scale():
    sgd = keras.optimizers.SGD(0.3)
    scaled = keras.optimizers.LossScaleOptimizer(sgd, initial_scale=2.0**40)
    model = seq2seq(scaled, dtype="mixed_float16")
    before = model.get_weights()
    fit(model, batch_size=8)
    assert_same(model.get_weights(), before)
    assert float(scaled.dynamic_scale) == 2.0**39
    assert int(scaled.iterations) == 0
    scaled.dynamic_scale.assign(2.0**10)
    losses = fit(model, batch_size=8, epochs=5)["loss"]
    assert losses[-1] < losses[0]
    assert (float(scaled.dynamic_scale), int(scaled.iterations)) == (2.0**10, 5)


@pytest.mark.once("torch")
def test_float16_scales_the_loss_by_default():
    model = seq2seq("adam", dtype="mixed_float16")
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)


@pytest.mark.slow
def test_bfloat16_with_several_steps_per_execution():
    # PyTorch executes one step at a time.
    steps = 1 if keras.backend.backend() == "torch" else 2
    options = {"dtype": "mixed_bfloat16", "steps_per_execution": steps}
    model = seq2seq(keras.optimizers.Adam(0.02), dropout=0.0, **options)
    history = fit(model, epochs=6)
    assert history["loss"][-1] < history["loss"][0]
    assert history["perplexity"][-1] < history["perplexity"][0]
    assert int(model.optimizer.iterations) == 12
    assert {weight.dtype for weight in model.weights} == {"float32"}


@pytest.mark.once("torch")
def test_tensorboard(tmp_path):
    model = seq2seq("adam")
    board = keras.callbacks.TensorBoard(tmp_path)
    fit(model, TrainingProgress(), board, validation_data=(INPUTS, TARGETS))
    events = [*tmp_path.rglob("events.out.tfevents.*")]
    assert {event.parent.name for event in events} == {"train", "validation"}
    written = b"".join(event.read_bytes() for event in events)
    for name in ("perplexity", "token_accuracy", "learning_rate", "minutes_left"):
        assert f"epoch_{name}".encode() in written
