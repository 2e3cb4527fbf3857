"""The run: vocabulary, data, model, `fit`, the mean of the last epochs, figures."""

import json
import pathlib
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

import keras

from keras_transformer import evaluation
from keras_transformer.dataset import ParallelDataset, parallel_dataset, read_pairs
from keras_transformer.decoding import BeamSearch, GreedySearch
from keras_transformer.files import written_whole
from keras_transformer.recipe.history_file import HistoryFile
from keras_transformer.recipe.options import Recipe, read_options
from keras_transformer.seq2seq import PRESETS, Seq2Seq
from keras_transformer.text import SentencePieceTokenizer, Tokenizer
from keras_transformer.training import (
    Checkpoints,
    LabelSmoothedCrossEntropy,
    MaskedTokenAccuracy,
    NonFiniteLoss,
    Perplexity,
    TrainingProgress,
    TranslationQuality,
    WarmupInverseSquareRoot,
    average_checkpoints,
)
from keras_transformer.training.checkpoints.storage import checkpoint_files
from keras_transformer.training.quality import check_lengths

LENGTH_PENALTIES = (0.0, 0.6, 1.0, 1.4)
DTYPES = ("float32", "mixed_bfloat16", "mixed_float16")
Columns = tuple[list[str], list[str]]


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

    In the folder `recipe.output` it leaves `model.keras`, `figures.json`,
    `options.toml` (all options, to make the run again), `history.csv` (figures by
    epoch), `tokenizer.json`, `checkpoints/`, and a new version in `saved_model/`.

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
    searches = [BeamSearch(recipe.num_beams, penalty) for penalty in LENGTH_PENALTIES]
    valid_text = _columns(recipe.valid)
    test_text = _columns(recipe.test) if recipe.test else valid_text
    keras.utils.set_random_seed(recipe.seed)
    output = pathlib.Path(recipe.output)
    tokenizer = _go_on_or_begin(recipe, output)
    sampling = recipe.subword_sampling
    samplings = {"source_sampling": sampling, "target_sampling": sampling}
    train = _dataset(recipe.train, tokenizer, recipe, **samplings)
    valid = _dataset(recipe.valid, tokenizer, recipe, shuffle=False)
    model = _model(tokenizer, recipe, train.batches_per_epoch)
    for name, (sources, _) in {"valid": valid_text, "test": test_text}.items():
        check_lengths(model, name, sources, "max_length")
    if recipe.verbose:
        print(f"training data\n{train}\nvalidation data\n{valid}")
        model.summary()
    with written_whole(output / "options.toml") as file:
        file.write(recipe.to_toml().encode())
    quality = TranslationQuality(
        *valid_text,
        search=GreedySearch(),
        every=recipe.bleu_every,
        lowercase=recipe.lowercase,
    )
    _fit(model, train, valid, quality, recipe, output)
    average_checkpoints(model, output / "checkpoints", last=recipe.average)
    model = _in_float32(model)
    model.save(output / "model.keras")
    trained = _judge(model, searches, valid_text, test_text, recipe.lowercase)
    with written_whole(output / "figures.json") as file:
        file.write(json.dumps(trained.figures, indent=2).encode() + b"\n")
    if recipe.export:
        folder = _next_version(output / "saved_model")
        model.export(folder, trained.search, check_texts=valid_text[0][:20])
    return trained


def _check_one_of(name: str, value: str, values: Iterable[str]) -> None:
    """Before minutes are spent on the text."""
    if value not in values:
        raise ValueError(
            f"`{name}` must be one of {', '.join(values)}; received `{name}={value!r}`."
        )


def _go_on_or_begin(recipe: Recipe, output: pathlib.Path) -> Tokenizer:
    """The tokenizer of the run whose checkpoints the folder holds, or of a new one."""
    options = output / "options.toml"
    done = [*checkpoint_files(output / "checkpoints")]
    if options.exists() and done:
        began = read_options(options)
        recipe.check_continues(began, options)
        _warn_of_another_end(recipe, Recipe(**began).epochs, done[-1].epoch)
        return Tokenizer.load(output / "tokenizer.json")
    output.mkdir(parents=True, exist_ok=True)
    tokenizer = SentencePieceTokenizer.train(
        recipe.train,
        vocabulary_size=recipe.vocabulary_size,
        lowercase=recipe.lowercase,
    )
    tokenizer.save(output / "tokenizer.json")
    return tokenizer


