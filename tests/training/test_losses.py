"""The loss by hand, against float64 NumPy, against Keras, and in `compile`."""

import json
import math

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.training import LabelSmoothedCrossEntropy

BATCH, LENGTH, VOCABULARY = 3, 5, 11
TARGETS = np.array([[4, 7, 2, 0, 0], [10, 1, 3, 9, 2], [6, 2, 0, 0, 0]], dtype="int32")
WEIGHTS = np.array(
    [[1, 0.5, 2, 3, 1], [0, 1, 0.25, 1, 1], [1, 2, 3, 4, 5]], dtype="float32"
)


def random_logits(seed=0, batch=BATCH, length=LENGTH):
    rng = np.random.default_rng(seed)
    return rng.normal(scale=3, size=(batch, length, VOCABULARY)).astype("float32")


def reference(targets, logits, weights=None, smoothing=0.1, pad_token_id=0):
    """Computes the loss position by position, in float64."""
    total, total_weight = 0.0, 0.0
    for position in np.ndindex(targets.shape):
        if targets[position] == pad_token_id:
            continue
        scores = logits[position].astype("float64")
        log_probabilities = scores - np.log(np.exp(scores).sum())
        expected = np.full(scores.shape, smoothing / scores.size)
        expected[targets[position]] += 1 - smoothing
        weight = 1.0 if weights is None else weights[position]
        total -= weight * (expected * log_probabilities).sum()
        total_weight += weight
    return total / total_weight if total_weight else 0.0


def keras_loss(targets, logits, weights, smoothing):
    loss = keras.losses.CategoricalCrossentropy(
        from_logits=True,
        label_smoothing=smoothing,
        reduction="mean_with_sample_weight",
    )
    return loss(ops.one_hot(ops.cast(targets, "int32"), VOCABULARY), logits, weights)


def table_model(table, mask_zero=False):
    """Returns a model whose logits are rows of a table, its only weight."""
    rows = len(table)
    embedding = keras.layers.Embedding(rows, VOCABULARY, mask_zero=mask_zero)
    model = keras.Sequential([keras.Input((None,), dtype="int32"), embedding])
    model.set_weights([table])
    return model


def gradient_step(loss, targets, logits, weights=None, jit_compile=True):
    """Returns the loss of a training step and its gradient by the logits."""
    # TensorFlow compiles with XLA or without, depending on the device.
    if keras.backend.backend() != "tensorflow":
        jit_compile = "auto"
    table = logits.reshape(-1, VOCABULARY)
    model = table_model(table)
    model.compile(keras.optimizers.SGD(1.0), loss, jit_compile=jit_compile)
    rows = np.arange(len(table)).reshape(targets.shape[:2])
    value = model.train_on_batch(rows, targets, sample_weight=weights)
    return float(value), (table - model.get_weights()[0]).reshape(logits.shape)


def test_by_hand():
    logits = np.log([[[0.5, 0.25, 0.25], [0.125, 0.125, 0.75], [0.2, 0.3, 0.5]]])
    loss = LabelSmoothedCrossEntropy(label_smoothing=0.0)
    targets = np.array([[1, 2, 0]])
    expected = -(math.log(0.25) + math.log(0.75)) / 2
    assert float(loss(targets, logits)) == pytest.approx(expected, abs=1e-6)


def test_smoothing_by_hand():
    loss = LabelSmoothedCrossEntropy(label_smoothing=0.3)
    logits = np.log([[[0.5, 0.25, 0.25]]])
    expected = -0.1 * math.log(0.5) - (0.7 + 0.1 + 0.1) * math.log(0.25)
    assert float(loss(np.array([[1]]), logits)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    "smoothing, pad_token_id, weights",
    [(0.0, 0, None), (0.1, 10, WEIGHTS), (0.9, -100, WEIGHTS[:, :1])],
)
def test_against_the_reference(smoothing, pad_token_id, weights):
    targets = np.where(TARGETS == 0, pad_token_id, TARGETS)
    loss = LabelSmoothedCrossEntropy(smoothing, pad_token_id)
    value = float(loss(targets, random_logits(), weights))
    if weights is not None:
        weights = np.broadcast_to(weights, TARGETS.shape)
    expected = reference(targets, random_logits(), weights, smoothing, pad_token_id)
    assert value == pytest.approx(expected, rel=1e-5)


def test_one_weight_per_row():
    loss = LabelSmoothedCrossEntropy()
    row_weights = np.array([0.5, 2, 0], dtype="float32")
    expected = reference(
        TARGETS, random_logits(), np.repeat(row_weights[:, None], LENGTH, 1)
    )
    value = float(loss(TARGETS, random_logits(), row_weights))
    assert value == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("smoothing, jit_compile", [(0.0, True), (0.1, False)])
def test_gradient_equals_keras_on_one_hot_targets(smoothing, jit_compile):
    def one_hot_loss(y_true, y_pred):
        return keras_loss(y_true, y_pred, WEIGHTS * (TARGETS != 0), smoothing)

    loss = LabelSmoothedCrossEntropy(smoothing)
    ours = gradient_step(loss, TARGETS, random_logits(), WEIGHTS, jit_compile)
    keras_s = gradient_step(one_hot_loss, TARGETS, random_logits(), None, jit_compile)
    assert ours[0] == pytest.approx(keras_s[0], rel=1e-5)
    np.testing.assert_allclose(ours[1], keras_s[1], atol=1e-6)
    assert np.abs(ours[1][0, :3]).max() > 0.01
    assert not ours[1][TARGETS == 0].any()


