"""The command `evaluate`."""

import pathlib
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from keras_transformer.command_line.parameters import (
    BatchSize,
    LengthPenalty,
    ModelPath,
    NumBeams,
    TooLong,
    TooLongLines,
    make_search,
)
from keras_transformer.command_line.startup import import_keras_quietly
from keras_transformer.recipe.loading import find_model, load_trained_model

if TYPE_CHECKING:
    from keras_transformer.inference.protocols import SequenceModel


def evaluate_command(
    model: ModelPath,
    source: Annotated[
        pathlib.Path,
        typer.Argument(
            exists=True,
            dir_okay=False,
            help="Text to translate, one sentence per line; plain or .gz.",
        ),
    ],
    references: Annotated[
        pathlib.Path,
        typer.Argument(
            exists=True,
            dir_okay=False,
            help="Reference translations, one per line; plain or .gz.",
        ),
    ],
    num_beams: NumBeams = None,
    length_penalty: LengthPenalty = None,
    lowercase: Annotated[
        bool, typer.Option("--lowercase", help="Ignore letter case in BLEU and chrF.")
    ] = False,
    bleu_tokenize: Annotated[
        str, typer.Option(help="Tokenizer of sacreBLEU: 13a, zh, ja-mecab, char, …")
    ] = "13a",
    batch_size: BatchSize = 64,
    too_long: TooLongLines = TooLong.error,
) -> None:
    """Print BLEU, chrF, exact match, error rates and perplexity on a parallel text."""
    from keras_transformer.evaluation import check_tokenize, text_scores

    check_tokenize(bleu_tokenize)
    find_model(model)
    import_keras_quietly()
    from keras_transformer.dataset import read_pairs

    pairs = read_pairs(source, references)
    sources = [text for text, _ in pairs]
    targets = [text for _, text in pairs]
    loaded = load_trained_model(model)
    long_sources = _find_long_lines(loaded, "source", sources, source, too_long)
    long_targets = _find_long_lines(loaded, "target", targets, references, too_long)
    texts = [
        "" if is_long or not text.strip() else text
        for text, is_long in zip(sources, long_sources, strict=True)
    ]
    search = make_search(model, num_beams, length_penalty)
    outputs = loaded.generate(texts, search, batch_size=batch_size)
    scores = text_scores(outputs, targets, lowercase, bleu_tokenize)
    for name, result in scores.items():
        label = name.replace("_", " ")
        typer.echo(f"{label:21}{result.score:8.2f}  {result.signature}".rstrip())
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
    """Tells for each line whether it is longer than the limit of the model.

    Raises `ValueError` for such a line if `too_long` is `TooLong.error`.
    """
    from keras_transformer.inference.file_translation.line_windows import ModelSide

    model_side = ModelSide(model, side)
    window = model_side.window(0, list(lines))
    if too_long is TooLong.error:
        model_side.check_lengths(window, path)
    return [bool(is_long) for is_long in window.too_long]
