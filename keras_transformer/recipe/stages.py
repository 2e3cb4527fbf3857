"""The stages of a run after its preparation: `fit`, selection and evaluation."""

import csv
import dataclasses
import functools
import io
import math
import os
import pathlib
import shutil
import warnings
from collections.abc import Mapping
from typing import Literal, TypeAlias

import keras

from keras_transformer.backend.processes import is_first_process
from keras_transformer.interoperability.adapters import save_adapter
from keras_transformer.models import GenerativeModel
from keras_transformer.recipe.engines import can_export, export_with_own_search
from keras_transformer.recipe.model import in_float32, trained_parameters
from keras_transformer.recipe.preparation import PreparedRun
from keras_transformer.recipe.result import AnyFigures, TrainingResult
from keras_transformer.recipe.selection import (
    Candidate,
    Selection,
    select_weights,
    weight_candidates,
)
from keras_transformer.recipe.task import Evaluator
from keras_transformer.training import (
    Checkpoints,
    NonFiniteLoss,
    TrainingProgress,
    merge_lora,
)
from keras_transformer.training.lora import merged_weights
from keras_transformer_runtime.display import Display
from keras_transformer_runtime.files import written_whole
from keras_transformer_runtime.runs.folder import FIGURES, next_version
from keras_transformer_runtime.runs.recipe import PlannedRecipe, Recipe

Row: TypeAlias = dict[str, str | float]

# Of what follows the last epoch, for the time left: beam searches of the validation
# text, each as long as the validation of an epoch, and the exports on two cores.
SEARCHES_AFTER = 4
EXPORT_SECONDS = {"both": 40.0, "saved_model": 32.0, "ctranslate2": 8.0}


def finish(run: PreparedRun, display: Display) -> TrainingResult:
    """Selects the weights of a trained model, evaluates, saves and exports it."""
    recipe, output = run.recipe, pathlib.Path(run.recipe.output)
    model, candidates = _candidates(run)
    if len(candidates) == 1:
        candidates[0].load()
        selection = Selection(candidates[0].name, {})
    else:
        with display.stage("Comparing the last epoch, the best and the mean"):
            selection = select_weights(
                model, candidates, run.evaluator.score, run.evaluator.is_lower_better
            )
    for name, score in selection.scores.items():
        mark = "  selected" if name == selection.name else ""
        display.print(f"  {recipe.metric} {score:.4g}  {name}{mark}")
    model.save(output / "model.keras")
    if recipe.lora is not None:
        shutil.rmtree(output / "adapter", ignore_errors=True)
        save_adapter(run.model, output / "adapter", recipe.start_from or "")
    with display.stage(run.evaluator.description):
        result = run.evaluator.result(model, selection)
    result = result._replace(figures=_with_origin(result.figures, run))
    print_figures(result.figures, recipe, display)
    if recipe.export:
        export_result(recipe, run.evaluator, result, display)
    # Last: its presence means a complete run.
    result.figures.write(output / FIGURES)
    return result


def _candidates(run: PreparedRun) -> tuple[GenerativeModel, list[Candidate]]:
    """Returns a float32 model without LoRA, and weights that it can have."""
    if run.recipe.lora is None:
        model = in_float32(run.model)
        return model, _weight_candidates(model, run.recipe)
    merged = in_float32(merge_lora(run.model))

    def load(candidate: Candidate) -> None:
        candidate.load()  # the matrices
        merged.set_weights(merged_weights(run.model))

    return merged, [
        each._replace(load=functools.partial(load, each))
        for each in _weight_candidates(run.model, run.recipe)
    ]


def _weight_candidates(
    model: GenerativeModel, recipe: PlannedRecipe
) -> list[Candidate]:
    return weight_candidates(model, recipe.output, recipe.average, recipe.selection)


def _with_origin(figures: AnyFigures, run: PreparedRun) -> AnyFigures:
    """Returns the figures with the origin of a trained model."""
    if run.recipe.start_from is None:
        return figures
    trained = trained_parameters(run.model)
    return dataclasses.replace(
        figures, start_from=run.recipe.start_from, trained_parameters=trained
    )


