"""Prepares a run: texts, tokenizers, the options that the text determines, data."""

import pathlib
from typing import NamedTuple

import keras

from keras_transformer.backend.processes import is_first_process
from keras_transformer.export.ctranslate2 import check_supported
from keras_transformer.models import GenerativeModel
from keras_transformer.recipe.answering import AnsweringTask
from keras_transformer.recipe.language_modeling import LanguageModelTask
from keras_transformer.recipe.loading import load_trained_model
from keras_transformer.recipe.model import (
    adapt,
    compile_model,
    load_initial_model,
    trained_parameters,
    with_options,
)
from keras_transformer.recipe.optimizers import describe_weight_decay
from keras_transformer.recipe.plan import (
    Choice,
    Plan,
    choose_fine_tuning,
    choose_schedule,
)
from keras_transformer.recipe.task import Datasets, Evaluator, Task
from keras_transformer.recipe.tokenizers import Tokenizers
from keras_transformer.recipe.translation import TranslationTask
from keras_transformer_runtime.display import Display
from keras_transformer_runtime.files import written_whole
from keras_transformer_runtime.runs.folder import (
    FIGURES,
    began_recipe,
    latest_position,
    recipe_to_resume,
    warn_of_another_cooldown,
    write_checksums,
)
from keras_transformer_runtime.runs.recipe import PlannedRecipe, Recipe

WIDTH = 80  # columns


class PreparedRun(NamedTuple):
    """All that the training of a run needs."""

    recipe: PlannedRecipe
    model: GenerativeModel  # compiled, before the first epoch
    data: Datasets
    evaluator: Evaluator


def prepare(recipe: Recipe, display: Display) -> PreparedRun:
    """Prepares a new run, or one to resume.

    The folder of the run gets the options, the checksums of the texts, the held-out
    texts, and the vocabularies or the trained model of `recipe.start_from`. A resumed
    run reads the texts and vocabularies or the model from there.
    """
    output = pathlib.Path(recipe.output)
    began = recipe_to_resume(recipe)
    if began is not None:
        warn_of_another_cooldown(began, began_recipe(output).epochs)
    plan = Plan((began or recipe).values())
    task = _task(plan, is_new=began is None)
    initial: GenerativeModel | None = None
    if plan["start_from"] is not None:
        if began is None:
            start = plan["start_from"]
            with display.stage(f"Loading {start}"):
                initial = load_initial_model(
                    start, task.model_class, recipe.model, recipe.languages
                )
            choose_fine_tuning(plan, initial)
        else:
            initial = load_trained_model(output / "initial.keras")
    with display.stage("Reading the text"):
        task.read_texts()
    keras.utils.set_random_seed(recipe.seed)
    if initial is not None:
        tokenizers = Tokenizers.of(initial)
    elif began is not None:
        tokenizers = Tokenizers.load(output)
    else:
        with display.stage("Learning the vocabulary"):
            tokenizers = task.make_tokenizers()
    if began is None:
        task.choose_options(tokenizers)
    with display.stage("Making batches"):
        data = task.make_datasets(tokenizers)
    choose_schedule(plan, data.train)
    complete = plan.recipe()
    if initial is None:
        model: GenerativeModel = task.new_model(tokenizers, complete)
    elif began is None:
        model = with_options(initial, complete, task.context(complete))
    else:
        model = initial
    task.choose_with_model(model)
    if recipe.export and recipe.export_format == "ctranslate2":
        check_supported(model)
    complete = plan.recipe()
    evaluator = task.evaluator(model, complete)
    if began is None:
        output.mkdir(parents=True, exist_ok=True)
        if initial is None:
            tokenizers.save(output)
        else:
            model.save(output / "initial.keras")
    adapt(model, complete)
    compile_model(model, complete, data.train.batches_per_epoch)
    _print_plan(display, plan, task, model)
    if is_first_process():
        (output / FIGURES).unlink(missing_ok=True)  # of a run with fewer epochs
        with written_whole(output / "options.toml") as file:
            file.write(complete.to_toml().encode())
        write_checksums(complete)
    return PreparedRun(complete, model, data, evaluator)


def _task(plan: Plan, is_new: bool) -> Task:
    """Returns the task of the model and of its text."""
    if plan["model"] == "seq2seq":
        return TranslationTask(plan, is_new)
    if plan["documents"] == "pairs":
        return AnsweringTask(plan, is_new)
    return LanguageModelTask(plan, is_new)


def _print_plan(
    display: Display, plan: Plan, task: Task, model: GenerativeModel
) -> None:
    """Prints the chosen options, the data and the model."""
    print_choices(plan, display)
    train, valid = task.describe_data()
    facts = {"Training text": train, "Validation text": valid}
    facts["Model"] = f"{model.count_params():,} parameters"
    if plan["lora"] is not None:
        facts["Model"] += f", {trained_parameters(model):,} of them trained"
    if plan["weight_decay"]:
        facts["Weight decay"] = describe_weight_decay(model)
    config = model.get_config()
    if "add_start_token" in config:
        place = "begin" if config["add_start_token"] else "can begin anywhere in"
        facts["Prompts"] = f"{place} a text"
    position = latest_position(plan["output"])
    if position is not None and position.epochs < plan["epochs"]:
        epoch = f"epoch {position.epochs + 1} of {plan['epochs']}"
        facts["Resuming"] = f"at {epoch}, batch {position.batches + 1}"
    for name, fact in facts.items():
        display.print(f"{name:16} {fact}")


def print_choices(plan: Plan, display: Display) -> None:
    """Prints the options that a run has chosen, and why."""
    if plan.choices:
        display.print("Chosen from the text (each option can be set):")
        display.print("\n".join(map(_choice_line, plan.choices)))


def _choice_line(choice: Choice) -> str:
    name = choice.option.replace("_", "-")
    option = f"--{name} {choice.value}"
    return f"  {option:32} {choice.reason}"[:WIDTH]
