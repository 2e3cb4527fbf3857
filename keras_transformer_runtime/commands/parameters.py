"""Parameters that several commands share, and the search that they describe."""

import enum
import pathlib
from typing import TYPE_CHECKING, Annotated

import typer

from keras_transformer_runtime.runs.folder import selected_search

if TYPE_CHECKING:
    from keras_transformer.decoding import BeamSearch, Search


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
NumBeams = Annotated[
    int | None,
    typer.Option(min=1, help="Number of beams.", show_default="that of the run, or 4"),
]
LengthPenalty = Annotated[
    float | None,
    typer.Option(
        help="Length penalty; larger values favour longer texts; 0: none.",
        show_default="that of the run, or 0.6",
    ),
]
NumBeamGroups = Annotated[
    int,
    typer.Option(
        min=1, help="Number of groups of beams with different tokens, for n-best lists."
    ),
]
DiversityPenalty = Annotated[
    float,
    typer.Option(
        help="Penalty of a token for each beam of an earlier group that chooses it."
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


def make_search(
    path: pathlib.Path,
    num_beams: int | None,
    length_penalty: float | None,
    num_hypotheses: int = 1,
    num_beam_groups: int = 1,
    diversity_penalty: float = 0.0,
) -> "BeamSearch":
    """Returns a beam search with the given settings."""
    from keras_transformer.decoding import BeamSearch

    default = selected_search(path) or BeamSearch()
    return BeamSearch(
        default.num_beams if num_beams is None else num_beams,
        default.length_penalty if length_penalty is None else length_penalty,
        num_hypotheses=num_hypotheses,
        num_beam_groups=num_beam_groups,
        diversity_penalty=diversity_penalty,
    )


def make_generation_search(
    num_beams: int | None,
    length_penalty: float | None,
    num_samples: int,
    temperature: float | None,
    top_p: float | None,
) -> "Search":
    """Returns the search of a language model: sampling, or beam search if given."""
    from keras_transformer.decoding import BeamSearch, Sampling

    if num_beams is None and length_penalty is None:
        return Sampling(
            num_samples,
            temperature=1.0 if temperature is None else temperature,
            top_p=0.9 if top_p is None else top_p,
        )
    for name, value in (("temperature", temperature), ("top_p", top_p)):
        if value is not None:
            raise ValueError(
                f"`{name}` is for sampling; received `{name}={value}` together with "
                "`num_beams` or `length_penalty`, which are for beam search. Remove "
                "one."
            )
    default = BeamSearch()
    return BeamSearch(
        max(default.num_beams, num_samples) if num_beams is None else num_beams,
        default.length_penalty if length_penalty is None else length_penalty,
        num_hypotheses=num_samples,
    )
