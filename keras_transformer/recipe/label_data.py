"""The data of a run of a classifier: read, split, and as rows of token ids."""

import collections
import json
import pathlib
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from keras_transformer.dataset.labelled_dataset import LabelledRow
from keras_transformer.models import TextClassifier, TokenClassifier
from keras_transformer.models.encoder_model import Row
from keras_transformer_runtime.files import written_whole
from keras_transformer_runtime.labels.class_balance import (
    class_weights,
    remarks,
    split_rows,
    split_texts,
)
from keras_transformer_runtime.labels.label_scores import (
    LabelScores,
    scores_of_texts,
    scores_of_words,
)
from keras_transformer_runtime.labels.labelled_texts import (
    LabelledTexts,
    read_labelled_texts,
)
from keras_transformer_runtime.labels.predictions import Classification, TaggedSentence
from keras_transformer_runtime.labels.tagged_words import (
    TaggedWords,
    read_tagged_words,
)
from keras_transformer_runtime.runs.label_recipe import LabelRecipe

HELD_OUT = 0.1  # of the training data, if no validation data are given

Labelled: TypeAlias = LabelledTexts | TaggedWords
AnyClassifier: TypeAlias = TextClassifier | TokenClassifier


class LabelData(NamedTuple):
    """The data of a run; `test` is `None` without test data."""

    train: Labelled
    valid: Labelled
    test: Labelled | None


def read_data(recipe: LabelRecipe) -> LabelData:
    """Reads the files of a run, and holds out the parts of the training data."""
    train = _read(recipe, recipe.train)
    parts: dict[str, Labelled | None] = {"valid": None, "test": None}
    shares = {"test": recipe.test, "valid": recipe.valid or HELD_OUT}
    left = 1.0
    names = class_names(train)
    for part, share in shares.items():
        if isinstance(share, float):
            train, parts[part] = _split(train, share / left, recipe.seed)
            left -= share
        elif share is not None:
            parts[part] = _read(recipe, share, names)
    assert parts["valid"] is not None
    return LabelData(train, parts["valid"], parts["test"])


def _read(
    recipe: LabelRecipe, path: str, names: Sequence[str] | None = None
) -> Labelled:
    if recipe.task == "tag":
        return read_tagged_words(path, recipe.columns, names)
    return read_labelled_texts(path, recipe.columns, recipe.multi_label, names)


def _split(data: Labelled, fraction: float, seed: int) -> tuple[Labelled, Labelled]:
    if isinstance(data, LabelledTexts):
        return split_texts(data, fraction, seed)
    rows = split_rows(data.words, [{*tags} for tags in data.tags], fraction, seed)
    return data.subset(rows[0]), data.subset(rows[1])


def class_names(data: Labelled) -> tuple[str, ...]:
    """Returns the names of the classes of texts, or the tags of words."""
    return data.class_names if isinstance(data, LabelledTexts) else data.tag_names


def texts_of(data: Labelled) -> list[str]:
    """Returns the texts of data, from which a vocabulary is learned."""
    if isinstance(data, TaggedWords):
        return [" ".join(words) for words in data.words]
    return [text for row in data.keys for text in row]


def class_counts(data: Labelled) -> dict[str, int]:
    """Returns the number of examples of each class."""
    if isinstance(data, LabelledTexts):
        return data.counts
    counts = collections.Counter(tag for tags in data.tags for tag in tags)
    return {name: counts[name] for name in data.tag_names}


def data_remarks(data: LabelData) -> list[str]:
    """Returns sentences on what a user should know about the data."""
    train, valid = data.train, data.valid
    if isinstance(train, LabelledTexts) and isinstance(valid, LabelledTexts):
        return [train.layout, *remarks(train, valid)]
    assert isinstance(train, TaggedWords)
    found = []
    for name, count in class_counts(train).items():
        if count == 1:
            place = next(x for x, tags in enumerate(train.tags) if name in tags)
            found.append(
                f"The tag {name!r} has one example, in the sentence of line "
                f"{train.lines[place]} of `{train.path}`. Add examples or remove it: a "
                "model cannot learn it."
            )
    missing = [repr(name) for name, n in class_counts(valid).items() if not n]
    if missing:
        found.append(f"The validation data has no example of {', '.join(missing)}.")
    return found


