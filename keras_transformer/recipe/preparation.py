"""Prepares a run: texts, tokenizers, the options that the text determines, data."""

import pathlib
from typing import NamedTuple

import keras

from keras_transformer.models import GenerativeModel
from keras_transformer.recipe.answering import AnsweringTask
from keras_transformer.recipe.language_modeling import LanguageModelTask
from keras_transformer.recipe.loading import load_trained_model
from keras_transformer.recipe.model import (
    compile_model,
    load_initial_model,
    with_options,
)
from keras_transformer.recipe.plan import Plan, choose_schedule
from keras_transformer.recipe.progress import Reporter
from keras_transformer.recipe.task import Datasets, Evaluator, Task
from keras_transformer.recipe.tokenizers import Tokenizers
from keras_transformer.recipe.translation import TranslationTask
from keras_transformer_runtime.runs.folder import (
    recipe_to_resume,
    warn_of_another_cooldown,
)
from keras_transformer_runtime.runs.recipe import PlannedRecipe, Recipe


class PreparedRun(NamedTuple):
    """All that the training of a run needs.

    Attributes:
        recipe: the complete options.
        model: the compiled model before the first epoch.
        data: the training and the validation data.
        evaluator: scores the model on the validation and test texts.
    """

    recipe: PlannedRecipe
    model: GenerativeModel
    data: Datasets
    evaluator: Evaluator


def prepare_run(recipe: Recipe, reporter: Reporter) -> PreparedRun:
    """Prepares a new run, or one to resume.

    The folder of the run gets the held-out texts and the vocabularies or the trained
    model of `recipe.init`. A resumed run reads them from there.

    Args:
        recipe: the options that are given.
        reporter: prints the progress.

    Returns:
        The `PreparedRun`.

    Raises:
        ValueError: if the folder contains a run that cannot be resumed with these
            options, or if a text or an option is not suitable.
    """
    began = recipe_to_resume(recipe)
    if began is not None:
        warn_of_another_cooldown(began)
    plan = Plan(began or recipe)
    task = _task(plan, is_new=began is None)
    with reporter.phase("Reading the text"):
        task.read_texts()
    keras.utils.set_random_seed(recipe.seed)
    initial: GenerativeModel | None = None
    if recipe.init is not None:
        initial = _initial_model(recipe.init, plan, is_resumed=began is not None)
        source, target = initial.source_tokenizer, initial.target_tokenizer
        assert source is not None and target is not None
        tokenizers = Tokenizers(source, target)
    elif began is not None:
        tokenizers = Tokenizers.load(pathlib.Path(recipe.output))
    else:
        with reporter.phase("Learning the vocabulary"):
            tokenizers = task.make_tokenizers()
    if began is None:
        task.choose_options(tokenizers)
    with reporter.phase("Making batches"):
        data = task.make_datasets(tokenizers)
    choose_schedule(plan, data.train)
    complete = plan.recipe()
    if initial is None:
        model: GenerativeModel = task.new_model(tokenizers, complete)
    elif began is None:
        model = with_options(initial, complete, task.context(complete))
    else:
        model = initial
    evaluator = task.evaluator(model, complete)
    if began is None:
        _save(model, tokenizers, complete)
    compile_model(model, complete, data.train.batches_per_epoch)
    reporter.show_plan(plan, model, *data)
    return PreparedRun(complete, model, data, evaluator)


def _task(plan: Plan, is_new: bool) -> Task:
    """Returns the task of the model and of its text."""
    if plan["model"] == "seq2seq":
        return TranslationTask(plan, is_new)
    if plan["documents"] == "pairs":
        return AnsweringTask(plan, is_new)
    return LanguageModelTask(plan, is_new)


def _initial_model(init: str, plan: Plan, is_resumed: bool) -> GenerativeModel:
    """Loads the trained model that the run starts from, or the copy in its folder."""
    if is_resumed:
        return load_trained_model(pathlib.Path(plan["output"], "initial.keras"))
    return load_initial_model(init, plan["model"])


def _save(
    model: GenerativeModel, tokenizers: Tokenizers, recipe: PlannedRecipe
) -> None:
    """Saves what a resumed run needs to the folder of the run."""
    output = pathlib.Path(recipe.output)
    output.mkdir(parents=True, exist_ok=True)
    if recipe.init is not None:
        model.save(output / "initial.keras")
    else:
        tokenizers.save(output)
