"""Errors of `fit`, `evaluate` and `predict` that name the right call."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from layer_contract import to_numpy

from keras_transformer import (
    LabelSmoothedCrossEntropy,
    Seq2Seq,
    SkipNonFinite,
    WarmupInverseSquareRoot,
)
from keras_transformer.training.fit_arguments import check_data
from keras_transformer.training.token_trainer import TokenTrainer

TOKEN_IDS = np.array([[4, 5, 3], [6, 3, 0]], "int32")
KEYS = "encoder_token_ids", "decoder_token_ids"
INPUTS = dict.fromkeys(KEYS, TOKEN_IDS)
TEXTS = ["a text", "another"]


class Lookup(TokenTrainer):
    """Looks logits up: its steps compile in no time."""

    pad_token_id = 0

    def __init__(self):
        super().__init__()
        self.logits = keras.layers.Embedding(7, 7)
        self.logits.build()

    def call(self, inputs):
        return self.logits(inputs)


def compiled(learning_rate, wrap=lambda optimizer: optimizer):
    model = Lookup()
    optimizer = wrap(keras.optimizers.SGD(learning_rate))
    model.compile(optimizer, LabelSmoothedCrossEntropy(0.1))
    return model


def fit(model, *callbacks):
    model.fit(TOKEN_IDS, TOKEN_IDS, verbose=0, callbacks=list(callbacks))


# Data.


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    "texts",
    [
        TEXTS,
        TEXTS[0],
        np.array(TEXTS),
        np.array(TEXTS, dtype=object),
        dict.fromkeys(KEYS, TEXTS),
        list(zip(TEXTS, TEXTS, strict=True)),
        tf.constant(TEXTS),
        tf.data.Dataset.from_tensor_slices((TEXTS, TEXTS)).batch(2),
    ],
)
def test_texts_are_refused(texts):
    with pytest.raises(ValueError, match="`x` must be token ids; received texts, `x="):
        check_data("fit", {"x": texts})
    with pytest.raises(ValueError, match="`y` must be token ids; received texts, `y="):
        check_data("fit", {"x": TOKEN_IDS, "y": texts})


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    ("data", "received"),
    [
        (TOKEN_IDS, r"an array of shape \(2, 3\)"),
        ([TOKEN_IDS, TOKEN_IDS], "a list"),
        ([[4, 5, 3], [6, 3]], "a list"),
        ((TOKEN_IDS, TOKEN_IDS), "a tuple"),
        ({KEYS[0]: TOKEN_IDS}, "a dictionary without `decoder_token_ids`"),
        (
            tf.data.Dataset.from_tensors((TOKEN_IDS, TOKEN_IDS)),
            r"an array of shape \(2, 3\)",
        ),
    ],
)
def test_other_forms_are_refused(data, received):
    message = (
        "`x` must be a dictionary of token ids with the keys `encoder_token_ids` and "
        f"`decoder_token_ids`, or a dataset of such dictionaries; received {received}."
    )
    with pytest.raises(ValueError, match=message):
        check_data("fit", {"x": data}, KEYS)
    check_data("fit", {"x": data})


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    "data",
    [
        INPUTS,
        tf.data.Dataset.from_tensors((INPUTS, TOKEN_IDS)),
        tf.data.Dataset.from_tensors(INPUTS),
        iter([(INPUTS, TOKEN_IDS)]),
        None,
    ],
)
def test_data_of_the_right_form(data):
    validation_data = (data, TOKEN_IDS) if data is INPUTS else data
    arguments = {"x": data, "y": TOKEN_IDS, "validation_data": validation_data}
    check_data("fit", arguments, KEYS)


@pytest.mark.once("torch")
def test_errors_name_the_right_call():
    model = Seq2Seq(
        num_layers=1, hidden_dim=4, intermediate_dim=5, num_heads=2, vocabulary_size=7
    )
    for method in (model, model.predict, model.predict_on_batch):
        for texts in (TEXTS, "a text", {"encoder_token_ids": TEXTS}):
            with pytest.raises(ValueError, match=r"texts, .* `generate\(inputs\)`\."):
                method(texts)
    on_batch = model.train_on_batch, model.test_on_batch
    for method in (model.fit, model.evaluate, *on_batch):
        with pytest.raises(ValueError, match="not compiled. Call `compile"):
            method(INPUTS, TOKEN_IDS)
    model.compile("adam", LabelSmoothedCrossEntropy())
    dataset = r"`data.dataset` of `data = parallel_dataset\(pairs=zip\(sources, targ"
    with pytest.raises(ValueError, match=f"received texts, .* Pass {dataset}"):
        model.fit(TEXTS, TEXTS)
    with pytest.raises(ValueError, match=f"received texts, .* Pass {dataset}"):
        model.train_on_batch(TEXTS, TEXTS)
    score = r"call `score\(sources, targets\)`; or pass "
    with pytest.raises(ValueError, match=f"received texts, .* {score}{dataset}"):
        model.evaluate(TEXTS, TEXTS)
    with pytest.raises(ValueError, match=f"received texts, .* {score}{dataset}"):
        model.test_on_batch(TEXTS, TEXTS)
    with pytest.raises(ValueError, match="`validation_data` must be a .* an array of"):
        model.fit(INPUTS, TOKEN_IDS, validation_data=(TOKEN_IDS, TOKEN_IDS))


# The learning rate.


@pytest.mark.parametrize("first", ["schedule", "number"])
def test_a_new_schedule_has_an_effect(first):
    schedule = keras.optimizers.schedules.ExponentialDecay
    model = compiled(schedule(0.1, 9, 0.9) if first == "schedule" else 0.1)
    before = to_numpy(model.logits.embeddings)
    fit(model)
    after = to_numpy(model.logits.embeddings)
    assert np.abs(after - before).max() > 1e-3
    model.optimizer.learning_rate = schedule(0.0, 9, 0.9)
    fit(model)
    model.train_on_batch(TOKEN_IDS, TOKEN_IDS)
    np.testing.assert_array_equal(to_numpy(model.logits.embeddings), after)


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    "callback",
    [
        keras.callbacks.ReduceLROnPlateau(monitor="loss"),
        keras.callbacks.LearningRateScheduler(lambda epoch: 0.1),
    ],
)
@pytest.mark.parametrize("wrap", [lambda optimizer: optimizer, SkipNonFinite])
def test_a_callback_must_not_change_a_schedule(callback, wrap):
    model = compiled(WarmupInverseSquareRoot(0.1), wrap)
    name = type(callback).__name__
    message = (
        f"received `{name}`, and the schedule `WarmupInverseSquareRoot`. Remove the "
        "callback, or pass an optimizer with a number to `compile`"
    )
    with pytest.raises(ValueError, match=message):
        fit(model, callback)
    fit(compiled(0.1, wrap), callback)


@pytest.mark.once("torch")
def test_learning_rate_scheduler_with_a_schedule():
    callback = keras.callbacks.LearningRateScheduler(WarmupInverseSquareRoot(0.1))
    message = "received the schedule `WarmupInverseSquareRoot`. Pass the schedule to th"
    with pytest.raises(ValueError, match=message):
        fit(compiled(0.1), callback)


@pytest.mark.once("torch")
def test_lr_is_no_attribute_of_an_optimizer():
    model = compiled(0.1)
    model.optimizer.lr = 0.5
    with pytest.raises(ValueError, match="received `optimizer.lr=0.5`. Set `optimizer"):
        fit(model)
