"""The metrics by hand, against float64 NumPy over batches, and in `compile`."""

import json
import math

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.training import (
    LabelSmoothedCrossEntropy,
    MaskedTokenAccuracy,
    Perplexity,
    WarmupInverseSquareRoot,
)

VOCABULARY = 11
METRICS = [MaskedTokenAccuracy, Perplexity]


def result(metric):
    return float(ops.convert_to_numpy(metric.result()))


def random_batch(batch, length, seed):
    """Returns targets with rows of different lengths, and partly correct logits."""
    rng = np.random.default_rng(seed)
    targets = rng.integers(1, VOCABULARY, (batch, length)).astype("int32")
    targets[np.arange(length) >= rng.integers(1, length + 1, (batch, 1))] = 0
    logits = rng.normal(size=(batch, length, VOCABULARY)).astype("float32")
    logits += 2 * np.eye(VOCABULARY, dtype="float32")[targets]
    weights = rng.uniform(size=(batch, length)).astype("float32")
    return targets, logits, weights


def reference(metric_class, batches, pad_token_id=0):
    """Computes the metric of batches `(targets, logits, weights)`, in float64."""
    total, count = 0.0, 0.0
    for targets, logits, weights in batches:
        logits = logits.astype("float64")
        weights = weights * (targets != pad_token_id)
        if metric_class is MaskedTokenAccuracy:
            values = logits.argmax(-1) == targets
        else:
            indices = np.where(weights == 0, 0, targets)[..., None]
            target_logits = np.take_along_axis(logits, indices, -1)[..., 0]
            values = np.log(np.exp(logits).sum(-1)) - target_logits
        total += (values * weights).sum()
        count += weights.sum()
    return (
        total / count if metric_class is MaskedTokenAccuracy else np.exp(total / count)
    )


def test_accuracy_by_hand():
    metric = MaskedTokenAccuracy()
    logits = np.eye(5, dtype="float32")[[[3, 1, 4, 0], [2, 0, 0, 0]]]
    metric.update_state(np.array([[3, 2, 4, 0], [2, 0, 0, 0]]), logits)
    assert result(metric) == pytest.approx(3 / 4)
    metric.update_state(np.array([[1, 2]]), logits[:1, :2])
    assert result(metric) == pytest.approx(3 / 6)


def test_perplexity_by_hand():
    """Probabilities 1/2, 1/8 and 1/4 of the true tokens: 64 ** (1/3)."""
    metric = Perplexity()
    first = np.log([[[0.25, 0.5, 0.25], [0.125, 0.75, 0.125], [0.2, 0.3, 0.5]]])
    metric.update_state(np.array([[1, 2, 0]]), first)
    metric.update_state(np.array([[1]]), np.log([[[0.5, 0.25, 0.25]]]))
    assert result(metric) == pytest.approx(4.0, rel=1e-6)


@pytest.mark.parametrize("metric_class", METRICS)
@pytest.mark.parametrize("pad_token_id, weighted", [(0, False), (-100, True)])
def test_batches_of_different_shapes(metric_class, pad_token_id, weighted):
    metric = metric_class(pad_token_id)
    batches = []
    for batch, length in [(2, 13), (7, 3), (5, 1)]:
        targets, logits, weights = random_batch(batch, length, seed=length)
        targets = np.where(targets == 0, pad_token_id, targets)
        metric.update_state(targets, logits, weights if weighted else None)
        batches.append((targets, logits, weights if weighted else 1.0))
    expected = reference(metric_class, batches, pad_token_id)
    assert result(metric) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("metric_class", METRICS)
def test_one_weight_per_row(metric_class):
    targets, logits, _ = random_batch(5, 7, seed=0)
    row_weights = np.array([1, 0, 2.5, 0.5, 0], dtype="float32")
    metric = metric_class()
    metric.update_state(targets, logits, row_weights)
    expected = reference(metric_class, [(targets, logits, row_weights[:, None])])
    assert result(metric) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("metric_class", METRICS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_rounds_only_the_logits(metric_class, dtype):
    targets, logits, weights = random_batch(5, 7, seed=0)
    half = ops.convert_to_tensor(logits, dtype)
    metric = metric_class()
    metric.update_state(targets, half, weights)
    rounded = ops.convert_to_numpy(ops.cast(half, "float32"))
    expected = reference(metric_class, [(targets, rounded, weights)])
    assert result(metric) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("metric_class", "empty"), [*zip(METRICS, [0.0, 1.0], strict=True)]
)
def test_no_token_and_reset(metric_class, empty):
    metric = metric_class()
    targets, logits, _ = random_batch(5, 7, seed=0)
    metric.update_state(targets, logits)
    assert result(metric) != empty
    metric.reset_state()
    metric.update_state(np.zeros_like(targets), logits)
    assert result(metric) == empty


