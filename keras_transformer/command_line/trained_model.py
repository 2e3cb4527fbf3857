"""What the command does with a trained model: translate, evaluate, export, inspect."""

import contextlib
import enum
import pathlib
import sys
import warnings
from typing import Annotated, Any, BinaryIO

import typer

from keras_transformer.recipe.loading import load, model_path


class Format(enum.StrEnum):
    """What `export` writes."""

    saved_model = "saved_model"
    ctranslate2 = "ctranslate2"
    onnx = "onnx"
    marian = "marian"


class TooLong(enum.StrEnum):
    """What becomes of lines that are too long."""

    error = "error"
    empty = "empty"


DASH = pathlib.Path("-")  # standard input, or standard output


def _file(help: str) -> Any:
    return typer.Argument(exists=True, dir_okay=False, help=help)


def _existing(path: pathlib.Path) -> pathlib.Path:
    if path == DASH or path.is_file():
        return path
    if path.is_fifo():
        raise typer.BadParameter(f"{path} is a pipe; have it as standard input, -")
    raise typer.BadParameter(f"there is no file {path}")


ModelFile = Annotated[
    pathlib.Path,
    typer.Argument(
        exists=True, help="A .keras file, the folder of a run, or one of a preset."
    ),
]
SourceFile = Annotated[pathlib.Path, _file("Text to translate, one a line; or .gz.")]
NumBeams = Annotated[
    int | None,
    typer.Option(
        min=1, help="Hypotheses kept at each step.", show_default="the run's, or 4"
    ),
]
LengthPenalty = Annotated[
    float | None,
    typer.Option(
        help="Favours longer texts; 0 is off.", show_default="the run's, or 0.6"
    ),
]
BatchSize = Annotated[int, typer.Option(min=1, help="Texts decoded together.")]
TooLongLines = Annotated[
    TooLong,
    typer.Option(help="Lines over the model's limit: an error, or left empty."),
]


