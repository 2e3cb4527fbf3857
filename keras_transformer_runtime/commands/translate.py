"""The command `translate`."""

import contextlib
import functools
import pathlib
import sys
from collections.abc import Iterator
from typing import Annotated, BinaryIO

import typer

from keras_transformer_runtime.commands.messages import exits_on_interrupt
from keras_transformer_runtime.commands.parameters import (
    BatchSize,
    DiversityPenalty,
    LengthPenalty,
    MaxLength,
    ModelPath,
    NumBeamGroups,
    NumBeams,
    TooLong,
    TooLongLines,
    make_search,
)
from keras_transformer_runtime.commands.startup import import_keras_quietly
from keras_transformer_runtime.files import check_new_file
from keras_transformer_runtime.model_paths import find_model
from keras_transformer_runtime.packages import require_modules

app = typer.Typer()

DASH = pathlib.Path("-")  # standard input or standard output


def _file_or_dash(path: pathlib.Path) -> pathlib.Path:
    if path == DASH or path.is_file():
        return path
    if path.is_fifo():
        raise typer.BadParameter(f"{path} is a named pipe; redirect it to -")
    raise typer.BadParameter(f"file {path} does not exist")


Source = Annotated[
    pathlib.Path,
    typer.Argument(
        callback=_file_or_dash,
        help="Text to translate, one sentence per line; plain or .gz; or - for "
        "standard input.",
    ),
]
Target = Annotated[
    pathlib.Path,
    typer.Argument(help="File to write; plain or .gz; or - for standard output."),
]
NBest = Annotated[
    int,
    typer.Option(
        min=0, help="Number of hypotheses per line, with scores; 0: best text only."
    ),
]
Distinct = Annotated[
    bool,
    typer.Option("--distinct", help="Write each text of a line once, with n-best."),
]
Dictionary = Annotated[
    pathlib.Path | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        help="File of required translations of terms; plain or .gz. A line has a "
        "source phrase, a tab and a target phrase.",
    ),
]
Workers = Annotated[
    int,
    typer.Option(
        min=1,
        help="Number of processes that translate from file to file, each with a "
        "copy of the model. Several require Ray.",
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace the file if it exists.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Do not show a progress bar.")]


@app.command("translate")
@exits_on_interrupt
def translate_command(
    model: ModelPath,
    source: Source = DASH,
    target: Target = DASH,
    num_beams: NumBeams = None,
    length_penalty: LengthPenalty = None,
    n_best: NBest = 0,
    distinct: Distinct = False,
    num_beam_groups: NumBeamGroups = 1,
    diversity_penalty: DiversityPenalty = 0.0,
    dictionary: Dictionary = None,
    max_length: MaxLength = None,
    batch_size: BatchSize = 64,
    too_long: TooLongLines = TooLong.error,
    workers: Workers = 1,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Translate a text file or standard input, line by line.

    If a translation from file to file is stopped, the same command resumes it.
    """
    find_model(model)
    _check_paths(source, target, workers, overwrite)
    import_keras_quietly()
    from keras_transformer.inference.file_translation import (
        translate_file,
        translate_stream,
    )
    from keras_transformer.inference.phrase_dictionary import PhraseDictionary
    from keras_transformer.recipe.loading import load_trained_model

    terms = None if dictionary is None else PhraseDictionary.from_file(dictionary)
    search = make_search(
        *(model, num_beams, length_penalty, max(n_best, 1)),
        *(num_beam_groups, diversity_penalty),
    )
    loaded = load_trained_model(model)
    # The progress bar and the translations must not mix in a terminal.
    has_bar = not quiet and not (target == DASH and sys.stdout.isatty())
    with contextlib.ExitStack() as stack:
        if DASH in (source, target):
            if source == DASH and sys.stdin.isatty() and not quiet:
                typer.echo("Type a text and press Enter; Ctrl-D ends.", err=True)
            lines = sys.stdin.buffer if source == DASH else source
            file = stack.enter_context(_opened(target, source, overwrite))
            translate = functools.partial(translate_stream, loaded, lines, file)
        else:
            stack.enter_context(_says_how_to_continue(target))
            write = functools.partial(translate_file, loaded, source, target)
            translate = functools.partial(write, overwrite=overwrite, workers=workers)
        translate(
            search,
            max_length=max_length,
            batch_size=batch_size,
            n_best=n_best > 0,
            distinct_texts=distinct,
            too_long=too_long.value,
            verbose=int(has_bar),
            dictionary=terms,
        )


def _check_paths(
    source: pathlib.Path, target: pathlib.Path, workers: int, overwrite: bool
) -> None:
    """Checks that the target can be written, by several workers if there are some."""
    if workers > 1 and DASH in (source, target):
        raise ValueError(
            "`workers` must be 1 to read or write a pipe; received "
            f"`workers={workers}`. Name two files."
        )
    if workers > 1:
        require_modules(["ray"], f"--workers {workers}")
    if target != DASH:
        check_new_file(target, None if source == DASH else source, overwrite)


@contextlib.contextmanager
def _says_how_to_continue(target: pathlib.Path) -> Iterator[None]:
    """Adds to a `KeyboardInterrupt` what the same command will do."""
    from keras_transformer.inference.file_translation.unfinished_file import record_path

    try:
        yield
    except KeyboardInterrupt as interrupt:
        action = "resume" if record_path(target).exists() else "restart"
        raise type(interrupt)(f"Stopped. Run the same command to {action}.") from None


def _opened(
    target: pathlib.Path, source: pathlib.Path, overwrite: bool
) -> contextlib.AbstractContextManager[BinaryIO]:
    """Opens standard output, or a file that exists only once it is complete."""
    from keras_transformer.inference.file_translation import written_at_once

    if target == DASH:
        return contextlib.nullcontext(sys.stdout.buffer)
    return written_at_once(target, None if source == DASH else source, overwrite)
