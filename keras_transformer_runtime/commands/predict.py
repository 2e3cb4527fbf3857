"""The command `predict`: the classes of texts, or the tags of their words."""

import contextlib
import json
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated

import typer

from keras_transformer_runtime.commands.encoder_choice import (
    OpenedEncoder,
    Text,
    open_encoder,
)
from keras_transformer_runtime.commands.messages import exits_on_interrupt
from keras_transformer_runtime.commands.parameters import BatchSize, ManyValuesCommand
from keras_transformer_runtime.files import written_whole
from keras_transformer_runtime.labels.predictions import (
    THRESHOLD,
    Classification,
    TaggedSentence,
)
from keras_transformer_runtime.text_rows import TextRows, table_form

app = typer.Typer()

CHUNK = 4096  # texts that are held in memory

EncoderPath = Annotated[
    pathlib.Path,
    typer.Argument(
        exists=True,
        help="The folder of a run, a preset, a SavedModel or an encoder of "
        "transformers, or a .keras file.",
    ),
]
TextColumns = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME...",
        help="Column of the text, or of two texts, in a .tsv, .csv or .jsonl file.",
    ),
]


@app.command("predict", cls=ManyValuesCommand)
@exits_on_interrupt
def predict_command(
    model: EncoderPath,
    source: Annotated[
        pathlib.Path | None,
        typer.Argument(
            exists=True,
            dir_okay=False,
            help="Texts, one per line; plain or .gz. Or a .tsv, .csv or .jsonl file "
            "with --columns.",
            show_default="standard input",
        ),
    ] = None,
    target: Annotated[
        pathlib.Path | None,
        typer.Argument(
            dir_okay=False,
            help="File to write. With the ending .jsonl, it has the probabilities of "
            "all classes, or the spans.",
            show_default="standard output",
        ),
    ] = None,
    columns: TextColumns = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Least probability of a label of a model with several per text.",
            show_default=f"{THRESHOLD}",
        ),
    ] = None,
    batch_size: BatchSize = 64,
) -> None:
    """Predict the labels of texts, or the tags of their words, with a classifier.

    A line of the output has the label and its probability, separated by a tab;
    several labels are separated by commas. For tags, it has a word and its tag,
    and an empty line follows each sentence. In a terminal, type a text and
    press Enter.
    """
    if target is not None and target.suffix == ".gz":
        raise typer.BadParameter(f"the file to write must not end in .gz: {target}")
    opened = open_encoder(model)
    opened.check_task(model, "classify", "tag")
    if threshold is not None and not opened.description.multi_label:
        raise ValueError(
            "`threshold` must be given for a model with several labels per text; "
            f"received `threshold={threshold}` and {model}, whose texts have one "
            "label. Remove it."
        )
    threshold = THRESHOLD if threshold is None else threshold
    is_json = target is not None and table_form(target) == "jsonl"
    if source is None and sys.stdin.isatty():
        typer.echo("Type a text and press Enter; Ctrl-D ends.", err=True)
        batches: Iterable[list[Text]] = ([line] for line in _typed_lines())
    else:
        batches = in_chunks(read_texts(source, columns))
    with _opened_output(target) as write:
        for texts in batches:
            for line in _lines(opened, texts, threshold, batch_size, is_json):
                write(line)


def read_texts(
    source: pathlib.Path | None, columns: Sequence[str] | None
) -> Iterator[Text]:
    """Yields the texts of a file, or of standard input; tuples of two texts.

    Raises `ValueError` if the columns of a table are not known.
    """
    if source is None:
        yield from (line.rstrip("\r\n") for line in sys.stdin)
        return
    if columns and table_form(source) is None:
        raise ValueError(
            "`columns` must be given with a .tsv, .csv or .jsonl file; received "
            f"`columns={[*columns]}` and {source}. Remove it."
        )
    width = len(columns or [""])
    for row in TextRows.of(source, columns or None, width):
        yield row[0] if width == 1 else tuple(row)


def in_chunks(texts: Iterator[Text]) -> Iterator[list[Text]]:
    """Yields lists of texts."""
    chunk: list[Text] = []
    for text in texts:
        chunk.append(text)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


@contextlib.contextmanager
def _opened_output(target: pathlib.Path | None) -> Iterator[Callable[[str], object]]:
    """Yields a function that writes a line."""
    if target is None:
        yield typer.echo
        return
    with written_whole(target) as file:
        yield lambda line: file.write(f"{line}\n".encode())


def _typed_lines() -> Iterator[str]:
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (`input` then edits lines and recalls them)
    with contextlib.suppress(EOFError):
        while True:
            yield input("> ")


def _lines(
    opened: OpenedEncoder,
    texts: list[Text],
    threshold: float,
    batch_size: int,
    is_json: bool,
) -> Iterator[str]:
    if opened.description.task == "classify":
        for found in opened.classify(texts, threshold, batch_size):
            yield json_line(found) if is_json else classification_line(found)
        return
    sentences = [text.split() for text in texts if isinstance(text, str)]
    if len(sentences) < len(texts):
        raise ValueError(
            "`columns` must name one column of texts whose words get tags; received "
            f"{len(texts[0])} columns."
        )
    for tagged in opened.tag(sentences, batch_size):
        yield json_line(tagged) if is_json else tagged_lines(tagged)


def classification_line(found: Classification) -> str:
    """Returns a label and its probability; several are separated by commas."""
    labels = [found.label] if isinstance(found.label, str) else found.label
    scores = [found.score] if isinstance(found.score, float) else found.score
    return f"{','.join(labels)}\t{','.join(f'{score:.4f}' for score in scores)}"


def tagged_lines(found: TaggedSentence) -> str:
    """Returns a line for each word, with a line break after the last one."""
    rows = zip(found.words, found.tags, strict=True)
    return "".join(f"{word}\t{tag or '_'}\n" for word, tag in rows)


def json_line(found: Classification | TaggedSentence) -> str:
    """Returns a prediction as JSON; a span is an object."""
    values = found._asdict()
    if isinstance(found, TaggedSentence):
        values["spans"] = [span._asdict() for span in found.spans]
    return json.dumps(values, ensure_ascii=False)
