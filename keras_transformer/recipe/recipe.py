"""The options of a training run, as an object and as a TOML file."""

import dataclasses
import difflib
import json
import os
import pathlib
import tomllib
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Annotated, Any, Self, TypeAlias, get_args, get_type_hints

from keras_transformer.arguments import check_ints, check_rates, renamed_argument
from keras_transformer.files import read_file

OptionValue: TypeAlias = str | int | float | Sequence[str] | None

# Options that may differ when a run is resumed: the weights do not depend on them,
# except on `epochs` once the learning rate falls.
_CHANGEABLE = {
    *("output", "valid", "test", "export", "epochs", "micro_batches", "average"),
    *("bleu_every", "bleu_tokenize", "patience", "save_every", "num_beams", "verbose"),
}
# Options that `init` takes from the trained model.
_OPTIONS_OF_INIT = (
    *("preset", "vocabulary_size", "normalization", "character_coverage"),
)
_FORMER_NAMES = {"consistency": "r_drop"}
# Types that an option of each type accepts, and their names in error messages.
_ACCEPTED: dict[Any, Any] = {
    str: (str, os.PathLike),
    bool: bool,
    int: Integral,
    float: Real,
    type(None): type(None),
}
_TYPE_NAMES = {str: "a text", bool: "true or false", int: "an int", float: "a number"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """The options of a training run.

    `keras-transformer train` has the same options. The text in the annotation of an
    option describes it, here and in `--help`; `docs/training.md` recommends values.
    Text files contain one sentence per line and may be compressed with gzip (`.gz`).
    A text is a source file and a target file whose lines correspond, or one file with
    a tab between source and target.

    Raises:
        ValueError: if `train`, `valid` or `test` is not a list of one or two files, if
            a number is out of range, or if `init` is given together with an option
            that the trained model determines. `train` checks the other options.

    Example:

    >>> from keras_transformer.recipe import Recipe
    >>> recipe = Recipe(train=["train.tsv"], valid=["valid.tsv"], output="runs/en-de")
    >>> recipe.epochs
    40
    """

    train: Annotated[
        list[str], "Training text: source and target file, or one tab-separated file."
    ]
    valid: Annotated[list[str], "Validation text, in the same form."]
    test: Annotated[list[str] | None, "Test text, in the same form."] = None
    output: Annotated[str, "Folder of the run. A stopped run in it is resumed."]
    lowercase: Annotated[bool, "Ignore letter case."] = False
    vocabulary_size: Annotated[
        int, "Size of the subword vocabulary that source and target share."
    ] = 8000
    normalization: Annotated[
        str, "Unicode normalization: nmt_nfkc, nfkc, or identity (none)."
    ] = "nmt_nfkc"
    character_coverage: Annotated[
        float, "Fraction of the characters that the vocabulary covers, 0.98 to 1."
    ] = 1.0
    max_length: Annotated[int, "Maximum length of a sentence in subwords."] = 256
    export: Annotated[bool, "Export a SavedModel."] = True

    preset: Annotated[
        str,
        "Size of the model: transformer_tiny, transformer_small, transformer_base or "
        "transformer_big.",
    ] = "transformer_tiny"
    init: Annotated[
        str | None,
        "Trained model to start from: a .keras file, or the folder of a run or preset.",
    ] = None
    dropout: Annotated[float, "Dropout rate of embeddings and sub-layers."] = 0.3
    attention_dropout: Annotated[float, "Dropout rate of the attention scores."] = 0.0
    dtype: Annotated[
        str, "Dtype policy of training: float32, mixed_bfloat16 or mixed_float16."
    ] = "float32"

    epochs: Annotated[int, "Number of passes over the training text."] = 40
    tokens_per_batch: Annotated[
        int, "Number of source or target tokens in a batch, padding included."
    ] = 4096
    learning_rate: Annotated[float, "Peak learning rate, reached after warm-up."] = 4e-3
    warmup_steps: Annotated[
        int, "Number of batches in which the learning rate rises."
    ] = 2000
    cooldown: Annotated[
        int, "Number of final epochs in which the learning rate falls to 0."
    ] = 10
    label_smoothing: Annotated[
        float, "Probability distributed over all other tokens."
    ] = 0.1
    r_drop: Annotated[
        float, "Weight of the R-Drop loss, which doubles the training time; 0: off."
    ] = 0.0
    subword_sampling: Annotated[
        float | None, "BPE-dropout: fraction of merges skipped, new in each epoch."
    ] = None
    micro_batches: Annotated[
        int, "Number of parts of a batch, to save memory; the updates stay the same."
    ] = 1
    average: Annotated[int, "Number of final epochs whose weights are averaged."] = 10
    patience: Annotated[
        int | None, "Stop after this number of epochs without lower validation loss."
    ] = None
    bleu_every: Annotated[
        int, "Number of epochs between BLEU scores of the validation text."
    ] = 1
    bleu_tokenize: Annotated[
        str, "Tokenizer of sacreBLEU: 13a, zh, ja-mecab, ko-mecab, char, ..."
    ] = "13a"
    save_every: Annotated[int, "Number of batches between checkpoints."] = 500
    seed: Annotated[int, "Random seed."] = 1
    verbose: Annotated[
        int | None,
        "0: silent; 1: progress bar, the default in a terminal; 2: one line per epoch.",
    ] = None

    num_beams: Annotated[int, "Number of beams of the search for BLEU and chrF."] = 5

    consistency: dataclasses.InitVar[float | None] = None  # former name of `r_drop`

    def __post_init__(self, consistency: float | None) -> None:
        r_drop = renamed_argument("consistency", consistency, "r_drop", self.r_drop)
        object.__setattr__(self, "r_drop", r_drop)
        self._check_types()
        self._check_files()
        self._check_numbers()
        if self.init is not None:
            self._check_options_of_init()

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a recipe from a TOML file, such as `options.toml` of a run.

        Args:
            path: the file. It must have `train`, `valid` and `output`; other options
                have their defaults if they are missing.

        Returns:
            A `Recipe`.

        Raises:
            ValueError: if the file is not TOML or has an invalid option.
        """
        options = read_options(path)
        try:
            return cls(**options)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from error

    def to_toml(self) -> str:
        """Writes all options as TOML, which `read_options` reads.

        Returns:
            The content of a file: one line per option. Options that are `None` are
            left out.
        """
        lines = [  # strings, numbers, booleans and lists are the same in JSON and TOML
            f"{name} = {json.dumps(value, ensure_ascii=False)}\n"
            for name, value in self.values().items()
            if value is not None
        ]
        return "".join(lines)

    def values(self) -> dict[str, OptionValue]:
        """Returns the options by name."""
        return {name: vars(self)[name] for name in option_names()}

    def check_resumes(self, began: "Recipe", path: pathlib.Path) -> None:
        """Checks that a run of other options can be resumed with these.

        Args:
            began: the options of the run.
            path: their file, for the error message.

        Raises:
            ValueError: if an option differs on which the weights depend.
        """
        former = began.values()
        for name, value in self.values().items():
            if value != former[name] and name not in _CHANGEABLE:
                raise ValueError(
                    f"`{name}` must be that of the run to resume, {former[name]!r} in "
                    f"{path}; received `{name}={value!r}`. Choose another `output` for "
                    "a new run, or edit that file to resume with another value."
                )

    def _check_types(self) -> None:
        """Checks the types of all options but the lists of files."""
        hints = get_type_hints(Recipe)
        for name in {*option_names()} - {"train", "valid", "test"}:
            kinds = get_args(hints[name]) or (hints[name],)
            value = vars(self)[name]
            if not isinstance(value, tuple(_ACCEPTED[kind] for kind in kinds)):
                raise ValueError(
                    f"`{name}` must be {_TYPE_NAMES[kinds[0]]}; received "
                    f"`{name}={value!r}`."
                )

    def _check_files(self) -> None:
        """Checks the paths and makes them absolute."""
        self._set_files("train", self.train)
        self._set_files("valid", self.valid)
        if self.test:
            self._set_files("test", self.test)
        elif self.test is not None:
            object.__setattr__(self, "test", None)
        object.__setattr__(self, "output", os.fspath(self.output))
        if self.init is not None:
            object.__setattr__(self, "init", _absolute_path(os.fspath(self.init)))

    def _set_files(self, name: str, files: list[str]) -> None:
        if not (isinstance(files, list | tuple) and len(files) in (1, 2)):
            raise ValueError(
                f"`{name}` must be a list of two files, source and target, or of one "
                f"with a tab between the sides; received `{name}={files!r}`."
            )
        if not all(isinstance(file, str | os.PathLike) for file in files):
            raise ValueError(
                f"`{name}` must be a list of paths; received `{name}={files!r}`."
            )
        object.__setattr__(self, name, [os.path.abspath(file) for file in files])

    def _check_numbers(self) -> None:
        check_ints(
            1,
            vocabulary_size=self.vocabulary_size,
            max_length=self.max_length,
            epochs=self.epochs,
            tokens_per_batch=self.tokens_per_batch,
            warmup_steps=self.warmup_steps,
            micro_batches=self.micro_batches,
            average=self.average,
            bleu_every=self.bleu_every,
            save_every=self.save_every,
            num_beams=self.num_beams,
        )
        check_ints(1, optional=True, patience=self.patience)
        check_ints(0, cooldown=self.cooldown)
        check_rates(
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            label_smoothing=self.label_smoothing,
        )
        if not 0.0 <= self.r_drop < float("inf"):
            raise ValueError(
                "`r_drop` must be a finite number of at least 0; received "
                f"`r_drop={self.r_drop!r}`."
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

    def _check_options_of_init(self) -> None:
        values = self.values()
        for field in dataclasses.fields(self):
            value = values[field.name]
            if field.name in _OPTIONS_OF_INIT and value != field.default:
                raise ValueError(
                    f"`{field.name}` must not be given with `init`, whose model "
                    f"determines it; received `{field.name}={value!r}`, "
                    f"`init={self.init!r}`. Remove one of them, also from a file of "
                    "options."
                )


def option_names() -> list[str]:
    """Returns the names of the options of a `Recipe`, in their order."""
    return [field.name for field in dataclasses.fields(Recipe)]


def read_options(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads options of a `Recipe` from a TOML file, such as `options.toml` of a run.

    Args:
        path: the file, with a line `name = value` for each option. Options may be
            missing.

    Returns:
        A dictionary of the options by name.

    Raises:
        ValueError: if the file is not TOML, has a section or an unknown option, or
            gives a file that is not in a list.

    Example:

    ```python
    from keras_transformer.recipe import Recipe, read_options, train

    options = read_options("runs/en-de/options.toml")
    train(Recipe(**{**options, "output": "runs/en-de-2", "seed": 2}))
    ```
    """
    path = pathlib.Path(path)
    content = read_file(path)
    try:
        options = tomllib.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be a TOML file: {error}.") from error
    for name, value in options.items():
        if isinstance(value, dict):
            raise ValueError(
                f"{path} must have its options outside of sections; received the "
                f"section `[{name}]`. Remove that line."
            )
        if name in ("train", "valid", "test") and not isinstance(value, list):
            raise ValueError(
                f"`{name}` must be a list of one or two files in {path}; received "
                f"`{name} = {value!r}`. Write `{name} = [{json.dumps(value)}]`."
            )
    options = {_FORMER_NAMES.get(name, name): options[name] for name in options}
    names = option_names()
    for name in options.keys() - set(names):
        similar = difflib.get_close_matches(name, names, 1)
        hint = f" Did you mean `{similar[0]}`?" if similar else ""
        raise ValueError(
            f"{path} must only have options of `keras_transformer.recipe.Recipe`; "
            f"received `{name}`.{hint}"
        )
    return options


def _absolute_path(model: str) -> str:
    """Returns the absolute path of a model on disk; other addresses are unchanged."""
    return model if "://" in model else os.path.abspath(model)
