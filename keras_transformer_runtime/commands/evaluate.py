"""The command `evaluate`."""

import enum
import math
import pathlib
import warnings
from collections.abc import Mapping
from typing import Annotated, NamedTuple, Self

import typer

from keras_transformer_runtime.commands.encoder_choice import is_encoder
from keras_transformer_runtime.commands.engine_choice import (
    EngineName,
    EngineOption,
    model_folders,
    open_engine,
)
from keras_transformer_runtime.commands.evaluate_labels import evaluate_labels
from keras_transformer_runtime.commands.messages import exits_on_interrupt
from keras_transformer_runtime.commands.parameters import (
    BatchSize,
    EngineModelPath,
    LengthPenalty,
    ManyValuesCommand,
    MaxLength,
    NumBeams,
    TooLong,
    TooLongLines,
)
from keras_transformer_runtime.engines.engine import Engine, warn_of_truncation
from keras_transformer_runtime.engines.generation_options import (
    GenerationOptions,
    GivenOptions,
)
from keras_transformer_runtime.file_translation.line_windows import TextSide
from keras_transformer_runtime.runs.folder import documents_of_run
from keras_transformer_runtime.text_files import read_lines
from keras_transformer_runtime.text_rows import TextRows, table_form
from keras_transformer_runtime.text_scores import TextScores, exp_or_infinity

app = typer.Typer()

DEFAULT_TOKENIZE = "13a"


class Documents(enum.StrEnum):
    """What a document of running text is; `none` for one text without documents."""

    file = "file"
    line = "line"
    paragraph = "paragraph"
    none = "none"


Source = Annotated[
    pathlib.Path,
    typer.Argument(
        exists=True,
        dir_okay=False,
        help="Text to translate, one sentence per line; plain or .gz. For a "
        "language model, running text, or prompts, one per line. Or a .tsv, .csv or "
        ".jsonl file with --columns.",
    ),
]
References = Annotated[
    pathlib.Path | None,
    typer.Argument(
        exists=True,
        dir_okay=False,
        help="Reference translations, one per line; plain or .gz. For a language "
        "model, the answers to the prompts. Omit it for running text, and for a file "
        "that has both.",
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME...",
        help="Columns of source and reference, or of running text, in a .tsv, .csv or "
        ".jsonl file, such as en de. Of a classifier: text and label.",
    ),
]
Lowercase = Annotated[
    bool, typer.Option("--lowercase", help="Ignore letter case in BLEU and chrF.")
]
BleuTokenize = Annotated[
    str, typer.Option(help="Tokenizer of sacreBLEU: 13a, zh, ja-mecab, char, …")
]
DocumentsOption = Annotated[
    Documents | None,
    typer.Option(
        help="Unit of a document, for a language model.",
        show_default="that of the run, or file",
    ),
]
Context = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of tokens that a window attends to, for a language model.",
        show_default="max_length of the model",
    ),
]
Stride = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of tokens that a window scores, for a language model; the "
        "tokens before them are context.",
        show_default="half of the context",
    ),
]


ConfusionMatrix = Annotated[
    pathlib.Path | None,
    typer.Option(
        dir_okay=False, help="Picture of the confusion matrix of a classifier, .png."
    ),
]


