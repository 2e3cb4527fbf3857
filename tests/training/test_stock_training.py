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


class Weights(keras.callbacks.Callback):
    """Stores the weights after each batch."""

    def __init__(self):
        super().__init__()
        self.batches = []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(self.model.get_weights())


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
def test_clipping_and_moving_averages():
    optimizer = keras.optimizers.SGD(
        1.0, global_clipnorm=0.01, use_ema=True, ema_momentum=0.75
    )
    model = seq2seq(optimizer)
    before, weights = model.get_weights(), Weights()
    fit(model, weights, epochs=2)
    first, *others = weights.batches
    change = [new - old for new, old in zip(first, before, strict=True)]
    norm = np.sqrt(sum((delta**2).sum() for delta in change))
    np.testing.assert_allclose(norm, 0.01, rtol=1e-3)
    mean = first
    for later in others:
        mean = [0.75 * a + 0.25 * b for a, b in zip(mean, later, strict=True)]
    assert_same(model.get_weights(), mean, atol=1e-6)
    assert np.abs(mean[0] - others[-1][0]).max() > 1e-4


@pytest.mark.once("torch")
def test_early_stopping_and_the_best_file(tmp_path):
    model = seq2seq(keras.optimizers.SGD(0.5), dropout=0.0)
    worse = keras.callbacks.LearningRateScheduler(lambda epoch: (0.5, 50.0)[epoch > 1])
    stop = keras.callbacks.EarlyStopping(patience=2, restore_best_weights=True)
    best = keras.callbacks.ModelCheckpoint(
        str(tmp_path / "best.keras"), monitor="val_loss", save_best_only=True
    )
    history = fit(
        model,
        *(worse, stop, best),
        epochs=9,
        validation_data=(INPUTS, TARGETS),
    )
    assert np.argmin(history["val_loss"]) == 1
    assert len(history["val_loss"]) == 4
    loaded = keras.saving.load_model(tmp_path / "best.keras")
    assert_same(loaded.get_weights(), model.get_weights())
    logs = loaded.evaluate(INPUTS, TARGETS, batch_size=4, verbose=0, return_dict=True)
    for name, value in logs.items():
        np.testing.assert_allclose(value, history[f"val_{name}"][1], rtol=1e-5)


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


@pytest.mark.once("torch")
def test_validation_with_moving_averages():
    optimizer = keras.optimizers.SGD(0.5, use_ema=True, ema_momentum=0.9)
    model = seq2seq(optimizer, dropout=0.0)
    swap, weights = keras.callbacks.SwapEMAWeights(), Weights()
    data = INPUTS, TARGETS
    history = fit(model, swap, weights, epochs=2, validation_data=data)
    # `fit` ends with the averages in the weights.
    averaged = model.evaluate(*data, verbose=0)[0]
    np.testing.assert_allclose(history["val_loss"][-1], averaged, rtol=1e-5)
    model.set_weights(weights.batches[-1])
    assert abs(model.evaluate(*data, verbose=0)[0] - averaged) > 0.01
