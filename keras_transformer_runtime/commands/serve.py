"""The command `serve`."""

import enum
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from keras_transformer_runtime.commands.messages import exits_on_interrupt
from keras_transformer_runtime.commands.other_names import ExplainingCommand
from keras_transformer_runtime.model_paths import is_version
from keras_transformer_runtime.packages import require_extra

if TYPE_CHECKING:
    from keras_transformer_runtime.serving import ServerOptions

app = typer.Typer()


class ServerEngine(enum.StrEnum):
    """The values of `--engine`."""

    auto = "auto"
    ctranslate2 = "ctranslate2"
    saved_model = "saved_model"


class NamedFolder(NamedTuple):
    """The folder of a model's versions, and the name under which it is served."""

    name: str
    folder: pathlib.Path


Folders = Annotated[
    list[pathlib.Path] | None,
    typer.Argument(
        exists=True,
        file_okay=False,
        help="Folders of models: runs, SavedModels, models for CTranslate2, or folders "
        "with a model per version, in folders 1, 2, …. The name of the folder is the "
        "name of the model.",
    ),
]
Config = Annotated[
    pathlib.Path | None,
    typer.Option(exists=True, dir_okay=False, help="TOML file of options."),
]
Host = Annotated[
    str | None, typer.Option(help="Address to listen on. Default: 127.0.0.1.")
]
Port = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Port of HTTP. Default: 8501.")
]
Engine = Annotated[
    ServerEngine | None,
    typer.Option(
        help="Software that decodes. auto: CTranslate2 for a run that has a folder for "
        "it, and otherwise what the folder contains. Default: auto.",
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(
        min=1, help="Number of processes, each of which loads the models. Default: 1."
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        envvar="KERAS_TRANSFORMER_API_KEY",
        help="Key that clients must send, as Authorization: Bearer KEY.",
    ),
]
Languages = Annotated[
    tuple[str, str] | None,
    typer.Option(
        metavar="SOURCE TARGET",
        help="Languages of the model for /translate, such as en de. Default: those of "
        "its training.",
    ),
]
SplitSentences = Annotated[
    str | None,
    typer.Option(
        metavar="LANGUAGE",
        help="Split texts into sentences by the rules of a language, such as en, and "
        "decode the sentences separately.",
    ),
]
Dictionary = Annotated[
    pathlib.Path | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        help="File of required translations of terms. A line has a source phrase, a "
        "tab and a target phrase. Requires models exported with --constraints.",
    ),
]
WaitForVersions = Annotated[
    bool,
    typer.Option(
        "--wait-for-versions",
        help="Start even if a folder has no version yet, and serve the first one when "
        "it appears.",
    ),
]


@app.command("serve", cls=ExplainingCommand)
@exits_on_interrupt
def serve_command(
    folders: Folders = None,
    config: Config = None,
    host: Host = None,
    port: Port = None,
    engine: Engine = None,
    processes: Processes = None,
    api_key: ApiKey = None,
    languages: Languages = None,
    split_sentences: SplitSentences = None,
    dictionary: Dictionary = None,
    wait_for_versions: WaitForVersions = False,
) -> None:
    """Serve models over HTTP: the APIs of TensorFlow Serving, OpenAI, LibreTranslate.

    The address shows a page to try the models.
    """
    if (config is None) == (not folders):
        raise typer.BadParameter("give either folders of models or --config")
    require_extra("serve", "`serve`")
    from keras_transformer_runtime.serving import read_server_options

    options = _without_none(host=host, port=port, processes=processes, api_key=api_key)
    model_options = _without_none(
        engine=None if engine is None else engine.value,
        languages=languages,
        split_sentences=split_sentences,
        dictionary=dictionary,
        wait_for_versions=wait_for_versions or None,
    )
    if config is None:
        server_options = _options_of_folders(folders or [], model_options, options)
    elif model_options:
        given = ", ".join(f"--{name.replace('_', '-')}" for name in model_options)
        raise typer.BadParameter(f"set {given} in {config}")
    else:
        server_options = read_server_options(config, **options)
    from keras_transformer_runtime.serving import serve

    serve(server_options)


def _options_of_folders(
    folders: Sequence[pathlib.Path],
    model_options: Mapping[str, object],
    options: Mapping[str, Any],
) -> "ServerOptions":
    """Returns the options of a server of the models in some folders."""
    from keras_transformer_runtime.serving import make_server_options

    named = [_named_folder(folder) for folder in folders]
    names = [name for name, _ in named]
    if len(set(names)) < len(names):
        raise typer.BadParameter(
            f"models must have different names; received {', '.join(names)}. Name them "
            "in a file for --config"
        )
    models = {name: {"folder": folder, **model_options} for name, folder in named}
    try:
        return make_server_options(models=models, **options)
    except ValueError as error:  # replace the names of a TOML file by options
        text = re.sub(r"`models\.[^`]*\.(\w+)`", r"`\1`", str(error))
        raise ValueError(text) from None


def _named_folder(folder: pathlib.Path) -> NamedFolder:
    """Returns the name of a model: that of its folder, without a version."""
    folder = pathlib.Path(os.path.abspath(folder))
    named = folder.parent if is_version(folder.name) else folder
    if named.name in ("saved_model", "ctranslate2"):
        named = named.parent
    return NamedFolder(named.name, folder)


def _without_none(**options: object) -> Mapping[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