@app.command("evaluate", cls=ManyValuesCommand)
@exits_on_interrupt
def evaluate_command(
    command: typer.Context,
    model: EngineModelPath,
    source: Source,
    references: References = None,
    columns: Columns = None,
    engine: EngineOption = EngineName.auto,
    num_beams: NumBeams = None,
    length_penalty: LengthPenalty = None,
    lowercase: Lowercase = False,
    bleu_tokenize: BleuTokenize = DEFAULT_TOKENIZE,
    max_length: MaxLength = None,
    batch_size: BatchSize = 64,
    too_long: TooLongLines = TooLong.error,
    documents: DocumentsOption = None,
    context: Context = None,
    stride: Stride = None,
    confusion_matrix: ConfusionMatrix = None,
) -> None:
    """Print the scores of a model on a text.

    For parallel text these are BLEU, chrF, exact match, error rates and
    perplexity, and for a language model the perplexity of a token, of a
    character and of a byte. For a classifier, SOURCE has texts and labels, or
    words and tags, and the scores are accuracy, F1 and a confusion table.
    """
    if is_encoder(model):
        evaluate_labels(command, model, source, columns, confusion_matrix, batch_size)
        return
    if confusion_matrix is not None:
        raise typer.BadParameter("--confusion-matrix requires a classifier")
    from keras_transformer_runtime.bleu import bleu_metric  # imports sacreBLEU

    bleu_metric(lowercase, bleu_tokenize)
    given: GivenOptions = {
        "num_beams": num_beams,
        "length_penalty": length_penalty,
        "max_length": max_length,
    }
    opened = open_engine(command, model, engine, given, many_texts=True)
    of_running_text = {"documents": documents, "context": context, "stride": stride}
    if not opened.is_language_model:
        _refuse(of_running_text, "language models", f"{model}, which translates")
        if references is None and table_form(source) is None:
            raise typer.BadParameter(
                f"{model} requires reference translations", param_hint="'REFERENCES'"
            )
        text = _ParallelText.read(opened, source, references, columns, too_long)
        options = opened.options.with_given(**given)
        _print_quality(opened, text, options, batch_size, lowercase, bleu_tokenize)
        _print_perplexity(opened, text, batch_size)
        return
    of_translation = {
        **given,
        "lowercase": lowercase or None,
        "bleu_tokenize": bleu_tokenize if bleu_tokenize != DEFAULT_TOKENIZE else None,
        "too_long": too_long.value if too_long != TooLong.error else None,
    }
    _refuse(of_translation, "models that translate", f"the language model {model}")
    if references is not None or len(columns or ()) == 2:
        answers = f"the answers {references or source}"
        _refuse(of_running_text, "running text", answers)
        _print_answer_scores(opened, source, references, columns, batch_size)
        return
    if opened.name != "keras":
        if engine != EngineName.auto or model_folders(model).get("keras") is None:
            raise ValueError(
                "`engine` must be keras for the perplexity of running text; received "
                f"`engine={opened.name}`. Give a run or a .keras file."
            )
        typer.echo("Engine: Keras, for the perplexity of running text", err=True)
        opened = open_engine(command, model, EngineName.keras, {})
    kind = documents_of_run(model) or "file" if documents is None else documents
    texts = _read_running_text(source, kind, columns)
    _evaluate_running_text(opened, texts, context, stride, batch_size)


def _refuse(options: Mapping[str, object], use: str, received: str) -> None:
    """Raises `ValueError` if an option is given, which would have no effect."""
    for name, given in options.items():
        if given is not None:
            raise ValueError(
                f"`{name}` is for {use}; received `{name}={given}` and {received}."
            )


class _ParallelText(NamedTuple):
    """Sources and references, and which of them are longer than the model's limits."""

    sources: list[str]
    references: list[str]
    long_sources: list[bool]
    long_references: list[bool]

    @classmethod
    def read(
        cls,
        engine: Engine,
        source: pathlib.Path,
        references: pathlib.Path | None,
        columns: list[str] | None,
        too_long: TooLong,
    ) -> Self:
        sources, targets = _read_parallel(source, references, columns)
        other = references or source
        return cls(
            sources,
            targets,
            _find_long_lines(engine, "source", sources, source, too_long),
            _find_long_lines(engine, "target", targets, other, too_long),
        )


def _read_parallel(
    source: pathlib.Path, references: pathlib.Path | None, columns: list[str] | None
) -> tuple[list[str], list[str]]:
    """Reads two files, line n of which belong together, or a file with columns."""
    if references is None:
        rows = TextRows.of(source, columns, 2)
        _print_columns(rows, columns)
        pairs = [*rows]
        return [text for text, _ in pairs], [text for _, text in pairs]
    if columns is not None:
        raise ValueError(
            "`columns` must be given with one file that has source and reference; "
            f"received `columns={columns}` and {source} and {references}. Remove it."
        )
    sources, targets = [*read_lines(source)], [*read_lines(references)]
    if len(sources) != len(targets):
        raise ValueError(
            "`source` and `references` must have the same number of lines; received "
            f"{source} with {len(sources):,} and {references} with {len(targets):,}."
        )
    return sources, targets


def _print_columns(rows: TextRows, columns: list[str] | None) -> None:
    """Prints the columns that are used because a file has no others."""
    if columns is None and rows.names:
        typer.echo(f"Columns: {' '.join(rows.names)}", err=True)


