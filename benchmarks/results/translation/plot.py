"""Draws curves.png, beside this script, from the histories of the five-text runs.

python benchmarks/results/translation/plot.py
"""

import pathlib

import pandas as pd
import seaborn as sns
from matplotlib import pyplot as plt

FOLDER = pathlib.Path(__file__).parent


def main():
    runs = [
        pd.read_csv(FOLDER / f"seed-{seed}.csv").assign(seed=seed) for seed in (1, 2)
    ]
    rows = pd.concat(runs).assign(epoch=lambda rows: rows["epoch"] + 1)
    figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
    for axis, name in zip(axes, ("val_perplexity", "val_bleu"), strict=True):
        known = rows.dropna(subset=[name])
        options = {"hue": "seed", "palette": "deep", "marker": "o"}
        sns.lineplot(known, x="epoch", y=name, ax=axis, **options)
    figure.savefig(FOLDER / "curves.png")


if __name__ == "__main__":
    main()
