r"""Train a translation model on your own text and export it.

Reads parallel text (two files, or one file with a tab between the two sides),
learns a joint subword vocabulary, trains, prints sacreBLEU of beam search on a
test set, and writes the model twice: `model.keras`, which loads in Keras on any
backend, and a SavedModel that takes and returns strings.

    python examples/translate.py --train train.en train.de \
        --valid val.en val.de --test test.en test.de --output runs/en-de

The weights of the last epochs are averaged, and the length penalty is the one
with the highest BLEU on the validation set. A run that was stopped goes on where
it was, in the middle of an epoch too, when the same command is given again.
docs/training.md explains the options.
"""

import argparse
import json
import pathlib
import time
from typing import Any

import keras

from keras_transformer import (
    BeamSearch,
    Checkpoints,
    GreedySearch,
    LabelSmoothedCrossEntropy,
    MaskedTokenAccuracy,
    NonFiniteLoss,
    Perplexity,
    SentencePieceTokenizer,
    Seq2Seq,
    Tokenizer,
    TrainingProgress,
    TranslationQuality,
    WarmupInverseSquareRoot,
    average_checkpoints,
    parallel_dataset,
)
from keras_transformer.dataset import ParallelDataset, read_pairs
from keras_transformer.evaluation import bleu, chrf
from keras_transformer.seq2seq import PRESETS

LENGTH_PENALTIES = (0.0, 0.6, 1.0, 1.4)


def main(arguments: list[str] | None = None) -> float:
    """Runs the example; returns BLEU on the test set, or on the validation set."""
    options = parse_arguments(arguments)
    keras.utils.set_random_seed(options.seed)
    output = pathlib.Path(options.output)
    output.mkdir(parents=True, exist_ok=True)

    tokenizer = load_or_train_tokenizer(options, output / "tokenizer.json")
    sampling = options.subword_sampling
    train = make_dataset(
        options.train,
        tokenizer,
        options,
        source_sampling=sampling,
        target_sampling=sampling,
    )
    valid = make_dataset(options.valid, tokenizer, options, shuffle=False)
    print(f"training data\n{train}\nvalidation data\n{valid}")

    model = build_model(tokenizer, options, train.batches_per_epoch)
    model.summary()
    train_model(model, train, valid, options, output)

    search = choose_search(model, options)
    sources, references = read_columns(options.test or options.valid)
    started = time.perf_counter()
    outputs = model.generate(sources, search)
    seconds = time.perf_counter() - started
    score = bleu(outputs, references, lowercase=options.lowercase)
    print(f"{len(sources)} sentences translated in {seconds:.0f} s")
    print(f"BLEU {score.score:.2f}  ({score.signature})")
    character_score = chrf(outputs, references, lowercase=options.lowercase)
    print(f"chrF {character_score.score:.2f}  ({character_score.signature})")
    for source, text in list(zip(sources, outputs, strict=True))[:5]:
        print(f"  {source}\n    → {text}")

    model.save(output / "model.keras")
    print(f"model: {output / 'model.keras'}")
    if not options.no_export:
        folder = next_version(output / "saved_model")
        model.export(folder, search, check_texts=sources[:20])
        print(f"SavedModel: {folder} (checked in a fresh process)")
    return score.score


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    files: dict[str, Any] = {"nargs": "+", "metavar": "FILE"}
    data = parser.add_argument_group(
        "data", "Two files (source, target), or one with two columns; plain or .gz."
    )
    data.add_argument("--train", required=True, **files, help="training text")
    data.add_argument("--valid", required=True, **files, help="validation text")
    data.add_argument("--test", **files, help="test text")
    data.add_argument("--output", required=True, help="folder for all results")
    data.add_argument("--lowercase", action="store_true", help="ignore case")
    data.add_argument("--vocabulary-size", type=int, default=8000, metavar="N")
    data.add_argument("--max-length", type=int, default=256, metavar="N")
    data.add_argument("--no-export", action="store_true", help="no SavedModel")
    model = parser.add_argument_group("model")
    model.add_argument("--preset", choices=PRESETS, default="transformer_tiny")
    model.add_argument("--dropout", type=float, default=0.3, metavar="RATE")
    fit = parser.add_argument_group("training")
    fit.add_argument("--epochs", type=int, default=40, metavar="N")
    fit.add_argument("--tokens-per-batch", type=int, default=4096, metavar="N")
    fit.add_argument("--learning-rate", type=float, default=4e-3, metavar="PEAK")
    fit.add_argument("--warmup-steps", type=int, default=2000, metavar="N")
    fit.add_argument(
        "--cooldown",
        type=int,
        default=10,
        metavar="EPOCHS",
        help="at the end, in which the learning rate falls to 0",
    )
    fit.add_argument("--label-smoothing", type=float, default=0.1, metavar="EPS")
    fit.add_argument(
        "--consistency", type=float, default=0.0, metavar="ALPHA", help="R-Drop"
    )
    fit.add_argument(
        "--subword-sampling",
        type=float,
        metavar="ALPHA",
        help="split texts anew in each epoch (BPE-dropout)",
    )
    fit.add_argument("--micro-batches", type=int, default=1, metavar="N")
    fit.add_argument(
        "--average", type=int, default=10, metavar="N", help="epochs to average"
    )
    fit.add_argument(
        "--bleu-every", type=int, default=1, metavar="EPOCHS", help="validation BLEU"
    )
    fit.add_argument("--save-every", type=int, default=500, metavar="BATCHES")
    fit.add_argument("--seed", type=int, default=1, metavar="N")
    fit.add_argument("--verbose", type=int, choices=(0, 1, 2), default=1)
    search = parser.add_argument_group("search")
    search.add_argument("--num-beams", type=int, default=5, metavar="N")
    return parser.parse_args(arguments)


