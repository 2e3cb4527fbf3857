r"""Trains ablations of the Transformer.

The ablations are those of table 3 of Vaswani et al. (2017), at a small scale: few
epochs, little text and one seed. The row `another-seed` shows the variance. The first
row, `base`, is the recipe of the README: `transformer_tiny` with pre-norm, dropout 0.3,
no attention dropout and label smoothing 0.1, with a warm-up in half of the steps. The
other rows change the number of heads or layers, dropout, label smoothing or positions,
or remove the layer normalisations. `r-drop` trains with R-Drop (α = 5), which evaluates
the model twice per step.

The figures are those of the validation set after the last epoch: perplexity, accuracy
of the next token, and BLEU of greedy search. Core-seconds are the median processor time
of the training epochs without validation.

    python benchmarks/ablations.py --train train.en train.de --valid val.en val.de \
        --lowercase --output runs/ablations

The command writes the figures of each row to the folder `--output` and trains only the
rows that are not there. `--rows` trains some of the rows.
"""

import argparse
import dataclasses
import json
import math
import pathlib
import statistics
import time
from typing import Any

import keras
from measuring import print_header, print_row, report

import keras_transformer as kt
from keras_transformer.dataset import read_pairs

MAX_LENGTH = 256  # tokens of a source or a target
COLUMNS = ("parameters", "perplexity", "accuracy", "BLEU", "core-seconds per epoch")
RECIPE = (
    *("train", "valid", "lowercase", "vocabulary_size", "tokens_per_batch"),
    *("epochs", "learning_rate", "warmup_steps", "seed"),
)


@dataclasses.dataclass(frozen=True)
class Row:
    """Settings of the model and its training."""

    name: str
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    label_smoothing: float = 0.1
    r_drop: float = 0.0
    seed: int = 0  # added to the seed of the recipe


ROWS = [
    Row("base"),
    Row("another-seed", seed=1),
    Row("heads-1", {"num_heads": 1}),
    Row("heads-8", {"num_heads": 8}),
    Row("layers-1", {"num_layers": 1}),
    Row("layers-2", {"num_layers": 2}),
    Row("dropout-0", {"dropout": 0.0}),
    Row("attention-dropout-0.3", {"attention_options": {"dropout": 0.3}}),
    Row("no-label-smoothing", label_smoothing=0.0),
    Row("r-drop", r_drop=5.0),
    Row("learned-positions", {"positions": kt.LearnedPositionalEncoding(MAX_LENGTH)}),
    Row("no-positions", {"positions": kt.PositionScheme()}),
    Row("no-normalization", {"residual_options": {"normalization": None}}),
]


def main() -> None:
    """Trains the missing rows and prints the table."""
    options = parse_arguments()
    folder = pathlib.Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    keep_recipe(folder, {name: getattr(options, name) for name in RECIPE})
    chosen = [row for row in ROWS if row.name in options.rows]
    missing = [row for row in chosen if not (folder / f"{row.name}.json").exists()]
    text = Text(options, folder) if missing else None
    for row in missing:
        report(row.name)
        figures = json.dumps(train(row, options, text))
        (folder / f"{row.name}.json").write_text(figures)
    print_header("row", *COLUMNS)
    for row in ROWS:
        path = folder / f"{row.name}.json"
        if path.exists():
            print_row(row.name, *json.loads(path.read_text()))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    files: dict[str, Any] = {
        "nargs": 2,
        "metavar": ("SOURCE", "TARGET"),
        "required": True,
    }
    names = [row.name for row in ROWS]
    parser.add_argument("--train", **files)
    parser.add_argument("--valid", **files)
    parser.add_argument(
        "--output", required=True, metavar="FOLDER", help="results as JSON"
    )
    parser.add_argument("--lowercase", action="store_true", help="lower-case all text")
    parser.add_argument("--vocabulary-size", type=int, default=8000, metavar="N")
    parser.add_argument("--tokens-per-batch", type=int, default=2048, metavar="N")
    parser.add_argument("--epochs", type=int, default=8, metavar="N")
    parser.add_argument("--learning-rate", type=float, default=4e-3, metavar="PEAK")
    parser.add_argument("--warmup-steps", type=int, default=1000, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="N")
    parser.add_argument("--rows", nargs="*", choices=names, default=names)
    return parser.parse_args()


