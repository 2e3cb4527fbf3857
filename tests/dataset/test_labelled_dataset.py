"""Epochs of labelled rows: their batches, weights and positions."""

import numpy as np
import pytest

from keras_transformer.dataset.labelled_dataset import LabelledDataset, LabelledRow

pytestmark = pytest.mark.once("torch")

PADDINGS = {"token_ids": 9, "segment_ids": 0}


def text_rows(count=7):
    return [
        LabelledRow(
            f"text {n}",
            {"token_ids": [n] * (1 + n), "segment_ids": [0] * (1 + n)},
            n,
            2.0,
        )
        for n in range(count)
    ]


def make(rows=None, batch_size=3, **options):
    options = {"shuffle": True, "seed": 5} | options
    rows = text_rows() if rows is None else rows
    return LabelledDataset(rows, PADDINGS, [4, 8], batch_size, **options)


def epoch(data):
    return [*data.dataset.as_numpy_iterator()]


def test_each_epoch_has_all_rows_once_in_another_order():
    data = make()
    assert data.batches_per_epoch == 3 and len(data.dataset) == 3
    assert data.tokens_per_epoch == sum(range(1, 8))
    orders = []
    for _ in range(2):
        found = []
        for inputs, targets, weights in epoch(data):
            assert targets.shape == weights.shape == (3,)
            assert inputs["token_ids"].shape[1] in (4, 8)
            for ids, target, weight in zip(
                inputs["token_ids"], targets, weights, strict=True
            ):
                assert (ids != 9).sum() == target + 1
                if weight:
                    assert weight == 2.0
                    found.append(int(target))
        assert sorted(found) == [*range(7)]
        orders.append(found)
    assert orders[0] != orders[1]
    again = make()
    assert [int(t) for _, ts, ws in epoch(again) for t in ts[ws > 0]] == orders[0]


def test_a_restored_dataset_yields_the_same_batches():
    data = make()
    epoch(data)
    state = data.state(1)
    expected = epoch(data)[1:]
    other = make()
    other.restore({**state, "epoch": 1})
    found = epoch(other)
    assert len(found) == len(expected) == 2
    for (x, *_), (y, *_) in zip(found, expected, strict=True):
        np.testing.assert_array_equal(x["token_ids"], y["token_ids"])
    [(text, target), *_] = other.lines({"epoch": 1, "batch": 1})
    assert text == f"text {target}"
    np.testing.assert_array_equal(
        other.batch({"epoch": 1, "batch": 1})[1], expected[0][1]
    )


def test_checksums_depend_on_texts_and_order():
    first = make().checksums
    assert make().checksums == first
    assert make(seed=6).checksums["order"] != first["order"]
    assert make(text_rows(6)).checksums["texts"] != first["texts"]


def test_words_have_weights_each():
    paddings = {"token_ids": 0, "first_pieces": 0}
    rows = [
        LabelledRow(
            "a b", {"token_ids": [1, 2], "first_pieces": [1, 2]}, [1, 0], [1, 3]
        ),
        LabelledRow("", {"token_ids": [1], "first_pieces": []}, [], []),
    ]
    data = LabelledDataset(rows, paddings, [2], 3)
    [(inputs, targets, weights)] = epoch(data)
    assert inputs["token_ids"].tolist() == [[1, 0], [1, 2], [1, 2]]
    assert targets.tolist() == [[0, 0], [1, 0], [1, 0]]
    assert weights.tolist() == [[0, 0], [1, 3], [0, 0]]


def test_several_labels_are_floats():
    rows = [LabelledRow("a", {"token_ids": [1]}, [0.0, 1.0, 1.0])]
    data = LabelledDataset(rows, {"token_ids": 0}, [2], 1)
    [(_, targets, _)] = epoch(data)
    assert targets.dtype == "float32" and targets.tolist() == [[0, 1, 1]]
