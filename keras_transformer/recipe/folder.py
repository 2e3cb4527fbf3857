"""The folder of a run: how far the run is, whether it has ended, the next version."""

import dataclasses
import pathlib
import warnings
from typing import Any

from keras_transformer.files import read_json
from keras_transformer.recipe.options import Recipe, read_options
from keras_transformer.training.checkpoints.storage import checkpoint_files


def has_ended(recipe: Recipe) -> bool:
    """Tells whether the run of these options has been made, whatever it printed.

    Args:
        recipe: the options.

    Returns:
        Whether the folder `recipe.output` holds all that `train` leaves.
    """
    output = pathlib.Path(recipe.output)
    made = [output / name for name in ("options.toml", "model.keras", "figures.json")]
    if not all(path.exists() for path in made):
        return False
    began = Recipe(**read_options(made[0]))
    return recipe == dataclasses.replace(
        began, output=recipe.output, verbose=recipe.verbose
    )


def chosen_search(path: pathlib.Path) -> dict[str, Any]:
    """Tells which search a run has chosen for its model.

    Args:
        path: the folder of a run that has ended, or anything else.

    Returns:
        `"num_beams"` and `"length_penalty"` of a `BeamSearch`; nothing for anything
        else.
    """
    files = path / "options.toml", path / "figures.json"
    if not all(file.is_file() for file in files):
        return {}
    return {
        "num_beams": Recipe(**read_options(files[0])).num_beams,
        "length_penalty": read_json(files[1])["length_penalty"],
    }


def saved_position(output: str) -> tuple[int, int] | None:
    """Tells how far the newest checkpoint of a run is.

    Args:
        output: the folder of the run.

    Returns:
        The number of whole epochs, and of batches in the next one; `None` if there is
        no checkpoint.
    """
    saved = [*checkpoint_files(pathlib.Path(output, "checkpoints"))]
    return saved[-1] if saved else None


def goes_on(recipe: Recipe) -> bool:
    """Tells whether the folder holds a run that these options go on with.

    Args:
        recipe: the options.

    Returns:
        Whether there are checkpoints. A warning says that the learning rate may jump.

    Raises:
        ValueError: if an option differs on which the weights depend, if more epochs
            are done than the options have, or if files of the run are gone.
    """
    output = pathlib.Path(recipe.output)
    options = output / "options.toml"
    done = saved_position(recipe.output)
    if done is None and not (output / "model.keras").exists():
        return False
    if done is None or not options.exists():
        gone = "checkpoints" if done is None else options.name
        raise ValueError(
            f"`output` must be the folder of a run that can go on, or of none; "
            f"received {output}, whose {gone} are gone. Give another, or remove it."
        )
    began = read_options(options)
    recipe.check_continues(began, options)
    epochs, batches = done
    if recipe.epochs < epochs:
        raise ValueError(
            f"`epochs` must be at least {epochs}, as many as are done in "
            f"{recipe.output}; received `epochs={recipe.epochs}`. A run of fewer "
            "epochs needs an `output` of its own."
        )
    _warn_of_another_end(recipe, Recipe(**began).epochs, epochs + bool(batches))
    return True


def _warn_of_another_end(recipe: Recipe, epochs: int, done: int) -> None:
    """The end of a run says when the learning rate falls, which it may have by now."""
    begun = done > min(recipe.epochs, epochs) - recipe.cooldown
    if done < recipe.epochs != epochs and begun:
        warnings.warn(
            f"`epochs={recipe.epochs}` comes when the learning rate has begun to fall, "
            f"or should have: the run was for `epochs={epochs}`, in epoch {done} now. "
            f"The rate may jump, and a run of {recipe.epochs} epochs from the start "
            "gives another model.",
            stacklevel=2,
        )


def next_version(folder: pathlib.Path) -> pathlib.Path:
    """Returns the next free version of a SavedModel."""
    return folder / str(max(_versions(folder), default=0) + 1)


def _versions(folder: pathlib.Path) -> list[int]:
    return [int(path.name) for path in folder.glob("*") if path.name.isdecimal()]
