"""The command `generate`: continues prompts with a language model."""

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

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


@app.command("generate")
@exits_on_interrupt
def generate_command(
    model: ModelPath,
    prompt: Annotated[
        str | None,
        typer.Option(
            help="Beginning of the text, which may be empty.",
            show_default="the lines of standard input, one prompt each",
        ),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of new tokens. The context of the model limits the "
            "sum of prompt and new tokens.",
            show_default="256",
        ),
    ] = None,
    num_samples: Annotated[
        int, typer.Option(min=1, help="Number of texts of each prompt.")
    ] = 1,
    temperature: Annotated[
        float | None,
        typer.Option(
            help="Divisor of the logits; values below 1 give more probable texts.",
            show_default="1",
        ),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            help="Sample from the most probable tokens whose probabilities sum to this "
            "number; 1: from all tokens.",
            show_default="0.9",
        ),
    ] = None,
    num_beams: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of beams; selects beam search instead of sampling."
        ),
    ] = None,
    length_penalty: Annotated[
        float | None,
        typer.Option(
            help="Length penalty of beam search; larger values favour longer texts.",
            show_default="0.6",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Random seed.", show_default="random")
    ] = None,
    include_prompt: Annotated[
        bool, typer.Option(help="Begin each text with its prompt.")
    ] = True,
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


class _Writer:
    """Writes the texts of prompts to standard output.

    Args:
        model: the language model.
        search: the search.
        max_length: maximum number of new tokens, or `None`.
        seed: random seed, or `None`.
        include_prompt: whether each text begins with its prompt.
        batch_size: number of prompts continued together.
    """

    def __init__(
        self,
        model: "CausalLM",
        search: "Search",
        max_length: int | None,
        seed: int | None,
        include_prompt: bool,
        batch_size: int,
    ) -> None:
        self._model = model
        self._options: dict[str, Any] = {
            "search": search,
            "max_length": max_length,
            "seed": seed,
        }
        self._include_prompt = include_prompt
        self._batch_size = batch_size
        self._streams = sys.stdout.isatty() and search.num_hypotheses == 1

    def write(self, prompts: list[str]) -> None:
        """Continues prompts and writes their texts."""
        self._check_lengths(prompts)
        if self._streams:
            for prompt in prompts:
                self._stream(prompt)
            return
        found = self._model.generate(
            prompts,
            **self._options,
            batch_size=self._batch_size,
            include_prompt=self._include_prompt,
        )
        for texts in found:
            for text in [texts] if isinstance(texts, str) else texts:
                self._end(text, text)

    def _check_lengths(self, prompts: list[str]) -> None:
        """Checks that the context of the model has room for prompts and texts."""
        context, wanted = self._model.max_length, self._options["max_length"]
        if context is None:
            return
        assert self._model.source_tokenizer is not None
        rows = self._model.source_tokenizer.tokenize(prompts).to_list()
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
        parts = [prompt] if self._include_prompt else []
        typer.echo("".join(parts), nl=False)
        for piece in self._model.stream(prompt, **self._options):
            typer.echo(piece, nl=False)
            sys.stdout.flush()
            parts.append(piece)
        self._end("".join(parts), "")

    def _end(self, text: str, rest: str) -> None:
        """Writes the rest of a text and its line break.

        Args:
            text: the whole text.
            rest: the part that is not written.
        """
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
