"""The run: vocabulary, data, model, `fit`, the mean of the last epochs, figures."""

import pathlib
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

import keras

from keras_transformer import evaluation
from keras_transformer.dataset import ParallelDataset, parallel_dataset, read_pairs
from keras_transformer.dataset.text_pairs import open_corpora
from keras_transformer.decoding import BeamSearch, GreedySearch
from keras_transformer.files import read_json, write_json, written_whole
from keras_transformer.models import PRESETS, Seq2Seq
from keras_transformer.recipe.folder import has_ended, next_version
from keras_transformer.recipe.history_file import HistoryFile
from keras_transformer.recipe.model import compile_model, in_float32, make_model
from keras_transformer.recipe.options import Recipe
from keras_transformer.training import (
    Checkpoints,
    NonFiniteLoss,
    TrainingProgress,
    TranslationQuality,
    average_checkpoints,
)
from keras_transformer.training.translation_quality import check_source_lengths

LENGTH_PENALTIES = (0.0, 0.6, 1.0, 1.4)
DTYPES = ("float32", "mixed_bfloat16", "mixed_float16")
Text = tuple[list[str], list[str]]


class Trained(NamedTuple):
    """What a run has made.

    Attributes:
        model: the `Seq2Seq`, with the mean of the weights of the last epochs.
        search: the `BeamSearch` whose length penalty is best for the validation text.
        figures: dictionary of `"bleu"` and `"chrf"` (floats from 0 to 100) of the test
            text, or of the validation text if there is none; their
            `"bleu_signature"` and `"chrf_signature"`; `"sentences"`, their number;
            `"length_penalty"`; and `"valid_bleu"`, BLEU of the validation text by
            length penalty.
    """

    model: Seq2Seq
    search: BeamSearch
    figures: dict[str, Any]


def train(recipe: Recipe) -> Trained:
    """Trains a model on parallel text, as `keras-transformer train` does.

    Learns a joint subword vocabulary from the training text, trains, sets the weights
    to the mean of the last epochs, and chooses the length penalty with the highest BLEU
    on the validation text. A run that was stopped goes on exactly where it was, in the
    middle of an epoch too, when `train` is called again with the same options.

    The trained model is a float32 one whatever `recipe.dtype` is; it is compiled, with
    the state of the optimizer, if that is float32 as well.

    With `recipe.init` it begins with the weights, the vocabularies and the design of a
    trained model. A run that has ended is not made again: its model and figures are
    read.

    In the folder `recipe.output` it leaves `model.keras`, `figures.json`,
    `options.toml` (all options, to make the run again), `history.csv` (figures by
    epoch), `tokenizer.json` or, with `recipe.init`, `initial.keras`, `checkpoints/`,
    and a new version in `saved_model/`.

    Args:
        recipe: the options, a `Recipe`.

    Returns:
        A `Trained`: the model, a search and figures.

    Raises:
        ValueError: if an option has a bad value, or if the run in the folder has other
            options on which the weights depend. The error names the option.

    Example:

    ```python
    from keras_transformer.recipe import Recipe, train

    recipe = Recipe(train=train_files, valid=valid_files, output="runs/en-de")
    model, search, figures = train(recipe)
    model.generate(["A man sleeps."], search)
    ```
    """
    _check_one_of("preset", recipe.preset, PRESETS)
    _check_one_of("dtype", recipe.dtype, DTYPES)
    evaluation.check_tokenize(recipe.bleu_tokenize)
    output = pathlib.Path(recipe.output)
    if has_ended(recipe):
        return _read(recipe)
    searches = [BeamSearch(recipe.num_beams, penalty) for penalty in LENGTH_PENALTIES]
    valid_text = _columns(recipe.valid)
    test_text = _columns(recipe.test) if recipe.test else valid_text
    for corpus in open_corpora(*_sides(recipe.train)):
        corpus.count()  # refuses lines that do not correspond, before they are learned
    keras.utils.set_random_seed(recipe.seed)
    model = make_model(recipe)
    sampling = recipe.subword_sampling
    samplings = {"source_sampling": sampling, "target_sampling": sampling}
    train = _dataset(recipe.train, model, recipe, **samplings)
    valid = _dataset(recipe.valid, model, recipe, shuffle=False)
    compile_model(model, recipe, train.batches_per_epoch)
    verbose = _verbosity(recipe)
    for name, (sources, _) in {"valid": valid_text, "test": test_text}.items():
        check_source_lengths(model, name, sources, "max_length")
    if verbose:
        print(f"training data\n{train}\nvalidation data\n{valid}")
        model.summary()
    (output / "figures.json").unlink(missing_ok=True)  # those of fewer epochs
    with written_whole(output / "options.toml") as file:
        file.write(recipe.to_toml().encode())
    quality = TranslationQuality(
        *valid_text,
        search=GreedySearch(),
        every=recipe.bleu_every,
        lowercase=recipe.lowercase,
        tokenize=recipe.bleu_tokenize,
    )
    _fit(model, train, valid, quality, recipe, verbose)
    average_checkpoints(model, output / "checkpoints", recipe.average)
    model = in_float32(model)
    model.save(output / "model.keras")
    trained = _judge(model, searches, valid_text, test_text, recipe)
    if recipe.export:
        folder = next_version(output / "saved_model")
        model.export(folder, trained.search, check_texts=valid_text[0][:20])
    write_json(output / "figures.json", trained.figures)  # the last: the run has ended
    return trained


