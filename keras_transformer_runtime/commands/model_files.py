"""The commands `export` and `import`: files of models, in all formats."""

import enum
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import typer

from keras_transformer_runtime.commands.encoder_choice import is_encoder
from keras_transformer_runtime.commands.messages import exits_on_interrupt
from keras_transformer_runtime.commands.other_names import ExplainingCommand
from keras_transformer_runtime.commands.parameters import (
    LengthPenalty,
    MaxLength,
    MinLength,
    ModelPath,
    NoRepeatNGramSize,
    NumBeams,
    RepetitionPenalty,
    Stop,
    Temperature,
    TopK,
    TopP,
)
from keras_transformer_runtime.commands.startup import import_keras_quietly
from keras_transformer_runtime.engines.generation_options import GivenOptions
from keras_transformer_runtime.files import check_new_folder
from keras_transformer_runtime.hub import check_repository
from keras_transformer_runtime.model_paths import find_model
from keras_transformer_runtime.packages import EXTRAS, require_extra
from keras_transformer_runtime.runs.folder import selected_options

app = typer.Typer()

Languages = Annotated[
    tuple[str, str] | None,
    typer.Option(
        metavar="SOURCE TARGET",
        help="Languages of the model, such as en de, for /translate of the server.",
    ),
]


class Format(enum.StrEnum):
    """Formats that `export` writes."""

    saved_model = "saved_model"
    ctranslate2 = "ctranslate2"
    onnx = "onnx"
    transformers = "transformers"


# The options of each format, those of the function that writes it.
OPTIONS = {
    Format.saved_model: (
        *("quantization", "card", "constraints", "languages"),
        *("max_length", "min_length", "stop"),
    ),
    Format.ctranslate2: (
        *("quantization", "languages", "max_length", "min_length", "stop"),
    ),
    Format.onnx: (),
    Format.transformers: (),
}


@app.command("export", cls=ExplainingCommand)
@exits_on_interrupt
def export_command(
    model: ModelPath,
    folder: Annotated[pathlib.Path, typer.Argument(help="New folder to write.")],
    format: Annotated[
        Format, typer.Option(help="Format to write.")
    ] = Format.saved_model,
    num_beams: NumBeams = None,
    length_penalty: LengthPenalty = None,
    num_hypotheses: Annotated[
        int | None,
        typer.Option(min=1, help="Number of hypotheses per text.", show_default="1"),
    ] = None,
    repetition_penalty: RepetitionPenalty = None,
    no_repeat_ngram_size: NoRepeatNGramSize = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    min_length: MinLength = None,
    max_length: MaxLength = None,
    stop: Stop = None,
    quantization: Annotated[
        str | None, typer.Option(help="Data type of the weights: int8, float16, …")
    ] = None,
    languages: Languages = None,
    card: Annotated[
        list[str] | None,
        typer.Option(
            help="Section of the model card of a SavedModel, as NAME=TEXT; can be "
            "repeated."
        ),
    ] = None,
    constraints: Annotated[
        bool,
        typer.Option(
            "--constraints",
            help="Add the signature of a SavedModel that takes phrases which must "
            "occur in the outputs.",
        ),
    ] = False,
) -> None:
    """Export a model as a SavedModel, or for CTranslate2, ONNX Runtime or transformers.

    The options of the search are those with which the exported model decodes.
    """
    given: GivenOptions = {
        "num_beams": num_beams,
        "length_penalty": length_penalty,
        "num_hypotheses": num_hypotheses,
        "repetition_penalty": repetition_penalty,
        "no_repeat_ngram_size": no_repeat_ngram_size,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
    }
    written: dict[str, object] = {
        "max_length": max_length,
        "min_length": min_length,
        "stop": stop or None,
        "quantization": quantization,
        "languages": languages,
        "card": parse_card(card) if card else None,
        "constraints": constraints or None,
    }
    options = {name: value for name, value in written.items() if value is not None}
    _check_options(format, options)
    find_model(model)
    check_new_folder(folder)
    is_classifier = is_encoder(model)
    if is_classifier:
        _check_encoder_options(model, format, {**given, **options})
    extra = "hub" if format is Format.transformers else format.value
    if extra in EXTRAS:
        require_extra(extra, f"`format={format.value!r}`")
    import_keras_quietly()
    if is_classifier:
        from keras_transformer.recipe.loading import load_encoder_model

        encoder = load_encoder_model(model)
        encoder.export(folder, format.value, **options)
        typer.echo(f"{format.value}: {folder}")
        return
    from keras_transformer.decoding.generation_options import (
        options_from_search,
        search_from_options,
    )
    from keras_transformer.recipe.loading import load_trained_model

    loaded = load_trained_model(model)
    if format is Format.transformers:
        loaded.save_pretrained(folder)
        typer.echo(f"{format.value}: {folder}")
        return
    default = selected_options(model) or options_from_search(loaded.default_search)
    search = search_from_options(default.with_given(**given))
    loaded.export(folder, search, format=format.value, **options)
    typer.echo(f"{format.value}: {folder}")


