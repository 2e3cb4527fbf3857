"""The command `embed`: vectors of texts, and the nearest of them."""

import pathlib
from typing import TYPE_CHECKING, Annotated

import typer

from keras_transformer_runtime.commands.encoder_choice import Text, open_encoder
from keras_transformer_runtime.commands.messages import exits_on_interrupt
from keras_transformer_runtime.commands.parameters import BatchSize, ManyValuesCommand
from keras_transformer_runtime.commands.predict import (
    EncoderPath,
    TextColumns,
    in_chunks,
    read_texts,
)
from keras_transformer_runtime.files import written_whole

if TYPE_CHECKING:
    import numpy as np

app = typer.Typer()

NEAREST = 5  # texts that `--nearest` shows


@app.command("embed", cls=ManyValuesCommand)
@exits_on_interrupt
def embed_command(
    model: EncoderPath,
    source: Annotated[
        pathlib.Path,
        typer.Argument(
            exists=True,
            dir_okay=False,
            help="Texts, one per line; plain or .gz. Or a .tsv, .csv or .jsonl file "
            "with --columns.",
        ),
    ],
    target: Annotated[
        pathlib.Path | None,
        typer.Argument(
            dir_okay=False,
            help="File to write, .npy: float32, a row for each text.",
            show_default="none, with --nearest",
        ),
    ] = None,
    nearest: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help=f"Show the {NEAREST} texts that are nearest to this one, with their "
            "cosine similarities.",
        ),
    ] = None,
    columns: TextColumns = None,
    pooling: Annotated[
        str | None,
        typer.Option(
            help="How the vectors of tokens become one: mean, max, cls or pooler. A "
            "SavedModel has its own.",
            show_default="mean",
        ),
    ] = None,
    normalize: Annotated[
        bool, typer.Option(help="Divide the vectors by their length.")
    ] = False,
    batch_size: BatchSize = 64,
) -> None:
    """Write the vectors of texts, or show the texts that are nearest to one.

    A model trained to classify texts or words has an encoder that computes
    vectors; one that is trained for similarity, such as all-MiniLM-L6-v2, is
    better at --nearest.
    """
    if (target is None) == (nearest is None):
        raise typer.BadParameter("give either a file to write or --nearest")
    if target is not None and target.suffix != ".npy":
        raise typer.BadParameter(f"the file to write must end in .npy, not {target}")
    import numpy as np

    opened = open_encoder(model)
    encoder = opened.embedder(model)
    options: dict[str, object] = {"batch_size": batch_size}
    if not hasattr(encoder, "signatures"):
        options |= {"pooling": pooling or "mean", "normalize": normalize}
    elif pooling is not None or normalize:
        raise ValueError(
            "`pooling` and `normalize` must not be given for a SavedModel, whose "
            f"export determines them; received `pooling={pooling!r}`, "
            f"`normalize={normalize}`. Give a run or a .keras file, or remove them."
        )
    texts: list[Text] = []
    parts: list[np.ndarray] = []
    for chunk in in_chunks(read_texts(source, columns)):
        parts.append(encoder.embed(chunk, **options))
        if nearest is not None:
            texts += chunk
    vectors = np.concatenate(parts)
    if target is not None:
        with written_whole(target) as file:
            np.save(file, vectors)
        typer.echo(f"{target}: float32 {vectors.shape}")
        return
    [wanted] = encoder.embed([nearest or ""], **options)
    for place, similarity in nearest_rows(vectors, wanted):
        typer.echo(f"{similarity:7.4f}  {texts[place]}")


def nearest_rows(
    vectors: "np.ndarray", wanted: "np.ndarray"
) -> list[tuple[int, float]]:
    """Returns the places of the rows with the highest cosine similarities.

    Args:
        vectors: float32 array `(rows, dim)`.
        wanted: float32 array `(dim,)`.

    Returns:
        List of at most five tuples of a place and a similarity, the highest first.
    """
    import numpy as np

    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(wanted)
    similarities = vectors @ wanted / np.maximum(lengths, 1e-12)
    order = np.argsort(-similarities, kind="stable")[:NEAREST]
    return [(int(place), float(similarities[place])) for place in order]
