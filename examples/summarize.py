"""Summarizes texts: the body of a docstring to its first line.

A `Seq2Seq` reads the body of a docstring in an installed library, and writes the line
above it, as a headline is written above an article. It takes about 4 minutes on two
cores:

    python examples/summarize.py

A twentieth of the docstrings is not trained on. ROUGE measures how many words
(ROUGE-1), pairs of words (ROUGE-2) and words in order (ROUGE-L) an output shares with
the first line. It is also printed for the first sentence of the body, a common
baseline. A small model that learns for minutes writes lines in the right style, but
many of them are about something else.
"""

import argparse
import ast
import importlib
import pathlib
import re

import keras
import numpy as np
from rouge_score.rouge_scorer import RougeScorer

import keras_transformer as kt

LIBRARIES = ("keras", "matplotlib", "numpy", "pandas", "scipy", "sklearn")
LONGEST = 60  # words of a body; the rest is cut off
METRICS = ("rouge1", "rouge2", "rougeL")


def main(arguments: list[str] | None = None) -> float:
    """Runs the example and returns ROUGE-L of the model in percent."""
    options = parse_arguments(arguments)
    keras.utils.set_random_seed(options.seed)
    pairs = read_docstrings()
    order = np.random.default_rng(options.seed).permutation(len(pairs))
    pairs = [pairs[i] for i in order[: options.limit]]
    end = len(pairs) // 20
    train, test = pairs[end:], pairs[:end]
    print(f"{len(train):,} training texts, {len(test):,} test texts")

    tokenizer = kt.SentencePieceTokenizer.train(
        lines=[text for pair in train for text in pair],
        vocabulary_size=options.vocabulary_size,
    )
    data = kt.parallel_dataset(
        pairs=train,
        source_tokenizer=tokenizer,
        target_tokenizer=tokenizer,
        tokens_per_batch=4096,
        seed=options.seed,
    )
    model = kt.Seq2Seq(
        num_layers=2,
        hidden_dim=128,
        intermediate_dim=256,
        num_heads=4,
        dropout=0.1,
        tie_embeddings="all",
        source_tokenizer=tokenizer,
        target_tokenizer=tokenizer,
    )
    print(data)
    updates = options.epochs * data.batches_per_epoch
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, updates, warmup_target=3e-3, warmup_steps=updates // 20
    )
    model.compile(keras.optimizers.Adam(schedule), kt.LabelSmoothedCrossEntropy(0.1))
    model.fit(
        data.dataset,
        epochs=options.epochs,
        shuffle=False,
        callbacks=[kt.TrainingProgress(data.tokens_per_epoch)],
    )

    bodies, headlines = (list(texts) for texts in zip(*test, strict=True))
    written = model.generate(bodies, kt.BeamSearch(), max_length=40)
    for body, headline, text in list(zip(bodies, headlines, written, strict=True))[:5]:
        print(f"  {body[:76]}\n    model:   {text}\n    correct: {headline}")
    first = [re.split(r"(?<=[.:;]) ", body)[0] for body in bodies]
    print_rouge("first sentence", first, headlines)
    return print_rouge("model", written, headlines)


def print_rouge(name: str, outputs: list[str], headlines: list[str]) -> float:
    """Prints the mean F-scores of outputs, and returns that of ROUGE-L."""
    scorer = RougeScorer(METRICS, use_stemmer=True)
    scores = [
        [score.fmeasure for score in scorer.score(headline, output).values()]
        for headline, output in zip(headlines, outputs, strict=True)
    ]
    means = 100 * np.mean(scores, axis=0)
    print(f"ROUGE-1, -2, -L of the {name}: " + ", ".join(f"{x:.2f}" for x in means))
    return float(means[-1])


def read_docstrings() -> list[tuple[str, str]]:
    """Returns pairs of the body and the first line of docstrings, each body once."""
    pairs = {}
    for library in LIBRARIES:
        (folder,) = importlib.import_module(library).__path__
        for path in sorted(pathlib.Path(folder).rglob("*.py")):
            if re.search(r"\btests?\b|_test\b", str(path.relative_to(folder))):
                continue
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    text = ast.get_docstring(node) or ""
                    headline, _, body = text.partition("\n\n")
                    words = body.split()[:LONGEST]
                    if "\n" not in headline and len(words) >= 10:
                        pairs[" ".join(words)] = headline
    return list(pairs.items())


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=10, help="number of epochs")
    parser.add_argument("--limit", type=int, help="number of docstrings")
    parser.add_argument("--vocabulary-size", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