def _check_encoder_options(
    model: pathlib.Path, format: Format, options: Mapping[str, object]
) -> None:
    """Raises an error for what the export of a classifier or an encoder lacks."""
    if format not in (Format.saved_model, Format.onnx):
        raise typer.BadParameter(
            f"--format must be saved_model or onnx for {model}, which is a classifier "
            f"or an encoder; received {format.value}"
        )
    for name, value in options.items():
        if value is not None and name != "card":
            raise typer.BadParameter(
                f"--{name.replace('_', '-')} must not be given for {model}, which is a "
                "classifier or an encoder"
            )


def _check_options(format: Format, options: Iterable[str]) -> None:
    """Raises an error for an option that a format does not have."""
    for name in options:
        if name not in OPTIONS[format]:
            formats = [each.value for each in Format if name in OPTIONS[each]]
            raise typer.BadParameter(
                f"--{name.replace('_', '-')} is for --format "
                f"{' or '.join(formats)}; received --format {format.value}"
            )


def parse_card(lines: Sequence[str]) -> dict[str, str]:
    """Returns the texts of `--card NAME=TEXT` by name."""
    card = {}
    for line in lines:
        name, equals, text = line.partition("=")
        if not (name and equals):
            raise typer.BadParameter(f"--card must be NAME=TEXT; received {line}")
        card[name] = text
    return card


@app.command("import", cls=ExplainingCommand)
@exits_on_interrupt
def import_command(
    folder: Annotated[
        str,
        typer.Argument(
            help="Folder of transformers, Marian or CTranslate2, or the name of a "
            "repository on the Hugging Face Hub."
        ),
    ],
    model: Annotated[pathlib.Path, typer.Argument(help="The .keras file to write.")],
    revision: Annotated[
        str | None,
        typer.Option(help="Branch, tag or commit on the Hub, such as refs/pr/1."),
    ] = None,
) -> None:
    """Convert a model of transformers, Marian or CTranslate2 to a .keras file."""
    if model.suffix != ".keras":
        raise typer.BadParameter("the file to write must end in .keras")
    if model.exists():
        raise typer.BadParameter(f"{model} exists")
    if revision is not None and pathlib.Path(folder).exists():
        raise typer.BadParameter(
            f"--revision requires a name on the Hub; {folder} is a folder"
        )
    _check_source(folder)
    import_keras_quietly()
    from keras_transformer.interoperability import ctranslate2, pretrained
    from keras_transformer.interoperability.files import find_folder

    files = [*ctranslate2.FILES, *pretrained.FILES]
    found = find_folder(folder, files, revision, pretrained.FALLBACKS)
    if (found / "model.bin").exists():
        ctranslate2.load_ctranslate2(found).save(model)
        typer.echo(f"ctranslate2: {model}")
    else:
        pretrained.load_pretrained(found).save(model)
        typer.echo(f"transformers: {model}")


def _check_source(folder: str) -> None:
    """Raises an error if a model cannot be read, or its format needs a package."""
    path = pathlib.Path(folder)
    if path.is_dir():
        has_tensors = any(path.glob("*.safetensors"))
        if ((path / "decoder.yml").exists() or has_tensors) and not (
            path / "model.bin"
        ).exists():
            require_extra("hub", f"`folder={folder!r}`")
        return
    check_repository(folder)
    require_extra("hub", f"the repository {folder} on the Hugging Face Hub")
