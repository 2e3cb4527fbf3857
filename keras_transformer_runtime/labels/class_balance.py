"""Classes of labelled texts: what to know before a training, weights, and a split."""

import collections
import random
from collections.abc import Collection, Hashable, Iterator, Sequence

from keras_transformer_runtime.arguments import check_numbers
from keras_transformer_runtime.labels.labelled_texts import LabelledTexts

_UNEQUAL = 3  # ratio of the examples of two classes that is told


def class_weights(texts: LabelledTexts) -> dict[str, float]:
    """Computes weights with which all classes count equally in a loss.

    The weight of a class is `rows / (classes * examples of the class)`, as in
    `class_weight="balanced"` of scikit-learn.

    Args:
        texts: the training data. Each row has one label.

    Returns:
        A dictionary with the weight of each class.

    Raises:
        ValueError: if rows have several labels, or a class has no example.

    References:
        - King, Zeng, 2001, "Logistic Regression in Rare Events Data".
    """
    counts = texts.counts
    if texts.multi_label or not all(counts.values()):
        raise ValueError(
            "`texts` must have one label in each row, and each class an example, for "
            f"weights of classes; received `multi_label={texts.multi_label}` and the "
            f"examples {counts}."
        )
    return {name: len(texts) / (len(counts) * count) for name, count in counts.items()}


def remarks(
    training: LabelledTexts, validation: LabelledTexts | None = None
) -> list[str]:
    """Tells what a user should know about labelled texts before a training.

    Args:
        training: the training data.
        validation: the validation data.

    Returns:
        list of str, sentences on classes with one example, unequal classes, classes
        that are not in the validation data, and texts that are in both.
    """
    found = [*_single_examples(training)]
    counts = sorted((count, name) for name, count in training.counts.items() if count)
    (fewest, rare), *_, (most, frequent) = counts[0], counts[-1]
    if most > _UNEQUAL * fewest:
        found.append(
            f"The classes are unequal: {frequent!r} has {most:,} examples, {rare!r} "
            f"has {fewest:,}."
        )
    if validation is not None:
        missing = [repr(name) for name, n in validation.counts.items() if not n]
        if missing:
            found.append(f"The validation data has no example of {', '.join(missing)}.")
        found += _common_texts(training, validation)
    return found


def _single_examples(texts: LabelledTexts) -> Iterator[str]:
    for name, count in texts.counts.items():
        if count != 1:
            continue
        row = next(row for row, names in enumerate(texts.labels) if name in names)
        has_header_line = row == 0 and texts.columns[0].isdecimal()
        yield (
            f"The class {name!r} has one example, in line {texts.lines[row]} of "
            f"`{texts.path}`. "
            + (
                "If this line has the names of columns, pass them in `columns`."
                if has_header_line
                else "Add examples or remove it: a model cannot learn it."
            )
        )


def _common_texts(training: LabelledTexts, validation: LabelledTexts) -> Iterator[str]:
    known = {*training.keys}
    rows = [row for row, key in enumerate(validation.keys) if key in known]
    if rows:
        yield (
            f"{len(rows):,} of {len(validation):,} texts of the validation data are in "
            f"the training data too; the first is in line {validation.lines[rows[0]]} "
            f"of `{validation.path}`. Scores on these texts are too high: remove them "
            "from one file."
        )


def split_texts(
    texts: LabelledTexts, fraction: float = 0.1, seed: int = 0
) -> tuple[LabelledTexts, LabelledTexts]:
    """Splits labelled texts into training data and validation data.

    Each class has about the same part in both, as `split_rows` describes.

    Args:
        texts: the labelled texts.
        fraction: float, part of the validation data, above 0 and below 1.
        seed: int. The same seed gives the same split.

    Returns:
        Tuple of two `LabelledTexts`, training and validation, in the order of the file.

    Raises:
        ValueError: if no row can be split off.
    """
    rows = split_rows(texts.keys, texts.labels, fraction, seed)
    return texts.subset(rows[0]), texts.subset(rows[1])


def split_rows(
    keys: Sequence[Hashable],
    labels: Sequence[Collection[str]],
    fraction: float = 0.1,
    seed: int = 0,
) -> tuple[list[int], list[int]]:
    """Splits rows so that each label has about the same part in both parts.

    Rows with equal keys are not separated. From the rarest label to the most frequent
    one, a part of its rows that is chosen at random is for validation, never all. If
    each row has one label, it is at least one row of each label with two keys.

    Args:
        keys: the key of each row, such as its text.
        labels: the labels of each row; none, one or several.
        fraction: float, part of the validation rows, above 0 and below 1.
        seed: int. The same seed gives the same split.

    Returns:
        Tuple of two lists with the places of the rows, training and validation.

    Raises:
        ValueError: if `fraction` is not between 0 and 1, or no row can be split off.

    Example:

    >>> split_rows("abcdef", [["x"], ["x"], ["y"], ["y"], ["y"], ["y"]], 0.5)
    ([0, 2, 4], [1, 3, 5])

    References:
        - Sechidis, Tsoumakas, Vlahavas, 2011, "On the Stratification of Multi-Label
          Data".
    """
    check_numbers(above=0, below=1, fraction=fraction)
    groups: dict[Hashable, set[str]] = {}  # the labels of a key
    for key, names in zip(keys, labels, strict=True):
        groups.setdefault(key, set()).update(names or [""])
    chosen = _chosen_keys(groups, fraction, random.Random(seed))
    if not chosen:
        raise ValueError(
            "A split must have a label with two different rows or more; received "
            f"{len(groups)} different rows, and each label has one. Add examples, or "
            "pass validation data."
        )
    parts: tuple[list[int], list[int]] = ([], [])
    for row, key in enumerate(keys):
        parts[key in chosen].append(row)
    return parts


def _chosen_keys(
    groups: dict[Hashable, set[str]], fraction: float, generator: random.Random
) -> set[Hashable]:
    counts = collections.Counter(name for names in groups.values() for name in names)
    members = collections.defaultdict(list)  # keys of a label, in random order
    for key in sorted(groups, key=lambda _: generator.random()):
        for name in groups[key]:
            members[name].append(key)
    taken: collections.Counter[str] = collections.Counter()
    chosen: set[Hashable] = set()
    seen: set[Hashable] = set()
    for name in sorted(counts, key=lambda name: (counts[name], name)):
        wanted = max(1, round(fraction * counts[name]))
        for key in members[name]:
            is_spare = all(counts[each] - taken[each] > 1 for each in groups[key])
            if key not in seen and is_spare and taken[name] < wanted:
                chosen.add(key)
                taken.update(groups[key])
            seen.add(key)
    return chosen