def _check_one_of(name: str, value: str, values: Iterable[str]) -> None:
    """Before minutes are spent on the text."""
    if value not in values:
        raise ValueError(
            f"`{name}` must be one of {', '.join(values)}; received `{name}={value!r}`."
        )


def _verbosity(recipe: Recipe) -> int:
    """A progress bar is for a terminal: a file of it would be all control codes."""
    if recipe.verbose is None:
        return 1 if sys.stdout.isatty() else 2
    return recipe.verbose


def _read(recipe: Recipe) -> Trained:
    """Reads what a run that has ended has made."""
    output = pathlib.Path(recipe.output)
    figures = read_json(output / "figures.json")
    model = keras.saving.load_model(output / "model.keras")
    search = BeamSearch(recipe.num_beams, figures["length_penalty"])
    return Trained(model, search, figures)


def _dataset(
    files: list[str], model: Seq2Seq, recipe: Recipe, **further: Any
) -> ParallelDataset:
    return parallel_dataset(
        *files,
        source_tokenizer=model.source_tokenizer,
        target_tokenizer=model.target_tokenizer,
        tokens_per_batch=recipe.tokens_per_batch,
        max_source_length=recipe.max_length,
        max_target_length=recipe.max_length,
        seed=recipe.seed,
        **further,
    )


def _columns(files: list[str]) -> Text:
    """The sources and the targets of a text."""
    sources, targets = zip(*read_pairs(*_sides(files)), strict=True)
    return list(sources), list(targets)


def _sides(files: list[str]) -> tuple[str, str | None]:
    """The file of the sources and that of the targets, if it is another."""
    source, target = (*files, None)[:2]
    return str(source), target


def _fit(
    model: Seq2Seq,
    train: ParallelDataset,
    valid: ParallelDataset,
    quality: TranslationQuality,
    recipe: Recipe,
    verbose: int,
) -> None:
    output = pathlib.Path(recipe.output)
    checkpoints = Checkpoints(
        output / "checkpoints",
        train,
        save_every=recipe.save_every,
        keep=recipe.average,
    )
    early_stopping = []
    if recipe.patience is not None:
        early_stopping = [keras.callbacks.EarlyStopping(patience=recipe.patience)]
    model.fit(
        train.dataset,
        validation_data=valid.dataset,
        epochs=recipe.epochs,
        shuffle=False,  # the dataset shuffles itself
        verbose=verbose,
        callbacks=[
            NonFiniteLoss(data=train, folder=output),
            quality,
            TrainingProgress(train.tokens_per_epoch),
            HistoryFile(output / "history.csv"),
            *early_stopping,
            checkpoints,
        ],
    )


def _judge(
    model: Seq2Seq,
    searches: list[BeamSearch],
    valid: Text,
    test: Text,
    recipe: Recipe,
) -> Trained:
    """Picks the search that is best for the validation text; scores the test text."""
    how: dict[str, Any] = {
        "lowercase": recipe.lowercase,
        "tokenize": recipe.bleu_tokenize,
    }
    sources, references = valid
    bleu = [
        evaluation.bleu(model.generate(sources, search), references, **how).score
        for search in searches
    ]
    search = searches[bleu.index(max(bleu))]
    sources, references = test
    outputs = model.generate(sources, search)
    figures: dict[str, Any] = {
        "sentences": len(sources),
        "length_penalty": search.length_penalty,
    }
    scores = evaluation.translation_scores(outputs, references, **how)
    for name, result in scores.items():
        figures |= {name: result.score, f"{name}_signature": result.signature}
    penalties = [str(search.length_penalty) for search in searches]
    figures["valid_bleu"] = dict(zip(penalties, bleu, strict=True))
    return Trained(model, search, figures)
