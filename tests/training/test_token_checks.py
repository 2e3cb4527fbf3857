"""Token ids that no table has, and padding within rows, in every kind of data."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from layer_contract import to_numpy

from keras_transformer import CausalLM, LabelSmoothedCrossEntropy, Seq2Seq

VOCABULARY = 11
IDS = np.array([[4, 5, 6], [7, 8, 0]], "int32")
SIZES = {"num_layers": 1, "hidden_dim": 4, "intermediate_dim": 4, "num_heads": 1}


def seq2seq(loss=None):
    model = Seq2Seq(**SIZES, vocabulary_size=VOCABULARY, dropout=0.0)
    model.compile(keras.optimizers.SGD(0.1), loss or LabelSmoothedCrossEntropy(0.0))
    return model


def language_model():
    model = CausalLM(**SIZES, vocabulary_size=VOCABULARY, dropout=0.0)
    model.compile(keras.optimizers.SGD(0.1), LabelSmoothedCrossEntropy(0.0))
    return model


def pairs(source=IDS, target=IDS, labels=IDS):
    inputs = {"encoder_token_ids": source, "decoder_token_ids": target}
    return inputs, labels


def with_id(token_id, row=1, column=0):
    ids = IDS.copy()
    ids[row, column] = token_id
    return ids


class Batches(keras.utils.PyDataset):
    def __init__(self, batch, **options):
        super().__init__(**options)
        self.batch, self.epochs = batch, 0

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return self.batch

    def on_epoch_end(self):
        self.epochs += 1


def as_loader(batch):
    import torch

    batch = keras.tree.map_structure(torch.as_tensor, batch)
    return torch.utils.data.DataLoader([0, 1], batch_size=2, collate_fn=lambda _: batch)


KINDS = {
    "dataset": lambda batch: tf.data.Dataset.from_tensors(batch).repeat(2),
    "PyDataset": Batches,
    "generator": lambda batch: (batch for _ in range(3)),
    "loader": as_loader,
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_id_in_a_batch_ends_training(kind):
    model = seq2seq()
    message = (
        r'^`x\["encoder_token_ids"\]` must have token ids from 0 to 10 \(the '
        r"vocabulary has 11 entries\); received 11 in row 1 of a batch\.$"
    )
    with pytest.raises(ValueError, match=message):
        model.fit(KINDS[kind](pairs(with_id(11))), shuffle=False, verbose=0)


@pytest.mark.parametrize("kind", KINDS)
def test_data_are_as_long_as_before(kind):
    counter = keras.callbacks.LambdaCallback()
    batches = []
    counter.on_train_batch_end = lambda batch, logs: batches.append(batch)
    data = KINDS[kind](pairs())
    steps = 2 if kind == "generator" else None
    options = {"shuffle": False, "verbose": 0, "steps_per_epoch": steps}
    seq2seq().fit(data, callbacks=[counter], validation_data=pairs(), **options)
    assert len(batches) == (1 if kind == "loader" else 2)
    assert getattr(data, "epochs", 1) > 0


BATCHES = {
    "inputs": (pairs(target=with_id(-100)), r"received -100 in row 1"),
    "targets": (
        pairs(labels=with_id(-100)),
        r"`y`.* must .*; received -100 in row 1.* If .*`pad_token_id=-100` to the loss",
    ),
    "large": (pairs(labels=with_id(2**31 - 1)), "received 2147483647 in row 1"),
    "floats": (
        pairs(source=IDS.astype("float32")),
        r"\[.encoder_token_ids.\]` must be integers.*float32.*astype",
    ),
    "half": (pairs(labels=IDS.astype("float16")), "`y`.* must be integers.*float16"),
    "within": (
        pairs(source=np.array([[4, 5, 6], [4, 0, 5]])),
        r"padding of a row at one end; received `pad.*=0` .* row 1.*: \[4, 0, 5\]",
    ),
    "start": (
        pairs(target=np.array([[4, 5, 6], [0, 4, 5]])),
        r"decoder_token_ids.* must have the padding of a row at its end; received",
    ),
}


@pytest.mark.once("torch")
@pytest.mark.parametrize("name", BATCHES)
def test_every_method_refuses(name):
    batch, message = BATCHES[name]
    model = seq2seq()
    calls = [model.fit, model.evaluate, model.train_on_batch, model.test_on_batch]
    for call in calls:
        with pytest.raises(ValueError, match=message):
            call(*batch)
    with pytest.raises(ValueError, match=message):
        model.fit(*pairs(), validation_data=batch, verbose=0)
    data = tf.data.Dataset.from_tensors(batch)
    with pytest.raises(ValueError, match=message):
        model.fit(*pairs(), validation_data=data, verbose=0)
    if batch[1] is IDS:
        for call in (model.predict, model.predict_on_batch):
            with pytest.raises(ValueError, match=message):
                call(batch[0])


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (with_id(-1), "`x` must have .*; received -1 in row 1"),
        ({"token_ids": with_id(12), "segment_ids": IDS * 0}, "token_ids.*received 12"),
        (np.array([[0, 4, 0, 5]]), "`x` must have the padding of a row at one end"),
    ],
)
def test_a_language_model_refuses(inputs, message):
    model = language_model()
    for call in (model.fit, model.evaluate, model.train_on_batch):
        with pytest.raises(ValueError, match=message):
            call(inputs, IDS)
    with pytest.raises(ValueError, match=message):
        model.predict(inputs)


@pytest.mark.once("torch")
def test_what_is_permitted():
    model = language_model()
    packed = {"token_ids": np.array([[4, 0, 5]]), "segment_ids": np.array([[0, 1, 1]])}
    model.fit(packed, np.array([[5, 0, 6]]), verbose=0)
    both_ends = np.array([[0, 4, 5, 0], [0, 0, 0, 0]])
    assert np.isfinite(model.evaluate(both_ends, both_ends, verbose=0))
    weights = np.ones(IDS.shape, "float32")
    weights[1, 0] = 0
    model.fit(IDS, with_id(-5), sample_weight=weights, verbose=0)


@pytest.mark.once("torch")
def test_a_loss_of_the_user_may_ignore_any_target():
    def loss(y, logits):
        return keras.ops.mean(logits)

    seq2seq(loss).fit(*pairs(labels=with_id(-7)), verbose=0)
    ignoring = keras.losses.SparseCategoricalCrossentropy(True, ignore_class=-7)
    seq2seq(ignoring).fit(*pairs(labels=with_id(-7)), verbose=0)
    plain = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with pytest.raises(ValueError, match="received -7 in row 1"):
        seq2seq(plain).fit(*pairs(labels=with_id(-7)), verbose=0)


# Rows that are padded at the start.

ROWS = [[2, 5, 6, 7, 3], [2, 9], []]


def padded(rows, at_start):
    ids = np.zeros((len(rows), 6), "int32")
    for line, row in zip(ids, rows, strict=True):
        line[slice(6 - len(row), None) if at_start else slice(len(row))] = row
    return ids


def aligned(x, axis):
    """Moves what belongs to the tokens of rows padded at the start to the start."""
    rows = [np.roll(row, len(ids), axis) for row, ids in zip(x, ROWS, strict=True)]
    return np.stack(rows)


def test_rows_padded_at_the_start_of_a_language_model():
    model = language_model()
    found = model(padded(ROWS, True), return_attention_scores=True)
    expected = model(padded(ROWS, False), return_attention_scores=True)
    real = padded(ROWS, False) != 0
    logits = aligned(to_numpy(found[0]), 0)
    np.testing.assert_allclose(logits[real], to_numpy(expected[0])[real], atol=1e-5)
    scores = aligned(aligned(to_numpy(found[1][0]), 1), 2)
    np.testing.assert_allclose(scores, to_numpy(expected[1][0]), atol=1e-5)
    labels = [np.where(x == 0, 0, x + 1) for x in (padded(ROWS, s) for s in (1, 0))]
    losses = [
        model.evaluate(padded(ROWS, at_start), y, verbose=0)
        for at_start, y in zip((True, False), labels, strict=True)
    ]
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_sources_and_prompts_padded_at_the_start():
    targets = padded([[2, 5], [2, 6, 7], [2]], False)
    for model in (seq2seq(), language_model()):
        left, right = (pairs(padded(ROWS, s), targets)[0] for s in (True, False))
        expected = to_numpy(model(right))[targets != 0]
        found = to_numpy(model(left))[targets != 0]
        np.testing.assert_allclose(found, expected, atol=1e-5)
    model, real = seq2seq(), padded(ROWS, False) != 0
    left, right = (pairs(padded(ROWS, s), targets)[0] for s in (True, False))
    key = "encoder_token_ids"
    encoded = aligned(to_numpy(model.encode(left[key])), 0)
    np.testing.assert_allclose(
        encoded[real], to_numpy(model.encode(right[key]))[real], atol=1e-5
    )
    found, expected = (
        to_numpy(model.cross_attention(*inputs.values(), layer=0))
        for inputs in (left, right)
    )
    np.testing.assert_allclose(aligned(found, 1), expected, atol=1e-5)