def export_result(
    recipe: PlannedRecipe,
    evaluator: Evaluator,
    result: TrainingResult,
    display: Display,
) -> None:
    """Exports the model in the formats of the recipe that suit it."""
    output = pathlib.Path(recipe.output)
    model, search = result.model, result.search
    if recipe.export_format != "ctranslate2":
        folder = next_version(output / "saved_model")
        with display.stage(f"Exporting and checking {folder}"):
            model.export(
                folder,
                search,
                check_texts=evaluator.check_texts,
                languages=recipe.languages,
                verbose=False,
            )
    if recipe.export_format != "saved_model" and can_export(model):
        folder = output / "ctranslate2"
        with display.stage(f"Exporting and checking {folder}"):
            chosen = export_with_own_search(
                model, search, evaluator, folder, recipe.languages
            )
        if chosen:
            display.print(f"  CTranslate2: {chosen}")


def print_figures(figures: AnyFigures, recipe: Recipe, display: Display) -> None:
    """Prints the figures of a complete run."""
    text = "test" if recipe.test else "validation"
    display.print(f"{figures.size} of the {text} text:")
    for line in figures.lines():
        display.print(f"  {line}")


def fit(run: PreparedRun, display: Display) -> None:
    """Trains the model until all epochs are complete.

    Processes that train together call it together; the first one writes the files.
    """
    recipe, output = run.recipe, pathlib.Path(run.recipe.output)
    metric = run.evaluator.monitored
    best: Literal["min", "max"] = "min" if run.evaluator.is_lower_better else "max"
    shown = [metric] if metric != "val_loss" else []
    callbacks: list[keras.callbacks.Callback] = [
        NonFiniteLoss(data=run.data.train, folder=output),
        *run.evaluator.callbacks(),
        TrainingProgress(
            run.data.train.tokens_per_epoch,
            metrics=["loss", "val_loss", *shown],
            verbose=display.verbose,
            seconds_after=lambda validation: (
                SEARCHES_AFTER * validation * recipe.selection
                + EXPORT_SECONDS[recipe.export_format] * recipe.export
            ),
        ),
    ]
    if is_first_process():
        callbacks.append(HistoryFile(output / "history.csv"))
        if recipe.tensorboard:
            callbacks.append(keras.callbacks.TensorBoard(output / "logs"))
    if recipe.patience is not None:
        callbacks.append(
            keras.callbacks.EarlyStopping(metric, patience=recipe.patience, mode=best)
        )
    checkpoints = Checkpoints(
        output / "checkpoints",
        run.data.train,
        save_every=recipe.save_every,
        keep=recipe.average,
        monitor=metric,
        mode=best,
        total_steps=recipe.steps,
    )
    run.model.fit(
        run.data.train.dataset,
        validation_data=run.data.valid.dataset,
        epochs=recipe.epochs,
        shuffle=False,  # the dataset shuffles itself
        verbose=0,
        callbacks=[*callbacks, checkpoints],
    )


class HistoryFile(keras.callbacks.Callback):
    """Writes the logs of each epoch as a row of a CSV file.

    The column `epoch` counts from 1. A cell is empty if the epoch has no such log or
    if the log is NaN, such as BLEU between two evaluations. A resumed run replaces the
    rows of the epochs that it repeats. The file is replaced as a whole, so that a
    killed run leaves the rows of all complete epochs. If the file cannot be read or
    written, a warning is given and training continues.

    Differs from `keras.callbacks.CSVLogger`, which fixes the columns in the first
    epoch and appends the rows of repeated epochs.
    """

    def __init__(self, path: str | os.PathLike[str]):
        super().__init__()
        self.path = pathlib.Path(path)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        number = epoch + 1
        try:
            self._write(number, logs or {})
        except (OSError, KeyError, ValueError) as error:
            warnings.warn(
                f"Epoch {number} is missing in {self.path}: {error!r}. Training "
                "continues.",
                stacklevel=2,
            )

    def _write(self, epoch: int, logs: Mapping[str, float]) -> None:
        rows = [row for row in self._read() if int(row["epoch"]) < epoch]
        values = {name: value for name, value in logs.items() if not math.isnan(value)}
        rows.append({"epoch": epoch, **values})
        columns = dict.fromkeys(name for row in rows for name in row)
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns)
        writer.writeheader()
        writer.writerows(rows)
        with written_whole(self.path) as file:
            file.write(text.getvalue().encode())

    def _read(self) -> list[Row]:
        if not self.path.exists():
            return []
        with self.path.open(newline="", encoding="utf-8-sig") as file:
            return [{**row} for row in csv.DictReader(file)]
