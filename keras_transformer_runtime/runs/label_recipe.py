"""The options of the training of a classifier of texts or words."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Self, get_type_hints

from keras_transformer_runtime.arguments import check_ints, check_numbers, check_one_of
from keras_transformer_runtime.files import read_toml
from keras_transformer_runtime.presets import PRESETS
from keras_transformer_runtime.runs.option_checks import (
    DTYPES,
    OPTIMIZERS,
    POSITIONS,
    SCHEDULES,
    SIZES,
    TOKENIZERS,
    check_types,
)
from keras_transformer_runtime.runs.run_options import (
    Average,
    ClipNorm,
    Dtype,
    Export,
    HiddenDim,
    IntermediateDim,
    LearningRate,
    Lowercase,
    NumHeads,
    Optimizer,
    Output,
    Patience,
    Positions,
    RunOptions,
    SaveEvery,
    Schedule,
    Seed,
    Verbose,
    WarmupSteps,
    WeightDecay,
)

TASKS = ("classify", "tag")
METRICS = ("accuracy", "macro_f1", "entity_f1", "loss")
POOLINGS = ("mean", "max", "cls", "pooler")
EXPORT_FORMATS = ("saved_model", "onnx", "both")
_COUNTS = (
    *("max_length", "vocabulary_size", *SIZES, "epochs", "batch_size", "warmup_steps"),
    *("average", "patience", "save_every"),
)
_CHECKS = (
    (partial(check_ints, 1), _COUNTS),
    (partial(check_numbers, 0, 2**32 - 1), ("seed",)),
    (partial(check_numbers, above=0), ("learning_rate", "clip_norm")),
    (partial(check_numbers, 0), ("weight_decay",)),
    (partial(check_numbers, 0, below=1), ("dropout",)),
    (partial(check_one_of, (0, 1, 2)), ("verbose",)),
    (partial(check_one_of, TASKS), ("task",)),
    (partial(check_one_of, ("balanced", "none")), ("class_weight",)),
    (partial(check_one_of, TOKENIZERS), ("tokenizer",)),
    (partial(check_one_of, PRESETS), ("preset",)),
    (partial(check_one_of, POSITIONS), ("positions",)),
    (partial(check_one_of, POOLINGS), ("pooling",)),
    (partial(check_one_of, DTYPES), ("dtype",)),
    (partial(check_one_of, OPTIMIZERS), ("optimizer",)),
    (partial(check_one_of, SCHEDULES), ("schedule",)),
    (partial(check_one_of, METRICS), ("metric",)),
    (partial(check_one_of, EXPORT_FORMATS), ("export_format",)),
)
# Options that the model of `start_from` determines.
_OF_START = ("preset", *SIZES, "positions", "tokenizer", "vocabulary_size", "lowercase")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelRecipe(RunOptions):
    """The options of the training of a `TextClassifier` or a `TokenClassifier`.

    `keras-transformer train --task classify` and `--task tag` have the same options.
    The text in the annotation of an option describes it and is its help in `--help`.
    Options that are `None` are chosen from the training data, or are off. The run
    prints what it has chosen and why, and writes the values to `options.toml`.

    A file of labelled texts is one of `read_labelled_texts`: TSV, CSV or JSONL. A file
    of tagged words is one of `read_tagged_words`: CoNLL or JSONL.

    Raises:
        ValueError: if an option is out of range, or does not suit the task.

    Example:

    >>> from keras_transformer.recipe import LabelRecipe
    >>> recipe = LabelRecipe(task="classify", train="films.tsv", output="runs/films")
    >>> recipe.valid is None  # a part of the training data is held out
    True
    """

    changeable: ClassVar[frozenset[str]] = frozenset(
        {
            *("output", "test", "export", "export_format", "epochs", "average"),
            *("patience", "save_every", "verbose"),
        }
    )
    # What the schedule of a `Recipe` depends on besides.
    steps: ClassVar[None] = None
    cooldown: ClassVar[int] = 0
    selection: ClassVar[bool] = True

    task: Annotated[str, "classify: labels of texts; tag: labels of words."]
    train: Annotated[
        str,
        "Training data: texts and labels, .tsv, .csv or .jsonl; with --task tag, words "
        "and tags in columns (CoNLL) or .jsonl. Plain or .gz.",
    ]
    valid: Annotated[
        str | float | None,
        "Validation data, in the same form, or the fraction of the training data to "
        "hold out, such as 0.1 or 10%.",
    ] = None
    test: Annotated[str | float | None, "Test data, or a fraction."] = None
    columns: Annotated[
        list[str] | None,
        "Columns of the text, or of two texts, and of the label; with --task tag, of "
        "the words and of the tags. Names, or numbers without a header.",
    ] = None
    multi_label: Annotated[
        bool, "A text may have several labels, separated by commas, or none."
    ] = False
    output: Output
    class_weight: Annotated[
        str,
        "balanced: all classes count equally in the loss; none: all rows do.",
    ] = "none"
    max_length: Annotated[
        int | None, "Maximum length of a text in tokens. Longer texts are cut."
    ] = None
    export: Export = True
    export_format: Annotated[
        str, "Format of the export: saved_model, onnx or both."
    ] = "saved_model"

    tokenizer: Annotated[str | None, f"Tokenizer: {', '.join(TOKENIZERS)}."] = None
    vocabulary_size: Annotated[int | None, "Size of the vocabulary."] = None
    lowercase: Lowercase = False

    preset: Annotated[str | None, "Size of the encoder, such as transformer_tiny."] = (
        None
    )
    num_layers: Annotated[int | None, "Number of encoder blocks."] = None
    hidden_dim: HiddenDim = None
    intermediate_dim: IntermediateDim = None
    num_heads: NumHeads = None
    positions: Positions = None
    pooling: Annotated[
        str | None, "How the vectors of tokens become one: mean, max, cls or pooler."
    ] = None
    dropout: Annotated[float | None, "Dropout rate."] = None
    dtype: Dtype = "float32"

    start_from: Annotated[
        str | None,
        "Encoder to start from, with its vocabulary: a .keras file, or the folder of a "
        "run, a preset or a model of transformers.",
    ] = None

    epochs: Annotated[int | None, "Number of passes over the training data."] = None
    batch_size: Annotated[int | None, "Number of texts in a batch."] = None
    optimizer: Optimizer = "adamw"
    learning_rate: LearningRate = None
    schedule: Schedule = "linear"
    warmup_steps: WarmupSteps = None
    weight_decay: WeightDecay = None
    clip_norm: ClipNorm = None
    average: Average = None
    metric: Annotated[
        str | None, f"Metric that selects the model: {', '.join(METRICS)}."
    ] = None
    patience: Patience = None
    save_every: SaveEvery = None
    seed: Seed = 1
    verbose: Verbose = None

    def __post_init__(self) -> None:
        values = self.values()
        check_types(values, get_type_hints(LabelRecipe))
        for check, names in _CHECKS:
            check(optional=True, **{name: values[name] for name in names})
        self._set_files()
        if self.task == "tag":
            self._refuse(
                ("multi_label", "pooling"), "Give `task='classify'` for whole texts."
            )
        elif self.metric == "entity_f1":
            raise ValueError(
                "`metric` must be 'accuracy', 'macro_f1' or 'loss' for `task="
                "'classify'`; received `metric='entity_f1'`."
            )
        if self.multi_label and self.class_weight == "balanced":
            raise ValueError(
                "`class_weight` must be 'none' with `multi_label`; received "
                "`class_weight='balanced'`."
            )
        if self.start_from is not None:
            self._refuse(_OF_START, "The model of `start_from` determines it.")

    def _refuse(self, names: tuple[str, ...], remedy: str) -> None:
        """Raises `ValueError` if an option differs from its default."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for name in names:
            if vars(self)[name] != defaults[name]:
                raise ValueError(
                    f"`{name}` must not be given; received "
                    f"`{name}={vars(self)[name]!r}`. {remedy}"
                )

    def _set_files(self) -> None:
        """Makes the paths absolute, and checks the fractions."""
        shares = 0.0
        for name in ("train", "valid", "test", "start_from"):
            value = vars(self)[name]
            if isinstance(value, str | os.PathLike) and "://" not in str(value):
                object.__setattr__(self, name, os.path.abspath(value))
            elif value is not None and not isinstance(value, str):
                check_numbers(above=0, below=0.9, **{name: value})
                shares += value
        if shares > 0.9:
            raise ValueError(
                "`valid` and `test` must leave at least a tenth of the training data; "
                f"received `valid={self.valid}`, `test={self.test}`."
            )
        object.__setattr__(self, "output", os.fspath(self.output))

    def text_files(self) -> dict[str, list[str]]:
        given = {name: vars(self)[name] for name in ("train", "valid", "test")}
        return {
            name: [value]
            for name, value in given.items()
            if isinstance(value, str) and os.path.isfile(value)
        }

    def completed(self, **choices: Any) -> Self:
        """Returns the recipe with values in place of `None`.

        Args:
            **choices: values by option. Those of options that are given are ignored.

        Returns:
            A `LabelRecipe`.
        """
        missing = {n: x for n, x in choices.items() if vars(self)[n] is None}
        return dataclasses.replace(self, **missing)

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a recipe from a TOML file, such as `options.toml` of a run.

        Args:
            path: the file.

        Returns:
            A `LabelRecipe`.

        Raises:
            ValueError: if the file is not TOML or has an invalid option.
        """
        options = read_toml(path)
        unknown = [name for name in options if name not in cls.names()]
        try:
            if unknown:
                raise ValueError(
                    f"there is no option `{unknown[0]}` of `task="
                    f"{options.get('task')!r}`"
                )
            return cls(**options)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedLabelRecipe(LabelRecipe):
    """The options of a run, with a value for each option that the data determine.

    `options.toml` of a run contains them.
    """

    max_length: int = dataclasses.field()
    dropout: float = dataclasses.field()
    epochs: int = dataclasses.field()
    batch_size: int = dataclasses.field()
    learning_rate: float = dataclasses.field()
    warmup_steps: int = dataclasses.field()
    average: int = dataclasses.field()
    metric: str = dataclasses.field()
    save_every: int = dataclasses.field()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Creates the options from values, of which others are left out."""
        return cls(**{name: values[name] for name in cls.names()})


def task_of_options(path: str | os.PathLike[str]) -> str | None:
    """Returns the task of a file of options; `None` unless it is in `TASKS`."""
    if not pathlib.Path(path).is_file():
        return None
    task = read_toml(path).get("task")
    return task if task in TASKS else None
