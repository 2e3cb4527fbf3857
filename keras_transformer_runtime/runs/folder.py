"""The folder of a run: its progress, its result, and the next version to export."""

import pathlib
import warnings
import zlib

from keras_transformer_runtime.engines.generation_options import GenerationOptions
from keras_transformer_runtime.files import read_json, write_json
from keras_transformer_runtime.model_paths import is_version
from keras_transformer_runtime.runs.label_recipe import PlannedLabelRecipe
from keras_transformer_runtime.runs.option_checks import SCHEDULES_TO_ZERO
from keras_transformer_runtime.runs.recipe import PlannedRecipe, Recipe, read_entries
from keras_transformer_runtime.runs.run_options import RunOptions
from keras_transformer_runtime.runs.run_position import RunPosition, checkpoint_files

CHECKSUMS, FIGURES = "checksums.json", "figures.json"


def is_complete(recipe: Recipe) -> bool:
    """Returns whether the folder of a run has all results of these options."""
    output = pathlib.Path(recipe.output)
    results = [output / name for name in ("options.toml", "model.keras", FIGURES)]
    if not all(path.exists() for path in results):
        return False
    began = began_recipe(output)
    free = {"output": recipe.output, "verbose": recipe.verbose}
    return recipe.completed_by(began).values() == {**began.values(), **free}


def selected_options(path: pathlib.Path) -> GenerationOptions | None:
    """Returns the search that a run has selected; `None` for other paths and models."""
    options, figures = path / "options.toml", path / FIGURES
    if not (options.is_file() and figures.is_file()):
        return None
    recipe = Recipe.from_toml(options)
    if recipe.model == "causal":
        return None
    penalty = read_json(figures).get("length_penalty")
    try:
        check_length_penalty(penalty)
    except ValueError as error:
        raise damaged_figures(figures, error) from error
    return GenerationOptions(num_beams=recipe.num_beams, length_penalty=float(penalty))


def documents_of_run(path: pathlib.Path) -> str | None:
    """Returns the option `documents` of a run; `None` if `path` is no run's folder."""
    options = path / "options.toml"
    if not options.is_file():
        return None
    documents = Recipe.from_toml(options).documents
    return None if documents == "pairs" else documents


def began_recipe(output: pathlib.Path) -> PlannedRecipe:
    """Reads the options of a run from its folder."""
    path = output / "options.toml"
    values = read_entries(path)
    try:
        return PlannedRecipe.of(values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error


def damaged_figures(path: pathlib.Path, error: Exception) -> ValueError:
    """Returns the error of a file of figures that cannot be read."""
    return ValueError(f"{path} must have the figures of a run; it is damaged: {error}")


def check_length_penalty(value: object) -> None:
    """Checks that a length penalty of a file is a finite number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and abs(value) < 1e9):  # type: ignore[arg-type]
        raise ValueError(f"`length_penalty` is {value!r:.80}")


def latest_position(output: str) -> RunPosition | None:
    """Returns the position of the latest checkpoint of a run, or `None`."""
    positions = [*checkpoint_files(pathlib.Path(output, "checkpoints"))]
    return positions[-1] if positions else None


def recipe_to_resume(recipe: Recipe) -> PlannedRecipe | None:
    """Returns the complete options with which the run in `recipe.output` is resumed.

    They are `None` if the folder has no run; one that cannot be resumed is an error.
    """
    output = pathlib.Path(recipe.output)
    options = output / "options.toml"
    position = latest_position(recipe.output)
    if position is None and not (output / "model.keras").exists():
        return None
    if position is None or not options.exists():
        missing = "checkpoints" if position is None else options.name
        raise ValueError(
            f"`output` must be the folder of a run that can be resumed, or a new "
            f"folder; received {output}, whose {missing} are missing. Choose another "
            "folder, or remove this one."
        )
    began = began_recipe(output)
    completed = PlannedRecipe.of(recipe.completed_by(began).values())
    completed.check_resumes(began, options)
    if completed.epochs < position.epochs:
        raise ValueError(
            f"`epochs` must be at least {position.epochs}, the number of complete "
            f"epochs in {recipe.output}; received `epochs={completed.epochs}`. Choose "
            "another `output` for a run of fewer epochs."
        )
    return completed


def write_checksums(recipe: RunOptions) -> None:
    """Writes the checksums of the texts of a run, for `check_same_texts`."""
    files = [file for named in recipe.text_files().values() for file in named]
    path = pathlib.Path(recipe.output, CHECKSUMS)
    write_json(path, {file: text_checksum(file) for file in files})


def check_same_texts(recipe: RunOptions) -> None:
    """Checks that the texts of a run have not changed since it began."""
    path = pathlib.Path(recipe.output, CHECKSUMS)
    before = read_json(path) if path.is_file() else {}
    for name, files in recipe.text_files().items():
        for file in files:
            if before.get(file) not in (None, text_checksum(file)):
                raise ValueError(
                    f"`{name}` must have the text with which the run in "
                    f"{recipe.output} began; received {file}, whose content has "
                    "changed. Restore the file, or choose another `output` for a new "
                    f"run. To go on with the new text, remove {path}."
                )


def text_checksum(file: str) -> int:
    """Returns the CRC-32 of a file."""
    checksum = 0
    with open(file, "rb") as content:
        while block := content.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return checksum


def warn_of_another_cooldown(
    recipe: PlannedRecipe | PlannedLabelRecipe, epochs: int
) -> None:
    """Warns if the end of a run changes after the learning rate began to fall.

    `epochs` is the number of epochs with which the run began.
    """
    position = latest_position(recipe.output)
    assert position is not None
    begun = position.epochs + bool(position.batches)
    falls_from_warmup = recipe.schedule in SCHEDULES_TO_ZERO
    is_cooling = begun > min(recipe.epochs, epochs) - recipe.cooldown
    if begun < recipe.epochs != epochs and (is_cooling or falls_from_warmup):
        warnings.warn(
            f"`epochs={recipe.epochs}` replaces `epochs={epochs}` in epoch {begun}, "
            "where the learning rate falls with one of them. The learning rate may "
            f"jump, and the model differs from that of a run with {recipe.epochs} "
            "epochs from the start.",
            stacklevel=2,
        )


def next_version(folder: pathlib.Path) -> pathlib.Path:
    """Returns the folder of the next version of a SavedModel."""
    versions = [int(path.name) for path in folder.glob("*") if is_version(path.name)]
    return folder / str(max(versions, default=0) + 1)
