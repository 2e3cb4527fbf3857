"""The command `keras-transformer`: parses its arguments, and calls the library."""

import enum
import pathlib
import sys
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="keras-transformer",
    help="Use a trained sequence-to-sequence Transformer. KERAS_BACKEND chooses "
    "tensorflow, jax or torch.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


# What installs a package that a command may find missing.
EXTRAS = {
    "ctranslate2": "ctranslate2",
    "rapidfuzz": "evaluation",
    "sacrebleu": "evaluation",
}


class Format(enum.StrEnum):
    """What `export` writes."""

    saved_model = "saved_model"
    ctranslate2 = "ctranslate2"


class TooLong(enum.StrEnum):
    """What becomes of lines that are too long."""

    error = "error"
    empty = "empty"


def _file(help: str, **options: Any) -> Any:
    return typer.Argument(exists=True, dir_okay=False, help=help, **options)


ModelFile = Annotated[pathlib.Path, _file("A .keras file.")]
SourceFile = Annotated[pathlib.Path, _file("Text to translate, one a line; or .gz.")]
NumBeams = Annotated[int, typer.Option(min=1, help="Hypotheses kept at each step.")]
LengthPenalty = Annotated[float, typer.Option(help="0 for none.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Texts decoded together.")]


@app.command()
def translate(
    model: ModelFile,
    source: SourceFile,
    target: Annotated[pathlib.Path, typer.Argument(help="The file to write.")],
    num_beams: NumBeams = 4,
    length_penalty: LengthPenalty = 0.6,
    n_best: Annotated[
        int, typer.Option(min=0, help="Write so many hypotheses of each line.")
    ] = 0,
    batch_size: BatchSize = 64,
    too_long: Annotated[
        TooLong, typer.Option(help="What becomes of lines over the model's limit.")
    ] = TooLong.error,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file if it is there.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Translate a text file. After a stop, the same command goes on."""
    from keras_transformer import translate_file

    translate_file(
        load(model),
        source,
        target,
        search_of(num_beams, length_penalty, max(n_best, 1)),
        batch_size=batch_size,
        n_best=n_best > 0,
        too_long=too_long.value,
        overwrite=overwrite,
        verbose=int(not quiet),
    )


@app.command()
def evaluate(
    model: ModelFile,
    source: SourceFile,
    references: Annotated[pathlib.Path, _file("The right translations.")],
    num_beams: NumBeams = 4,
    length_penalty: LengthPenalty = 0.6,
    lowercase: Annotated[
        bool, typer.Option("--lowercase", help="Ignore case in BLEU and chrF.")
    ] = False,
    batch_size: BatchSize = 64,
) -> None:
    """Print sacreBLEU, chrF and perplexity of a model on a parallel text."""
    from keras_transformer import evaluation
    from keras_transformer.text import read_lines

    sources, targets = list(read_lines(source)), list(read_lines(references))
    loaded = load(model)
    search = search_of(num_beams, length_penalty, 1)
    perplexity = loaded.score(sources, targets, batch_size).perplexity
    outputs = loaded.generate(sources, search, batch_size=batch_size)
    for name in ("bleu", "chrf"):
        result = getattr(evaluation, name)(outputs, targets, lowercase)
        typer.echo(f"{name:12}{result.score:8.2f}  {result.signature}")
    typer.echo(f"{'perplexity':12}{perplexity:8.2f}")


@app.command()
def export(
    model: ModelFile,
    folder: Annotated[pathlib.Path, typer.Argument(help="A new one.")],
    format: Annotated[Format, typer.Option(help="What to write.")] = Format.saved_model,
    num_beams: NumBeams = 4,
    length_penalty: LengthPenalty = 0.6,
    num_hypotheses: Annotated[
        int, typer.Option(min=1, help="Of each text, for the signature nbest.")
    ] = 1,
    quantization: Annotated[
        str | None, typer.Option(help="Of ctranslate2, such as int8.")
    ] = None,
) -> None:
    """Write a folder that takes texts and returns texts without this library."""
    options = {} if quantization is None else {"quantization": quantization}
    if options and format is not Format.ctranslate2:
        raise typer.BadParameter("--quantization is of --format ctranslate2")
    search = search_of(num_beams, length_penalty, num_hypotheses)
    load(model).export(folder, search, format=format.value, **options)
    typer.echo(f"{format.value}: {folder}")


@app.command()
def inspect(
    path: Annotated[
        pathlib.Path, typer.Argument(exists=True, help="A .keras file or a SavedModel.")
    ],
) -> None:
    """Say what a .keras file or a SavedModel holds."""
    facts = folder_facts(path) if path.is_dir() else model_facts(path)
    width = max(map(len, facts)) + 2
    for name, value in facts.items():
        typer.echo(f"{name:{width}}{value}")


def model_facts(path: pathlib.Path) -> dict[str, Any]:
    """What a `.keras` file holds, by name."""
    model = load(path)
    members = getattr(model, "models", [model])
    first = members[0]
    facts: dict[str, Any] = {
        "class": type(model).__name__,
        "parameters": f"{model.count_params():,}",
        "megabytes": megabytes([path]),
    }
    if len(members) > 1:
        facts["models"] = len(members)
    names = ("num_layers", "hidden_dim", "intermediate_dim", "num_heads")
    facts |= {name: getattr(first, name) for name in names}
    facts["positions"] = type(first.positions).__name__
    for side in ("source", "target"):
        tokenizer = getattr(model, f"{side}_tokenizer")
        size = getattr(model, f"{side}_vocabulary_size")
        kind = "no tokenizer" if tokenizer is None else type(tokenizer).__name__
        facts[f"{side} vocabulary"] = f"{size:,}, {kind}"
        facts[f"max_{side}_length"] = getattr(model, f"max_{side}_length")
    return facts


def folder_facts(path: pathlib.Path) -> dict[str, Any]:
    """What a SavedModel holds, by name."""
    from keras_transformer.export.signatures import describe_signatures

    facts = {"class": "SavedModel", "megabytes": megabytes(path.rglob("*"))}
    return facts | describe_signatures(path)


def megabytes(paths: Any) -> str:
    """The size of files."""
    size = sum(path.stat().st_size for path in paths if path.is_file())
    return f"{size / 1e6:.1f}"


def load(path: pathlib.Path) -> Any:
    """Loads a model of this library, and runs no code that its file may hold."""
    import keras

    from keras_transformer import Ensemble, Seq2Seq

    model = keras.saving.load_model(path, compile=False, safe_mode=True)
    if not isinstance(model, Seq2Seq | Ensemble):
        raise ValueError(
            f"{path} must hold a Seq2Seq or an Ensemble; it holds a "
            f"{type(model).__name__}."
        )
    return model


def search_of(num_beams: int, length_penalty: float, num_hypotheses: int) -> Any:
    """The beam search that the options describe."""
    from keras_transformer import BeamSearch

    return BeamSearch(
        num_beams, length_penalty=length_penalty, num_hypotheses=num_hypotheses
    )


def main() -> None:
    """Runs the command; an error is a line on standard error and exit code 1."""
    try:
        app()
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(error.name or "")
        hint = (
            f'. Install it: pip install "keras-transformer[{extra}]"' if extra else ""
        )
        typer.echo(f"error: {error}{hint}", err=True)
        sys.exit(1)
    except (ValueError, TypeError, OSError, RuntimeError, ImportError) as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)
