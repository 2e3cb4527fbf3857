"""The options of a training run."""

import contextlib
import dataclasses
import difflib
import json
import os
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self, get_args, get_type_hints

from keras_transformer_runtime.files import read_toml
from keras_transformer_runtime.runs.corpora import CorpusFiles, split_corpora
from keras_transformer_runtime.runs.option_checks import (
    METRICS,
    TOKENIZERS,
    check_suits_model,
    check_types,
    check_values,
)
from keras_transformer_runtime.runs.other_names import (
    OF_TRAIN,
    explanation,
    find_meaning,
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
    OptionValue,
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
from keras_transformer_runtime.text_rows import table_form

_TEXTS = ("train", "valid", "test")

# Options whose default is that of the trained model of `start_from`, if there is one.
_DEFAULTS_OF_NEW_MODELS: dict[str, OptionValue] = {
    "max_length": 256,
    "attention_dropout": 0.0,
}
# Options whose default depends on the model.
_DEFAULTS_OF_MODELS: dict[str, dict[str, OptionValue]] = {
    "seq2seq": {"label_smoothing": 0.1, "positions": "sinusoidal"},
    "causal": {"label_smoothing": 0.0, "positions": "rotary", "metric": "loss"},
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe(RunOptions):
    """The options of a training run.

    `keras-transformer train` has the same options. The text in the annotation of an
    option describes it and is its help in `--help`; `docs/training.md` recommends
    values. Options that are `None` are chosen from the training text, or are off. The
    run prints what it has chosen and why, and writes the values to `options.toml`.

    A text is a source file and a target file whose lines correspond, one sentence per
    line; or one file with both: a TSV file (`.tsv`, a tab between source and target), a
    CSV file (`.csv`) or a JSONL file (`.jsonl`, `.ndjson`), with the columns `columns`.
    Files may be compressed with gzip (`.gz`). For a language model, `model="causal"`, a
    text is any number of files of running text; each row of a file with columns is read
    as a file of its own. Options that such a model does not have must not be given.

    `train` may have several corpora, such as `["a.en", "a.de", "b.csv"]`, which are
    shuffled as one text. With weights, `["a.en", "a.de:2", "b.csv:1"]`, the weight
    after the last file of a corpus is its relative share of the pairs of an epoch, or
    of the windows of running text. An epoch has as many of them as all corpora
    together, so the text of a corpus with a larger share is repeated. A corpus without
    a weight has the weight 1.

    Raises:
        ValueError: if `train`, `valid` or `test` is not a list of files, if a weight or
            another number is out of range, if an option does not suit the model, or if
            `start_from` is given together with an option that the trained model
            determines. `train` checks the other options.

    Example:

    >>> from keras_transformer.recipe import Recipe
    >>> recipe = Recipe(train=["train.tsv"], valid=0.02, output="runs/en-de")
    >>> recipe.num_beams
    5
    """

    # The weights do not depend on them, except on `epochs` once the rate falls.
    changeable: ClassVar[frozenset[str]] = frozenset(
        {
            *("output", "valid", "test", "export", "export_format", "epochs"),
            *("average", "metric", "metric_every", "bleu_tokenize", "patience"),
            *("save_every", "selection", "num_beams", "verbose", "tensorboard"),
            *("devices", "model_parallel", "workers", "micro_batches"),
        }
    )

    train: Annotated[
        list[str],
        "Training text: source and target, or one .tsv, .csv or .jsonl file, or .gz; "
        "with --model causal, running text. Weights of corpora: a.tsv:2 b.en b.de:1.",
    ]
    valid: Annotated[
        list[str] | float | None,
        "Validation text, in the same form, or the fraction of the training text to "
        "hold out, such as 0.02 or 2%.",
    ] = None
    test: Annotated[
        list[str] | float | None, "Test text, in the same form, or a fraction."
    ] = None
    columns: Annotated[
        list[str] | None,
        "Columns of source and target, or of running text, in .tsv, .csv and .jsonl "
        "files, such as en de.",
    ] = None
    languages: Annotated[
        list[str] | None,
        "Languages of source and target, such as en de, for the server.",
    ] = None
    output: Output
    lowercase: Lowercase = False
    byte_fallback: Annotated[
        bool, "Split characters that the vocabulary lacks into bytes."
    ] = False
    max_length: Annotated[int | None, "Maximum length of a sentence in tokens."] = None
    export: Export = True
    export_format: Annotated[
        str,
        "Format of the export: saved_model, ctranslate2, or both if CTranslate2 "
        "supports the model.",
    ] = "both"

    documents: Annotated[
        str | None,
        "Unit of a document: file, line or paragraph; none: text without documents; "
        "pairs: prompts and answers, in the form of parallel text.",
    ] = None
    separate_documents: Annotated[
        bool, "Limit the attention of a token to its document."
    ] = False
    length: Annotated[
        int | None, "Context: length of a window of running text in tokens."
    ] = None

    tokenizer: Annotated[
        str | None, f"Tokenizer of both sides: {', '.join(TOKENIZERS)}."
    ] = None
    source_tokenizer: Annotated[str | None, "Tokenizer of the source."] = None
    target_tokenizer: Annotated[str | None, "Tokenizer of the target."] = None
    vocabularies: Annotated[
        str | None, "joint: source and target share one vocabulary; or separate."
    ] = None
    vocabulary_size: Annotated[
        int | None, "Size of the joint vocabulary, or of each vocabulary."
    ] = None
    source_vocabulary_size: Annotated[int | None, "Source vocabulary size."] = None
    target_vocabulary_size: Annotated[int | None, "Target vocabulary size."] = None
    normalization: Annotated[
        str, "Unicode normalization of subwords: nmt_nfkc, nfkc, or identity (none)."
    ] = "nmt_nfkc"
    character_coverage: Annotated[
        float, "Fraction of the characters that the subwords cover, 0.98 to 1."
    ] = 1.0
    user_defined_symbols: Annotated[
        list[str], "Texts that are always one subword token, such as <name>."
    ] = dataclasses.field(default_factory=list)

    model: Annotated[
        str,
        "seq2seq: from text to text; causal: a decoder-only language model.",
    ] = "seq2seq"
    preset: Annotated[
        str | None,
        "Size of the model: transformer_tiny, transformer_small, transformer_base or "
        "transformer_big.",
    ] = None
    num_layers: Annotated[int | None, "Number of encoder and decoder blocks."] = None
    hidden_dim: HiddenDim = None
    intermediate_dim: IntermediateDim = None
    num_heads: NumHeads = None
    positions: Positions = None
    blocks: Annotated[
        str | None,
        "plain: ReLU, LayerNorm and biases; modern: SwiGLU, RMSNorm and no biases.",
    ] = None
    dropout: Annotated[float | None, "Dropout rate of embeddings and sub-layers."] = (
        None
    )
    attention_dropout: Annotated[
        float | None, "Dropout rate of the attention scores."
    ] = None
    dtype: Dtype = "float32"

    start_from: Annotated[
        str | None,
        "Trained model to start from, with its vocabularies: a .keras file, or the "
        "folder of a run, a preset or a model of transformers.",
    ] = None
    lora: Annotated[
        int | None,
        "Rank of low-rank updates, which are trained in place of the model of --from.",
    ] = None
    lora_alpha: Annotated[
        float | None, "Factor of the updates, before they are divided by the rank."
    ] = None
    lora_targets: Annotated[
        list[str] | None,
        "Dense layers with updates: query, key, value, output, intermediate, gate, "
        "longer names such as feed_forward.output, or all.",
    ] = None

    epochs: Annotated[int | None, "Number of passes over the training text."] = None
    steps: Annotated[
        int | None, "Number of batches after which the run ends, in place of --epochs."
    ] = None
    tokens_per_batch: Annotated[
        int | None, "Number of source or target tokens in a batch, padding included."
    ] = None
    optimizer: Optimizer = "adam"
    learning_rate: LearningRate = None
    schedule: Schedule = "inverse_sqrt"
    warmup_steps: WarmupSteps = None
    cooldown: Annotated[
        int | None, "Number of final epochs in which the learning rate falls to 0."
    ] = None
    weight_decay: WeightDecay = None
    clip_norm: ClipNorm = None
    label_smoothing: Annotated[
        float | None, "Probability that is distributed over the whole vocabulary."
    ] = None
    r_drop: Annotated[
        float, "Weight of the R-Drop loss, which doubles the training time; 0: none."
    ] = 0.0
    subword_sampling: Annotated[
        float | None, "BPE-dropout: probability of skipping a merge; unigram: exponent."
    ] = None
    micro_batches: Annotated[
        int, "Number of parts of a batch, to save memory; the updates stay the same."
    ] = 1
    devices: Annotated[
        int, "Number of devices of a machine that share the rows of a batch."
    ] = 1
    model_parallel: Annotated[
        int, "Number of these devices that share the weights of a model, on JAX."
    ] = 1
    workers: Annotated[
        int,
        "Number of workers of a Ray cluster, of --devices each; not on TensorFlow.",
    ] = 1
    members: Annotated[
        int, "Number of models with different seeds that decode as an ensemble."
    ] = 1
    distill: Annotated[
        bool, "Train one model that learns from the ensemble of --members."
    ] = False
    average: Average = None
    metric: Annotated[
        str | None, f"Metric that selects the model: {', '.join(METRICS)}."
    ] = None
    selection: Annotated[
        bool,
        "Compare weights and length penalties on the validation text after the last "
        "epoch.",
    ] = True
    metric_every: Annotated[
        int, "Number of epochs between translations of the validation text."
    ] = 1
    valid_engine: Annotated[
        str | None,
        "Software that translates the validation text: keras or ctranslate2.",
    ] = None
    patience: Patience = None
    bleu_tokenize: Annotated[
        str, "Tokenizer of sacreBLEU: 13a, zh, ja-mecab, ko-mecab, char, ..."
    ] = "13a"
    save_every: SaveEvery = None
    seed: Seed = 1
    verbose: Verbose = None
    tensorboard: Annotated[bool, "Write logs for TensorBoard."] = False

    num_beams: Annotated[int, "Number of beams for the evaluation."] = 5

    def __post_init__(self) -> None:
        check_types(self.values(), get_type_hints(Recipe))
        check_values(self.values())
        for name in ("max_length", "attention_dropout", *_DEFAULTS_OF_MODELS["causal"]):
            value = default_of(name, self.model)
            if name in _DEFAULTS_OF_NEW_MODELS and self.start_from is not None:
                value = None  # that of the trained model
            if name == "max_length" and self.has_running_text:
                value = _DEFAULTS_OF_NEW_MODELS[name]  # It has no effect.
            if vars(self)[name] is None and value is not None:
                object.__setattr__(self, name, value)
        self._check_files()
        if self.devices % self.model_parallel:
            raise ValueError(
                "`model_parallel` must divide the number of devices; received "
                f"`devices={self.devices}`, `model_parallel={self.model_parallel}`."
            )
        values, model = self.values(), self.model
        given = {
            n: value
            for n, value in values.items()
            if value is not None and value != default_of(n, model)
        }
        check_suits_model(values, given)

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a recipe from a TOML file, such as `options.toml` of a run.

        Args:
            path: the file. It must have `train` and `output`; other options have their
                defaults if they are missing.

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

    def completed_by(self, began: "Recipe") -> Self:
        """Returns the recipe with the values of a run in place of `None`.

        Args:
            began: the options of the run.
        """
        missing = {
            name: vars(began)[name]
            for name, value in self.values().items()
            if value is None
            and name not in ("test", "patience", "verbose")
            and not (name == "steps" and self.epochs is not None)
        }
        return dataclasses.replace(self, **missing)

    def _check_files(self) -> None:
        """Checks the paths and makes them absolute."""
        self._set_files("train", self.train)
        for name in ("valid", "test"):
            value = vars(self)[name]
            if isinstance(value, int | float) and not isinstance(value, bool):
                if not 0.0 < value < 1.0:
                    raise ValueError(
                        f"`{name}` must be files, or a fraction of the training text "
                        f"between 0 and 1; received `{name}={value!r}`."
                    )
            elif value or name == "valid" and value is not None:
                self._set_files(name, value)
            else:
                object.__setattr__(self, name, None)
        shares = (x for x in (self.valid, self.test) if isinstance(x, int | float))
        if sum(shares) > 0.9:
            raise ValueError(
                "`valid` and `test` must leave at least a tenth of the training text; "
                f"received `valid={self.valid}`, `test={self.test}`."
            )
        self._check_columns()
        object.__setattr__(self, "output", os.fspath(self.output))
        if self.start_from is not None:
            start = os.fspath(self.start_from)
            path = start if "://" in start else os.path.abspath(start)
            object.__setattr__(self, "start_from", path)

    def teacher(self) -> Self:
        """Returns the recipe of the ensemble from which a model with `distill` learns.

        Its folder is `teacher` in that of the run.
        """
        folder = os.path.join(self.output, "teacher")
        return dataclasses.replace(self, distill=False, export=False, output=folder)

    def member(self, index: int) -> Self:
        """Returns the recipe of one of the `members`, which is a run of its own.

        Args:
            index: int >= 1, number of the member.
        """
        return dataclasses.replace(
            self,
            members=1,
            seed=(self.seed + index - 1) % 2**32,
            output=os.path.join(self.output, f"member-{index}"),
            export=False,
        )

    @property
    def has_running_text(self) -> bool:
        """Whether the texts are running text, not parallel text."""
        return self.model == "causal" and self.documents != "pairs"

    def corpora(self, name: str) -> list[CorpusFiles]:
        """Returns the corpora of a text.

        Args:
            name: `"train"`, `"valid"` or `"test"`.

        Returns:
            A list of `CorpusFiles`; none for a fraction of the training text.
        """
        files = vars(self)[name]
        if not isinstance(files, list):
            return []
        return split_corpora(name, files, self.has_running_text)

    def text_files(self) -> dict[str, list[str]]:
        return {
            name: [
                file
                for corpus in self.corpora(name)
                for file in corpus.files
                if os.path.isfile(file)
            ]
            for name in _TEXTS
        }

    def _set_files(self, name: str, files: list[str]) -> None:
        is_list = isinstance(files, list | tuple) and len(files) > 0
        if not (is_list and all(isinstance(x, str | os.PathLike) for x in files)):
            raise ValueError(
                f"`{name}` must be a list of files; received `{name}={files!r}`."
            )
        object.__setattr__(self, name, [os.path.abspath(file) for file in files])
        self.corpora(name)

    def _check_columns(self) -> None:
        """Checks that there are files with columns, and the number of columns."""
        if self.columns is None:
            return
        number = 1 if self.has_running_text else 2
        if len(self.columns) != number:
            kind = "running text" if number == 1 else "source and target"
            raise ValueError(
                f"`columns` must be the name{'s' * (number - 1)} of {kind}; received "
                f"`columns={self.columns}`."
            )
        texts = [corpus for name in _TEXTS for corpus in self.corpora(name)]
        if not any(table_form(file) for text in texts for file in text.files):
            raise ValueError(
                "`columns` must be given with a .tsv, .csv or .jsonl file; received "
                f"`columns={self.columns}` and other files. Remove it."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedRecipe(Recipe):
    """The options of a run, with a value for each option that the text determines.

    `options.toml` of a run contains them.
    """

    valid: list[str] | float = dataclasses.field()
    dropout: float = dataclasses.field()
    epochs: int = dataclasses.field()
    tokens_per_batch: int = dataclasses.field()
    learning_rate: float = dataclasses.field()
    warmup_steps: int = dataclasses.field()
    cooldown: int = dataclasses.field()
    average: int = dataclasses.field()
    save_every: int = dataclasses.field()
    metric: str = dataclasses.field()
    # Of the model, if they are missing in a file.
    label_smoothing: float = None  # type: ignore[assignment]
    positions: str = None  # type: ignore[assignment]
    max_length: int = None  # type: ignore[assignment]
    attention_dropout: float = None  # type: ignore[assignment]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Creates the options of a run; raises `ValueError` if one is missing."""
        required = {
            field.name
            for field in dataclasses.fields(cls)
            if field.default is dataclasses.MISSING
            and field.default_factory is dataclasses.MISSING
        }
        missing = [name for name in sorted(required) if values.get(name) is None]
        if missing:
            names = ", ".join(f"`{name}`" for name in missing)
            raise ValueError(f"the options {names} are missing")
        return cls(**values)


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
    options = read_entries(path)
    if options.get("steps") is not None:
        options.pop("epochs", None)  # of a run, which `steps` determines
    return options


def read_entries(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads all entries of a TOML file of options, as `read_options` does.

    The file of a run with `steps` has its number of epochs as well.
    """
    options = read_toml(path)
    for name, value in options.items():
        _check_entry(path, name, value)
    return options


def _check_entry(path: str | os.PathLike[str], name: str, value: object) -> None:
    """Checks an entry of a TOML file: an option of a `Recipe`, with files in a list."""
    if isinstance(value, dict):
        raise ValueError(
            f"{path} must have its options outside of sections; received the section "
            f"`[{name}]`. Remove that line."
        )
    if name in _TEXTS and isinstance(value, str):
        written = f"[{json.dumps(value)}]"
        with contextlib.suppress(ValueError):
            written = f"{float(value.removesuffix('%')) / 100:g}"  # of a percentage
        raise ValueError(
            f"`{name}` must be a list of files in {path}; received "
            f"`{name} = {value!r}`. Write `{name} = {written}`."
        )
    if name not in Recipe.names():
        raise ValueError(
            f"{path} must only have options of `keras_transformer.recipe.Recipe`; "
            f"received `{name}`. {_advice(name)}".rstrip()
        )


def _advice(name: str) -> str:
    """Returns which option was meant by a name that is none."""
    hints = get_type_hints(Recipe, include_extras=True)
    helps = {name: get_args(hints[name])[1] for name in Recipe.names()}
    meaning = find_meaning(name, helps, OF_TRAIN)
    if meaning is not None:
        option, _, value = meaning.option.partition(" ")
        typed = f"`{option} = {json.dumps(value)}`" if value else f"`{option}`"
        return explanation(meaning, helps, typed if option else "")
    similar = difflib.get_close_matches(name, helps, 1)
    return f"Did you mean `{similar[0]}`?" if similar else ""


def default_of(name: str, model: str) -> object:
    """Returns the default of an option with a model."""
    for defaults in (_DEFAULTS_OF_MODELS[model], _DEFAULTS_OF_NEW_MODELS):
        if name in defaults:
            return defaults[name]
    field = next(field for field in dataclasses.fields(Recipe) if field.name == name)
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default
