"""The command `evaluate`."""

import enum
import pathlib
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    from keras_transformer.inference.protocols import SequenceModel
    from keras_transformer.models import CausalLM

app = typer.Typer()


DEFAULT_TOKENIZE = "13a"


class Documents(enum.StrEnum):
    """What a document of running text is; `none` for one text without documents."""

    file = "file"
    line = "line"
    paragraph = "paragraph"
    none = "none"


@app.command("evaluate")
@exits_on_interrupt
def evaluate_command(
    model: ModelPath,
    source: Annotated[
        pathlib.Path,
        typer.Argument(
            exists=True,
            dir_okay=False,
            help="Text to translate, one sentence per line; plain or .gz. For a "
            "language model, running text, or prompts, one per line.",
        ),
    ],
    references: Annotated[
        pathlib.Path | None,
        typer.Argument(
            exists=True,
            dir_okay=False,
            help="Reference translations, one per line; plain or .gz. For a language "
            "model, the answers to the prompts; omit it for running text.",
        ),
    ] = None,
    num_beams: NumBeams = None,
    length_penalty: LengthPenalty = None,
    lowercase: Annotated[
        bool, typer.Option("--lowercase", help="Ignore letter case in BLEU and chrF.")
    ] = False,
    bleu_tokenize: Annotated[
        str, typer.Option(help="Tokenizer of sacreBLEU: 13a, zh, ja-mecab, char, …")
    ] = DEFAULT_TOKENIZE,
    max_length: MaxLength = None,
    batch_size: BatchSize = 64,
    too_long: TooLongLines = TooLong.error,
    documents: Annotated[
        Documents | None,
        typer.Option(
            help="Unit of a document, for a language model.",
            show_default="that of the run, or file",
        ),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of tokens that a window attends to, for a language model.",
            show_default="max_length of the model",
        ),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of tokens that a window scores, for a language model; the "
            "tokens before them are context.",
            show_default="half of the context",
        ),
    ] = None,
) -> None:
    """Print the scores of a model on a text.

    For parallel text these are BLEU, chrF, exact match, error rates and perplexity,
    and for a language model the perplexity of a token, of a character and of a byte.
    """
    from keras_transformer_runtime.bleu import bleu_metric  # imports sacreBLEU

    bleu_metric(lowercase, bleu_tokenize)
    find_model(model)
    import_keras_quietly()
    from keras_transformer.dataset import read_pairs
    from keras_transformer.decoding.lengths import warn_of_truncation
    from keras_transformer.evaluation import text_scores
    from keras_transformer.inference.file_translation.translation import (
        TRUNCATION_REMEDY,
    )
    from keras_transformer.models import CausalLM
    from keras_transformer.recipe.loading import load_trained_model

    loaded = load_trained_model(model)
    if isinstance(loaded, CausalLM):
        options: dict[str, object] = {
            "num_beams": num_beams,
            "length_penalty": length_penalty,
            "max_length": max_length,
            "lowercase": lowercase or None,
            "bleu_tokenize": None
            if bleu_tokenize == DEFAULT_TOKENIZE
            else bleu_tokenize,
            "too_long": None if too_long is TooLong.error else str(too_long),
        }
        _refuse(options, "models that translate", f"the language model {model}")
        _evaluate_language_model(
            *(loaded, model, source, references, documents),
            *(context, stride, batch_size),
        )
        return
    others = {"documents": documents, "context": context, "stride": stride}
    _refuse(others, "language models", f"{model}, a {type(loaded).__name__}")
    if references is None:
        raise typer.BadParameter(
            f"a {type(loaded).__name__} requires reference translations",
            param_hint="'REFERENCES'",
        )
    pairs = read_pairs(source, references)
    sources = [text for text, _ in pairs]
    targets = [text for _, text in pairs]
    long_sources = _find_long_lines(loaded, "source", sources, source, too_long)
    long_targets = _find_long_lines(loaded, "target", targets, references, too_long)
    texts = [
        "" if is_long or not text.strip() else text
        for text, is_long in zip(sources, long_sources, strict=True)
    ]
    search = make_search(model, num_beams, length_penalty)
    outputs, truncated = loaded.generate(
        texts, search, max_length, batch_size, return_truncated=True
    )
    warn_of_truncation(int(truncated.sum()), len(texts), TRUNCATION_REMEDY)
    scores = text_scores(outputs, targets, lowercase, bleu_tokenize)
    for name, result in scores.items():
        label = name.replace("_", " ")
        typer.echo(f"{label:21}{result.score:8.2f}")
        if result.signature:
            typer.echo(f"  {result.signature}")
    scored = [
        pair
        for pair, *is_long in zip(pairs, long_sources, long_targets, strict=True)
        if not any(is_long)
    ]
    if len(scored) < len(pairs):
        warnings.warn(
            f"{len(pairs) - len(scored)} of {len(pairs)} pairs have a side with more "
            "tokens than the limit of the model. The perplexity excludes them, and the "
            "translations of such sources are empty.",
            stacklevel=1,
        )
    if scored:
        perplexity = loaded.score(
            [text for text, _ in scored], [text for _, text in scored], batch_size
        ).perplexity
        typer.echo(f"{'perplexity':21}{perplexity:8.2f}")


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


def _refuse(options: Mapping[str, object], use: str, received: str) -> None:
    """Raises `ValueError` if an option is given, which would have no effect."""
    for name, given in options.items():
        if given is not None:
            raise ValueError(
                f"`{name}` is for {use}; received `{name}={given}` and {received}."
            )


def _evaluate_language_model(
    model: "CausalLM",
    path: pathlib.Path,
    source: pathlib.Path,
    references: pathlib.Path | None,
    documents: Documents | None,
    context: int | None,
    stride: int | None,
    batch_size: int,
) -> None:
    """Prints the perplexities of running text, or of answers."""
    from keras_transformer.dataset import read_pairs
    from keras_transformer.dataset.running_text import text_documents
    from keras_transformer.inference.perplexity import TextScores, score_running_text
    from keras_transformer_runtime.runs.folder import documents_of_run

    if references is not None:
        options = {"documents": documents, "context": context, "stride": stride}
        _refuse(options, "running text", f"the answers {references}")
        prompts, answers = zip(*read_pairs(source, references), strict=True)
        result = model.score([*prompts], [*answers], batch_size)
        scores, size = TextScores.of(result, answers), f"{len(answers):,} answers"
    else:
        kind = documents_of_run(path) or "file" if documents is None else documents
        texts = [*text_documents(source, None if kind == "none" else str(kind))]
        scores = score_running_text(model, texts, context, stride, batch_size)
        context = context or model.max_length or 1
        stride = stride or max(context // 2, 1)
        size = f"windows of {context:,} tokens, stride {stride:,}"
    for line in scores.lines():
        typer.echo(line)
    typer.echo(f"{scores.tokens:,} tokens of {scores.characters:,} characters, {size}")
