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
    length: Annotated[
        int, typer.Option(min=1, help="Number of random tokens of an input.")
    ] = 16,
    max_length: Annotated[
        int, typer.Option(min=1, help="Number of tokens of the greedy search.")
    ] = 16,
) -> None:
    """Compare a published model with transformers: outputs, search and tokens.

    The exit code is 1 if they differ. The packages torch and transformers are required.
    """
    import_keras_quietly()
    from keras_transformer.interoperability.comparison import compare_with_transformers

    lines = list(read_lines(texts)) if texts else list(TEXTS)
    checks = compare_with_transformers(folder, lines, length, max_length)
    for check in checks:
        word = "equal" if check.equal else "DIFFERENT"
        typer.echo(f"{check.name:15}{word:11}{check.detail}")
    if not all(check.equal for check in checks):
        raise typer.Exit(1)
