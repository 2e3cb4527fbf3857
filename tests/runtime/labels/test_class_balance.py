"""Weights of classes, remarks on data, and stratified splits."""

import collections

import numpy as np
import pytest
from sklearn.utils.class_weight import compute_class_weight

from keras_transformer_runtime.labels.class_balance import (
    class_weights,
    remarks,
    split_rows,
    split_texts,
)
from keras_transformer_runtime.labels.labelled_texts import LabelledTexts

pytestmark = pytest.mark.once("torch")


def labelled(texts, labels, names=None, path="train.tsv", columns=("2", "1")):
    labels = tuple((each,) if isinstance(each, str) else each for each in labels)
    names = names or sorted({name for each in labels for name in each})
    return LabelledTexts(
        path=path,
        texts=tuple(texts),
        second_texts=None,
        labels=labels,
        class_names=tuple(names),
        lines=tuple(range(1, len(texts) + 1)),
        multi_label=any(len(each) != 1 for each in labels),
        columns=columns,
        layout="",
    )


def test_weights_are_those_of_scikit_learn():
    texts = labelled("abcdefghijk", "xxxxxyyzzzz")
    weights = class_weights(texts)
    expected = compute_class_weight(
        "balanced", classes=np.array([*"xyz"]), y=[*"xxxxxyyzzzz"]
    )
    np.testing.assert_allclose([weights[name] for name in "xyz"], expected)
    with pytest.raises(ValueError, match="each class an example, .* 'y': 0}"):
        class_weights(labelled("a", "x", "xy"))
    with pytest.raises(ValueError, match="received `multi_label=True`"):
        class_weights(labelled("a", [("x", "y")]))


def test_remarks_on_training_data():
    assert remarks(labelled("abcdefgh", "xxxxxxyy")) == []  # 3 times as many
    [unequal] = remarks(labelled("abcdefghi", "xxxxxxxyy"))
    assert unequal == ("The classes are unequal: 'x' has 7 examples, 'y' has 2.")
    first, third = remarks(labelled("abcd", ["label", "x", "y", "x"]))
    assert first == (
        "The class 'label' has one example, in line 1 of `train.tsv`. If this line has "
        "the names of columns, pass them in `columns`."
    )
    assert third.startswith("The class 'y' has one example, in line 3 of `train.tsv`.")
    assert third.endswith("Add examples or remove it: a model cannot learn it.")
    [named] = remarks(labelled("abc", "xyy", columns=("text", "label")))
    assert "columns" not in named


def test_remarks_on_validation_data():
    train = labelled("abcdef", "xxyyzz")
    valid = labelled("gbha", "xxyy", "xyz", "valid.csv")
    missing, common = remarks(train, valid)
    assert missing == "The validation data has no example of 'z'."
    assert common.startswith(
        "2 of 4 texts of the validation data are in the training data too; the first "
        "is in line 2 of `valid.csv`."
    )
    assert remarks(train, labelled("ghi", "xyz")) == []


@pytest.mark.parametrize("fraction", [0.05, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("seed", range(3))
def test_each_class_has_its_part(fraction, seed):
    generator = np.random.default_rng(seed)
    labels = [*generator.choice([*"vwxyz"], 101, p=[0.01, 0.04, 0.15, 0.3, 0.5]), "v"]
    texts = labelled([str(row) for row in range(102)], labels)
    train, valid = split_texts(texts, fraction, seed)
    assert sorted(train.texts + valid.texts) == sorted(texts.texts)
    assert train.lines == tuple(sorted(train.lines))
    for name, count in texts.counts.items():
        assert train.counts[name] >= 1
        if count > 1:
            expected = min(max(1, round(fraction * count)), count - 1)
            assert valid.counts[name] == expected
    again = split_texts(texts, fraction, seed)
    assert again[1].texts == valid.texts
    assert split_texts(texts, fraction, seed + 1)[1].texts != valid.texts


def test_equal_texts_are_not_separated():
    keys = [row % 11 for row in range(53)]
    labels = [["even"] if key % 2 == 0 else ["odd"] for key in keys]
    for seed in range(5):
        train, valid = split_rows(keys, labels, 0.3, seed)
        assert sorted(train + valid) == [*range(53)]
        assert not {keys[row] for row in train} & {keys[row] for row in valid}
        assert len({keys[row] for row in valid}) == 2 + 2  # of 6 and of 5


def test_rows_with_any_number_of_labels():
    generator = np.random.default_rng(3)
    names, parts = np.array([*"abcdefg"]), [0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    labels = [names[row < parts].tolist() for row in generator.random((997, 7))]
    train, valid = split_rows(range(997), labels, 0.2)
    counts = [
        collections.Counter(name for row in part for name in labels[row] or ["none"])
        for part in (train, valid)
    ]
    assert {*counts[0]} == {*counts[1]} == {*"abcdefg", "none"}
    for name in counts[0]:
        part = counts[1][name] / (counts[0][name] + counts[1][name])
        assert 0.15 < part < 0.25, name


def test_a_split_that_is_impossible():
    with pytest.raises(ValueError, match="received 2 different rows, and each label"):
        split_rows("aabb", [["x"], ["x"], ["y"], ["y"]])
    with pytest.raises(ValueError, match="`fraction` must be .* `fraction=1.0`"):
        split_rows("ab", [["x"], ["x"]], 1.0)