def keep_recipe(folder: pathlib.Path, recipe: dict[str, Any]) -> None:
    """Writes the recipe of a folder, or exits if its rows have another one."""
    path = folder / "recipe.json"
    recipe["backend"] = keras.backend.backend()
    if not path.exists():
        path.write_text(json.dumps(recipe))
    elif (kept := json.loads(path.read_text())) != recipe:
        raise SystemExit(
            "`--output` must be a folder of rows with the same recipe; received "
            f"`--output {folder}`, whose recipe is {kept} instead of {recipe}. "
            "Choose another folder."
        )


class Text:
    """Tokenizer, training data and validation data of all rows."""

    def __init__(self, options: argparse.Namespace, folder: pathlib.Path):
        path = folder / "tokenizer.json"
        if not path.exists():
            kt.SentencePieceTokenizer.train(
                options.train, options.vocabulary_size, lowercase=options.lowercase
            ).save(path)
        self.tokenizer = kt.Tokenizer.load(path)
        self.train, self.valid = (
            kt.parallel_dataset(
                *files,
                source_tokenizer=self.tokenizer,
                target_tokenizer=self.tokenizer,
                tokens_per_batch=options.tokens_per_batch,
                max_source_length=MAX_LENGTH,
                max_target_length=MAX_LENGTH,
                shuffle=files is options.train,
                seed=options.seed,
            )
            for files in (options.train, options.valid)
        )
        pairs = list(read_pairs(*options.valid))
        lengths = self.tokenizer.tokenize([source for source, _ in pairs]).row_lengths()
        pairs = [
            pair
            for pair, length in zip(pairs, lengths.numpy(), strict=True)
            if length < MAX_LENGTH  # with the end token
        ]
        self.sources, self.references = map(list, zip(*pairs, strict=True))


class EpochSeconds(keras.callbacks.Callback):
    """Collects the processor time of each epoch without its validation."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_epoch_begin(self, epoch, logs=None):
        self.start = time.process_time()

    def on_test_begin(self, logs=None):
        self.seconds.append(time.process_time() - self.start)


def train(row: Row, options: argparse.Namespace, text: Text) -> list[str]:
    """Trains a row and returns the cells of the table."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(options.seed + row.seed)
    settings = {
        "dropout": 0.3,
        "attention_options": {"dropout": 0.0},
        "positions": kt.PositionalEncoding(),
        **row.settings,
    }
    model = kt.Seq2Seq.from_preset(
        "transformer_tiny",
        source_tokenizer=text.tokenizer,
        normalize_first=True,
        max_source_length=MAX_LENGTH,
        max_target_length=MAX_LENGTH,
        **settings,
    )
    schedule = kt.WarmupInverseSquareRoot(options.learning_rate, options.warmup_steps)
    model.compile(
        optimizer=keras.optimizers.Adam(schedule, beta_2=0.98, epsilon=1e-9),
        loss=kt.LabelSmoothedCrossEntropy(row.label_smoothing),
        metrics=[kt.MaskedTokenAccuracy(), kt.Perplexity()],
        **({"r_drop": row.r_drop} if row.r_drop else {}),
    )
    timer = EpochSeconds()
    history = model.fit(
        text.train.dataset,
        validation_data=text.valid.dataset,
        epochs=options.epochs,
        shuffle=False,  # The dataset is shuffled already.
        verbose=2,
        callbacks=[keras.callbacks.TerminateOnNaN(), timer],
    ).history
    quality = ["diverged", "", ""]
    if math.isfinite(history["loss"][-1]):
        texts = model.generate(text.sources, kt.GreedySearch())
        bleu = kt.evaluation.bleu(texts, text.references, options.lowercase)
        quality = [
            f"{history['val_perplexity'][-1]:.2f}",
            f"{history['val_token_accuracy'][-1]:.1%}",
            f"{bleu.score:.1f}",
        ]
    seconds = f"{statistics.median(timer.seconds):,.0f}" if timer.seconds else ""
    return [f"{model.count_params():,}", *quality, seconds]


if __name__ == "__main__":
    main()
