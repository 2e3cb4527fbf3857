"""The options of a training run, in an object and in a TOML file."""

import dataclasses
import difflib
import json
import os
import pathlib
import tomllib
from typing import Annotated, Any

from keras_transformer.arguments import check_ints, check_rates

# What may differ when a run goes on: the weights so far would have been the same, but
# for another number of epochs once the learning rate falls.
_MAY_CHANGE = {
    *("output", "valid", "test", "export", "epochs", "micro_batches", "average"),
    *("bleu_every", "bleu_tokenize", "patience", "save_every", "num_beams", "verbose"),
}

_COUNTS = (
    *("vocabulary_size", "max_length", "epochs", "tokens_per_batch", "micro_batches"),
    *("average", "bleu_every", "save_every", "num_beams", "warmup_steps"),
)
_RATES = ("dropout", "attention_dropout", "label_smoothing")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """The options of a training run: those of `keras-transformer train`, by its names.

    The text in an option's annotation says what it is, here and in `--help`;
    `docs/training.md` says where to begin with each. Text files hold a sentence a line
    and may be gzip (`.gz`): a source file and a target file whose lines correspond, or
    one file with a tab between the two sides.

    Raises:
        ValueError: if `train`, `valid` or `test` is not one file or two, if a number is
            out of its range, or if there is an `init` and an option that comes with
            it. `train` checks the other options.

    Example:

    >>> from keras_transformer.recipe import Recipe
    >>> recipe = Recipe(train=["train.tsv"], valid=["valid.tsv"], output="runs/en-de")
    >>> recipe.epochs
    40
    """

    train: Annotated[list[str], "Training text: source and target, or one file."]
    valid: Annotated[list[str], "Validation text."]
    test: Annotated[list[str] | None, "Test text, if any."] = None
    output: Annotated[str, "Folder for all results. A stopped run in it is resumed."]
    lowercase: Annotated[bool, "Ignore letter case."] = False
    vocabulary_size: Annotated[int, "Subwords, of both sides together."] = 8000
    normalization: Annotated[
        str, "Unicode normalization of all text: nmt_nfkc, nfkc, or identity (none)."
    ] = "nmt_nfkc"
    character_coverage: Annotated[
        float, "Share of the text's characters in the vocabulary, from 0.98 on."
    ] = 1.0
    max_length: Annotated[int, "Longest sentence, in subwords."] = 256
    export: Annotated[bool, "Write a SavedModel as well."] = True

    preset: Annotated[
        str, "transformer_tiny, transformer_small, transformer_base, transformer_big."
    ] = "transformer_tiny"
    init: Annotated[
        str | None,
        "Trained model to begin with: .keras, or a run's or preset's folder.",
    ] = None
    dropout: Annotated[float, "Dropout rate of embeddings and sub-layers."] = 0.3
    attention_dropout: Annotated[float, "Dropout rate of the attention scores."] = 0.0
    dtype: Annotated[
        str, "Precision of training: float32, mixed_bfloat16 or mixed_float16."
    ] = "float32"

    epochs: Annotated[int, "Passes through the training text."] = 40
    tokens_per_batch: Annotated[int, "Tokens of a side in a batch, padding too."] = 4096
    learning_rate: Annotated[float, "Peak, reached after the warm-up."] = 4e-3
    warmup_steps: Annotated[int, "Batches in which the learning rate rises."] = 2000
    cooldown: Annotated[int, "Last epochs, in which the learning rate falls to 0."] = 10
    label_smoothing: Annotated[float, "Probability spread over all other tokens."] = 0.1
    consistency: Annotated[float, "Weight of R-Drop (twice the time); 0: off."] = 0.0
    subword_sampling: Annotated[
        float | None, "Share of merges left out, anew in each epoch (BPE-dropout)."
    ] = None
    micro_batches: Annotated[int, "Parts of a batch, to save memory; same update."] = 1
    average: Annotated[int, "Number of final epochs whose weights are averaged."] = 10
    patience: Annotated[
        int | None, "Stop after this many epochs without a lower validation loss."
    ] = None
    bleu_every: Annotated[int, "Epochs between BLEU on the validation text."] = 1
    bleu_tokenize: Annotated[
        str, "How BLEU splits text: 13a, zh, ja-mecab, ko-mecab, char, ..."
    ] = "13a"
    save_every: Annotated[int, "Batches between checkpoints."] = 500
    seed: Annotated[int, "Seed of all randomness."] = 1
    verbose: Annotated[
        int | None,
        "0: silent; 1: a progress bar, the default in a terminal; 2: a line an epoch.",
    ] = None

    num_beams: Annotated[int, "Beams of the search that evaluates the model."] = 5

    def __post_init__(self) -> None:
        self._make_paths()
        self._check_numbers()
        if self.init is not None:
            self._check_comes_with_the_trained_model(
                *("preset", "vocabulary_size", "normalization", "character_coverage")
            )

    def _make_paths(self) -> None:
        """Checks the files, and makes their paths such that any folder finds them."""
        for name in ("train", "valid", "test"):
            files = getattr(self, name)
            optional = name == "test" and not files
            is_list = isinstance(files, list | tuple)
            if not optional and not (is_list and len(files) in (1, 2)):
                raise ValueError(
                    f"`{name}` must be a list of two files, source and target, or of "
                    f"one with a tab between the sides; received `{name}={files!r}`."
                )
            if files:
                files = [os.path.abspath(file) for file in files]
                object.__setattr__(self, name, files)
        object.__setattr__(self, "output", os.fspath(self.output))
        if self.init is not None:
            object.__setattr__(self, "init", _absolute(os.fspath(self.init)))

    def _check_numbers(self) -> None:
        check_ints(1, **{name: getattr(self, name) for name in _COUNTS})
        check_ints(1, optional=True, patience=self.patience)
        check_ints(0, cooldown=self.cooldown)
        check_rates(**{name: getattr(self, name) for name in _RATES})
        if not 0.0 <= self.consistency < float("inf"):
            raise ValueError(
                "`consistency` must be a finite number of at least 0; received "
                f"`consistency={self.consistency!r}`."
            )
        if not 0.0 <= (self.subword_sampling or 0.0) <= 1.0:
            raise ValueError(
                "`subword_sampling` must be from 0 to 1; received "
                f"`subword_sampling={self.subword_sampling!r}`. 0.1 suits most texts."
            )
        if not 0.0 < self.learning_rate < float("inf"):
            raise ValueError(
                "`learning_rate` must be a finite number above 0; received "
                f"`learning_rate={self.learning_rate!r}`."
            )
        if self.verbose not in (None, 0, 1, 2):
            raise ValueError(
                f"`verbose` must be 0, 1 or 2; received `verbose={self.verbose!r}`."
            )

    def _check_comes_with_the_trained_model(self, *names: str) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in names and value != field.default:
                raise ValueError(
                    f"`{field.name}` is that of the trained model where there is an "
                    f"`init`; received `{field.name}={value!r}`, `init={self.init!r}`. "
                    "Leave one of them out, in a file of options as well."
                )

    def to_toml(self) -> str:
        """Writes all options as TOML, which `read_options` reads.

        Returns:
            The content of a file: a line an option, without those that are `None`.
        """
        options = dataclasses.asdict(self).items()
        lines = [  # JSON's strings, numbers, truth values and lists are TOML's
            f"{name} = {json.dumps(value, ensure_ascii=False)}\n"
            for name, value in options
            if value is not None
        ]
        return "".join(lines)

    def check_continues(self, options: dict[str, Any], path: Any) -> None:
        """Makes sure that a run with these options may go on with that of others.

        Args:
            options: dictionary of the options that the run began with.
            path: the file they are from, for the error message.

        Raises:
            ValueError: if options differ on which the weights depend.
        """
        began = Recipe(**options)
        for field in dataclasses.fields(self):
            ours, theirs = getattr(self, field.name), getattr(began, field.name)
            if ours != theirs and field.name not in _MAY_CHANGE:
                raise ValueError(
                    f"`{field.name}` must be that of the run that goes on, "
                    f"{theirs!r} in {path}; received `{field.name}={ours!r}`. Give a "
                    "new run an `output` of its own, or change that file if the run "
                    "shall go on in another way."
                )


