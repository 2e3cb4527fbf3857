"""The scores of predictions on labelled texts or tagged words, and their tables."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_transformer_runtime.labels.labelled_texts import LabelledTexts
from keras_transformer_runtime.labels.predictions import Classification, TaggedSentence
from keras_transformer_runtime.labels.scores import (
    classification_scores,
    confusion_table,
    entity_scores,
    multi_label_scores,
    score_table,
)
from keras_transformer_runtime.labels.tagged_words import TaggedWords, tag_scheme


class LabelScores(NamedTuple):
    """The scores of predictions.

    Attributes:
        examples: str, the number of texts or words.
        values: dictionary of floats: `"accuracy"`, `"macro_f1"` and, of several labels,
            `"micro_f1"`, or, of spans, `"entity_precision"`, `"entity_recall"` and
            `"entity_f1"`.
        tables: list of str, the scores of each class, and the confusion table.
        class_names: list of str.
        confusion: list of lists of int, see `confusion_matrix`; `None` for several
            labels.
    """

    examples: str
    values: dict[str, float]
    tables: list[str]
    class_names: list[str]
    confusion: list[list[int]] | None

    def lines(self) -> list[str]:
        """Returns the scores in percent, a line each."""
        return [
            f"{name.replace('_', ' '):21}{100 * value:8.2f}"
            for name, value in self.values.items()
        ]


def scores_of_texts(
    data: LabelledTexts, found: Sequence[Classification]
) -> LabelScores:
    """Computes the scores of the classes of texts.

    Args:
        data: the texts and their labels.
        found: list of the predictions.

    Returns:
        A `LabelScores`. The accuracy of several labels is the part of the texts whose
        labels are all correct.
    """
    names = [*data.class_names]
    places = {name: place for place, name in enumerate(names)}
    if data.multi_label:
        predicted = np.zeros((len(found), len(names)), int)
        for row, each in zip(predicted, found, strict=True):
            row[[places[name] for name in each.label]] = 1
        several = multi_label_scores(data.targets(), predicted, names)
        values = {
            "accuracy": several.subset_accuracy,
            "macro_f1": several.macro_f1,
            "micro_f1": several.micro_f1,
        }
        tables = [score_table(several.per_class)]
        return LabelScores(f"{len(found):,} texts", values, tables, names, None)
    chosen = [places[str(each.label)] for each in found]
    return _of_classes(data.targets().tolist(), chosen, names, "texts")


def scores_of_words(data: TaggedWords, found: Sequence[TaggedSentence]) -> LabelScores:
    """Computes the scores of the tags of words.

    A word that the model has not seen has the tag `"O"`, or else the first tag.

    Args:
        data: the words and their tags.
        found: list of the predictions.

    Returns:
        A `LabelScores`.
    """
    names = [*data.tag_names]
    unseen = "O" if "O" in names else names[0]
    predicted = [[tag or unseen for tag in each.tags] for each in found]
    places = {name: place for place, name in enumerate(names)}
    pairs = [
        (places[tag], places[own])
        for row, own_row in zip(data.tags, predicted, strict=True)
        for tag, own in zip(row, own_row, strict=True)
    ]
    scores = _of_classes([x for x, _ in pairs], [x for _, x in pairs], names, "words")
    if tag_scheme([names]) is None:
        return scores
    entities = entity_scores(data.tags, predicted)
    values = {
        "entity_f1": entities.overall.f1,
        "entity_precision": entities.overall.precision,
        "entity_recall": entities.overall.recall,
        **scores.values,
    }
    tables = [score_table(entities.per_kind, "kind"), *scores.tables]
    return scores._replace(values=values, tables=tables)


def _of_classes(
    correct: Sequence[int], chosen: Sequence[int], names: list[str], unit: str
) -> LabelScores:
    scores = classification_scores(correct, chosen, names)
    values = {"accuracy": scores.accuracy, "macro_f1": scores.macro_f1}
    tables = [score_table(scores.per_class), confusion_table(scores.confusion, names)]
    examples = f"{len(correct):,} {unit}"
    return LabelScores(examples, values, tables, names, scores.confusion.tolist())
