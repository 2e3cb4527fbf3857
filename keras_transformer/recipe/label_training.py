"""Trains a classifier of texts or words, as `train --task classify` and `tag` do."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Literal, NamedTuple, Self

import keras

from keras_transformer.dataset.labelled_dataset import LabelledDataset
from keras_transformer.models import TextClassifier, TextEncoder
from keras_transformer.models.encoder_model import Row
from keras_transformer.recipe.label_choices import (
    choose_model_options,
    make_classifier,
    make_label_tokenizer,
    make_plan,
    new_encoder,
    trained_encoder,
)
from keras_transformer.recipe.label_data import (
    AnyClassifier,
    LabelData,
    Labelled,
    class_names,
    data_remarks,
    input_rows,
    labelled_rows,
    read_data,
    scores_of,
    write_held_out,
)
from keras_transformer.recipe.loading import load_encoder_model
from keras_transformer.recipe.optimizers import make_optimizer, make_schedule
from keras_transformer.recipe.preparation import print_choices
from keras_transformer.recipe.selection import select_weights, weight_candidates
from keras_transformer.recipe.stages import HistoryFile
from keras_transformer.text import Tokenizer
from keras_transformer.training import Checkpoints, NonFiniteLoss, TrainingProgress
from keras_transformer.types import Logs
from keras_transformer_runtime.display import Display
from keras_transformer_runtime.files import read_json, write_json, written_whole
from keras_transformer_runtime.labels.label_scores import LabelScores
from keras_transformer_runtime.runs.early_checks import check_early_labels
from keras_transformer_runtime.runs.folder import (
    FIGURES,
    check_same_texts,
    damaged_figures,
    latest_position,
    next_version,
    warn_of_another_cooldown,
    write_checksums,
)
from keras_transformer_runtime.runs.label_recipe import (
    LabelRecipe,
    PlannedLabelRecipe,
)

OPTIONS, MODEL = "options.toml", "model.keras"
TOKENIZER, INITIAL = "tokenizer.json", "initial.keras"
EXPORT_SECONDS = {"saved_model": 15.0, "onnx": 10.0, "both": 25.0}


@dataclasses.dataclass(frozen=True)
class LabelFigures:
    """The scores of a trained classifier.

    Attributes:
        data: str, `"test"` or `"validation"`: the data that were scored.
        scores: the `LabelScores`.
        metric: str, the metric that selected the weights.
        weights: str, the selected weights, such as `"mean of epochs 31 to 40"`.
        candidates: dictionary of floats, the metric on the validation data by the name
            of the weights.
    """

    data: str
    scores: LabelScores
    metric: str
    weights: str
    candidates: dict[str, float]

    @classmethod
    def read(cls, path: pathlib.Path) -> Self:
        """Reads the figures from a JSON file; raises `ValueError` if it is damaged."""
        content = read_json(path)
        try:
            figures = cls(**{**content, "scores": LabelScores(**content["scores"])})
            figures.scores.lines()
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise damaged_figures(path, error) from error
        return figures

    def write(self, path: pathlib.Path) -> None:
        """Writes the figures to a JSON file."""
        write_json(path, {**dataclasses.asdict(self), "scores": self.scores._asdict()})


class LabelResult(NamedTuple):
    """The result of a run.

    Attributes:
        model: the model, with the selected weights.
        figures: the `LabelFigures`.
    """

    model: AnyClassifier
    figures: LabelFigures


class _Prepared(NamedTuple):
    recipe: PlannedLabelRecipe
    model: AnyClassifier  # compiled
    data: LabelData
    train: LabelledDataset
    valid: LabelledDataset


def train_labels(recipe: LabelRecipe) -> LabelResult:
    """Trains a classifier, as `keras-transformer train --task classify` does.

    The function chooses the options that are not given from the training data, learns
    a vocabulary and trains the model. It compares the weights of the last epoch, those
    of the best epoch and the mean of the last epochs by `recipe.metric` on the
    validation data, and keeps the best. If a run was stopped, calling `train_labels`
    with the same options resumes it at the batch where it stopped, with equal losses.
    If the run is complete, its model and figures are read.

    The folder `recipe.output` then contains `model.keras`, `figures.json`,
    `options.toml`, `checksums.json`, `history.csv`, `tokenizer.json` (`initial.keras`
    with `recipe.start_from`), `checkpoints/`, `data/` with the parts that are held
    out, `confusion_matrix.png`, and `saved_model/` and `onnx/` as `recipe.export` and
    `recipe.export_format` say.

    Args:
        recipe: the options, a `LabelRecipe`.

    Returns:
        A `LabelResult` with the attributes `model` and `figures`.

    Raises:
        ValueError: if the data or an option are invalid, or if the folder has a run of
            other options or data. The error names the option or the line of the file.
        FileNotFoundError: if a file does not exist.

    Example:

    ```python
    from keras_transformer.recipe import LabelRecipe, train_labels

    recipe = LabelRecipe(task="classify", train="films.tsv", output="runs/films")
    model, figures = train_labels(recipe)
    print(model.classify(["a great film"])[0].label, figures.scores.values)
    ```
    """
    check_early_labels(recipe)
    display = Display(recipe.verbose)
    output = pathlib.Path(recipe.output)
    began = _recipe_to_resume(recipe, output)
    if began is not None and _is_complete(began, output):
        display.print(f"The run in {output} is complete.")
        figures = LabelFigures.read(output / FIGURES)
        _print_figures(figures, display)
        model = load_encoder_model(output / MODEL)
        assert not isinstance(model, TextEncoder)
        return LabelResult(model, figures)
    prepared = _prepare(recipe, began, display)
    _fit(prepared, display)
    return _finish(prepared, display)


def _is_complete(recipe: LabelRecipe, output: pathlib.Path) -> bool:
    """Returns whether the folder of a run has all results of these options."""
    if not ((output / FIGURES).is_file() and (output / MODEL).is_file()):
        return False
    began = LabelRecipe.from_toml(output / OPTIONS).values()
    free = {"output": recipe.output, "verbose": recipe.verbose}
    return recipe.values() == {**began, **free}


def _recipe_to_resume(
    recipe: LabelRecipe, output: pathlib.Path
) -> PlannedLabelRecipe | None:
    """Returns the complete options of the run in the folder, if there is one."""
    position = latest_position(recipe.output)
    if not (output / OPTIONS).is_file():
        if position is not None or (output / MODEL).exists():
            raise ValueError(
                f"`output` must be a new folder, or that of a run; received {output}, "
                f"whose {OPTIONS} is missing. Choose another folder."
            )
        return None
    if position is None:
        return None
    began = PlannedLabelRecipe.from_toml(output / OPTIONS)
    free = ("test", "patience", "verbose")
    values = {n: x for n, x in began.values().items() if n not in free}
    completed = PlannedLabelRecipe.of(recipe.completed(**values).values())
    completed.check_resumes(began, output / OPTIONS)
    check_same_texts(completed)
    if completed.epochs < position.epochs:
        raise ValueError(
            f"`epochs` must be at least {position.epochs}, the number of complete "
            f"epochs in {recipe.output}; received `epochs={completed.epochs}`. Choose "
            "another `output` for a run of fewer epochs."
        )
    warn_of_another_cooldown(completed, began.epochs)
    return completed


def _prepare(
    recipe: LabelRecipe, began: LabelRecipe | None, display: Display
) -> _Prepared:
    output = pathlib.Path(recipe.output)
    recipe = began or recipe
    with display.stage("Reading the data"):
        data = read_data(recipe)
    for remark in data_remarks(data):
        display.print(remark)
    plan = make_plan(recipe)
    keras.utils.set_random_seed(recipe.seed)
    if recipe.start_from is not None:
        start = recipe.start_from if began is None else str(output / INITIAL)
        plan.values["start_from"] = start
        with display.stage(f"Loading {start}"):
            encoder = trained_encoder(plan)
        plan.values["start_from"] = recipe.start_from
    else:
        if began is None:
            with display.stage("Learning the vocabulary"):
                tokenizer = make_label_tokenizer(plan, data)
        else:
            tokenizer = Tokenizer.load(output / TOKENIZER)
        encoder = new_encoder(plan, data, tokenizer)
    choose_model_options(plan, data, encoder)
    complete = PlannedLabelRecipe.of(plan.values)
    with display.stage("Making batches"):
        model = make_classifier(complete, encoder, class_names(data.train))
        train = _dataset(model, data.train, complete, shuffle=True)
        valid = _dataset(model, data.valid, complete, shuffle=False)
    _compile(model, complete, train.batches_per_epoch)
    if began is None:
        output.mkdir(parents=True, exist_ok=True)
        if recipe.start_from is None:
            tokenizer.save(output / TOKENIZER)
        else:
            encoder.save(output / INITIAL)
        write_held_out(data, recipe)
    print_choices(plan, display)
    _print_facts(complete, data, model, train, display)
    (output / FIGURES).unlink(missing_ok=True)  # of a run with fewer epochs
    with written_whole(output / OPTIONS) as file:
        file.write(complete.to_toml().encode())
    write_checksums(complete)
    return _Prepared(complete, model, data, train, valid)


def _dataset(
    model: AnyClassifier, data: Labelled, recipe: PlannedLabelRecipe, shuffle: bool
) -> LabelledDataset:
    weights = recipe.class_weight if shuffle else "none"
    return LabelledDataset(
        labelled_rows(model, data, weights),
        model.paddings,
        model.row_lengths(),
        recipe.batch_size,
        shuffle,
        recipe.seed,
    )


def _compile(model: AnyClassifier, recipe: PlannedLabelRecipe, batches: int) -> None:
    loss_class = keras.losses.SparseCategoricalCrossentropy
    if isinstance(model, TextClassifier) and model.multi_label:
        loss_class = keras.losses.BinaryCrossentropy
    model.compile(
        make_optimizer(recipe, make_schedule(recipe, batches)),
        loss_class(from_logits=True, reduction="mean_with_sample_weight"),
    )


def _print_facts(
    recipe: PlannedLabelRecipe,
    data: LabelData,
    model: AnyClassifier,
    train: LabelledDataset,
    display: Display,
) -> None:
    counts = {
        "Training data": f"{len(data.train):,} examples of "
        f"{len(class_names(data.train))} classes, {train.tokens_per_epoch:,} tokens in "
        f"{train.batches_per_epoch:,} batches",
        "Validation data": f"{len(data.valid):,} examples",
        "Model": f"{model.count_params():,} parameters",
    }
    position = latest_position(recipe.output)
    if position is not None and position.epochs < recipe.epochs:
        epoch = f"epoch {position.epochs + 1} of {recipe.epochs}"
        counts["Resuming"] = f"at {epoch}, batch {position.batches + 1}"
    for name, fact in counts.items():
        display.print(f"{name:16} {fact}")


class _ValidationScores(keras.callbacks.Callback):
    """Logs the scores of the validation data."""

    def __init__(self, data: Labelled, rows: Sequence[Row]) -> None:
        super().__init__()
        self.data, self.rows = data, rows

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        scores = scores_of(self.model, self.data, self.rows)
        if logs is not None:
            logs.update({f"val_{n}": value for n, value in scores.values.items()})


def _fit(run: _Prepared, display: Display) -> None:
    recipe, output = run.recipe, pathlib.Path(run.recipe.output)
    metric, mode = f"val_{recipe.metric}", _mode(recipe)
    rows = input_rows(run.model, run.data.valid)
    export = recipe.export * EXPORT_SECONDS[recipe.export_format]
    callbacks: list[keras.callbacks.Callback] = [
        NonFiniteLoss(data=run.train, folder=output),
        _ValidationScores(run.data.valid, rows),
        TrainingProgress(
            run.train.tokens_per_epoch,
            metrics=[*dict.fromkeys(["loss", "val_loss", metric])],
            verbose=display.verbose,
            seconds_after=lambda validation: 3 * validation + export,
        ),
        HistoryFile(output / "history.csv"),
    ]
    if recipe.patience is not None:
        early = keras.callbacks.EarlyStopping(metric, 0, recipe.patience, mode=mode)
        callbacks.append(early)
    checkpoints = Checkpoints(
        output / "checkpoints",
        run.train,
        save_every=recipe.save_every,
        keep=recipe.average,
        monitor=metric,
        mode=mode,
    )
    run.model.fit(
        run.train.dataset,
        validation_data=run.valid.dataset,
        epochs=recipe.epochs,
        shuffle=False,  # the dataset shuffles itself
        verbose=0,
        callbacks=[*callbacks, checkpoints],
    )


def _mode(recipe: LabelRecipe) -> Literal["min", "max"]:
    return "min" if recipe.metric == "loss" else "max"


def _finish(run: _Prepared, display: Display) -> LabelResult:
    """Selects the weights, scores them, and saves and exports the model."""
    recipe, data = run.recipe, run.data
    output = pathlib.Path(recipe.output)
    model = _in_float32(run.model)
    candidates = weight_candidates(model, recipe.output, recipe.average)
    rows = input_rows(model, data.valid)

    def score(model: AnyClassifier) -> float:
        if recipe.metric == "loss":
            found = model.evaluate(run.valid.dataset, verbose=0, return_dict=True)
            return float(found["loss"])
        return scores_of(model, data.valid, rows).values[recipe.metric]

    if recipe.metric == "loss" and not model.compiled:
        _compile(model, recipe, run.train.batches_per_epoch)
    with display.stage("Comparing the last epoch, the best and the mean"):
        selection = select_weights(model, candidates, score, _mode(recipe) == "min")
    for name, value in selection.scores.items():
        mark = "  selected" if name == selection.name else ""
        display.print(f"  {recipe.metric} {value:.4g}  {name}{mark}")
    model.save(output / MODEL)
    test = data.valid if data.test is None else data.test
    figures = LabelFigures(
        "validation" if data.test is None else "test",
        scores_of(model, test),
        recipe.metric,
        selection.name,
        selection.scores,
    )
    _print_figures(figures, display)
    if figures.scores.confusion is not None:
        from keras_transformer.plotting import plot_confusion_matrix

        names = figures.scores.class_names
        figure = plot_confusion_matrix(figures.scores.confusion, names)
        figure.savefig(output / "confusion_matrix.png")
    if recipe.export:
        _export(model, recipe, output, display)
    figures.write(output / FIGURES)  # Last: its presence means a complete run.
    return LabelResult(model, figures)


def _in_float32(model: AnyClassifier) -> AnyClassifier:
    """Returns a float32 model with the weights of a model, or the model itself."""
    if model.dtype_policy.name == "float32":
        return model
    config = model.get_config()
    config["encoder"]["config"]["dtype"] = config["dtype"] = "float32"
    found = type(model).from_config(config)
    found.set_weights(model.get_weights())
    return found


def _export(
    model: AnyClassifier, recipe: LabelRecipe, output: pathlib.Path, display: Display
) -> None:
    for format in ("saved_model", "onnx"):
        if recipe.export_format in (format, "both"):
            folder = next_version(output / format)
            with display.stage(f"Exporting and checking {folder}"):
                model.export(folder, format=format)


def _print_figures(figures: LabelFigures, display: Display) -> None:
    display.print(f"{figures.scores.examples} of the {figures.data} data:")
    for line in figures.scores.lines():
        display.print(f"  {line}")
    for table in figures.scores.tables:
        display.print(f"\n{table}")
