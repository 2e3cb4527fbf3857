"""The stages of a run after its preparation: `fit`, selection and evaluation."""

import pathlib
from typing import Literal

import keras

from keras_transformer.backend.processes import is_first_process
from keras_transformer.recipe.engines import can_export, export_with_own_search
from keras_transformer.recipe.model import in_float32
from keras_transformer.recipe.preparation import PreparedRun
from keras_transformer.recipe.progress import EpochReport, HistoryFile, Reporter
from keras_transformer.recipe.result import AnyFigures, TrainingResult
from keras_transformer.recipe.selection import select_weights
from keras_transformer.training import (
    Checkpoints,
    NonFiniteLoss,
    TrainingProgress,
)
from keras_transformer_runtime.runs.folder import FIGURES, next_version
from keras_transformer_runtime.runs.recipe import Recipe


def finish(run: PreparedRun, reporter: Reporter) -> TrainingResult:
    """Selects the weights of a trained model, evaluates, saves and exports it."""
    recipe, output = run.recipe, pathlib.Path(run.recipe.output)
    model = in_float32(run.model)
    with reporter.phase("Comparing the last epoch, the best and the mean of the last"):
        selection = select_weights(
            model, run.evaluator.score, run.evaluator.is_lower_better, recipe
        )
    for name, score in selection.scores.items():
        mark = "  selected" if name == selection.name else ""
        reporter.print(f"  {recipe.metric} {score:.4g}  {name}{mark}")
    model.save(output / "model.keras")
    with reporter.phase(run.evaluator.description):
        result = run.evaluator.result(model, selection)
    print_figures(result.figures, recipe, reporter)
    if recipe.export:
        folder = next_version(output / "saved_model")
        with reporter.phase(f"Exporting and checking {folder}"):
            texts = run.evaluator.check_texts
            model.export(
                folder,
                result.search,
                check_texts=texts,
                languages=recipe.languages,
                verbose=False,
            )
        if can_export(model):
            folder = output / "ctranslate2"
            with reporter.phase(f"Exporting and checking {folder}"):
                chosen = export_with_own_search(
                    model, result.search, run.evaluator, folder, recipe.languages
                )
            if chosen:
                reporter.print(f"  CTranslate2: {chosen}")
    # Last: its presence means a complete run.
    result.figures.write(output / FIGURES)
    return result


def print_figures(figures: AnyFigures, recipe: Recipe, reporter: Reporter) -> None:
    """Prints the figures of a complete run."""
    text = "test" if recipe.test else "validation"
    reporter.print(f"{figures.size} of the {text} text:")
    for line in figures.lines():
        reporter.print(f"  {line}")


def fit(run: PreparedRun, reporter: Reporter) -> None:
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
        TrainingProgress(run.data.train.tokens_per_epoch),
        EpochReport(reporter, shown),
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
