"""The command `generate`: continues prompts with a language model."""

import contextlib
import dataclasses
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from keras_transformer_runtime.commands.messages import Terminated, exits_on_interrupt
from keras_transformer_runtime.commands.parameters import (
    BatchSize,
    ModelPath,
    make_generation_search,
)
from keras_transformer_runtime.commands.startup import import_keras_quietly
from keras_transformer_runtime.model_paths import find_model

if TYPE_CHECKING:
    from keras_transformer.decoding import Search
    from keras_transformer.models import CausalLM

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
NumSamples = Annotated[int, typer.Option(min=1, help="Number of texts of each prompt.")]
Temperature = Annotated[
    float | None,
    typer.Option(
        help="Divisor of the logits; values below 1 give more probable texts.",
        show_default="1",
    ),
]
TopP = Annotated[
    float | None,
    typer.Option(
        help="Sample from the most probable tokens whose probabilities sum to this "
        "number; 1: from all tokens.",
        show_default="0.9",
    ),
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
        help="Length penalty of beam search; larger values favour longer texts.",
        show_default="0.6",
    ),
]
Seed = Annotated[int | None, typer.Option(help="Random seed.", show_default="random")]
IncludePrompt = Annotated[bool, typer.Option(help="Begin each text with its prompt.")]


@app.command("generate")
@exits_on_interrupt
def generate_command(
    model: ModelPath,
    prompt: Prompt = None,
    max_length: NewTokens = None,
    num_samples: NumSamples = 1,
    temperature: Temperature = None,
    top_p: TopP = None,
    num_beams: NumBeams = None,
    length_penalty: LengthPenalty = None,
    seed: Seed = None,
    include_prompt: IncludePrompt = True,
    batch_size: BatchSize = 64,
) -> None:
    """Continue prompts with a language model.

    Standard input has one prompt per line. An empty line is an empty prompt.
    In a terminal, texts are written while they are generated, and Ctrl-C stops
    the current text. A text of several lines is followed by an empty line.
    """
    find_model(model)
    import_keras_quietly()
    from keras_transformer.models import CausalLM
    from keras_transformer.recipe.loading import load_trained_model

    search = make_generation_search(
        num_beams, length_penalty, num_samples, temperature, top_p
    )
    loaded = load_trained_model(model)
    if not isinstance(loaded, CausalLM):
        raise ValueError(
            f"`model` must be a language model; {model} is a {type(loaded).__name__}. "
            "Use the command translate."
        )
    writer = _Writer(loaded, search, max_length, seed, include_prompt, batch_size)
    if prompt is not None:
        writer.write([prompt])
    elif sys.stdin.isatty():
        typer.echo(
            "Type a prompt and press Enter; Ctrl-C stops a text, Ctrl-D ends.", err=True
        )
        for line in _typed_prompts():
            _continue_typed(line, writer)
    else:
        for prompts in _piped_prompts(loaded):
            writer.write(prompts)


@dataclasses.dataclass(frozen=True)
class _Writer:
    """Writes the texts of prompts to standard output."""

    model: "CausalLM"
    search: "Search"
    max_length: int | None  # number of new tokens
    seed: int | None
    include_prompt: bool
    batch_size: int

    def write(self, prompts: list[str]) -> None:
        """Continues prompts and writes their texts."""
        self._check_lengths(prompts)
        if sys.stdout.isatty() and self.search.num_hypotheses == 1:
            for prompt in prompts:
                self._stream(prompt)
            return
        found = self.model.generate(
            prompts,
            self.search,
            self.max_length,
            self.batch_size,
            seed=self.seed,
            include_prompt=self.include_prompt,
        )
        for texts in found:
            for text in [texts] if isinstance(texts, str) else texts:
                self._end(text, text)

    def _check_lengths(self, prompts: list[str]) -> None:
        """Checks that the context of the model has room for prompts and texts."""
        context, wanted = self.model.max_length, self.max_length
        if context is None:
            return
        assert self.model.source_tokenizer is not None
        rows = self.model.source_tokenizer.tokenize(prompts).to_list()
        longest = max((len(row) for row in rows), default=0)
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
        pieces = self.model.stream(
            prompt, search=self.search, max_length=self.max_length, seed=self.seed
        )
        for piece in pieces:
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


def _continue_typed(prompt: str, writer: _Writer) -> None:
    """Writes the text of a typed prompt; an error or Ctrl-C ends only this text."""
    try:
        writer.write([prompt])
    except Terminated:
        raise
    except KeyboardInterrupt:
        typer.echo()
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)


def _piped_prompts(model: "CausalLM") -> Iterator[list[str]]:
    """Yields the lines of standard input that have arrived.

    Raises `ValueError` for a line that is longer than the context of the model.
    """
    from keras_transformer.inference.file_translation.line_windows import (
        ModelSide,
        PipeLines,
    )

    side = ModelSide(model)
    lines = PipeLines(sys.stdin.buffer, "standard input", side, check_lengths=False)
    for window in lines.windows(0, 512):
        for place in window.too_long.nonzero()[0]:
            raise ValueError(
                f"A prompt must have at most {side.limit} tokens, the context of the "
                f"model; line {window.start + place + 1} of the standard input has "
                f"{window.lengths[place]}. Shorten it."
            )
        yield window.lines
