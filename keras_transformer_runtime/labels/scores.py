"""Scores of predicted labels, and their tables.

All scores are fractions from 0 to 1, higher is better. A score whose denominator is 0
is 0, as in scikit-learn. Tables have scores in percent.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from rich.cells import cell_len
from rich.text import Text

from keras_transformer_runtime.labels.tagged_words import Span, tag_spans

_COLUMNS = 80  # of a table
_GAP = 2  # between columns of a table
_LEAST_NAMES = 16  # columns for the names in front of a matrix


class ClassScores(NamedTuple):
    """Scores of a class, of a kind of entities, or of all.

    Attributes:
        precision: float, the correct part of the predictions.
        recall: float, the part of the examples that is found.
        f1: float, the harmonic mean of both.
        support: int, number of examples.
    """

    precision: float
    recall: float
    f1: float
    support: int


@dataclasses.dataclass(frozen=True)
class ClassificationScores:
    """Scores of predictions with one label.

    Attributes:
        accuracy: float, the correct part of the predictions.
        macro_f1: float, mean F1 of the classes that occur in the labels or in the
            predictions.
        per_class: the scores of each class.
        confusion: int64 array of shape `(classes, classes)`; see `confusion_matrix`.
    """

    accuracy: float
    macro_f1: float
    per_class: dict[str, ClassScores]
    confusion: np.ndarray


@dataclasses.dataclass(frozen=True)
class MultiLabelScores:
    """Scores of predictions with any number of labels.

    Attributes:
        subset_accuracy: float, the part of the rows whose labels are all correct.
        micro_f1: float, F1 of all labels of all rows.
        macro_f1: float, mean F1 of all classes.
        per_class: the scores of each class.
    """

    subset_accuracy: float
    micro_f1: float
    macro_f1: float
    per_class: dict[str, ClassScores]


@dataclasses.dataclass(frozen=True)
class EntityScores:
    """Scores of the spans of predicted tags.

    Attributes:
        overall: the scores of all entities (micro average).
        macro_f1: float, mean F1 of the kinds.
        per_kind: the scores of each kind that occurs.
    """

    overall: ClassScores
    macro_f1: float
    per_kind: dict[str, ClassScores]


def confusion_matrix(
    labels: ArrayLike, predictions: ArrayLike, num_classes: int
) -> np.ndarray:
    """Counts how often each class is predicted for each class.

    Args:
        labels: int array of shape `(rows,)`, ids of the correct classes.
        predictions: int array of shape `(rows,)`, ids of the predicted classes.
        num_classes: int, number of classes.

    Returns:
        int64 array of shape `(num_classes, num_classes)`: a row for each correct class,
        a column for each predicted class.

    Raises:
        ValueError: if the arrays do not have one id from 0 to `num_classes - 1` for
            each row, or have no rows.

    Example:

    >>> confusion_matrix([0, 0, 1], [0, 1, 1], 2)
    array([[1, 1],
           [0, 1]])
    """
    ids = [np.asarray(labels), np.asarray(predictions)]
    fits = ids[0].ndim == 1 and ids[0].size and ids[0].shape == ids[1].shape
    if not fits or not all(
        np.issubdtype(each.dtype, np.integer)
        and 0 <= each.min() <= each.max() < num_classes
        for each in ids
    ):
        raise ValueError(
            "`labels` and `predictions` must have the id of a class from 0 to "
            f"{num_classes - 1} for each of the same rows; received arrays of shapes "
            f"{ids[0].shape} and {ids[1].shape} with {ids[0].dtype} and "
            f"{ids[1].dtype}. Take the class with the largest logit of each row."
        )
    pairs = ids[0].astype("int64") * num_classes + ids[1]
    counts = np.bincount(pairs, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes)


def classification_scores(
    labels: ArrayLike, predictions: ArrayLike, class_names: Sequence[str]
) -> ClassificationScores:
    """Computes the scores of predictions with one label.

    Args:
        labels: int array of shape `(rows,)`, ids of the correct classes.
        predictions: int array of shape `(rows,)`, ids of the predicted classes.
        class_names: names of the classes.

    Returns:
        A `ClassificationScores`.

    Raises:
        ValueError: see `confusion_matrix`.

    Example:

    >>> scores = classification_scores([0, 0, 1], [0, 1, 1], ["bad", "good"])
    >>> scores.per_class["good"]
    ClassScores(precision=0.5, recall=1.0, f1=0.6666666666666666, support=1)
    """
    confusion = confusion_matrix(labels, predictions, len(class_names))
    correct = confusion.diagonal()
    examples, predicted = confusion.sum(axis=1), confusion.sum(axis=0)
    scores = _scores_of_counts(correct, predicted, examples)
    occurring = [
        each.f1
        for each, count in zip(scores, examples + predicted, strict=True)
        if count
    ]
    return ClassificationScores(
        accuracy=float(correct.sum() / confusion.sum()),
        macro_f1=float(np.mean(occurring)),
        per_class=dict(zip(class_names, scores, strict=True)),
        confusion=confusion,
    )


def multi_label_scores(
    labels: ArrayLike, predictions: ArrayLike, class_names: Sequence[str]
) -> MultiLabelScores:
    """Computes the scores of predictions with any number of labels.

    Args:
        labels: array of shape `(rows, classes)`, 1 for each correct label, else 0.
        predictions: array of shape `(rows, classes)`, 1 for each predicted label,
            else 0.
        class_names: names of the classes.

    Returns:
        A `MultiLabelScores`.

    Raises:
        ValueError: if the arrays do not have this shape, or other values.

    Example:

    >>> names = ["funny", "long"]
    >>> scores = multi_label_scores([[1, 0], [1, 1]], [[1, 0], [1, 0]], names)
    >>> scores.subset_accuracy, scores.micro_f1
    (0.5, 0.8)
    """
    truth, guess = np.asarray(labels), np.asarray(predictions)
    shape = (len(truth), len(class_names))
    if not (
        truth.shape == guess.shape == shape
        and truth.size
        and np.isin(truth, (0, 1)).all()
        and np.isin(guess, (0, 1)).all()
    ):
        raise ValueError(
            "`labels` and `predictions` must be 0 or 1 and have the shape "
            f"(rows, classes={len(class_names)}); received arrays of shapes "
            f"{truth.shape} and {guess.shape}. Compare probabilities with a threshold, "
            "such as 0.5."
        )
    truth, guess = truth == 1, guess == 1
    counts = [(truth & guess).sum(axis=0), guess.sum(axis=0), truth.sum(axis=0)]
    scores = _scores_of_counts(*counts)
    [overall] = _scores_of_counts(*(np.array([each.sum()]) for each in counts))
    return MultiLabelScores(
        subset_accuracy=float((truth == guess).all(axis=1).mean()),
        micro_f1=overall.f1,
        macro_f1=float(np.mean([each.f1 for each in scores])),
        per_class=dict(zip(class_names, scores, strict=True)),
    )


def entity_scores(
    labels: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]
) -> EntityScores:
    """Computes the scores of the entities that tags mark.

    An entity is correct if its kind, its first word and its last word are. `tag_spans`
    defines the entities; the scores are those of conlleval and of seqeval's default
    mode.

    Args:
        labels: the correct tags of each sentence.
        predictions: the predicted tags of each sentence.

    Returns:
        An `EntityScores`. All scores are 0 if there are no entities.

    Raises:
        ValueError: if a sentence has not as many predicted tags as correct ones, or a
            tag is plain.

    Example:

    >>> labels = [["B-PER", "I-PER", "O"], ["B-LOC"]]
    >>> predictions = [["B-PER", "O", "O"], ["B-LOC"]]
    >>> entity_scores(labels, predictions).overall
    ClassScores(precision=0.5, recall=0.5, f1=0.5, support=2)

    References:
        - Tjong Kim Sang, De Meulder, 2003, "Introduction to the CoNLL-2003 Shared
          Task".
        - Nakayama, 2018, "seqeval: A Python framework for sequence labeling
          evaluation".
    """
    lengths = [[*map(len, each)] for each in (labels, predictions)]
    if lengths[0] != lengths[1]:
        raise ValueError(
            "`predictions` must have one tag for each tag of `labels`; received "
            f"{sum(lengths[1])} tags in {len(lengths[1])} sentences, and `labels` has "
            f"{sum(lengths[0])} in {len(lengths[0])}. Predict a tag for each word, "
            "also for words that a model cuts off."
        )
    correct, predicted = _entities(labels), _entities(predictions)
    kinds = sorted({entity.kind for _, entity in correct | predicted})
    scores = _scores_of_counts(
        *(
            np.array([sum(e.kind == kind for _, e in found) for kind in kinds], "int64")
            for found in (correct & predicted, predicted, correct)
        )
    )
    counts = [len(correct & predicted), len(predicted), len(correct)]
    [overall] = _scores_of_counts(*(np.array([count]) for count in counts))
    return EntityScores(
        overall=overall,
        macro_f1=float(np.mean([each.f1 for each in scores])) if kinds else 0.0,
        per_kind=dict(zip(kinds, scores, strict=True)),
    )


def _entities(sentences: Sequence[Sequence[str]]) -> set[tuple[int, Span]]:
    return {
        (place, span)
        for place, tags in enumerate(sentences)
        for span in tag_spans(tags)
    }


def _scores_of_counts(
    correct: np.ndarray, predicted: np.ndarray, examples: np.ndarray
) -> list[ClassScores]:
    precision = correct / np.maximum(predicted, 1)
    recall = correct / np.maximum(examples, 1)
    f1 = 2 * correct / np.maximum(predicted + examples, 1)
    columns = (precision.tolist(), recall.tolist(), f1.tolist(), examples.tolist())
    return [ClassScores(*row) for row in zip(*columns, strict=True)]


def score_table(per_class: Mapping[str, ClassScores], name: str = "class") -> str:
    """Returns a table of the scores of classes, of at most 80 columns.

    Args:
        per_class: the scores of each class.
        name: str, header of the classes.

    Returns:
        Lines of text. Scores are in percent.
    """
    rows = [
        [key, *(f"{100 * score:.1f}" for score in scores[:3]), f"{scores.support:,}"]
        for key, scores in per_class.items()
    ]
    return _table([name, "precision", "recall", "F1", "examples"], rows)


def count_table(counts: Mapping[str, Mapping[str, int]]) -> str:
    """Returns a table of the examples of each class, of at most 80 columns.

    Args:
        counts: for each part of the data, such as `"training"`, the number of examples
            of each class.

    Returns:
        Lines of text.
    """
    names = dict.fromkeys(name for part in counts.values() for name in part)
    rows = [
        [name, *(f"{part.get(name, 0):,}" for part in counts.values())]
        for name in names
    ]
    return _table(["class", *counts], rows)


def confusion_table(confusion: np.ndarray, class_names: Sequence[str]) -> str:
    """Returns a confusion matrix as a table of at most 80 columns.

    Args:
        confusion: int array of shape `(classes, classes)`; see `confusion_matrix`.
        class_names: names of the classes.

    Returns:
        Lines of text: a row for each correct class, and a column for each predicted
        class, named by its number. If 80 columns are too few, a row has the numbers of
        examples and of correct predictions, and the most frequent wrong class.
    """
    digits = len(f"{max(confusion.max(), len(class_names))}")
    if _LEAST_NAMES + len(class_names) * (digits + _GAP) > _COLUMNS:
        return _table(
            ["correct class", "examples", "found", "most often taken for", "times"],
            [
                [
                    name,
                    f"{row.sum():,}",
                    f"{row[place]:,}",
                    *_worst(row, place, class_names),
                ]
                for place, (name, row) in enumerate(
                    zip(class_names, confusion, strict=True)
                )
            ],
            left=(0, 3),
        )
    numbers = [str(number) for number, _ in enumerate(class_names, start=1)]
    return _table(
        ["correct \\ predicted", *numbers],
        [
            [f"{number} {name}", *map(str, row)]
            for number, name, row in zip(
                numbers, class_names, confusion.tolist(), strict=True
            )
        ],
    )


def _worst(row: np.ndarray, correct: int, class_names: Sequence[str]) -> list[str]:
    """Returns the name and the number of the most frequent wrong prediction."""
    wrong = np.where(np.arange(len(row)) == correct, 0, row)
    place = int(wrong.argmax())
    return [class_names[place] if wrong[place] else "", f"{wrong[place]:,}"]


def _table(
    header: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)
) -> str:
    """Returns a table. Texts in columns `left` are cut if they are too long."""
    lines = [[" ".join(cell.split()) for cell in row] for row in (header, *rows)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    room = _COLUMNS - _GAP * (len(widths) - 1)
    room -= sum(width for place, width in enumerate(widths) if place not in left)
    for done, place in enumerate(sorted(left, key=widths.__getitem__)):
        widths[place] = min(widths[place], room // (len(left) - done))
        room -= widths[place]
    cells = [
        [
            _fit(cell, width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in lines
    ]
    return "\n".join((" " * _GAP).join(row).rstrip() for row in cells)


def _fit(text: str, width: int) -> str:
    """Returns a text that is cut or padded to the columns of a terminal."""
    fitted = Text(text)
    fitted.truncate(width, overflow="ellipsis", pad=True)
    return fitted.plain
