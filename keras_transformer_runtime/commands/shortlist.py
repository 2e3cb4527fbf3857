"""The command `shortlist`."""

import pathlib
from typing import Annotated

import typer

from keras_transformer_runtime.commands.messages import exits_on_interrupt
from keras_transformer_runtime.commands.parameters import ModelPath
from keras_transformer_runtime.commands.startup import import_keras_quietly
from keras_transformer_runtime.model_paths import find_model

app = typer.Typer()

Text = Annotated[
    pathlib.Path,
    typer.Argument(
        exists=True, dir_okay=False, help="Text, one sentence per line; plain or .gz."
    ),
]


@app.command("shortlist")
@exits_on_interrupt
def shortlist_command(
    model: ModelPath,
    source: Text,
    target: Text,
    file: Annotated[pathlib.Path, typer.Argument(help="File to write.")],
    translations_per_token: Annotated[
        int, typer.Option(min=1, help="Maximum number of translations of a token.")
    ] = 50,
    frequent_tokens: Annotated[
        int, typer.Option(min=0, help="Number of frequent target tokens.")
    ] = 100,
    max_pairs: Annotated[
        int,
        typer.Option(
            min=1, help="Maximum number of pairs of lines; limits time and memory."
        ),
    ] = 200_000,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file if it exists.")
    ] = False,
) -> None:
    """Learn a shortlist from parallel text, for translate and export.

    It has the probable translations of each token: a search among them takes less
    time.
    """
    find_model(model)
    if file.exists() and any(map(file.samefile, (source, target))):
        raise ValueError(f"`file` must not be a text to read; received `file={file}`.")
    if file.exists() and not overwrite:
        raise FileExistsError(
            f"`file` must not exist; received `file={file}`. Choose another name, or "
            "replace it with `overwrite=True`."
        )
    import_keras_quietly()
    from keras_transformer.inference.shortlist import Shortlist
    from keras_transformer.recipe.loading import load_trained_model

    shortlist = Shortlist.from_parallel_text(
        source,
        target,
        load_trained_model(model),
        translations_per_token=translations_per_token,
        frequent_tokens=frequent_tokens,
        max_pairs=max_pairs,
    )
    shortlist.save(file)
    typer.echo(f"{file}: {shortlist.describe()}.")
