"""Scores of labels and entities, with scikit-learn and seqeval, and their tables."""

import numpy as np
import pytest
from rich.cells import cell_len
from sklearn import metrics

from keras_transformer_runtime.labels.scores import (
    ClassScores,
    classification_scores,
    confusion_matrix,
    confusion_table,
    count_table,
    entity_scores,
    multi_label_scores,
    score_table,
)

pytestmark = pytest.mark.once("torch")

NAMES = [*"abcdefg"]


def assert_equal_scores(per_class, correct, guess, **options):
    expected = metrics.precision_recall_fscore_support(
        correct, guess, zero_division=0, **options
    )
    found = np.array([*per_class.values()]).T
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_one_label_as_scikit_learn(seed):
    generator = np.random.default_rng(seed)
    # No label is 6. Some seeds predict it, and no seed predicts 0.
    labels = generator.integers(0, 6, 97)
    predictions = np.where(
        generator.random(97) < 0.5, labels, generator.integers(1, 6 + seed % 2, 97)
    )
    predictions[predictions == 0] = 1
    found = classification_scores(labels, predictions, NAMES)
    assert [*found.per_class] == NAMES
    classes = range(7)
    np.testing.assert_array_equal(
        found.confusion, metrics.confusion_matrix(labels, predictions, labels=classes)
    )
    assert_equal_scores(found.per_class, labels, predictions, labels=classes)
    assert found.accuracy == pytest.approx(metrics.accuracy_score(labels, predictions))
    macro = metrics.f1_score(labels, predictions, average="macro", zero_division=0)
    assert found.macro_f1 == pytest.approx(macro)


@pytest.mark.parametrize("seed", range(3))
def test_several_labels_as_scikit_learn(seed):
    generator = np.random.default_rng(seed)
    labels = (generator.random((31, 7)) < 0.3).astype("float32")
    labels[:, 2] = 0
    predictions = np.where(generator.random((31, 7)) < 0.9, labels, 1 - labels) > 0
    predictions[:, 5] = False
    found = multi_label_scores(labels, predictions, NAMES)
    labels = labels.astype(int)
    assert_equal_scores(found.per_class, labels, predictions)
    accuracy = metrics.accuracy_score(labels, predictions)
    assert found.subset_accuracy == pytest.approx(accuracy)
    for average in ("micro", "macro"):
        expected = metrics.f1_score(
            labels, predictions, average=average, zero_division=0
        )
        assert getattr(found, f"{average}_f1") == pytest.approx(expected)


def test_the_examples_of_seqeval():
    # README of https://github.com/chakki-works/seqeval (Nakayama, 2018): default mode.
    labels = [
        ["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"],
        ["B-PER", "I-PER", "O"],
    ]
    guess = [
        ["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"],
        ["B-PER", "I-PER", "O"],
    ]
    found = entity_scores(labels, guess)
    assert found.per_kind == {"MISC": (0, 0, 0, 1), "PER": (1, 1, 1, 1)}
    assert found.overall == (0.5, 0.5, 0.5, 2)
    assert found.macro_f1 == 0.5
    # Strict mode would find nothing.
    found = entity_scores([["B-NP", "I-NP", "O"]], [["I-NP", "I-NP", "O"]])
    assert found.per_kind == {"NP": (1, 1, 1, 1)}
    assert found.overall == (1, 1, 1, 1)