def write_held_out(data: LabelData, recipe: LabelRecipe) -> None:
    """Writes the held-out parts to the folder of the run, for `evaluate`."""
    for name in ("valid", "test"):
        part, given = getattr(data, name), vars(recipe)[name]
        if part is None or isinstance(given, str):
            continue
        path = pathlib.Path(recipe.output, "data", f"{name}.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(path) as file:
            for record in _records(part):
                line = json.dumps(record, ensure_ascii=False)
                file.write(f"{line}\n".encode())


def _records(data: Labelled) -> list[dict[str, object]]:
    if isinstance(data, TaggedWords):
        rows = zip(data.words, data.tags, strict=True)
        return [{"words": words, "tags": tags} for words, tags in rows]
    names = ("text",) if data.second_texts is None else ("text_a", "text_b")
    return [
        {
            **dict(zip(names, key, strict=True)),
            "label": [*labels] if data.multi_label else labels[0],
        }
        for key, labels in zip(data.keys, data.labels, strict=True)
    ]


def input_rows(model: AnyClassifier, data: Labelled) -> list[Row]:
    """Returns the inputs of each text; warns of texts that are cut."""
    if isinstance(model, TokenClassifier):
        assert isinstance(data, TaggedWords)
        return model.rows_of_words([[*words] for words in data.words])
    assert isinstance(data, LabelledTexts)
    texts = data.texts if data.second_texts is None else data.keys
    return model.encoder.rows_of_texts(texts, "texts")


def labelled_rows(
    model: AnyClassifier, data: Labelled, class_weight: str = "none"
) -> list[LabelledRow]:
    """Returns the rows that a model learns from, or whose loss it computes."""
    inputs, texts = input_rows(model, data), texts_of(data)
    if isinstance(data, LabelledTexts):
        weights = dict.fromkeys(data.class_names, 1.0)
        if class_weight == "balanced":
            weights = class_weights(data)
        step = 1 if data.second_texts is None else 2
        texts = texts[::step]
        targets = data.targets().tolist()
        return [
            LabelledRow(text, row, target, weights[names[0]] if names else 1.0)
            for text, row, target, names in zip(
                texts, inputs, targets, data.labels, strict=True
            )
        ]
    counts = class_counts(data)
    total, places = sum(counts.values()), {n: x for x, n in enumerate(data.tag_names)}
    weights = {
        name: total / (len(counts) * count) if class_weight == "balanced" else 1.0
        for name, count in counts.items()
        if count
    }
    return [
        LabelledRow(
            text,
            row,
            [places[tag] for tag in tags[: len(row["first_pieces"])]],
            [weights[tag] for tag in tags[: len(row["first_pieces"])]],
        )
        for text, row, tags in zip(texts, inputs, data.tags, strict=True)
    ]


def scores_of(
    model: AnyClassifier, data: Labelled, rows: Sequence[Row] | None = None
) -> LabelScores:
    """Returns the scores of a model on data, whose inputs are `rows`."""
    rows = input_rows(model, data) if rows is None else rows
    found = model.probabilities_of_rows(rows)
    if isinstance(data, TaggedWords):
        tagged = [
            TaggedSentence.of(words, each[: len(row["first_pieces"])], data.tag_names)
            for words, each, row in zip(data.words, found, rows, strict=True)
        ]
        return scores_of_words(data, tagged)
    names, several = data.class_names, data.multi_label
    return scores_of_texts(
        data, [Classification.of(each, names, several) for each in found]
    )
