"""The output of a run."""

import io
import math
import re

import numpy as np
import pytest

from keras_transformer import Seq2Seq
from keras_transformer.dataset.buckets import BatchShape
from keras_transformer.recipe import Recipe, progress
from keras_transformer.recipe.answering import AnsweringTask
from keras_transformer.recipe.plan import Plan
from keras_transformer.recipe.progress import (
    EpochReport,
    Reporter,
    expected_seconds,
    format_seconds,
)
from keras_transformer.recipe.translation import TranslationTask

pytestmark = pytest.mark.once("torch")


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    """Each call is later by `step` seconds."""

    def __init__(self, step):
        self.now, self.step = 0.0, step

    def monotonic(self):
        self.now += self.step
        return self.now


@pytest.mark.parametrize(
    "seconds, text",
    [
        *((0, "0.0 s"), (3.21, "3.2 s"), (9.96, "10 s"), (99.4, "99 s")),
        *((99.5, "2 min"), (3569, "59 min"), (3600, "1 h 0 min"), (7530, "2 h 6 min")),
    ],
)
def test_durations(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize("is_terminal, verbose", [(True, 1), (False, 2)])
def test_a_progress_bar_requires_a_terminal(monkeypatch, is_terminal, verbose):
    stderr = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr(progress.sys, "stderr", stderr)
    assert Reporter(None).verbose == verbose
    assert Reporter(0).verbose == 0


def test_a_phase_prints_its_name_before_and_its_duration_after(monkeypatch, capsys):
    monkeypatch.setattr(progress, "time", Clock(2.5))
    with Reporter(2).phase("Reading the text"):
        assert capsys.readouterr().out == "Reading the text"
    assert capsys.readouterr().out == "  2.5 s\n"
    with pytest.raises(ZeroDivisionError), Reporter(2).phase("Dividing"):
        1 / 0  # noqa: B018
    assert capsys.readouterr().out == "Dividing\n"
    with Reporter(0).phase("Reading the text"):
        Reporter(0).print("a line")
    assert capsys.readouterr().out == ""


def report(verbose, metrics=("val_exact_match",), **params):
    callback = EpochReport(Reporter(verbose), metrics)
    callback.set_params({"steps": 3, "epochs": 12, "verbose": 0, **params})
    return callback


LOGS = {"loss": 1.23456, "tokens_per_second": 4321.9, "minutes_left": 12.4}


def test_a_line_for_each_epoch(monkeypatch, capsys):
    monkeypatch.setattr(progress, "time", Clock(75.0))
    callback = report(2)
    callback.on_epoch_begin(6)
    callback.on_train_batch_end(0, LOGS)
    further = {"val_loss": 2.0, "val_exact_match": 98.5, "val_bleu": float("nan")}
    callback.on_epoch_end(6, {**LOGS, **further})
    output = capsys.readouterr()
    assert output.err == ""
    assert output.out == (
        "Epoch 7/12  loss 1.235, valid loss 2, exact match 98.5, 75 s, 12 min left\n"
    )
    callback.on_epoch_begin(11)
    nan = {"val_exact_match": float("nan"), "minutes_left": 0.0}
    callback.on_epoch_end(11, {**LOGS, **nan})
    assert capsys.readouterr().out == "Epoch 12/12  loss 1.235, 75 s\n"


def test_the_bar_fits_80_columns(monkeypatch):
    stderr = Terminal()
    monkeypatch.setattr(progress.sys, "stderr", stderr)
    monkeypatch.setattr(progress.tqdm, "monitor_interval", 0)
    callback = report(1, steps=400, epochs=1000, first_batch=100)
    callback.on_epoch_begin(999)
    callback._bar.mininterval = 0
    for batch in range(400):
        callback.on_train_batch_end(batch, {**LOGS, "minutes_left": 1234.0})
    callback.on_test_begin()
    drawn = [line for line in re.split(r"[\r\n]", stderr.getvalue()) if line.strip()]
    assert all(len(line) <= 80 for line in drawn)
    assert any("loss 1.235, 4,322 tokens/s, 20 h 34 min left" in line for line in drawn)
    assert drawn[0].startswith("Epoch 1000/1000  20% |")
    assert "100% |" in drawn[-1] and "validation" in drawn[-1]


class Data:
    shapes = (BatchShape(8, 5, 7, 10), BatchShape(4, 11, 9, 3))


@pytest.mark.parametrize("cls, sides", [(TranslationTask, 2), (AnsweringTask, 1)])
def test_padded_tokens_of_a_weight(cls, sides):
    task = cls(Plan(Recipe(train=["a.tsv"], output="runs/a")), is_new=True)
    task._train_data = Data
    assert task.padded_tokens() == (10 * 8 * (5 + 7) + 3 * 4 * (11 + 9)) / sides


def test_the_expected_time_counts_products(monkeypatch):
    monkeypatch.setattr(progress, "_operations_per_second", lambda: 1e9)
    sizes = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 16, "num_heads": 2}
    model = Seq2Seq(**sizes, vocabulary_size=101)
    ids = np.ones((1, 2), "int32")
    model({"encoder_token_ids": ids, "decoder_token_ids": ids})
    tokens = 617
    parameters = sum(np.prod(weight.shape) for weight in model.trainable_weights)
    products = 3 * (parameters - 101 * 8 / 2) * tokens
    assert expected_seconds(model, tokens) == pytest.approx(2 * products / 0.4e9)


def test_the_speed_of_matrix_products():
    assert 0 < progress._operations_per_second() < math.inf
