"""The command `translate`."""

import contextlib
import functools
import pathlib
import sys
from collections.abc import Iterator
from typing import Annotated, BinaryIO

import typer

from keras_transformer_runtime.commands.engine_choice import (
    EngineName,
    EngineOption,
    open_engine,
)
from keras_transformer_runtime.commands.messages import exits_on_interrupt
from keras_transformer_runtime.commands.other_names import ExplainingCommand
from keras_transformer_runtime.commands.parameters import (
    BatchSize,
    DiversityPenalty,
    EngineModelPath,
    LengthPenalty,
    MaxLength,
    MinLength,
    NoRepeatNGramSize,
    NumBeamGroups,
    NumBeams,
    NumHypotheses,
    Prefix,
    Quiet,
    RepetitionPenalty,
    Seed,
    Stop,
    Temperature,
    TooLong,
    TooLongLines,
    TopK,
    TopP,
)
from keras_transformer_runtime.engines.engine import Engine
from keras_transformer_runtime.engines.generation_options import (
    NUM_BEAMS,
    GenerationOptions,
    GivenOptions,
)
from keras_transformer_runtime.file_translation.translation import (
    EngineTranslator,
    LineTranslator,
    translate_file,
    translate_stream,
    written_at_once,
)
from keras_transformer_runtime.file_translation.unfinished_file import record_path
from keras_transformer_runtime.files import check_new_file
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
Distinct = Annotated[
    bool,
    typer.Option(
        "--distinct", help="Write each text of a line once, with --num-hypotheses."
    ),
]
Align = Annotated[
    bool,
    typer.Option(
        "--align",
        help="Write after each text the pairs of aligned words of line and text, such "
        "as ||| 0-0 1-2.",
    ),
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


@app.command("translate", cls=ExplainingCommand)
@exits_on_interrupt
def translate_command(
    context: typer.Context,
    model: EngineModelPath,
    source: Source = DASH,
    target: Target = DASH,
    engine: EngineOption = EngineName.auto,
    num_beams: NumBeams = None,
    length_penalty: LengthPenalty = None,
    num_hypotheses: NumHypotheses = None,
    distinct: Distinct = False,
    align: Align = False,
    num_beam_groups: NumBeamGroups = None,
    diversity_penalty: DiversityPenalty = None,
    repetition_penalty: RepetitionPenalty = None,
    no_repeat_ngram_size: NoRepeatNGramSize = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    min_length: MinLength = None,
    max_length: MaxLength = None,
    stop: Stop = None,
    prefix: Prefix = "",
    dictionary: Dictionary = None,
    batch_size: BatchSize = 64,
    too_long: TooLongLines = TooLong.error,
    workers: Workers = 1,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Translate a text file or standard input, line by line.

    If a translation from file to file is stopped, the same command resumes it.
    """
    given: GivenOptions = {
        "num_beams": num_beams,
        "length_penalty": length_penalty,
        "num_hypotheses": num_hypotheses,
        "num_beam_groups": num_beam_groups,
        "diversity_penalty": diversity_penalty,
        "repetition_penalty": repetition_penalty,
        "no_repeat_ngram_size": no_repeat_ngram_size,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
        "min_length": min_length,
        "max_length": max_length,
        "stop": stop or None,
    }
    _check_paths(source, target, workers, overwrite)
    opened = open_engine(
        context,
        model,
        engine,
        given,
        prefix=bool(prefix),
        keras_options={"dictionary": dictionary is not None, "workers": workers > 1},
        many_texts=source != DASH,
        verbose=not quiet,
    )
    if align:
        opened.check_aligns()
    options = _options(opened, given)
    if opened.name == "keras":
        translator = _keras_translator(
            opened, options, prefix, batch_size, dictionary, workers
        )
    else:
        translator = EngineTranslator(opened, options, prefix)
    # The progress bar and the translations must not mix in a terminal.
    has_bar = not quiet and not (target == DASH and sys.stdout.isatty())
    with contextlib.ExitStack() as stack:
        if DASH in (source, target):
            if source == DASH and sys.stdin.isatty() and not quiet:
                typer.echo("Type a text and press Enter; Ctrl-D ends.", err=True)
            lines = sys.stdin.buffer if source == DASH else source
            file = stack.enter_context(_opened(target, source, overwrite))
            translate = functools.partial(translate_stream, translator, lines, file)
        else:
            stack.enter_context(_says_how_to_continue(target))
            write = functools.partial(translate_file, translator, source, target)
            translate = functools.partial(write, overwrite=overwrite)
        translate(
            batch_size=batch_size,
            n_best=num_hypotheses is not None,
            distinct_texts=distinct,
            align=functools.partial(opened.align, batch_size=batch_size)
            if align
            else None,
            too_long=too_long.value,
            verbose=int(has_bar),
        )


def _options(engine: Engine, given: GivenOptions) -> GenerationOptions:
    """Returns the options of the search; the samples of a text would differ."""
    options = engine.options.with_given(**given)
    if engine.options.samples and options == engine.options:
        beams = options.with_given(num_beams=NUM_BEAMS)
        return options if engine.refusal(beams) else beams
    return options


def _keras_translator(
    engine: Engine,
    options: GenerationOptions,
    prefix: str,
    batch_size: int,
    dictionary: pathlib.Path | None,
    workers: int,
) -> LineTranslator:
    """Returns the translator of a Keras model, which has the most options."""
    from keras_transformer.decoding.generation_options import search_from_options
    from keras_transformer.file_translation.translation import ModelTranslator
    from keras_transformer.keras_engine import KerasEngine
    from keras_transformer_runtime.phrase_dictionary import PhraseDictionary

    assert isinstance(engine, KerasEngine)
    terms = None if dictionary is None else PhraseDictionary.from_file(dictionary)
    return ModelTranslator(
        engine.model,
        search_from_options(options),
        max_length=options.max_length,
        min_length=options.min_length,
        seed=options.seed,
        batch_size=batch_size,
        dictionary=terms,
        workers=workers,
        prefix=prefix,
        stop=options.stop,
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
    try:
        yield
    except KeyboardInterrupt as interrupt:
        action = "resume" if record_path(target).exists() else "restart"
        raise type(interrupt)(f"Stopped. Run the same command to {action}.") from None


def _opened(
    target: pathlib.Path, source: pathlib.Path, overwrite: bool
) -> contextlib.AbstractContextManager[BinaryIO]:
    """Opens standard output, or a file that exists only once it is complete."""
    if target == DASH:
        return contextlib.nullcontext(sys.stdout.buffer)
    return written_at_once(target, None if source == DASH else source, overwrite)
