"""Pretrains an encoder on texts without labels, as BERT, then learns from few labels.

A masked language model predicts the hidden 15 % of the tokens of a text from the rest.
Its encoder then learns a task from 300 texts with labels. An encoder with new weights
and a linear model learn from the same 300. It takes about 3 minutes on two cores:

    python examples/pretrain.py

The texts are the beginnings of docstrings. The task is to predict the library of each
docstring. A tenth of the texts is not trained on.
"""

import argparse
import ast
import collections
import importlib
import pathlib

import keras
import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

import keras_transformer as kt
from keras_transformer.layers import PositionalEncoding, ScaledEmbedding

LIBRARIES = ("keras", "matplotlib", "numpy", "pandas", "scipy", "sklearn")
LENGTH, WIDTH = 24, 96  # tokens of a text; of the vectors


def main(arguments: list[str] | None = None) -> float:
    """Runs the example and returns the accuracy after pretraining in percent."""
    options = parse_arguments(arguments)
    keras.utils.set_random_seed(options.seed)
    random = np.random.default_rng(options.seed)
    texts, labels = read_docstrings(random)
    test = len(texts) // 10
    tokenizer = kt.SentencePieceTokenizer.train(
        lines=texts[test:], vocabulary_size=options.vocabulary_size
    )
    ids = tokenizer.tokenize(texts).to_tensor(shape=(None, LENGTH)).numpy()
    texts = [text.decode() for text in tokenizer.detokenize(ids).numpy()]  # cut too
    print(f"{len(texts) - test:,} texts without labels, {test:,} test texts")
    # One more token than the tokenizer has: the mask.
    encoder = build_encoder(tokenizer.vocabulary_size + 1)
    pretrain(encoder, ids[test:], tokenizer.vocabulary_size, options)

    accuracies: dict[str, list[float]] = collections.defaultdict(list)
    for _ in range(options.draws):
        few = test + random.choice(len(texts) - test, options.labels, replace=False)
        linear = make_pipeline(
            TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 4), sublinear_tf=True),
            LogisticRegression(C=10.0, max_iter=1000),
        ).fit([texts[i] for i in few], labels[few])
        right = linear.predict(texts[:test]) == labels[:test]
        accuracies["linear model"].append(100 * right.mean())
        for name in ("from scratch", "pretrained"):
            start = build_encoder(tokenizer.vocabulary_size + 1)
            if name == "pretrained":
                start.set_weights(encoder.get_weights())
            model = fine_tune(start, ids[few], labels[few])
            logits = model.predict(ids[:test], batch_size=256, verbose=0)
            right = logits.argmax(axis=-1) == labels[:test]
            accuracies[name].append(100 * right.mean())
    means = {name: np.mean(values) for name, values in accuracies.items()}
    print(f"accuracy with {options.labels} labels, mean of {options.draws} draws:")
    print("".join(f"  {name}: {mean:.1f} %\n" for name, mean in means.items()), end="")
    return float(means["pretrained"])


def build_encoder(vocabulary_size: int) -> keras.Model:
    """Builds a model of token ids `(batch, length)` to vectors of the tokens."""
    token_ids = keras.Input((None,), dtype="int32")
    x = ScaledEmbedding(vocabulary_size, WIDTH, mask_zero=True)(token_ids)
    x = PositionalEncoding()(x)
    x = kt.EncoderStack(2, 2 * WIDTH, 4, dropout=0.1, normalize_first=True)(x)
    return keras.Model(token_ids, x)


def pretrain(
    encoder: keras.Model, ids: np.ndarray, mask: int, options: argparse.Namespace
) -> None:
    """Trains an encoder to predict tokens that are replaced by `mask`."""
    model = keras.Model(encoder.input, keras.layers.Dense(mask)(encoder.output))
    updates = options.epochs * -(-len(ids) // 64)
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, updates, warmup_target=3e-3, warmup_steps=updates // 20
    )
    # The loss ignores targets of padding, 0: here all tokens that are not hidden.
    model.compile(keras.optimizers.AdamW(schedule), kt.LabelSmoothedCrossEntropy(0.0))
    random = np.random.default_rng(options.seed)
    for epoch in range(options.epochs):
        hidden = (random.random(ids.shape) < 0.15) & (ids != 0)
        model.fit(
            np.where(hidden, mask, ids),
            np.where(hidden, ids, 0),
            batch_size=64,
            initial_epoch=epoch,
            epochs=epoch + 1,
            verbose=0,
            callbacks=[kt.TrainingProgress()],
        )


def fine_tune(
    encoder: keras.Model, ids: np.ndarray, labels: np.ndarray, epochs: int = 20
) -> keras.Model:
    """Trains a classifier that begins with the weights of an encoder."""
    x = keras.layers.GlobalAveragePooling1D()(encoder.output)
    model = keras.Model(encoder.input, keras.layers.Dense(len(LIBRARIES))(x))
    model.compile(
        keras.optimizers.AdamW(1e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    model.fit(ids, labels, batch_size=32, epochs=epochs, verbose=0)
    return model


def read_docstrings(random: np.random.Generator) -> tuple[list[str], np.ndarray]:
    """Returns the beginnings of docstrings, and the numbers of their libraries."""
    libraries = {}
    for number, library in enumerate(LIBRARIES):
        (folder,) = importlib.import_module(library).__path__
        for path in sorted(pathlib.Path(folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    text = " ".join((ast.get_docstring(node) or "").split()[:30])
                    if len(text) >= 20 and "test" not in path.stem:
                        libraries[text] = number
    pairs = list(libraries.items())
    pairs = [pairs[index] for index in random.permutation(len(pairs))]
    return [text for text, _ in pairs], np.array([number for _, number in pairs])


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=14, help="of pretraining")
    parser.add_argument("--labels", type=int, default=300, help="number of labels")
    parser.add_argument("--draws", type=int, default=3, help="of the texts with labels")
    parser.add_argument("--vocabulary-size", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
