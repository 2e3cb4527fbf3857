"""Parameters that several commands share, and the search that they describe."""

import enum
import pathlib
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from keras_transformer.decoding import BeamSearch


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
        help="Length penalty; greater values favour longer texts, 0: off.",
        show_default="that of the run, or 0.6",
    ),
]
BatchSize = Annotated[
    int, typer.Option(min=1, help="Number of texts decoded together.")
]
TooLongLines = Annotated[
    TooLong,
    typer.Option(
        help="Lines longer than the model's limit: stop with an error, or leave their "
        "translations empty."
    ),
]


def make_search(
    path: pathlib.Path,
    num_beams: int | None,
    length_penalty: float | None,
    num_hypotheses: int = 1,
) -> "BeamSearch":
    """Returns a beam search with the given settings.

    Args:
        path: of the model.
        num_beams: number of beams; `None` for that of the run, or 4 without a run.
        length_penalty: length penalty; `None` for that of the run, or 0.6 without a
            run.
        num_hypotheses: number of hypotheses.
    """
    from keras_transformer.decoding import BeamSearch
    from keras_transformer.recipe.folder import selected_search

    default = selected_search(path) or BeamSearch()
    return BeamSearch(
        default.num_beams if num_beams is None else num_beams,
        default.length_penalty if length_penalty is None else length_penalty,
        num_hypotheses=num_hypotheses,
    )
