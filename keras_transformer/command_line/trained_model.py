"""What the command does with a trained model: translate, evaluate, export, inspect."""

import enum
import pathlib
from typing import Annotated, Any

import typer


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


def _file(help: str, **options: Any) -> Any:
    return typer.Argument(exists=True, dir_okay=False, help=help, **options)


ModelFile = Annotated[
    pathlib.Path,
    typer.Argument(exists=True, help="A .keras file, or a folder of a preset."),
]
SourceFile = Annotated[pathlib.Path, _file("Text to translate, one a line; or .gz.")]
NumBeams = Annotated[int, typer.Option(min=1, help="Hypotheses kept at each step.")]
LengthPenalty = Annotated[float, typer.Option(help="0 for none.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Texts decoded together.")]


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
    from keras_transformer.inference.file_translation import translate_file

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
    for name, score in evaluation.TRANSLATION_SCORES.items():
        result = score(outputs, targets, lowercase)
        typer.echo(f"{name:12}{result.score:8.2f}  {result.signature}")
    typer.echo(f"{'perplexity':12}{perplexity:8.2f}")


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
        str | None, typer.Option(help="How weights are stored: int8, float16, …")
    ] = None,
    card: Annotated[
        list[str] | None,
        typer.Option(
            help="What the model card shall say, as NAME=TEXT; may be repeated. Of "
            "saved_model."
        ),
    ] = None,
) -> None:
    """Write a folder that others use without this library."""
    options: dict[str, Any] = {}
    if quantization is not None:
        options["quantization"] = quantization
    if card:
        options["card"] = facts_of(card)
    search = search_of(num_beams, length_penalty, num_hypotheses)
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
        str, typer.Argument(help="Of Marian or CTranslate2; or a name on the Hub.")
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
        typer.Argument(exists=True, help="A .keras file, a preset or a SavedModel."),
    ],
) -> None:
    """Say what a .keras file, the folder of a preset or a SavedModel holds."""
    is_saved_model = (path / "saved_model.pb").exists()
    facts = saved_model_facts(path) if is_saved_model else model_facts(path)
    width = max(map(len, facts)) + 2
    for name, value in facts.items():
        typer.echo(f"{name:{width}}{value}")


def model_facts(path: pathlib.Path) -> dict[str, Any]:
    """What a `.keras` file or a preset holds, by name."""
    from keras_transformer.export.card import describe_model

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


def load(path: pathlib.Path) -> Any:
    """Loads a model of this library, and runs no code that its file may hold."""
    import keras

    from keras_transformer.seq2seq import Ensemble, Seq2Seq

    if path.is_dir():
        return Seq2Seq.from_preset(str(path))
    try:
        model = keras.saving.load_model(path, compile=False, safe_mode=True)
    except KeyError as error:  # a zip file of something else
        raise ValueError(f"{path} must be a .keras file: {error.args[0]}") from error
    if not isinstance(model, Seq2Seq | Ensemble):
        raise ValueError(
            f"{path} must hold a Seq2Seq or an Ensemble; it holds a "
            f"{type(model).__name__}."
        )
    return model


def search_of(num_beams: int, length_penalty: float, num_hypotheses: int) -> Any:
    """The beam search that the options describe."""
    from keras_transformer.decoding import BeamSearch

    return BeamSearch(
        num_beams, length_penalty=length_penalty, num_hypotheses=num_hypotheses
    )