def test_more_padding_changes_nothing():
    loss = LabelSmoothedCrossEntropy()
    logits = random_logits()
    longer = np.concatenate([logits, random_logits(seed=1, length=7)], axis=1)
    padded = np.pad(TARGETS, [(0, 0), (0, 7)])
    value, expected = float(loss(padded, longer)), float(loss(TARGETS, logits))
    assert value == pytest.approx(expected, rel=1e-6)


def test_padding_alone_gives_zero_and_no_gradient():
    loss, padding = LabelSmoothedCrossEntropy(), np.zeros_like(TARGETS)
    value, gradient = gradient_step(loss, padding, random_logits())
    assert value == 0.0
    assert not gradient.any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_rounds_only_the_logits(dtype):
    logits = ops.convert_to_tensor(random_logits(), dtype)
    rounded = ops.convert_to_numpy(ops.cast(logits, "float32"))
    loss = LabelSmoothedCrossEntropy()(TARGETS, logits)
    assert keras.backend.standardize_dtype(loss.dtype) == "float32"
    assert float(loss) == pytest.approx(reference(TARGETS, rounded), rel=1e-5)


def test_large_logits_stay_finite():
    logits = 1e4 * random_logits()
    loss = LabelSmoothedCrossEntropy(label_smoothing=0.0)
    gaps = logits.max(-1) - np.take_along_axis(logits, TARGETS[..., None], -1)[..., 0]
    expected = gaps[TARGETS != 0].mean()
    assert float(loss(TARGETS, logits)) == pytest.approx(expected, rel=1e-5)


def test_a_masked_logit_without_smoothing():
    logits = random_logits()
    logits[..., 5] = -np.inf
    loss = LabelSmoothedCrossEntropy(label_smoothing=0.0)
    expected = reference(TARGETS, np.where(np.isinf(logits), -1e3, logits), None, 0.0)
    assert float(loss(TARGETS, logits)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("wrong, jit_compile", [(-1, True), (2**30, False)])
def test_an_id_outside_the_vocabulary_makes_the_loss_infinite(wrong, jit_compile):
    targets = TARGETS.copy()
    targets[1, 2] = wrong
    loss = LabelSmoothedCrossEntropy()
    value, gradient = gradient_step(loss, targets, random_logits(), None, jit_compile)
    assert value == math.inf
    assert np.isfinite(gradient).all()
    assert not gradient[1, 2].any()
    assert gradient[1, 3].any()


def test_an_id_outside_the_vocabulary_of_weight_0_is_ignored():
    targets, weights = TARGETS.copy(), np.ones(TARGETS.shape, "float32")
    targets[1, 2], weights[1, 2] = VOCABULARY, 0
    expected = reference(TARGETS, random_logits(), weights)
    value = float(LabelSmoothedCrossEntropy()(targets, random_logits(), weights))
    assert value == pytest.approx(expected, rel=1e-5)


def test_a_keras_mask_on_the_logits_changes_nothing():
    """Keras masks row 0 of the table, at positions of real targets as well."""
    table = random_logits()[0]
    rows = np.array([[0, 1, 2, 0, 3], [4, 0, 0, 1, 2], [0, 0, 1, 4, 3]])
    model = table_model(table, mask_zero=True)
    masked = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    assert abs(masked(TARGETS, model(rows)) - masked(TARGETS, table[rows])) > 0.1
    loss = LabelSmoothedCrossEntropy()
    model.compile(keras.optimizers.SGD(0.0), loss)
    expected = reference(TARGETS, table[rows], WEIGHTS)
    arguments = {"sample_weight": WEIGHTS, "verbose": 0}
    evaluated = model.evaluate(rows, TARGETS, **arguments)
    history = model.fit(rows, TARGETS, **arguments)
    assert evaluated == pytest.approx(expected, rel=1e-5)
    assert history.history["loss"][0] == pytest.approx(expected, rel=1e-5)
    called = ops.convert_to_numpy(loss(TARGETS, model(rows)))
    assert called == pytest.approx(reference(TARGETS, table[rows]), rel=1e-5)


@pytest.mark.once("torch")
def test_serialises():
    loss = LabelSmoothedCrossEntropy(0.2, pad_token_id=np.int64(10), name="smooth")
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(loss)))
    assert config["registered_name"] == "keras_transformer>LabelSmoothedCrossEntropy"
    copy = keras.saving.deserialize_keras_object(config)
    assert copy.get_config() == {
        "label_smoothing": 0.2,
        "pad_token_id": 10,
        "name": "smooth",
    }
    assert float(copy(TARGETS, random_logits())) == float(
        loss(TARGETS, random_logits())
    )


@pytest.mark.once("torch")
@pytest.mark.parametrize("value", [-0.1, 1, math.nan])
def test_label_smoothing_is_checked(value):
    with pytest.raises(ValueError, match=f"`label_smoothing` must .*={value}`"):
        LabelSmoothedCrossEntropy(value)


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    ("targets", "logits"),
    [
        (np.eye(VOCABULARY)[TARGETS], random_logits()),
        (TARGETS[:, :4], random_logits()),
        (TARGETS.reshape(-1), random_logits().reshape(-1, VOCABULARY)),
    ],
)
def test_shapes_are_checked(targets, logits):
    with pytest.raises(ValueError, match=r"`y_true` must be token ids .*y_true\.shape"):
        LabelSmoothedCrossEntropy()(targets, logits)
