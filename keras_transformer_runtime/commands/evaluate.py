"""The command `evaluate`."""

import enum
import pathlib
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple, Self

import typer

from keras_transformer_runtime.commands.messages import exits_on_interrupt
from keras_transformer_runtime.commands.parameters import (
    BatchSize,
    LengthPenalty,
    MaxLength,
    ModelPath,
    NumBeams,
    TooLong,
    TooLongLines,
    make_search,
)
from keras_transformer_runtime.commands.startup import import_keras_quietly
from keras_transformer_runtime.model_paths import find_model
from keras_transformer_runtime.runs.folder import documents_of_run

if TYPE_CHECKING:
    from keras_transformer.decoding import BeamSearch
    from keras_transformer.inference.perplexity import TextScores
    from keras_transformer.inference.protocols import SequenceModel
    from keras_transformer.models import CausalLM, GenerativeModel

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
        "language model, running text, or prompts, one per line.",
    ),
]
References = Annotated[
    pathlib.Path | None,
    typer.Argument(
        exists=True,
        dir_okay=False,
        help="Reference translations, one per line; plain or .gz. For a language "
        "model, the answers to the prompts; omit it for running text.",
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


@app.command("evaluate")
@exits_on_interrupt
def evaluate_command(
    model: ModelPath,
    source: Source,
    references: References = None,
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
) -> None:
    """Print the scores of a model on a text.

    For parallel text these are BLEU, chrF, exact match, error rates and perplexity,
    and for a language model the perplexity of a token, of a character and of a byte.
    """
    from keras_transformer_runtime.bleu import bleu_metric  # imports sacreBLEU

    bleu_metric(lowercase, bleu_tokenize)
    find_model(model)
    import_keras_quietly()
    from keras_transformer.models import CausalLM
    from keras_transformer.recipe.loading import load_trained_model

    loaded = load_trained_model(model)
    of_running_text = {"documents": documents, "context": context, "stride": stride}
    if not isinstance(loaded, CausalLM):
        name = type(loaded).__name__
        _refuse(of_running_text, "language models", f"{model}, a {name}")
        if references is None:
            raise typer.BadParameter(
                f"a {name} requires reference translations", param_hint="'REFERENCES'"
            )
        search = make_search(model, num_beams, length_penalty)
        text = _ParallelText.read(loaded, source, references, too_long)
        _print_quality(
            loaded, text, search, max_length, batch_size, lowercase, bleu_tokenize
        )
        _print_perplexity(loaded, text, batch_size)
        return
    of_translation = {
        "num_beams": num_beams,
        "length_penalty": length_penalty,
        "max_length": max_length,
        "lowercase": lowercase or None,
        "bleu_tokenize": bleu_tokenize if bleu_tokenize != DEFAULT_TOKENIZE else None,
        "too_long": too_long.value if too_long != TooLong.error else None,
    }
    _refuse(of_translation, "models that translate", f"the language model {model}")
    if references is None:
        kind = documents_of_run(model) or "file" if documents is None else documents
        _evaluate_running_text(loaded, source, kind, context, stride, batch_size)
    else:
        _refuse(of_running_text, "running text", f"the answers {references}")
        _evaluate_answers(loaded, source, references, batch_size)


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
        model: "SequenceModel",
        source: pathlib.Path,
        references: pathlib.Path,
        too_long: TooLong,
    ) -> Self:
        from keras_transformer.dataset import read_pairs

        pairs = read_pairs(source, references)
        sources, targets = [text for text, _ in pairs], [text for _, text in pairs]
        return cls(
            sources,
            targets,
            _find_long_lines(model, "source", sources, source, too_long),
            _find_long_lines(model, "target", targets, references, too_long),
        )


def _find_long_lines(
    model: "SequenceModel",
    side: str,
    lines: Sequence[str],
    path: pathlib.Path,
    too_long: TooLong,
) -> list[bool]:
    """Returns for each line whether it is longer than the limit of the model.

    Raises `ValueError` for such a line if `too_long` is `TooLong.error`.
    """
    from keras_transformer.inference.file_translation.line_windows import ModelSide

    model_side = ModelSide(model, side)
    window = model_side.window(0, list(lines))
    if too_long is TooLong.error:
        model_side.check_lengths(window, path)
    return [bool(is_long) for is_long in window.too_long]


def _print_quality(
    model: "GenerativeModel",
    text: _ParallelText,
    search: "BeamSearch",
    max_length: int | None,
    batch_size: int,
    lowercase: bool,
    bleu_tokenize: str,
) -> None:
    """Prints the scores of the translations of a text."""
    from keras_transformer.decoding.lengths import warn_of_truncation
    from keras_transformer.evaluation import text_scores
    from keras_transformer.inference.file_translation.translation import (
        TRUNCATION_REMEDY,
    )

    translated = [
        "" if is_long or not source.strip() else source
        for source, is_long in zip(text.sources, text.long_sources, strict=True)
    ]
    outputs, truncated = model.generate(
        translated, search, max_length, batch_size, return_truncated=True
    )
    warn_of_truncation(int(truncated.sum()), len(outputs), TRUNCATION_REMEDY)
    scores = text_scores(outputs, text.references, lowercase, bleu_tokenize)
    for name, result in scores.items():
        typer.echo(f"{name.replace('_', ' '):21}{result.score:8.2f}")
        if result.signature:
            typer.echo(f"  {result.signature}")


def _print_perplexity(
    model: "GenerativeModel", text: _ParallelText, batch_size: int
) -> None:
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
        perplexity = model.score(sources, references, batch_size).perplexity
        typer.echo(f"{'perplexity':21}{perplexity:8.2f}")


def _evaluate_running_text(
    model: "CausalLM",
    source: pathlib.Path,
    documents: str,
    context: int | None,
    stride: int | None,
    batch_size: int,
) -> None:
    """Prints the perplexities of running text."""
    from keras_transformer.dataset.running_text import text_documents
    from keras_transformer.inference.perplexity import score_running_text

    texts = [*text_documents(source, None if documents == "none" else str(documents))]
    scores = score_running_text(model, texts, context, stride, batch_size)
    context = context or model.max_length or 1
    stride = stride or max(context // 2, 1)
    _print_scores(scores, f"windows of {context:,} tokens, stride {stride:,}")


def _evaluate_answers(
    model: "CausalLM", source: pathlib.Path, references: pathlib.Path, batch_size: int
) -> None:
    """Prints the perplexities of answers to prompts."""
    from keras_transformer.dataset import read_pairs
    from keras_transformer.inference.perplexity import TextScores

    prompts, answers = zip(*read_pairs(source, references), strict=True)
    result = model.score([*prompts], [*answers], batch_size)
    _print_scores(TextScores.of(result, answers), f"{len(answers):,} answers")


def _print_scores(scores: "TextScores", size: str) -> None:
    for line in scores.lines():
        typer.echo(line)
    typer.echo(f"{scores.tokens:,} tokens of {scores.characters:,} characters, {size}")
