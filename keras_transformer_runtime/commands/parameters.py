"""Parameters that several commands share, and the search that they describe."""

import enum
import pathlib
from typing import Annotated, Any

import typer

from keras_transformer_runtime.commands.other_names import ExplainingCommand


class ManyValuesCommand(ExplainingCommand):
    """A command whose options, after its arguments, may have several values."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options = [option for option in self.params if option.multiple]
        names = {name for option in options for name in option.opts}
        repeated: list[str] = []
        option, values = "", 0
        for arg in args:
            if arg.startswith("--"):
                option, equals, _ = arg.partition("=")
                values = len(equals)
            else:
                values += 1
                if option in names and values > 1:
                    repeated.append(option)
            repeated.append(arg)
        return super().parse_args(ctx, repeated)


class TooLong(enum.StrEnum):
    """Treatment of lines that are longer than the limit of the model."""

    error = "error"
    empty = "empty"


ModelPath = Annotated[
    pathlib.Path,
    typer.Argument(
        exists=True, help="A .keras file, or the folder of a run or a preset."
    ),
]
EngineModelPath = Annotated[
    pathlib.Path,
    typer.Argument(
        exists=True,
        help="The folder of a run, a preset, a SavedModel or a CTranslate2 model, or a "
        ".keras file.",
    ),
]
NumBeams = Annotated[
    int | None,
    typer.Option(min=1, help="Number of beams.", show_default="that of the model"),
]
LengthPenalty = Annotated[
    float | None,
    typer.Option(
        help="Length penalty; larger values favour longer texts; 0: none.",
        show_default="that of the model",
    ),
]
NumHypotheses = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of hypotheses of each line, with their scores.",
        show_default="the best text alone",
    ),
]
NumBeamGroups = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of groups of beams with different tokens.",
        show_default="1",
    ),
]
DiversityPenalty = Annotated[
    float | None,
    typer.Option(
        help="Penalty of a token for each beam of an earlier group that chooses it.",
        show_default="0",
    ),
]
MaxLength = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Maximum number of tokens of a translation.",
        show_default="50 more than the source, or more if the training text has more",
    ),
]
MinLength = Annotated[
    int | None,
    typer.Option(
        min=0, help="Minimum number of tokens of an output.", show_default="0"
    ),
]
RepetitionPenalty = Annotated[
    float | None,
    typer.Option(
        help="Penalty of tokens that occur in the output; 1: none.", show_default="1"
    ),
]
NoRepeatNGramSize = Annotated[
    int | None,
    typer.Option(
        "--no-repeat-ngram-size",
        min=0,
        help="Number of consecutive tokens that occur once in an output; 0: any.",
        show_default="0",
    ),
]
Temperature = Annotated[
    float | None,
    typer.Option(
        help="Divisor of the logits; selects sampling. Values below 1 give more "
        "probable texts.",
        show_default="1",
    ),
]
TopK = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of the most probable tokens to sample from; selects sampling.",
        show_default="all",
    ),
]
TopP = Annotated[
    float | None,
    typer.Option(
        help="Sample from the most probable tokens whose probabilities sum to this "
        "number; selects sampling. 1: from all tokens.",
        show_default="0.9",
    ),
]
Seed = Annotated[
    int | None, typer.Option(help="Seed of sampling.", show_default="random")
]
Stop = Annotated[
    list[str] | None,
    typer.Option(help="Text in front of which an output ends; can be repeated."),
]
Prefix = Annotated[str, typer.Option(help="Beginning of each output.")]
BatchSize = Annotated[
    int, typer.Option(min=1, help="Number of texts decoded together.")
]
TooLongLines = Annotated[
    TooLong,
    typer.Option(
        help="Lines that exceed the limit of the model: stop with an error, or leave "
        "their translations empty."
    ),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", help="Do not show a progress bar, nor which engine is chosen."
    ),
]
