"""Predictions: the class of a text, and the tags of the words of a sentence."""

import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from keras_transformer_runtime.labels.tagged_words import Span, tag_scheme, tag_spans

THRESHOLD = 0.5  # probability from which on a text has one of several labels


class Classification(NamedTuple):
    """The class of a text.

    Attributes:
        label: str, the most probable class; of a model with `multi_label`, the list of
            all classes with a probability of at least the threshold.
        score: float, its probability; with `multi_label`, the list of theirs.
        probabilities: dictionary of the probability of each class.
    """

    label: str | list[str]
    score: float | list[float]
    probabilities: dict[str, float]

    @classmethod
    def of(
        cls,
        probabilities: np.ndarray,
        class_names: Sequence[str],
        multi_label: bool = False,
        threshold: float = THRESHOLD,
    ) -> "Classification":
        """Returns the class with the highest probability.

        Args:
            probabilities: float32 array `(classes,)`.
            class_names: list of str.
            multi_label: bool, whether a text can have several classes.
            threshold: float, least probability of one of several.

        Returns:
            A `Classification`.
        """
        values = dict(zip(class_names, probabilities.tolist(), strict=True))
        if multi_label:
            chosen = {name: x for name, x in values.items() if x >= threshold}
            return cls([*chosen], [*chosen.values()], values)
        best = max(values, key=values.__getitem__)
        return cls(best, values[best], values)


class TaggedSentence(NamedTuple):
    """The tags of a sentence.

    Attributes:
        words: list of str.
        tags: list of str, the tag of each word; `None` for the words at the end that
            the model does not see because the sentence is too long.
        scores: list of float, the probability of each tag; 0 without a tag.
        spans: list of `Span`s `(kind, start, end)`, such as the names of people, if
            the tags are those of spans (BIO or BIOES).
    """

    words: list[str]
    tags: list[str | None]
    scores: list[float]
    spans: list[Span]

    @classmethod
    def of(
        cls, words: Sequence[str], probabilities: np.ndarray, class_names: Sequence[str]
    ) -> "TaggedSentence":
        """Returns the tags with the highest probabilities.

        Args:
            words: list of str.
            probabilities: float32 array `(words, classes)`. The last words of a
                sentence that is too long have none.
            class_names: list of str, the tags.

        Returns:
            A `TaggedSentence`.
        """
        missing = len(words) - len(probabilities)
        tags = [class_names[place] for place in probabilities.argmax(-1)]
        scores: list[float] = probabilities.max(-1, initial=0.0).tolist()
        has_spans = tag_scheme([class_names]) is not None
        return cls(
            [*words],
            [*tags, *[None] * missing],
            [*scores, *[0.0] * missing],
            tag_spans(tags) if has_spans else [],
        )


def warn_of_cut_texts(
    is_cut: np.ndarray, limit: int | None, kind: str = "texts"
) -> None:
    """Warns of texts that are longer than the model takes."""
    if np.any(is_cut):
        warnings.warn(
            f"{np.sum(is_cut)} of {len(is_cut)} {kind} have more than {limit} tokens. "
            "Their ends are left out.",
            stacklevel=5,
        )
