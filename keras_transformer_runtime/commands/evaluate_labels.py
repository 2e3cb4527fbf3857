"""The command `evaluate` for a classifier: accuracy, F1 and a confusion table."""

import pathlib
from collections.abc import Sequence

import typer

from keras_transformer_runtime.commands.encoder_choice import open_encoder
from keras_transformer_runtime.labels.label_scores import (
    scores_of_texts,
    scores_of_words,
)
from keras_transformer_runtime.labels.labelled_texts import read_labelled_texts
from keras_transformer_runtime.labels.predictions import THRESHOLD
from keras_transformer_runtime.labels.tagged_words import read_tagged_words

# Options of `evaluate` that a classifier has.
_OWN = {"model", "source", "columns", "confusion_matrix", "batch_size"}


def evaluate_labels(
    command: typer.Context,
    path: pathlib.Path,
    source: pathlib.Path,
    columns: Sequence[str] | None,
    confusion_matrix: pathlib.Path | None,
    batch_size: int,
) -> None:
    """Prints the scores of a classifier on a file, and draws its confusion matrix."""
    for parameter in command.command.params:
        name = parameter.name or ""
        is_given = command.params.get(name) not in (None, parameter.default, [])
        if name not in _OWN and is_given:
            raise ValueError(
                f"`{name}` must not be given for a classifier; received "
                f"`{name}={command.params[name]}` and {path}. Remove it."
            )
    opened = open_encoder(path)
    opened.check_task(path, "classify", "tag")
    names, chosen = opened.description.class_names, columns or None
    if opened.description.task == "tag":
        words = read_tagged_words(source, chosen, names)
        sentences = [[*each] for each in words.words]
        scores = scores_of_words(words, opened.tag(sentences, batch_size))
    else:
        several = opened.description.multi_label
        texts = read_labelled_texts(source, chosen, several, names)
        entries = texts.texts if texts.second_texts is None else texts.keys
        found = opened.classify([*entries], THRESHOLD, batch_size)
        scores = scores_of_texts(texts, found)
    for line in scores.lines():
        typer.echo(line)
    for table in scores.tables:
        typer.echo(f"\n{table}")
    if confusion_matrix is None:
        return
    if scores.confusion is None:
        raise ValueError(
            "`confusion_matrix` must be given for a model with one label per text; "
            f"received {path}, whose texts have several. Remove it."
        )
    from keras_transformer_runtime.commands.startup import import_keras_quietly

    import_keras_quietly()
    from keras_transformer.plotting import plot_confusion_matrix

    figure = plot_confusion_matrix(scores.confusion, scores.class_names)
    figure.savefig(confusion_matrix)
