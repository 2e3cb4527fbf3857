"""The command `check-pretrained`: compares a folder with transformers."""

import pathlib
from typing import Annotated

import typer

from keras_transformer_runtime.commands.messages import exits_on_interrupt
from keras_transformer_runtime.commands.startup import import_keras_quietly
from keras_transformer_runtime.text_files import read_lines

app = typer.Typer()

# Texts of several scripts, with contractions, numbers, white space and emoji.
TEXTS = (
    "A man isn't seeing 2 dogs, is he?",
    "  two  spaces\tand a tab\n",
    "Füße, œuvre, naïve",
    "Привет, мир! 你好世界 こんにちは",
    "3.14 × 10²³ 👩‍👩‍👧 ☃",
)


@app.command("check-pretrained")
@exits_on_interrupt
def check_pretrained_command(
    folder: Annotated[
        pathlib.Path,
        typer.Argument(
            exists=True, file_okay=False, help="Folder in the form of transformers."
        ),
    ],
    texts: Annotated[
        pathlib.Path | None,
        typer.Option(exists=True, help="File of texts whose tokens are compared."),
    ] = None,
    model_type: Annotated[
        str | None,
        typer.Option(help="Family, if an old config.json does not name it."),
    ] = None,
    source_language: Annotated[
        str | None, typer.Option(help="Language of sources, of mBART and M2M-100.")
    ] = None,
    target_language: Annotated[
        str | None, typer.Option(help="Language of outputs.")
    ] = None,
    length: Annotated[
        int, typer.Option(min=1, help="Number of random tokens of an input.")
    ] = 16,
    max_length: Annotated[
        int, typer.Option(min=1, help="Number of tokens of the greedy search.")
    ] = 16,
) -> None:
    """Compare a published model with transformers: outputs, search and tokens.

    The exit code is 1 if they differ. The packages torch and transformers are
    required.
    """
    import_keras_quietly()
    from keras_transformer.interoperability.comparison import compare_with_transformers

    lines = list(read_lines(texts)) if texts else list(TEXTS)
    checks = compare_with_transformers(
        folder,
        lines,
        length,
        max_length,
        model_type=model_type,
        source_language=source_language,
        target_language=target_language,
    )
    for check in checks:
        word = {True: "equal", False: "DIFFERENT", None: "unknown"}[check.equal]
        typer.echo(f"{check.name:15}{word:11}{check.detail}")
    if any(check.equal is False for check in checks):
        raise typer.Exit(1)
