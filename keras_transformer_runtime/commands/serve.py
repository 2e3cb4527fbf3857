"""The command `serve`."""

import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from keras_transformer_runtime.commands.messages import exits_on_interrupt
from keras_transformer_runtime.commands.startup import import_keras_quietly
from keras_transformer_runtime.packages import require_extra

if TYPE_CHECKING:
    from keras_transformer.serving import ServerOptions

app = typer.Typer()


class NamedFolder(NamedTuple):
    """The folder of a model's versions, and the name under which it is served."""

    name: str
    folder: pathlib.Path


Folders = Annotated[
    list[pathlib.Path] | None,
    typer.Argument(
        exists=True,
        file_okay=False,
        help="Folders of models. Each contains one SavedModel per version, in folders "
        "1, 2, …, or is the folder of a run. The name of the folder is the name of the "
        "model.",
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
Replicas = Annotated[
    int | None, typer.Option(min=1, help="Number of processes per model. Default: 2.")
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
Address = Annotated[
    str | None,
    typer.Option(
        help="Address of a Ray cluster, such as auto. Default: a new cluster on this "
        "machine."
    ),
]


@app.command("serve")
@exits_on_interrupt
def serve_command(
    folders: Folders = None,
    config: Config = None,
    host: Host = None,
    port: Port = None,
    replicas: Replicas = None,
    split_sentences: SplitSentences = None,
    dictionary: Dictionary = None,
    wait_for_versions: WaitForVersions = False,
    address: Address = None,
) -> None:
    """Serve SavedModels over HTTP: the REST API of TensorFlow Serving, and a page."""
    if (config is None) == (not folders):
        raise typer.BadParameter("give either folders of models or --config")
    require_extra("serve", "`serve`")
    import_keras_quietly()
    from keras_transformer.serving import read_server_options

    options = _without_none(host=host, port=port, address=address)
    model_options = _without_none(
        replicas=replicas,
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
    from keras_transformer.serving import serve  # imports Ray

    serve(server_options)


def _options_of_folders(
    folders: Sequence[pathlib.Path],
    model_options: Mapping[str, object],
    options: Mapping[str, Any],
) -> "ServerOptions":
    """Returns the options of a server of the models in some folders."""
    from keras_transformer.serving import make_server_options

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
    """Returns the name of a model and the folder of its versions."""
    folder = pathlib.Path(os.path.abspath(folder))
    if (folder / "saved_model").is_dir():
        folder /= "saved_model"
    if folder.name == "saved_model":
        return NamedFolder(folder.parent.name, folder)
    return NamedFolder(folder.name, folder)


def _without_none(**options: object) -> Mapping[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
