"""Descriptions of training runs and their checkpoints, for the command `inspect`."""

import csv
import math
import pathlib
from collections.abc import Mapping, Sequence
from operator import itemgetter

from keras_transformer_runtime.commands.describe_models import (
    Facts,
    command,
    describe_trained_model,
    next_commands,
    size_and_date,
)
from keras_transformer_runtime.runs.folder import began_recipe
from keras_transformer_runtime.runs.label_recipe import (
    PlannedLabelRecipe,
    task_of_options,
)
from keras_transformer_runtime.runs.recipe import PlannedRecipe, Recipe
from keras_transformer_runtime.runs.run_position import RunPosition, checkpoint_files

# Logs of an epoch that are not shown, besides those of the training text.
HIDDEN_LOGS = ("val_token_accuracy",)


def describe_run(path: pathlib.Path) -> Facts:
    """Describes the folder of a run: its progress, its figures and its model."""
    recipe: PlannedRecipe | PlannedLabelRecipe
    if task_of_options(path / "options.toml") is None:
        recipe = began_recipe(path)
        train, monitored = " ".join(recipe.train), _monitored(recipe)
    else:
        recipe = PlannedLabelRecipe.from_toml(path / "options.toml")
        train = recipe.train
        monitored = f"val_{recipe.metric}", recipe.metric == "loss"
    numbers = [each.name.removeprefix("member-") for each in path.glob("member-*")]
    numbers = sorted(filter(str.isdecimal, numbers), key=int)
    members = [path / f"member-{number}" for number in numbers]
    positions = [*checkpoint_files((members or [path])[-1] / "checkpoints")]
    reached = positions[-1] if positions else None
    is_complete = all(
        (path / name).is_file() for name in ("model.keras", "figures.json")
    )
    facts = {
        "status": "complete" if is_complete else "not complete",
        **size_and_date(path),
        "training text": train,
        **({"members": [str(member) for member in members]} if members else {}),
        "epochs": f"{reached.epochs if reached else 0} of {recipe.epochs}",
        **_describe_history(path / "history.csv", *monitored),
    }
    if is_complete:
        model = describe_trained_model(path)
        next_ = _next_commands(path, str(model["class"]))
        return {**facts, **_describe_figures(path, recipe), **model, "next": next_}
    if reached and reached.epochs < recipe.epochs:
        facts["resumes at"] = reached.resumes_at
    return {**facts, "next": [_resume(path / "checkpoints")]}


def _next_commands(path: pathlib.Path, class_name: str) -> list[str]:
    is_exported = any(path.glob("saved_model/*/saved_model.pb"))
    return [
        *next_commands(path, class_name),
        *([command("serve", path)] if is_exported else []),
    ]


def _describe_figures(
    path: pathlib.Path, recipe: PlannedRecipe | PlannedLabelRecipe
) -> Facts:
    if isinstance(recipe, PlannedLabelRecipe):
        from keras_transformer.recipe import LabelFigures

        found = LabelFigures.read(path / "figures.json")
        return {
            "figures of": f"the {found.data} data, {found.scores.examples}",
            "figures": found.scores.lines(),
            "weights": found.weights,
        }
    from keras_transformer.recipe.result import Figures, read_figures

    figures = read_figures(path / "figures.json", recipe.model)
    text = "test" if recipe.test else "validation"
    facts = {
        "figures of": f"the {text} text, {figures.size}",
        "figures": figures.lines(),
        "weights": figures.weights,
    }
    if isinstance(figures, Figures):
        penalty = f"--length-penalty {figures.length_penalty}"
        facts["search"] = f"--num-beams {recipe.num_beams} {penalty}"
    return facts


def _monitored(recipe: Recipe) -> tuple[str, bool]:
    """Returns the log that chooses the best epoch, and if lower values are better."""
    if recipe.model == "causal":
        return "val_perplexity", True
    # The module requires packages that the other commands do not.
    from keras_transformer_runtime.evaluation import METRICS

    metric = str(recipe.metric)
    return f"val_{metric}", metric == "loss" or METRICS[metric].is_error


def _describe_history(
    path: pathlib.Path, monitored: str, is_lower_better: bool
) -> Facts:
    """Describes the last epoch of `history.csv` and the best one."""
    if not path.is_file():
        return {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [_numbers(row) for row in csv.DictReader(file)]
        measured = [row for row in rows if not math.isnan(row.get(monitored, math.nan))]
        best = min if is_lower_better else max
        facts = {
            "last epoch": rows[-1:],
            "best epoch": [best(measured, key=itemgetter(monitored))]
            if measured
            else [],
        }
        return {
            name: f"{row['epoch']:g}: {format_logs(row)}"
            for name, found in facts.items()
            for row in found
        }
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        raise ValueError(
            f"{path} must have the logs of a run; it is damaged: {error!r}"
        ) from error


def _numbers(row: Mapping[str, str]) -> dict[str, float]:
    return {name: float(value) for name, value in row.items() if value}


def format_logs(logs: Mapping[str, float]) -> str:
    """Returns the loss and the logs of the validation text in one line."""
    shown = [
        name
        for name in logs
        if name == "loss" or (name.startswith("val_") and name not in HIDDEN_LOGS)
    ]
    return ", ".join(f"{n} {logs[n]:.4g}" for n in shown if not math.isnan(logs[n]))


def describe_checkpoints(path: pathlib.Path) -> Facts:
    """Describes a folder of checkpoints, and the newest that is not damaged."""
    files = [*checkpoint_files(path).values()]
    newest = _describe_newest(files[::-1])
    facts = {"checkpoints": len(files), **size_and_date(path), **newest}
    return {**facts, "next": [_resume(path)]}


def describe_checkpoint(path: pathlib.Path) -> Facts:
    """Describes one checkpoint."""
    facts = {**size_and_date(path), **_describe_newest([path])}
    return {**facts, "next": [_resume(path.parent)]}


def _describe_newest(paths: Sequence[pathlib.Path]) -> Facts:
    """Describes the first of several checkpoints that is not damaged."""
    from keras_transformer.training.checkpoints import run_state, storage

    readable = storage.readable_checkpoints(paths, check=run_state.check_state)
    found = next(readable, None)
    if found is None:
        raise ValueError(
            f"{paths[0]} must be a checkpoint; it is damaged or another file."
        )
    path, state = found
    sizes = [each["value"].size for each in state["model"] if _is_weight(each["name"])]
    logs = {n: v[-1] for n, v in state["history"]["history"].items() if v}
    position = RunPosition(state["epoch"], state["batch"])
    return {
        "checkpoint": path.name,
        "complete epochs": position.epochs,
        "resumes at": position.resumes_at,
        "parameters": f"{sum(sizes):,}",
        **({"last epoch": format_logs(logs)} if format_logs(logs) else {}),
    }


def _is_weight(name: str) -> bool:
    return not name.endswith("seed_generator_state")


def _resume(folder: pathlib.Path) -> str:
    """Returns how to resume the run of a folder of checkpoints."""
    options = folder.parent / "options.toml"
    if options.is_file():
        return command("train", "--config", options, "--output", folder.parent)
    return f'in Python: fit with the callback Checkpoints("{folder}")'
