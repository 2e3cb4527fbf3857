"""The command `serve`."""

import os
import pathlib
import re
from typing import Annotated, Any

import typer


def serve(
    folders: Annotated[
        list[pathlib.Path] | None,
        typer.Argument(
            exists=True,
            file_okay=False,
            help="Models: each a folder that holds a SavedModel for each version, "
            "in folders 1, 2, …, or that of a run; its name is the model's.",
        ),
    ] = None,
    config: Annotated[
        pathlib.Path | None,
        typer.Option(exists=True, dir_okay=False, help="A TOML file of options."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="127.0.0.1 if not said.")] = None,
    port: Annotated[int | None, typer.Option(help="8501 if not said.")] = None,
    replicas: Annotated[
        int | None, typer.Option(min=1, help="Processes for each model; 2.")
    ] = None,
    split_sentences: Annotated[
        str | None,
        typer.Option(
            metavar="LANGUAGE",
            help="Decode texts sentence by sentence, such as: en.",
        ),
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster, such as: auto.")
    ] = None,
    cache: Annotated[
        pathlib.Path | None,
        typer.Option(help="Folder that makes the next start quicker."),
    ] = None,
) -> None:
    """Serve SavedModels over HTTP: TF Serving's REST API, and a page at /."""
    from keras_transformer.serving import make_options, read_options
    from keras_transformer.serving import serve as run

    if (config is None) == (not folders):
        raise typer.BadParameter("give either folders of models or --config")
    options = {"host": host, "port": port, "address": address, "cache": cache}
    model_options = {"replicas": replicas, "split_sentences": split_sentences}
    if config is not None:
        if chosen := sorted(_given(model_options)):
            raise typer.BadParameter(f"{', '.join(chosen)}: say that in {config}")
        run(read_options(config, **_given(options)))
        return
    found = [_name_and_folder(folder) for folder in folders or []]
    names = [name for name, _ in found]
    if len(set(names)) < len(names):
        raise typer.BadParameter(
            f"models must have different names; received {', '.join(names)}: name "
            "them in a --config"
        )
    models = {
        name: {"folder": folder, **_given(model_options)} for name, folder in found
    }
    try:
        server_options = make_options(models=models, **_given(options))
    except ValueError as error:  # which names options as a file has them
        text = re.sub(r"`models\.[^`]*\.(\w+)`", r"`\1`", str(error))
        raise ValueError(text) from None
    run(server_options)


def _name_and_folder(folder: pathlib.Path) -> tuple[str, pathlib.Path]:
    """A model's name and the folder of its versions, which a run has in it."""
    folder = pathlib.Path(os.path.abspath(folder))
    if (folder / "saved_model").is_dir():
        folder /= "saved_model"
    if folder.name == "saved_model":
        return folder.parent.name, folder
    return folder.name, folder


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