def _absolute(model: str) -> str:
    """A path that any folder finds; what is not on this disk as it is."""
    return model if "://" in model else os.path.abspath(model)


def read_options(path: str | os.PathLike) -> dict[str, Any]:
    """Reads options of a `Recipe` from a TOML file, such as a run's `options.toml`.

    Args:
        path: the file, with a line `name = value` for each option that it gives.

    Returns:
        A dictionary of the options by their names.

    Raises:
        ValueError: if the file is not TOML, or has sections, one file without a list,
            or an option that a recipe has not.

    Example:

    ```python
    from keras_transformer.recipe import Recipe, read_options, train

    options = read_options("runs/en-de/options.toml")
    train(Recipe(**{**options, "output": "runs/en-de-2", "seed": 2}))
    ```
    """
    try:
        options = tomllib.loads(pathlib.Path(path).read_text("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} must be a TOML file: {error}.") from error
    for name, value in options.items():
        if isinstance(value, dict):
            raise ValueError(
                f"{path} must have its options outside of sections; received the "
                f"section `[{name}]`. Leave that line out."
            )
        if name in ("train", "valid", "test") and not isinstance(value, list):
            raise ValueError(
                f"`{name}` must be a list of one or two files in {path}; received "
                f"`{name} = {value!r}`. Write `{name} = [{json.dumps(value)}]`."
            )
    names = [field.name for field in dataclasses.fields(Recipe)]
    for name in options.keys() - set(names):
        near = difflib.get_close_matches(name, names, 1)
        meant = f"; perhaps `{near[0]}` is meant" if near else ""
        raise ValueError(
            f"{path} must hold options of `keras_transformer.recipe.Recipe` alone; "
            f"received `{name}`{meant}."
        )
    return options