def _warn_of_another_end(recipe: Recipe, epochs: int, done: int) -> None:
    """The end of a run says when the learning rate falls, which it may have by now."""
    if recipe.epochs != epochs and done > min(recipe.epochs, epochs) - recipe.cooldown:
        warnings.warn(
            f"`epochs={recipe.epochs}` comes when the learning rate has begun to fall, "
            f"or should have: the run was for `epochs={epochs}`, of which {done} are "
            f"done. The rate jumps, and a run of {recipe.epochs} epochs from the start "
            "gives another model.",
            stacklevel=2,
        )


def _dataset(
    files: list[str], tokenizer: Tokenizer, recipe: Recipe, **further: Any
) -> ParallelDataset:
    return parallel_dataset(
        *files,
        source_tokenizer=tokenizer,
        target_tokenizer=tokenizer,
        tokens_per_batch=recipe.tokens_per_batch,
        max_source_length=recipe.max_length,
        max_target_length=recipe.max_length,
        seed=recipe.seed,
        **further,
    )


def _columns(files: list[str]) -> Columns:
    """The sources and the targets of a text."""
    source, target = (*files, None)[:2]
    sources, targets = zip(*read_pairs(source, target), strict=True)
    return list(sources), list(targets)


def _model(tokenizer: Tokenizer, recipe: Recipe, batches_per_epoch: int) -> Seq2Seq:
    """Builds and compiles the model."""
    model = Seq2Seq.from_preset(
        recipe.preset,
        source_tokenizer=tokenizer,
        normalize_first=True,
        dropout=recipe.dropout,
        attention_options={"dropout": recipe.attention_dropout},
        dtype=recipe.dtype,
        max_source_length=recipe.max_length,
        max_target_length=recipe.max_length,
    )
    schedule = WarmupInverseSquareRoot(
        recipe.learning_rate,
        recipe.warmup_steps,
        total_steps=recipe.epochs * batches_per_epoch,
        cooldown_steps=min(recipe.cooldown, recipe.epochs) * batches_per_epoch,
    )
    model.compile(
        optimizer=keras.optimizers.Adam(schedule, beta_2=0.98, epsilon=1e-9),
        loss=LabelSmoothedCrossEntropy(recipe.label_smoothing),
        metrics=[MaskedTokenAccuracy(), Perplexity()],
        micro_batches=recipe.micro_batches,
        consistency=recipe.consistency,
    )
    return model


def _fit(
    model: Seq2Seq,
    train: ParallelDataset,
    valid: ParallelDataset,
    quality: TranslationQuality,
    recipe: Recipe,
    output: pathlib.Path,
) -> None:
    checkpoints = Checkpoints(
        output / "checkpoints",
        train,
        save_every=recipe.save_every,
        keep=recipe.average,
    )
    model.fit(
        train.dataset,
        validation_data=valid.dataset,
        epochs=recipe.epochs,
        shuffle=False,  # the dataset shuffles itself
        verbose=recipe.verbose,
        callbacks=[
            NonFiniteLoss(data=train, folder=output),
            quality,
            TrainingProgress(train.tokens_per_epoch),
            HistoryFile(output / "history.csv"),
            checkpoints,
        ],
    )


def _in_float32(model: Seq2Seq) -> Seq2Seq:
    """The same model if it is; if not, one with its weights, not compiled."""
    if model.dtype_policy.name == "float32":
        return model
    exact = Seq2Seq.from_config({**model.get_config(), "dtype": "float32"})
    exact.set_weights(model.get_weights())
    return exact


def _judge(
    model: Seq2Seq,
    searches: list[BeamSearch],
    valid: Columns,
    test: Columns,
    lowercase: bool,
) -> Trained:
    """Picks the search that is best for the validation text; scores the test text."""
    sources, references = valid
    bleu = [
        evaluation.bleu(model.generate(sources, search), references, lowercase).score
        for search in searches
    ]
    search = searches[bleu.index(max(bleu))]
    sources, references = test
    outputs = model.generate(sources, search)
    figures: dict[str, Any] = {
        "sentences": len(sources),
        "length_penalty": search.length_penalty,
    }
    for name, score in evaluation.TRANSLATION_SCORES.items():
        result = score(outputs, references, lowercase)
        figures |= {name: result.score, f"{name}_signature": result.signature}
    penalties = [str(search.length_penalty) for search in searches]
    figures["valid_bleu"] = dict(zip(penalties, bleu, strict=True))
    return Trained(model, search, figures)


def _next_version(folder: pathlib.Path) -> pathlib.Path:
    """The next free version of a SavedModel."""
    versions = [int(path.name) for path in folder.glob("*") if path.name.isdecimal()]
    return folder / str(max(versions, default=0) + 1)
