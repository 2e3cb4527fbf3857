"""Tables and curves of the results."""

import math
import statistics
from typing import Any

import numpy as np

from ablation_models.rows import ABLATIONS, ARCHITECTURES

Figures = dict[str, Any]
Curve = tuple[list[float], list[float]]  # processor seconds, perplexities

COLUMNS = [
    "row",
    "parameters",
    "loss",
    "perplexity",
    "accuracy",
    "BLEU",
    "s per epoch",
    "processor s per epoch",
]


def print_ablations(figures: dict[str, Figures]) -> None:
    names = [row.name for row in ABLATIONS if row.name in figures]
    print_table(COLUMNS, [[name, *cells(figures[name])] for name in names])


def print_architectures(figures: dict[str, Figures], perplexity: float | None) -> None:
    """Prints the table with the time to a perplexity, by default one that all reach."""
    lowest = [min(perplexities(row)) for row in best_rows(figures).values()]
    goal = perplexity or max(filter(math.isfinite, lowest), default=1.0)
    names = [row.name for rows in ARCHITECTURES.values() for row in rows]
    print_table(
        [*COLUMNS, f"processor s to perplexity {goal:.2f}"],
        [
            [name, *cells(figures[name]), seconds_to(goal, figures[name])]
            for name in names
            if name in figures
        ],
    )


def print_table(columns: list[str], rows: list[list[str]]) -> None:
    if rows:
        print()
        for line in columns, ["---"] * len(columns), *rows:
            print("|", " | ".join(line), "|")


def cells(row: Figures) -> list[str]:
    history = row["history"]
    times = [f"{median(row, name):,.0f}" for name in ("seconds", "processor_seconds")]
    if row["bleu"] is None:
        quality = ["diverged", "", "", ""]
    else:
        perplexity = history["val_perplexity"][-1]
        accuracy = history["val_token_accuracy"][-1]
        quality = [f"{math.log(perplexity):.3f}", f"{perplexity:.2f}"]
        quality += [f"{accuracy:.1%}", f"{row['bleu']:.1f}"]
    return [f"{row['parameters']:,}", *quality, *times]


def median(row: Figures, name: str) -> float:
    return statistics.median(row["history"][name])


def perplexities(row: Figures) -> list[float]:
    """Returns the perplexity of each epoch, infinite after divergence."""
    values = row["history"]["val_perplexity"]
    return [math.inf if value is None else value for value in values]


def curve(row: Figures) -> Curve:
    """Returns processor seconds and perplexity at the end of each epoch."""
    epochs = np.arange(1, len(perplexities(row)) + 1)
    return (epochs * median(row, "processor_seconds")).tolist(), perplexities(row)


def seconds_to(perplexity: float, row: Figures) -> str:
    seconds, reached = curve(row)
    lowest = np.minimum.accumulate(reached)
    if lowest[-1] > perplexity:
        return "never"
    between = np.interp(-math.log(perplexity), -np.log(lowest), seconds)
    return f"{between:,.0f}"


def best_rows(figures: dict[str, Figures]) -> dict[str, Figures]:
    """Returns the row of each architecture with the lowest perplexity."""
    found = {
        architecture: [figures[row.name] for row in rows if row.name in figures]
        for architecture, rows in ARCHITECTURES.items()
    }
    return {
        architecture: min(rows, key=lambda row: min(perplexities(row)))
        for architecture, rows in found.items()
        if rows
    }
