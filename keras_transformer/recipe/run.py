"""A training run: vocabulary, data, model, `fit`, averaged weights, evaluation."""

import pathlib
import sys
from collections.abc import Iterable

import keras

from keras_transformer.dataset import ParallelDataset, parallel_dataset, read_pairs
from keras_transformer.dataset.text_pairs import open_corpora
from keras_transformer.decoding import BeamSearch, GreedySearch
from keras_transformer.evaluation import check_tokenize
from keras_transformer.files import written_whole
from keras_transformer.models import PRESETS, GenerativeModel
from keras_transformer.recipe.folder import is_complete, next_version
from keras_transformer.recipe.history_file import HistoryFile
from keras_transformer.recipe.loading import load_trained_model
from keras_transformer.recipe.model import compile_model, in_float32, make_model
from keras_transformer.recipe.recipe import Recipe
from keras_transformer.recipe.result import (
    Figures,
    ParallelText,
    TrainingResult,
    evaluate_model,
)
from keras_transformer.training import (
    Checkpoints,
    NonFiniteLoss,
    TrainingProgress,
    TranslationQuality,
    average_checkpoints,
)
from keras_transformer.training.translation_quality import check_source_lengths

DTYPES = ("float32", "mixed_bfloat16", "mixed_float16")


def train(recipe: Recipe) -> TrainingResult:
    """Trains a model on parallel text, as `keras-transformer train` does.

    Learns a subword vocabulary from the training text, trains the model, sets its
    weights to the mean of the last epochs, and selects the length penalty with the
    highest BLEU of the validation text. If a run was stopped, calling `train` with the
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
    - `tokenizer.json` or, with `recipe.init`, `initial.keras`,
    - `checkpoints/`,
    - `saved_model/`, with a new version in it if `recipe.export` is true.

    Args:
        recipe: the options, a `Recipe`.

    Returns:
        A `TrainingResult` with the attributes `model`, `search` and `figures`.

    Raises:
        ValueError: if an option has an invalid value, or if the folder contains a run
            of other options on which the weights depend. The error names the option.

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
    check_tokenize(recipe.bleu_tokenize)
    output = pathlib.Path(recipe.output)
    if is_complete(recipe):
        return _read_result(recipe)
    valid_text = _read_text(recipe.valid)
    test_text = _read_text(recipe.test) if recipe.test else valid_text
    _check_lines(recipe.train)
    keras.utils.set_random_seed(recipe.seed)
    model = make_model(recipe)
    train_data = _dataset(recipe.train, model, recipe, recipe.subword_sampling)
    valid_data = _dataset(recipe.valid, model, recipe, shuffle=False)
    compile_model(model, recipe, train_data.batches_per_epoch)
    check_source_lengths(model, "valid", valid_text.sources, "max_length")
    check_source_lengths(model, "test", test_text.sources, "max_length")
    if _verbosity(recipe):
        print(f"training data\n{train_data}\nvalidation data\n{valid_data}")
        model.summary()
    figures_file = output / "figures.json"
    figures_file.unlink(missing_ok=True)  # of a complete run with fewer epochs
    with written_whole(output / "options.toml") as file:
        file.write(recipe.to_toml().encode())
    _fit(model, train_data, valid_data, valid_text, recipe)
    average_checkpoints(model, output / "checkpoints", recipe.average)
    model = in_float32(model)
    model.save(output / "model.keras")
    result = evaluate_model(model, valid_text, test_text, recipe)
    if recipe.export:
        folder = next_version(output / "saved_model")
        model.export(folder, result.search, check_texts=valid_text.sources[:20])
    result.figures.write(figures_file)  # last: its presence means a complete run
    return result


def _check_one_of(name: str, value: str, values: Iterable[str]) -> None:
    if value not in values:
        raise ValueError(
            f"`{name}` must be one of {', '.join(values)}; received `{name}={value!r}`."
        )


def _check_lines(files: list[str]) -> None:
    """Raises `ValueError` if the lines of two files do not correspond.

    This takes seconds; learning the vocabulary, which comes next, takes minutes.
    """
    for corpus in open_corpora(*_paths(files)):
        corpus.count()


def _verbosity(recipe: Recipe) -> int:
    """Returns the `verbose` of `fit`: a progress bar only if output is a terminal."""
    if recipe.verbose is None:
        return 1 if sys.stdout.isatty() else 2
    return recipe.verbose


def _read_result(recipe: Recipe) -> TrainingResult:
    """Returns the result of a complete run."""
    output = pathlib.Path(recipe.output)
    figures = Figures.read(output / "figures.json")
    model = load_trained_model(output / "model.keras")
    search = BeamSearch(recipe.num_beams, figures.length_penalty)
    return TrainingResult(model, search, figures)


def _dataset(
    files: list[str],
    model: GenerativeModel,
    recipe: Recipe,
    subword_sampling: float | None = None,
    shuffle: bool = True,
) -> ParallelDataset:
    source, target = _paths(files)
    source_tokenizer, target_tokenizer = model.source_tokenizer, model.target_tokenizer
    assert source_tokenizer is not None and target_tokenizer is not None
    return parallel_dataset(
        source,
        target,
        source_tokenizer=source_tokenizer,
        target_tokenizer=target_tokenizer,
        tokens_per_batch=recipe.tokens_per_batch,
        max_source_length=recipe.max_length,
        max_target_length=recipe.max_length,
        source_sampling=subword_sampling,
        target_sampling=subword_sampling,
        shuffle=shuffle,
        seed=recipe.seed,
    )


def _read_text(files: list[str]) -> ParallelText:
    pairs = read_pairs(*_paths(files))
    return ParallelText(
        [source for source, _ in pairs], [target for _, target in pairs]
    )


def _paths(files: list[str]) -> tuple[str, str | None]:
    """Returns the paths of source and target; the latter is `None` for one file."""
    return files[0], files[1] if len(files) > 1 else None


def _fit(
    model: GenerativeModel,
    train_data: ParallelDataset,
    valid_data: ParallelDataset,
    valid_text: ParallelText,
    recipe: Recipe,
) -> None:
    output = pathlib.Path(recipe.output)
    callbacks: list[keras.callbacks.Callback] = [
        NonFiniteLoss(data=train_data, folder=output),
        TranslationQuality(
            *valid_text,
            search=GreedySearch(),
            every=recipe.bleu_every,
            lowercase=recipe.lowercase,
            tokenize=recipe.bleu_tokenize,
        ),
        TrainingProgress(train_data.tokens_per_epoch),
        HistoryFile(output / "history.csv"),
    ]
    if recipe.patience is not None:
        callbacks.append(keras.callbacks.EarlyStopping(patience=recipe.patience))
    checkpoints = Checkpoints(
        output / "checkpoints",
        train_data,
        save_every=recipe.save_every,
        keep=recipe.average,
        monitor="val_bleu",
    )
    model.fit(
        train_data.dataset,
        validation_data=valid_data.dataset,
        epochs=recipe.epochs,
        shuffle=False,  # the dataset shuffles itself
        verbose=_verbosity(recipe),
        callbacks=[*callbacks, checkpoints],
    )