def test_an_id_outside_the_vocabulary():
    targets = np.array([[1, VOCABULARY]])
    logits = np.eye(VOCABULARY, dtype="float32")[[[1, 10]]]
    assert float(MaskedTokenAccuracy()(targets, logits)) == 0.5
    assert float(Perplexity()(targets, logits)) == math.inf


@pytest.mark.once("torch")
@pytest.mark.parametrize("metric_class", METRICS)
def test_shapes_are_checked(metric_class):
    with pytest.raises(ValueError, match=r"`y_pred` logits of shape .*\(2, 3\)"):
        metric_class()(np.zeros((2, 3), "int32"), np.zeros((2, 3)))


@pytest.mark.once("torch")
@pytest.mark.parametrize("metric_class", METRICS)
def test_serialises(metric_class):
    metric = metric_class(pad_token_id=10, name="other")
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(metric)))
    assert config["registered_name"] == f"keras_transformer>{metric_class.__name__}"
    copy = keras.saving.deserialize_keras_object(config)
    assert copy.get_config() == metric.get_config()
    assert copy.get_config()["pad_token_id"] == 10


def compiled_model():
    """Returns a model with a Keras mask where the input id is 0."""
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            keras.layers.Embedding(VOCABULARY, 5, mask_zero=True),
            keras.layers.Dense(VOCABULARY),
        ]
    )
    model.compile(
        keras.optimizers.Adam(WarmupInverseSquareRoot(0.05, warmup_steps=3)),
        LabelSmoothedCrossEntropy(),
        metrics=[MaskedTokenAccuracy(), Perplexity()],
        weighted_metrics=[Perplexity(name="weighted_perplexity")],
    )
    return model


def test_in_fit_and_evaluate_under_a_keras_mask():
    """The inputs are 0, and therefore masked, at other positions than the targets."""
    targets, _, weights = random_batch(17, 7, seed=0)
    inputs = np.random.default_rng(1).integers(0, VOCABULARY, targets.shape)
    model = compiled_model()
    history = model.fit(inputs, targets, batch_size=5, epochs=2, verbose=0).history
    assert history["perplexity"][1] < history["perplexity"][0]
    report = model.evaluate(
        inputs, targets, 5, sample_weight=weights, verbose=0, return_dict=True
    )
    logits = model.predict(inputs, verbose=0)
    plain, weighted = [(targets, logits, 1.0)], [(targets, logits, weights)]
    assert report.pop("loss") > 0
    assert report == {
        "token_accuracy": pytest.approx(reference(MaskedTokenAccuracy, plain), 1e-5),
        "perplexity": pytest.approx(reference(Perplexity, plain), 1e-5),
        "weighted_perplexity": pytest.approx(reference(Perplexity, weighted), 1e-5),
    }


@pytest.mark.once("torch")
def test_a_compiled_model_is_saved_and_loaded(tmp_path):
    targets, _, _ = random_batch(17, 7, seed=0)
    inputs = np.random.default_rng(1).integers(0, VOCABULARY, targets.shape)
    model = compiled_model()
    model.fit(inputs, targets, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    before = model.fit(inputs, targets, shuffle=False, verbose=0).history
    after = loaded.fit(inputs, targets, shuffle=False, verbose=0).history
    assert before.keys() == after.keys()
    for name in before:
        assert after[name] == pytest.approx(before[name], rel=1e-5)


@pytest.mark.once("torch")
def test_callbacks_infer_the_mode():
    """The best epoch has the lowest perplexity, or the highest accuracy."""
    inputs = np.random.default_rng(3).integers(1, VOCABULARY, (7, 5))
    stop = keras.callbacks.EarlyStopping
    stops = [stop(name, patience=9) for name in ("perplexity", "token_accuracy")]
    model = compiled_model()
    history = model.fit(inputs, inputs, epochs=5, verbose=0, callbacks=stops).history
    assert stops[0].best == pytest.approx(min(history["perplexity"]))
    assert stops[1].best == pytest.approx(max(history["token_accuracy"]))
    assert all(len(set(history[stop.monitor])) > 1 for stop in stops)
