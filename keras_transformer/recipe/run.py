"""A training run: vocabulary, data, model, `fit`, averaged weights, evaluation."""

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Literal

import keras

from keras_transformer.backend.sharding import add_virtual_devices
from keras_transformer.distribution import distribute
from keras_transformer.files import written_whole
from keras_transformer.recipe.early_checks import check_early
from keras_transformer.recipe.folder import is_complete, next_version
from keras_transformer.recipe.history_file import HistoryFile
from keras_transformer.recipe.model import in_float32
from keras_transformer.recipe.preparation import PreparedRun, prepare_run
from keras_transformer.recipe.progress import EpochReport, Reporter
from keras_transformer.recipe.recipe import Recipe
from keras_transformer.recipe.result import AnyFigures, TrainingResult, read_result
from keras_transformer.recipe.selection import select_weights
from keras_transformer.training import (
    Checkpoints,
    NonFiniteLoss,
    TrainingProgress,
)


def train(recipe: Recipe) -> TrainingResult:
    """Trains a model on text, as `keras-transformer train` does.

    Chooses the options that are not given from the training text, learns a vocabulary,
    trains the model, sets its weights to the best of the last epoch, the best epoch and
    the mean of the last epochs, and selects the length penalty, both by `recipe.metric`
    of the validation text; a language model has no length penalty. If a run was
    stopped, calling `train` with the
    same options resumes it at the batch where it stopped, with equal losses. If the
    run is complete, its model and figures are read.

    The trained model is a float32 model with any `recipe.dtype`. It is compiled, and
    has the state of the optimizer, if `recipe.dtype` is float32. With `recipe.init`,
    the run starts with the weights, vocabularies and configuration of a trained model.

    The folder `recipe.output` then contains:

    - `model.keras`, the model,
    - `figures.json`, the scores,
    - `options.toml`, all options, to repeat the run,
    - `history.csv`, losses and metrics of each epoch,
    - `tokenizer.json`, `source_tokenizer.json` and `target_tokenizer.json`, or with
      `recipe.init` `initial.keras`,
    - `data/`, with the training, validation and test texts, if some are held out,
    - `checkpoints/`,
    - `saved_model/`, with a new version in it if `recipe.export` is true.

    Args:
        recipe: the options, a `Recipe`.

    Returns:
        A `TrainingResult` with the attributes `model`, `search` and `figures`.

    Raises:
        ValueError: if an option has an invalid value, or if the folder contains a run
            of other options on which the weights depend. The error names the option.
        FileNotFoundError: if a text or the initial model does not exist.
        ModuleNotFoundError: if an option requires a package that is not installed.

    Example:

    ```python
    from keras_transformer.recipe import Recipe, train

    recipe = Recipe(train=train_files, valid=valid_files, output="runs/en-de")
    model, search, figures = train(recipe)
    model.generate(["A man sleeps."], search)
    ```
    """
    check_early(recipe)
    output = pathlib.Path(recipe.output)
    reporter = Reporter(recipe.verbose)
    if is_complete(recipe):
        result = read_result(output)
        reporter.print(f"The run in {output} is complete.")
        _print_figures(result.figures, recipe, reporter)
        return result
    with _distributed(recipe, reporter):
        return _train(recipe, reporter)


@contextlib.contextmanager
def _distributed(recipe: Recipe, reporter: Reporter) -> Iterator[None]:
    if recipe.devices == 1:
        yield
        return
    add_virtual_devices(recipe.devices)
    with distribute(recipe.devices, recipe.model_parallel) as found:
        if all(str(each).startswith("cpu") for each in found.device_mesh.devices.flat):
            reporter.print(
                f"{recipe.devices} virtual devices share one CPU, to try what several "
                "devices do: training is not faster than with --devices 1."
            )
        yield


def _train(recipe: Recipe, reporter: Reporter) -> TrainingResult:
    output = pathlib.Path(recipe.output)
    prepared = prepare_run(recipe, reporter)
    recipe = prepared.recipe
    figures_file = output / "figures.json"
    figures_file.unlink(missing_ok=True)  # of a complete run with fewer epochs
    with written_whole(output / "options.toml") as file:
        file.write(recipe.to_toml().encode())
    _fit(prepared, reporter)
    model = in_float32(prepared.model)
    with reporter.phase("Comparing the last epoch, the best and their mean"):
        selection = select_weights(model, prepared.evaluator, recipe)
    for name, score in selection.scores.items():
        mark = "  selected" if name == selection.name else ""
        reporter.print(f"  {recipe.metric} {score:.4g}  {name}{mark}")
    model.save(output / "model.keras")
    with reporter.phase(prepared.evaluator.description):
        result = prepared.evaluator.result(model, selection)
    _print_figures(result.figures, recipe, reporter)
    if recipe.export:
        folder = next_version(output / "saved_model")
        with reporter.phase(f"Exporting and checking {folder}"):
            texts = prepared.evaluator.check_texts
            model.export(folder, result.search, check_texts=texts, verbose=False)
    result.figures.write(figures_file)  # last: its presence means a complete run
    return result


def _print_figures(figures: AnyFigures, recipe: Recipe, reporter: Reporter) -> None:
    text = "test" if recipe.test else "validation"
    reporter.print(f"{figures.size} of the {text} text:")
    for line in figures.lines():
        reporter.print(f"  {line}")


def _fit(run: PreparedRun, reporter: Reporter) -> None:
    recipe, output = run.recipe, pathlib.Path(run.recipe.output)
    metric = run.evaluator.monitored
    best: Literal["min", "max"] = "min" if run.evaluator.is_lower_better else "max"
    shown = [metric] if metric != "val_loss" else []
    callbacks: list[keras.callbacks.Callback] = [
        NonFiniteLoss(data=run.data.train, folder=output),
        *run.evaluator.callbacks(),
        TrainingProgress(run.data.train.tokens_per_epoch),
        HistoryFile(output / "history.csv"),
        EpochReport(reporter, shown),
    ]
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
    )
    run.model.fit(
        run.data.train.dataset,
        validation_data=run.data.valid.dataset,
        epochs=recipe.epochs,
        shuffle=False,  # the dataset shuffles itself
        verbose=0,
        callbacks=[*callbacks, checkpoints],
    )