def test_entities_by_hand():
    labels = [["B-X", "I-X", "B-Y"], ["S-Y"], ["O", "B-X"], ["B-Z"]]
    guess = [["B-X", "I-X", "I-X"], ["B-Y"], ["B-W", "B-X"], ["O"]]
    found = entity_scores(labels, guess)
    # Correct are Y of the second sentence and X of the third.
    assert found.overall == ClassScores(2 / 4, 2 / 5, 4 / 9, 5)
    assert found.per_kind == {
        "W": (0, 0, 0, 0),
        "X": (0.5, 0.5, 0.5, 2),
        "Y": (1, 0.5, 2 / 3, 2),
        "Z": (0, 0, 0, 1),
    }
    assert [*found.per_kind] == [*"WXYZ"]
    nothing = entity_scores([["O"], []], [["O"], []])
    assert (nothing.overall, nothing.macro_f1) == (ClassScores(0, 0, 0, 0), 0)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: confusion_matrix([0, 1], [0], 2), r"shapes \(2,\) and \(1,\)"),
        (lambda: confusion_matrix([], [], 2), r"0 to 1 for .* shapes \(0,\)"),
        (lambda: confusion_matrix([0, 2], [0, 1], 2), "must have the id of a class"),
        (lambda: confusion_matrix([0, 1], [0, -1], 2), "id of a class from 0 to 1"),
        (lambda: confusion_matrix([0, 1], [0.9, 0.1], 2), "int64 and float64. Take"),
        (lambda: multi_label_scores([[1, 0]], [[1, 0.5]], "ab"), "must be 0 or 1"),
        (
            lambda: multi_label_scores([[1, 0]], [[1, 0]], "abc"),
            r"classes=3\).*\(1, 2\)",
        ),
        (lambda: multi_label_scores([1], [1], "a"), r"shapes \(1,\) and \(1,\)"),
        (lambda: entity_scores([["O"]], [["O", "O"]]), "2 tags in 1 .* has 1 in 1"),
        (lambda: entity_scores([["O"]], []), "0 tags in 0 .* has 1 in 1"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_table_of_scores():
    scores = {"good": ClassScores(2 / 3, 1, 0.8, 1234), "b": ClassScores(0, 0, 0, 0)}
    assert score_table(scores, "kind").split("\n") == [
        "kind  precision  recall    F1  examples",
        "good       66.7   100.0  80.0     1,234",
        "b           0.0     0.0   0.0         0",
    ]
    counts = {"training": {"good": 1234, "b": 5}, "validation": {"good": 3}}
    assert count_table(counts).split("\n") == [
        "class  training  validation",
        "good      1,234           3",
        "b             5           0",
    ]


def test_confusion_as_a_matrix():
    confusion = np.array([[12, 0, 3], [4, 50, 6], [0, 0, 100]])
    assert confusion_table(confusion, ["x", "yes", "z\nz"]).split("\n") == [
        "correct \\ predicted   1   2    3",
        "1 x                  12   0    3",
        "2 yes                 4  50    6",
        "3 z z                 0   0  100",
    ]


def test_confusion_of_many_classes():
    confusion = 7 * np.eye(31, dtype=int)
    confusion[3, 5], confusion[3, 7] = 2, 3
    lines = confusion_table(confusion, [f"class {i}" for i in range(31)]).split("\n")
    assert lines[0] == "correct class  examples  found  most often taken for  times"
    assert lines[4] == "class 3              12      7  class 7                   3"
    assert lines[5] == "class 4               7      7                            0"
    assert len(lines) == 32


@pytest.mark.parametrize("count", [2, 5, 11, 13, 30, 101])
@pytest.mark.parametrize("name", ["w" * 97, "猫" * 53, "[bold]x", "a\tb"])
def test_tables_have_at_most_80_columns(count, name):
    confusion = np.random.default_rng(0).integers(0, 9999, (count, count))
    names = [f"{name} {number}" for number in range(count)]
    scores = dict.fromkeys(names, ClassScores(1, 1, 1, 10**9))
    for table in (
        confusion_table(confusion, names),
        score_table(scores),
        count_table({"training": dict.fromkeys(names, 10**9), "validation": {}}),
    ):
        lines = table.split("\n")
        assert len(lines) == count + 1
        assert max(map(cell_len, lines)) <= 80
        assert all("[bold]x" in line for line in lines[1:]) == (name == "[bold]x")
        assert ("…" in table) == (len(name) > 50)