def _find_long_lines(
    engine: Engine,
    side: str,
    lines: list[str],
    path: pathlib.Path,
    too_long: TooLong,
) -> list[bool]:
    """Returns for each line whether it is longer than the limit of the model.

    Raises `ValueError` for such a line if `too_long` is `TooLong.error`.
    """
    is_source = side == "source"
    limit = engine.max_source_length if is_source else engine.max_target_length
    text_side = TextSide(side, limit, engine.measure)
    window = text_side.window(0, lines)
    if too_long is TooLong.error:
        text_side.check_lengths(window, path)
    return [bool(is_long) for is_long in window.too_long]


def _print_quality(
    engine: Engine,
    text: _ParallelText,
    options: GenerationOptions,
    batch_size: int,
    lowercase: bool,
    bleu_tokenize: str,
) -> None:
    """Prints the scores of the translations of a text."""
    from keras_transformer_runtime.evaluation import text_scores

    translated = [
        "" if is_long or not source.strip() else source
        for source, is_long in zip(text.sources, text.long_sources, strict=True)
    ]
    found = engine.generate(translated, options, batch_size=batch_size)
    outputs = [hypotheses[0].text for hypotheses in found]
    warn_of_truncation(sum(h[0].truncated for h in found), len(outputs))
    scores = text_scores(outputs, text.references, lowercase, bleu_tokenize)
    for name, result in scores.items():
        typer.echo(f"{name.replace('_', ' '):21}{result.score:8.2f}")
        if result.signature:
            typer.echo(f"  {result.signature}")


def _print_perplexity(engine: Engine, text: _ParallelText, batch_size: int) -> None:
    """Prints the perplexity of the references that the limits of the model allow."""
    pairs = [
        (source, reference)
        for source, reference, *is_long in zip(*text, strict=True)
        if not any(is_long)
    ]
    count = len(text.sources)
    if len(pairs) < count:
        warnings.warn(
            f"{count - len(pairs)} of {count} pairs have a side with more tokens than "
            "the limit of the model. The perplexity excludes them, and the "
            "translations of such sources are empty.",
            stacklevel=1,
        )
    if pairs:
        sources, references = [source for source, _ in pairs], [ref for _, ref in pairs]
        scores = engine.score(sources, references, batch_size)
        nats = -math.fsum(score.log_probability for score in scores)
        tokens = sum(len(score.tokens) for score in scores)
        perplexity = exp_or_infinity(nats / max(tokens, 1))
        typer.echo(f"{'perplexity':21}{perplexity:8.2f}")


def _read_running_text(
    source: pathlib.Path, documents: str, columns: list[str] | None
) -> list[str]:
    """Reads the documents of running text."""
    from keras_transformer.dataset.running_text import text_documents

    _print_columns(TextRows.of(source, columns, 1), columns)
    unit = None if documents == "none" else str(documents)
    return [*text_documents(source, unit, columns[0] if columns else None)]


def _evaluate_running_text(
    engine: Engine,
    texts: list[str],
    context: int | None,
    stride: int | None,
    batch_size: int,
) -> None:
    """Prints the perplexities of running text."""
    from keras_transformer.inference.perplexity import score_running_text
    from keras_transformer.keras_engine import KerasEngine
    from keras_transformer.models import CausalLM

    assert isinstance(engine, KerasEngine) and isinstance(engine.model, CausalLM)
    model = engine.model
    scores = score_running_text(model, texts, context, stride, batch_size)
    context = context or model.max_length or 1
    stride = stride or max(context // 2, 1)
    _print_scores(scores, f"windows of {context:,} tokens, stride {stride:,}")


def _print_answer_scores(
    engine: Engine,
    source: pathlib.Path,
    references: pathlib.Path | None,
    columns: list[str] | None,
    batch_size: int,
) -> None:
    """Prints the perplexities of answers to prompts."""
    prompts, answers = _read_parallel(source, references, columns)
    scores = engine.score(prompts, answers, batch_size)
    total = TextScores(
        nats=-math.fsum(score.log_probability for score in scores),
        texts=len(answers),
        tokens=sum(len(score.tokens) for score in scores),
        characters=sum(map(len, answers)),
        bytes=sum(len(answer.encode()) for answer in answers),
    )
    _print_scores(total, f"{len(answers):,} answers")


def _print_scores(scores: TextScores, size: str) -> None:
    for line in scores.lines():
        typer.echo(line)
    typer.echo(f"{scores.tokens:,} tokens of {scores.characters:,} characters, {size}")