def translate(
    model: ModelFile,
    source: Annotated[
        pathlib.Path,
        typer.Argument(
            callback=_existing, help="Text to translate, one a line; .gz; - for a pipe."
        ),
    ] = DASH,
    target: Annotated[
        pathlib.Path, typer.Argument(help="The file to write; - for a pipe.")
    ] = DASH,
    num_beams: NumBeams = None,
    length_penalty: LengthPenalty = None,
    n_best: Annotated[
        int, typer.Option(min=0, help="Number of hypotheses to write for each line.")
    ] = 0,
    batch_size: BatchSize = 64,
    too_long: TooLongLines = TooLong.error,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file if it is there.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Translate a text file, or what comes from a pipe, a line each.

    After a stop, the same command goes on with a file; not with a pipe.
    """
    from keras_transformer.inference.file_translation import (
        translate_file,
        translate_stream,
    )
    from keras_transformer.inference.unfinished_file import record_path

    options: dict[str, Any] = {
        "search": search_of(model, num_beams, length_penalty, max(n_best, 1)),
        "batch_size": batch_size,
        "n_best": n_best > 0,
        "too_long": too_long.value,
    }
    loaded = load(model)
    if DASH not in (source, target):
        options |= {"overwrite": overwrite, "verbose": int(not quiet)}
        try:
            translate_file(loaded, source, target, **options)
        except KeyboardInterrupt:
            begun = record_path(target).exists()
            rest = "; the same command goes on" if begun else "; nothing is kept yet"
            raise KeyboardInterrupt(f"stopped{rest}") from None
        return
    if source == DASH and sys.stdin.isatty() and not quiet:
        typer.echo("Type a text and Enter; Ctrl-D ends.", err=True)
    read = sys.stdin.buffer if source == DASH else source
    shows_lines = target == DASH and sys.stdout.isatty()  # a bar would be among them
    options["verbose"] = int(not (quiet or shows_lines))
    with _opened(target, source, overwrite) as file:
        translate_stream(loaded, read, file, **options)


def _opened(
    target: pathlib.Path, source: pathlib.Path, overwrite: bool
) -> contextlib.AbstractContextManager[BinaryIO]:
    """Standard output, or a file that is there once it is whole."""
    from keras_transformer.inference.file_translation import written_at_once

    if target == DASH:
        return contextlib.nullcontext(sys.stdout.buffer)
    return written_at_once(target, None if source == DASH else source, overwrite)


def evaluate(
    model: ModelFile,
    source: SourceFile,
    references: Annotated[pathlib.Path, _file("The right translations.")],
    num_beams: NumBeams = None,
    length_penalty: LengthPenalty = None,
    lowercase: Annotated[
        bool, typer.Option("--lowercase", help="Ignore case in BLEU and chrF.")
    ] = False,
    bleu_tokenize: Annotated[
        str, typer.Option(help="How sacreBLEU finds words: 13a, zh, ja-mecab, char, …")
    ] = "13a",
    batch_size: BatchSize = 64,
    too_long: TooLongLines = TooLong.error,
) -> None:
    """Print sacreBLEU, chrF and perplexity of a model on a parallel text."""
    from keras_transformer import evaluation
    from keras_transformer.dataset import read_pairs

    evaluation.check_tokenize(bleu_tokenize)
    pairs = read_pairs(source, references)
    loaded = load(model)
    left_out = _long_pairs(loaded, pairs, (source, references), too_long)
    texts = [
        "" if is_long or not text.strip() else text
        for (text, _), is_long in zip(pairs, left_out[0], strict=True)
    ]
    search = search_of(model, num_beams, length_penalty)
    outputs = loaded.generate(texts, search, batch_size=batch_size)
    targets = [target for _, target in pairs]
    scores = evaluation.translation_scores(outputs, targets, lowercase, bleu_tokenize)
    for name, result in scores.items():
        typer.echo(f"{name:12}{result.score:8.2f}  {result.signature}")
    scored = [pair for pair, out in zip(pairs, left_out.any(0), strict=True) if not out]
    if len(scored) < len(pairs):
        warnings.warn(
            f"{len(pairs) - len(scored)} of {len(pairs)} pairs have a side of more "
            "tokens than the model takes: they are left out of the perplexity, and the "
            "translation of such a source is empty.",
            stacklevel=1,
        )
    if scored:
        sources, targets = map(list, zip(*scored, strict=True))
        perplexity = loaded.score(sources, targets, batch_size).perplexity
        typer.echo(f"{'perplexity':12}{perplexity:8.2f}")


def _long_pairs(
    model: Any,
    pairs: list[tuple[str, str]],
    paths: tuple[pathlib.Path, pathlib.Path],
    too_long: TooLong,
) -> Any:
    """Which sources and targets are too long, boolean `(2, pairs)`; or an error."""
    import numpy as np

    from keras_transformer.inference.line_windows import ModelSide

    found = []
    texts = zip(*pairs, strict=True)
    for name, lines, path in zip(("source", "target"), texts, paths, strict=True):
        side = ModelSide(model, name)
        window = side.window(0, list(lines))
        if too_long is TooLong.error:
            side.check_lengths(window, path)
        found.append(window.too_long)
    return np.stack(found)


def export(
    model: ModelFile,
    folder: Annotated[pathlib.Path, typer.Argument(help="A new folder to write.")],
    format: Annotated[Format, typer.Option(help="What to write.")] = Format.saved_model,
    num_beams: NumBeams = None,
    length_penalty: LengthPenalty = None,
    num_hypotheses: Annotated[
        int, typer.Option(min=1, help="Hypotheses per text in the signature nbest.")
    ] = 1,
    quantization: Annotated[
        str | None, typer.Option(help="How weights are stored: int8, float16, …")
    ] = None,
    card: Annotated[
        list[str] | None,
        typer.Option(
            help="A line of the model card, as NAME=TEXT; may be repeated. For "
            "saved_model."
        ),
    ] = None,
) -> None:
    """Export a model as a SavedModel, or for CTranslate2, ONNX Runtime or Marian."""
    options: dict[str, Any] = {}
    if quantization is not None:
        options["quantization"] = quantization
    if card:
        options["card"] = facts_of(card)
    search = search_of(model, num_beams, length_penalty, num_hypotheses)
    load(model).export(folder, search, format=format.value, **options)
    typer.echo(f"{format.value}: {folder}")


def facts_of(texts: list[str]) -> dict[str, str]:
    """What `--card NAME=TEXT` says, by name."""
    pairs = [text.partition("=") for text in texts]
    for name, equals, text in pairs:
        if not (name and equals):
            raise typer.BadParameter(f"--card must be NAME=TEXT, not {name + text}")
    return {name: text for name, _, text in pairs}


def import_(
    folder: Annotated[
        str,
        typer.Argument(help="Folder of Marian or CTranslate2, or a name on the Hub."),
    ],
    model: Annotated[pathlib.Path, typer.Argument(help="The .keras file to write.")],
    revision: Annotated[
        str | None,
        typer.Option(help="Branch, tag or commit on the Hub, such as refs/pr/1."),
    ] = None,
) -> None:
    """Read a model of another toolkit, and write it as a .keras file."""
    from keras_transformer.interoperability import ctranslate2, marian
    from keras_transformer.interoperability.files import find_folder

    if model.suffix != ".keras":
        raise typer.BadParameter("the file to write must end in .keras")
    if model.exists():
        raise typer.BadParameter(f"{model} exists")
    if revision is not None and pathlib.Path(folder).exists():
        raise typer.BadParameter(
            f"--revision is for a name on the Hub; {folder} is a folder"
        )
    found = find_folder(folder, [*ctranslate2.FILES, *marian.FILES], revision)
    if (found / "model.bin").exists():
        kind, loaded = "ctranslate2", ctranslate2.load_ctranslate2(found)
    else:
        kind, loaded = "marian", marian.load_marian(found)
    loaded.save(model)
    typer.echo(f"{kind}: {model}")


def inspect(
    path: Annotated[
        pathlib.Path,
        typer.Argument(
            exists=True, help="A .keras file, a run, a preset or a SavedModel."
        ),
    ],
) -> None:
    """Show what a .keras file, a run, a preset or a SavedModel contains."""
    is_saved_model = (path / "saved_model.pb").exists()
    facts = saved_model_facts(path) if is_saved_model else model_facts(path)
    width = max(map(len, facts)) + 2
    for name, value in facts.items():
        typer.echo(f"{name:{width}}{value}")


def model_facts(path: pathlib.Path) -> dict[str, Any]:
    """What a `.keras` file or a preset holds, by name."""
    from keras_transformer.export.card import describe_model

    path = model_path(path)
    facts = describe_model(load(path))
    return {
        "class": facts.pop("class"),
        "megabytes": megabytes([path, *path.rglob("*")]),
        **facts,
    }


def saved_model_facts(path: pathlib.Path) -> dict[str, Any]:
    """What a SavedModel holds, by name."""
    from keras_transformer.export.signatures import describe_signatures

    facts = {"class": "SavedModel", "megabytes": megabytes(path.rglob("*"))}
    return facts | describe_signatures(path)


def megabytes(paths: Any) -> str:
    """The size of files."""
    size = sum(path.stat().st_size for path in paths if path.is_file())
    return f"{size / 1e6:.1f}"


def search_of(
    model: pathlib.Path,
    num_beams: int | None,
    length_penalty: float | None,
    num_hypotheses: int = 1,
) -> Any:
    """The beam search of the options or, where they say nothing, of the run."""
    from keras_transformer.decoding import BeamSearch
    from keras_transformer.recipe.folder import chosen_search

    given = {"num_beams": num_beams, "length_penalty": length_penalty}
    given = {name: value for name, value in given.items() if value is not None}
    return BeamSearch(
        **{**chosen_search(model), **given, "num_hypotheses": num_hypotheses}
    )
