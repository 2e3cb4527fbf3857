"""The command `generate`: continues prompts with a language model."""

import contextlib
import dataclasses
import sys
import warnings
from collections.abc import Iterator
from typing import Annotated

import typer

from keras_transformer_runtime.commands.engine_choice import (
    EngineName,
    EngineOption,
    open_engine,
)
from keras_transformer_runtime.commands.messages import (
    Terminated,
    exits_on_interrupt,
    print_message,
)
from keras_transformer_runtime.commands.other_names import ExplainingCommand
from keras_transformer_runtime.commands.parameters import (
    BatchSize,
    EngineModelPath,
    MinLength,
    NoRepeatNGramSize,
    Quiet,
    RepetitionPenalty,
    Seed,
    Stop,
    Temperature,
    TopK,
    TopP,
)
from keras_transformer_runtime.engines.engine import Engine
from keras_transformer_runtime.engines.generation_options import (
    GenerationOptions,
    GivenOptions,
)
from keras_transformer_runtime.file_translation.line_windows import PipeLines, TextSide

app = typer.Typer()


Prompt = Annotated[
    str | None,
    typer.Option(
        help="Beginning of the text, which may be empty.",
        show_default="the lines of standard input, one prompt each",
    ),
]
NewTokens = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Maximum number of new tokens. The context of the model limits the sum of "
        "prompt and new tokens.",
        show_default="256",
    ),
]
NumHypotheses = Annotated[
    int | None,
    typer.Option(min=1, help="Number of texts of each prompt.", show_default="1"),
]
NumBeams = Annotated[
    int | None,
    typer.Option(
        min=1, help="Number of beams; selects beam search instead of sampling."
    ),
]
LengthPenalty = Annotated[
    float | None,
    typer.Option(
        help="Length penalty; larger values favour longer texts; selects beam search.",
        show_default="0.6",
    ),
]
IncludePrompt = Annotated[bool, typer.Option(help="Begin each text with its prompt.")]


@app.command("generate", cls=ExplainingCommand)
@exits_on_interrupt
def generate_command(
    context: typer.Context,
    model: EngineModelPath,
    prompt: Prompt = None,
    engine: EngineOption = EngineName.auto,
    max_length: NewTokens = None,
    min_length: MinLength = None,
    num_hypotheses: NumHypotheses = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    seed: Seed = None,
    num_beams: NumBeams = None,
    length_penalty: LengthPenalty = None,
    repetition_penalty: RepetitionPenalty = None,
    no_repeat_ngram_size: NoRepeatNGramSize = None,
    stop: Stop = None,
    include_prompt: IncludePrompt = True,
    batch_size: BatchSize = 64,
    quiet: Quiet = False,
) -> None:
    """Continue prompts with a language model.

    Standard input has one prompt per line. An empty line is an empty prompt.
    In a terminal, texts are written while they are generated, and Ctrl-C stops
    the current text. A text of several lines is followed by an empty line.
    """
    given: GivenOptions = {
        "max_length": max_length,
        "min_length": min_length,
        "num_hypotheses": num_hypotheses,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "seed": seed,
        "num_beams": num_beams,
        "length_penalty": length_penalty,
        "repetition_penalty": repetition_penalty,
        "no_repeat_ngram_size": no_repeat_ngram_size,
        "stop": stop or None,
    }
    opened = open_engine(context, model, engine, given, verbose=not quiet)
    if not opened.is_language_model:
        raise ValueError(
            f"`model` must be a language model; {model} translates texts. Use the "
            "command translate."
        )
    options = opened.options.with_given(**given)
    writer = _Writer(opened, options, include_prompt, batch_size)
    if prompt is not None:
        writer.write([prompt])
    elif sys.stdin.isatty():
        typer.echo(
            "Type a prompt and press Enter; Ctrl-C stops a text, Ctrl-D ends.", err=True
        )
        for line in _typed_prompts():
            _continue_typed(line, writer, context)
    else:
        for prompts in _piped_prompts(opened):
            writer.write(prompts)


@dataclasses.dataclass(frozen=True)
class _Writer:
    """Writes the texts of prompts to standard output."""

    engine: Engine
    options: GenerationOptions
    include_prompt: bool
    batch_size: int

    def write(self, prompts: list[str]) -> None:
        """Continues prompts and writes their texts."""
        self._check_lengths(prompts)
        if sys.stdout.isatty() and self.options.num_hypotheses == 1:
            for prompt in prompts:
                self._stream(prompt)
            return
        found = self.engine.generate(
            prompts,
            self.options,
            include_prompt=self.include_prompt,
            batch_size=self.batch_size,
        )
        for hypotheses in found:
            for hypothesis in hypotheses:
                self._end(hypothesis.text, hypothesis.text)

    def _check_lengths(self, prompts: list[str]) -> None:
        """Checks that the context of the model has room for prompts and texts."""
        context, wanted = self.engine.max_source_length, self.options.max_length
        if context is None:
            return
        longest = max(self.engine.measure(prompts, "source"), default=0)
        if longest > context:
            raise ValueError(
                f"A prompt must have at most {context} tokens, the context of the "
                f"model; received {longest} tokens. Shorten it."
            )
        room = context + 1 - max(longest, 1)  # an empty prompt is the start token
        if wanted is not None and wanted > room:
            warnings.warn(
                f"`max_length={wanted}` is greater than {room}, the number of new "
                "tokens for which the context of the model has room. A text ends "
                "there.",
                stacklevel=1,
            )

    def _stream(self, prompt: str) -> None:
        parts = [prompt] if self.include_prompt else []
        typer.echo("".join(parts), nl=False)
        for piece in self.engine.stream(prompt, self.options):
            typer.echo(piece, nl=False)
            sys.stdout.flush()
            parts.append(piece)
        self._end("".join(parts), "")

    def _end(self, text: str, rest: str) -> None:
        """Writes the rest of a text, which is not yet written, and its line break."""
        typer.echo(rest)
        if "\n" in text:
            typer.echo()
        sys.stdout.flush()


def _typed_prompts() -> Iterator[str]:
    """Yields the lines that are typed in a terminal."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 (`input` then edits lines and recalls them)
    is_terminal = sys.stdout.isatty()  # otherwise, `input` would write to the file
    while True:
        if not is_terminal:
            typer.echo("> ", nl=False, err=True)
        try:
            yield input("> " if is_terminal else "")
        except EOFError:
            typer.echo(err=True)
            return


def _continue_typed(prompt: str, writer: _Writer, context: typer.Context) -> None:
    """Writes the text of a typed prompt; an error or Ctrl-C ends only this text."""
    try:
        writer.write([prompt])
    except Terminated:
        raise
    except KeyboardInterrupt:
        typer.echo()
    except ValueError as error:
        print_message(context, f"error: {error}")


def _piped_prompts(engine: Engine) -> Iterator[list[str]]:
    """Yields the lines of standard input that have arrived.

    Raises `ValueError` for a line that is longer than the context of the model.
    """
    side = TextSide("source", engine.max_source_length, engine.measure)
    lines = PipeLines(sys.stdin.buffer, "standard input", side, check_lengths=False)
    for window in lines.windows(0, 512):
        for place in window.too_long.nonzero()[0]:
            raise ValueError(
                f"A prompt must have at most {side.limit} tokens, the context of the "
                f"model; line {window.start + place + 1} of the standard input has "
                f"{window.lengths[place]}. Shorten it."
            )
        yield window.lines