def load_or_train_tokenizer(
    options: argparse.Namespace, path: pathlib.Path
) -> Tokenizer:
    """Learns a joint vocabulary from the training set alone; keeps it."""
    if path.exists():
        return Tokenizer.load(path)
    tokenizer = SentencePieceTokenizer.train(
        options.train,
        vocabulary_size=options.vocabulary_size,
        lowercase=options.lowercase,
    )
    tokenizer.save(path)
    return tokenizer


def make_dataset(
    files: list[str], tokenizer: Tokenizer, options: argparse.Namespace, **further: Any
) -> ParallelDataset:
    """Makes batches of two files, or of one with two columns."""
    source, target = (*files, None)[:2]
    return parallel_dataset(
        source,
        target,
        source_tokenizer=tokenizer,
        target_tokenizer=tokenizer,
        tokens_per_batch=options.tokens_per_batch,
        max_source_length=options.max_length,
        max_target_length=options.max_length,
        seed=options.seed,
        **further,
    )


def read_columns(files: list[str]) -> tuple[list[str], list[str]]:
    """Reads the sources and the targets of a test set."""
    source, target = (*files, None)[:2]
    sources, targets = zip(*read_pairs(source, target), strict=True)
    return list(sources), list(targets)


def build_model(
    tokenizer: Tokenizer, options: argparse.Namespace, batches_per_epoch: int
) -> Seq2Seq:
    """Builds and compiles the model."""
    model = Seq2Seq.from_preset(
        options.preset,
        source_tokenizer=tokenizer,
        normalize_first=True,
        dropout=options.dropout,
        max_source_length=options.max_length,
        max_target_length=options.max_length,
    )
    schedule = WarmupInverseSquareRoot(
        options.learning_rate,
        options.warmup_steps,
        total_steps=options.epochs * batches_per_epoch,
        cooldown_steps=min(options.cooldown, options.epochs) * batches_per_epoch,
    )
    model.compile(
        optimizer=keras.optimizers.Adam(schedule, beta_2=0.98, epsilon=1e-9),
        loss=LabelSmoothedCrossEntropy(options.label_smoothing),
        metrics=[MaskedTokenAccuracy(), Perplexity()],
        micro_batches=options.micro_batches,
        consistency=options.consistency,
    )
    return model


def train_model(
    model: Seq2Seq,
    train: ParallelDataset,
    valid: ParallelDataset,
    options: argparse.Namespace,
    output: pathlib.Path,
) -> None:
    """Trains; leaves the model with the mean weights of its last epochs."""
    checkpoints = output / "checkpoints"
    model.fit(
        train.dataset,
        validation_data=valid.dataset,
        epochs=options.epochs,
        shuffle=False,  # the dataset shuffles itself
        verbose=options.verbose,
        callbacks=[
            NonFiniteLoss(data=train, folder=output),
            TranslationQuality(
                *read_columns(options.valid),
                search=GreedySearch(),
                every=options.bleu_every,
                lowercase=options.lowercase,
            ),
            TrainingProgress(train.tokens_per_epoch),
            keras.callbacks.CSVLogger(output / "history.csv", append=True),
            Checkpoints(
                checkpoints, train, save_every=options.save_every, keep=options.average
            ),
        ],
    )
    averaged = average_checkpoints(model, checkpoints, last=options.average)
    print(f"the model is the mean of {len(averaged)} checkpoints")


def choose_search(model: Seq2Seq, options: argparse.Namespace) -> BeamSearch:
    """Picks the length penalty with the highest BLEU on the validation set."""
    sources, references = read_columns(options.valid)
    scores = {}
    for penalty in LENGTH_PENALTIES:
        outputs = model.generate(sources, BeamSearch(options.num_beams, penalty))
        scores[penalty] = bleu(outputs, references, lowercase=options.lowercase).score
    best = max(scores, key=lambda penalty: scores[penalty])
    print("validation BLEU by length penalty:", json.dumps(scores))
    return BeamSearch(options.num_beams, best)


def next_version(folder: pathlib.Path) -> pathlib.Path:
    """Names the next free version of a SavedModel."""
    versions = [int(path.name) for path in folder.glob("[0-9]*")]
    return folder / str(max(versions, default=0) + 1)


if __name__ == "__main__":
    main()
