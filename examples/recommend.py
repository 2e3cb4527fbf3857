"""Recommends the next item of a history, as SASRec does.

A history is what a person watched, bought or read, in order. A decoder-only Transformer
learns to predict each item from those before it. It takes about 2 minutes on two cores:

    python examples/recommend.py histories.txt

A line of the file is a history: names of items, separated by spaces. Without a file, a
history is what a function of an installed library calls, in order, so the model
recommends what a programmer might call next.

The last item of each history is not trained on. The hit rate is how often it is among
ten recommendations: the most popular items, those that most often follow the item
before, and those of the model.
"""

import argparse
import ast
import collections
import importlib
import pathlib
import re
from typing import Any

import keras
import numpy as np

import keras_transformer as kt

LIBRARIES = ("keras", "matplotlib", "numpy", "pandas", "scipy", "sklearn")
LONGEST = 32  # items of a history that the model reads
FIRST = 4  # The ids of the special tokens are 0 to 3.


def main(arguments: list[str] | None = None) -> float:
    """Runs the example and returns the hit rate of the model in percent."""
    options = parse_arguments(arguments)
    keras.utils.set_random_seed(options.seed)
    if options.file:
        lines = pathlib.Path(options.file).read_text("utf-8").splitlines()
        histories = [line.split() for line in lines]
    else:
        histories = read_calls()
    histories = keep_frequent(histories)
    items = sorted({item for history in histories for item in history})
    print(f"{len(histories):,} histories of {len(items):,} different items")
    ids = {item: FIRST + number for number, item in enumerate(items)}
    rows = [[ids[item] for item in history] for history in histories]
    train, test = [row[:-1] for row in rows], [row[-1] for row in rows]

    model = kt.CausalLM(
        num_layers=2,
        hidden_dim=64,
        intermediate_dim=128,
        num_heads=2,
        vocabulary_size=FIRST + len(items),
        dropout=0.2,
    )
    windows: Any = np.zeros((len(train), LONGEST + 1), "int32")
    for window, row in zip(windows, train, strict=True):
        window[: len(row)] = row[-LONGEST - 1 :]
    model.compile(keras.optimizers.AdamW(2e-3), kt.LabelSmoothedCrossEntropy(0.0))
    model.fit(
        windows[:, :-1],
        windows[:, 1:],
        batch_size=64,
        epochs=options.epochs,
        callbacks=[kt.TrainingProgress()],
    )

    # The ten best hypotheses of one token are the ten most probable items.
    search = kt.BeamSearch(num_beams=10, num_hypotheses=10)
    result = model.generate([row[-LONGEST:] for row in train], search, max_length=1)
    recommended = result.token_ids[:, :, 0]  # (histories, 10)
    names = ["–"] * FIRST + items
    for history, best in list(zip(histories, recommended, strict=True))[::2000]:
        three = ", ".join(names[item] for item in best[:3])
        print(f"  {' → '.join(history[-5:-1])} → {three}? (correct: {history[-1]})")
    popular, following = count_items(train)
    for name, lists in (
        ("most popular items", [popular] * len(test)),
        ("items that follow", following),
        ("model", recommended.tolist()),
    ):
        rate = hit_rate(lists, test)
        print(f"hit rate of the {name}: {rate:.2f} %")
    return rate


def hit_rate(recommended: list[list[int]], correct: list[int]) -> float:
    """Returns how often the correct item is among ten, in percent."""
    hits = [item in ten for ten, item in zip(recommended, correct, strict=True)]
    return 100 * float(np.mean(hits))


def count_items(rows: list[list[int]]) -> tuple[list[int], list[list[int]]]:
    """Returns the ten most popular items, and for each row ten that often follow."""
    counts = collections.Counter(item for row in rows for item in row)
    popular = [item for item, _ in counts.most_common(10)]
    after = {item: collections.Counter[int]() for item in counts}
    for row in rows:
        for item, following in zip(row, row[1:], strict=False):
            after[item][following] += 1
    best = ([item for item, _ in after[row[-1]].most_common(10)] for row in rows)
    # The most popular items fill up the lists.
    return popular, [list(dict.fromkeys(items + popular))[:10] for items in best]


def keep_frequent(histories: list[list[str]]) -> list[list[str]]:
    """Removes items that occur in fewer than 20 histories, then short histories."""
    counts = collections.Counter(item for h in histories for item in set(h))
    kept = ([item for item in h if counts[item] >= 20] for h in histories)
    return [history for history in kept if len(history) >= 5]


def read_calls() -> list[list[str]]:
    """Returns the names that each function of the libraries calls, in order."""
    histories: dict[tuple[str, ...], None] = {}  # Each of them once.
    for library in LIBRARIES:
        (folder,) = importlib.import_module(library).__path__
        for path in sorted(pathlib.Path(folder).rglob("*.py")):
            if not re.search(r"\btests?\b|_test\b", str(path.relative_to(folder))):
                for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                    if isinstance(node, ast.FunctionDef):
                        histories[tuple(called_names(node))] = None
    return [list(history) for history in histories]


def called_names(function: ast.FunctionDef) -> list[str]:
    """Returns the names that a function calls, in the order of the text."""
    calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
    named = [c for c in calls if isinstance(c, ast.Name | ast.Attribute)]
    named.sort(key=lambda name: (name.end_lineno, name.end_col_offset))
    return [c.id if isinstance(c, ast.Name) else c.attr for c in named]


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", help="a history in each line")
    parser.add_argument("--epochs", type=int, default=12, help="number of epochs")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
