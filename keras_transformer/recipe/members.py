"""A run of several members: an ensemble, or one model that learns from it.

Each member is a complete run with a seed of its own. The texts and vocabularies do not
depend on the seed, so the members have the same ones.
"""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Sequence

from keras_transformer.decoding.generation_options import options_from_search
from keras_transformer.keras_engine import KerasEngine
from keras_transformer.models import Ensemble
from keras_transformer.recipe.plan import Plan
from keras_transformer.recipe.result import Figures, TrainingResult
from keras_transformer.recipe.selection import Selection
from keras_transformer.recipe.stages import export_result
from keras_transformer.recipe.task import Evaluator
from keras_transformer.recipe.tokenizers import Tokenizers
from keras_transformer.recipe.translation import TranslationTask
from keras_transformer_runtime.display import Display
from keras_transformer_runtime.files import written_whole
from keras_transformer_runtime.runs.folder import (
    FIGURES,
    began_recipe,
    write_checksums,
)
from keras_transformer_runtime.runs.recipe import PlannedRecipe, Recipe

Train = Callable[[Recipe], TrainingResult]
DISTILLED = "distilled"  # the folder of the text that an ensemble has translated


def train_members(recipe: Recipe, train: Train, display: Display) -> TrainingResult:
    """Trains the members of a recipe one after the other, and combines them.

    The folder of the run has the folders `member-1`, `member-2`, …, and `model.keras`,
    an `Ensemble`. With `distill`, the run is that of a new model, and the ensemble is
    in its folder `teacher`. `train` trains one model. Complete members are not trained
    again, so the same recipe resumes a run that was stopped.
    """
    if recipe.distill:
        return train(distilled_recipe(recipe, train, display))
    members = []
    for index in range(1, recipe.members + 1):
        display.print(f"Member {index} of {recipe.members}")
        members.append(train(recipe.member(index)))
    display.print(f"Ensemble of {recipe.members} members")
    output = pathlib.Path(recipe.output)
    complete = PlannedRecipe.of(
        recipe.completed_by(began_recipe(output / "member-1")).values()
    )
    model = Ensemble([member.model for member in members])
    evaluator = _evaluator(complete, model)
    with display.stage(evaluator.description):
        name = f"those of {recipe.members} members"
        result = evaluator.result(model, Selection(name, {}))
    _print_scores(result.figures, [member.figures for member in members], display)
    model.save(output / "model.keras")
    Tokenizers.of(model).save(output)
    with written_whole(output / "options.toml") as file:
        file.write(complete.to_toml().encode())
    write_checksums(complete)
    if recipe.export:
        export_result(complete, evaluator, result, display)
    result.figures.write(output / FIGURES)  # Last, as in `finish`.
    return result


def distilled_recipe(recipe: Recipe, train: Train, display: Display) -> Recipe:
    """Trains the ensemble of a recipe, and returns the recipe of its student.

    The training text of the student consists of the pairs of the text, and of its
    sources with the translations of the ensemble where these differ.

    References:
        - [Kim and Rush, 2016](https://arxiv.org/abs/1606.07947), section 3.2
    """
    output, teacher = pathlib.Path(recipe.output), recipe.teacher()
    result = train(teacher)
    began = began_recipe(pathlib.Path(teacher.output))
    task = _task(began)
    files = [output / DISTILLED / name for name in _names(began.columns)]
    if not all(path.is_file() for path in files):
        pairs = task.training_pairs()
        sources = [*dict.fromkeys(source for source, _ in pairs)]
        engine = KerasEngine(result.model, pathlib.Path(teacher.output))
        options = options_from_search(result.search)
        stage = f"Translating {len(sources):,} sources with the ensemble"
        with display.stage(stage):
            found = engine.generate(sources, options)
        outputs = [row[0].text for row in found]
        translated = zip(sources, outputs, strict=True)
        text = [*dict.fromkeys([*pairs, *(pair for pair in translated if pair[1])])]
        _write_pairs(text, files, began.columns)
    text_files = task.text_files()
    display.print("Model that learns from the ensemble")
    return dataclasses.replace(
        recipe,
        members=1,
        distill=False,
        train=[str(path) for path in files],
        valid=text_files["valid"],
        test=text_files["test"] if recipe.test else None,
    )


def _task(recipe: PlannedRecipe) -> TranslationTask:
    """Returns the texts of an ensemble whose members are complete."""
    values = recipe.values()
    values["output"] = recipe.member(1).output  # where held-out parts are
    task = TranslationTask(Plan(values), is_new=False)
    task.read_texts()
    return task


def _evaluator(recipe: PlannedRecipe, model: Ensemble) -> Evaluator:
    # CTranslate2 has no ensembles.
    recipe = dataclasses.replace(recipe, valid_engine="keras")
    return _task(recipe).evaluator(model, recipe)


def _names(columns: Sequence[str] | None) -> list[str]:
    """Returns the names of the files of parallel text."""
    # A text of a file with columns may contain line breaks.
    return ["train.jsonl"] if columns else ["train.source", "train.target"]


def _write_pairs(
    pairs: Sequence[tuple[str, str]],
    files: Sequence[pathlib.Path],
    columns: Sequence[str] | None,
) -> None:
    files[0].parent.mkdir(parents=True, exist_ok=True)
    if columns:
        rows = (dict(zip(columns, pair, strict=True)) for pair in pairs)
        lines = [[json.dumps(row, ensure_ascii=False) for row in rows]]
    else:
        lines = [list(side) for side in zip(*pairs, strict=True)]
    for path, side in zip(files, lines, strict=True):
        with written_whole(path) as file:
            file.write("".join(f"{line}\n" for line in side).encode())


def _print_scores(
    figures: Figures, members: Sequence[Figures], display: Display
) -> None:
    """Prints the scores of the ensemble, and the mean of those of its members."""
    display.print(f"{figures.size}, and the mean of the members:")
    each = [member.lines() for member in members]
    for lines in zip(figures.lines(), *each, strict=True):
        name, value = lines[0][:21], lines[0][21:]
        try:
            mean = sum(float(line[21:]) for line in lines[1:]) / len(members)
        except ValueError:  # the signature of sacreBLEU
            display.print(f"  {lines[0]}")
        else:
            display.print(f"  {name}{value}{mean:8.2f}")
