"""Prepares a run: texts, tokenizers, the options that the text determines, data."""

import itertools
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import keras

from keras_transformer.dataset import ParallelDataset, parallel_dataset, read_pairs
from keras_transformer.dataset.text_pairs import Corpus, Pair, open_corpora
from keras_transformer.models import GenerativeModel
from keras_transformer.recipe.folder import recipe_to_resume, warn_of_another_cooldown
from keras_transformer.recipe.held_out import (
    ParallelText,
    TextFiles,
    default_fraction,
    hold_out,
)
from keras_transformer.recipe.loading import load_trained_model
from keras_transformer.recipe.model import (
    compile_model,
    load_initial_model,
    new_model,
    with_options,
)
from keras_transformer.recipe.plan import (
    Plan,
    choose_batches,
    choose_metric,
    choose_model,
    choose_schedule,
)
from keras_transformer.recipe.progress import Reporter
from keras_transformer.recipe.recipe import PlannedRecipe, Recipe
from keras_transformer.recipe.text_statistics import TextStatistics
from keras_transformer.recipe.tokenizers import Tokenizers, make_tokenizers
from keras_transformer.text import SentencePieceTokenizer, Tokenizer
from keras_transformer.training.translation_quality import check_source_lengths


class PreparedRun(NamedTuple):
    """All that the training of a run needs.

    Attributes:
        recipe: the complete options.
        model: the compiled model before the first epoch.
        train_data: the training data.
        valid_data: the validation data.
        valid_text: the validation text.
        test_text: the test text; the validation text if there is none.
    """

    recipe: PlannedRecipe
    model: GenerativeModel
    train_data: ParallelDataset
    valid_data: ParallelDataset
    valid_text: ParallelText
    test_text: ParallelText


def prepare_run(recipe: Recipe, reporter: Reporter) -> PreparedRun:
    """Prepares a new run, or one to resume.

    The folder of the run gets the held-out texts and the vocabularies or the trained
    model of `recipe.init`. A resumed run reads them from there.

    Args:
        recipe: the options that are given.
        reporter: prints what is done.

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
    with reporter.phase("Reading the text"):
        files = _text_files(plan)
        valid_text = _read_text(files.valid)
        test_text = _read_text(files.test) if files.test else valid_text
        corpora = _open(files.train)
        text = TextStatistics.of(_pairs(corpora)) if began is None else None
    keras.utils.set_random_seed(recipe.seed)
    initial: GenerativeModel | None = None
    if recipe.init is not None:
        initial = _initial_model(recipe.init, plan, is_resumed=began is not None)
        source, target = initial.source_tokenizer, initial.target_tokenizer
        assert source is not None and target is not None
        tokenizers = Tokenizers(source, target)
    elif text is None:
        tokenizers = Tokenizers.load(pathlib.Path(recipe.output))
    else:
        with reporter.phase("Learning the vocabulary"):
            tokenizers = make_tokenizers(plan, text, corpora)
    if text is not None:
        counts = tokenizers.count_tokens(text)
        choose_metric(plan, text)
        choose_model(plan, text.pairs, counts[1])
        choose_batches(plan, max(counts))
    with reporter.phase("Making batches"):
        train_data = _dataset(files.train, tokenizers, plan, plan["subword_sampling"])
        valid_data = _dataset(files.valid, tokenizers, plan, shuffle=False)
    choose_schedule(plan, train_data)
    complete = plan.recipe()
    if initial is None:
        model: GenerativeModel = new_model(tokenizers, complete)
    elif began is None:
        model = with_options(initial, complete)
    else:
        model = initial
    check_source_lengths(model, "valid", valid_text.sources, "max_length")
    check_source_lengths(model, "test", test_text.sources, "max_length")
    if began is None:
        _save(model, tokenizers, complete)
    compile_model(model, complete, train_data.batches_per_epoch)
    reporter.show_plan(plan, model, train_data, valid_data)
    return PreparedRun(complete, model, train_data, valid_data, valid_text, test_text)


def _text_files(plan: Plan) -> TextFiles:
    """Returns the files of the texts, after parts are held out from the training."""
    corpora = _open(plan["train"])
    pairs = sum(corpus.count() for corpus in corpora)  # checks that lines correspond
    plan.choose("valid", default_fraction(pairs), "held out from the training text")
    valid, test = plan["valid"], plan["test"]
    if not (isinstance(valid, float) or isinstance(test, float)):
        return TextFiles(plan["train"], valid, test)
    folder = pathlib.Path(plan["output"], "data")
    return hold_out(_pairs(corpora), valid, test, folder)


def _open(files: list[str]) -> list[Corpus]:
    return open_corpora(files[0], files[1] if len(files) > 1 else None)


def _pairs(corpora: list[Corpus]) -> Iterator[Pair]:
    return itertools.chain.from_iterable(corpora)


def _read_text(files: list[str]) -> ParallelText:
    pairs = read_pairs(files[0], files[1] if len(files) > 1 else None)
    return ParallelText(
        [source for source, _ in pairs], [target for _, target in pairs]
    )


def _initial_model(init: str, plan: Plan, is_resumed: bool) -> GenerativeModel:
    """Loads the trained model that the run starts from, or the copy in its folder."""
    if is_resumed:
        return load_trained_model(pathlib.Path(plan["output"], "initial.keras"))
    return load_initial_model(init)


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


def _dataset(
    files: list[str],
    tokenizers: Tokenizers,
    plan: Plan,
    subword_sampling: float | None = None,
    shuffle: bool = True,
) -> ParallelDataset:
    return parallel_dataset(
        files[0],
        files[1] if len(files) > 1 else None,
        source_tokenizer=tokenizers.source,
        target_tokenizer=tokenizers.target,
        tokens_per_batch=plan["tokens_per_batch"],
        max_source_length=plan["max_length"],
        max_target_length=plan["max_length"],
        source_sampling=_sampling(tokenizers.source, subword_sampling),
        target_sampling=_sampling(tokenizers.target, subword_sampling),
        shuffle=shuffle,
        seed=plan["seed"],
    )


def _sampling(tokenizer: Tokenizer, rate: float | None) -> float | None:
    """Returns the rate of subword sampling of a side."""
    return rate if isinstance(tokenizer, SentencePieceTokenizer) else None
