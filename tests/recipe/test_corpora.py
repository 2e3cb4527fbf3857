"""Runs on several corpora with weights, in files of several forms."""

import csv
import json
import random

import keras
import numpy as np
import pytest

from keras_transformer.recipe import Recipe, read_options, train
from keras_transformer.recipe.preparation import prepare
from keras_transformer.recipe.stages import fit
from keras_transformer_runtime.display import Display

pytestmark = pytest.mark.once("torch")

OPTIONS = {
    **{"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 16, "num_heads": 2},
    **{"tokenizer": "characters", "tokens_per_batch": 256, "warmup_steps": 5},
    **{"learning_rate": 0.01, "dropout": 0.1, "epochs": 2, "cooldown": 0},
    **{"average": 1, "export": False, "verbose": 0, "save_every": 2, "valid": 0.1},
}
KINDS = {
    # The loss chooses the epoch: the texts of an untrained model are nearly ties.
    "seq2seq": {
        **{"num_beams": 1, "max_length": 30, "metric": "loss"},
        "columns": ["x.en", "de"],
    },
    "pairs": {"model": "causal", "documents": "pairs", "columns": ["x.en", "de"]},
    "text": {"model": "causal", "columns": ["x.en"], "length": 16},
}


def pairs(count, seed):
    choose = random.Random(seed)
    words = ["ka", "lo", "mi", "nu", "pé", "so"]
    texts = [" ".join(choose.choices(words, k=4)) for _ in range(count)]
    return [(text, text[::-1].upper()) for text in texts]


@pytest.fixture(params=KINDS)
def options(request, tmp_path):
    """The options of a run on three corpora with weights."""
    lines = [json.dumps({"x": {"en": s}, "de": f"{t}\n"}) for s, t in pairs(150, 0)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines), "utf-8")
    with open(tmp_path / "b.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "de", "x.en"])
        writer.writerows([n, t, s] for n, (s, t) in enumerate(pairs(40, 1)))
    for side, ending in enumerate(("en", "de")):
        text = "".join(f"{pair[side]}\n" for pair in pairs(30, 2))
        (tmp_path / f"c.{ending}").write_text(text, "utf-8")
    plain = ["c.en"] if request.param == "text" else ["c.en", "c.de"]
    files = [f"{tmp_path}/{name}" for name in ("a.jsonl:1", "b.csv:2", *plain)]
    return {"train": files, **OPTIONS, **KINDS[request.param]}


class StopAt(keras.callbacks.Callback):
    """Stops a run within its first epoch."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            raise KeyboardInterrupt


class Stopping:
    """The evaluator of a run that is stopped."""

    def __init__(self, evaluator):
        self._evaluator = evaluator

    def __getattr__(self, name):
        return getattr(self._evaluator, name)

    def callbacks(self):
        return [*self._evaluator.callbacks(), StopAt()]


def test_a_run_that_was_stopped_within_an_epoch_is_resumed(options, tmp_path):
    recipes = [Recipe(**options, output=str(tmp_path / name)) for name in "ab"]
    straight = train(recipes[0])
    run = prepare(recipes[1], Display(0))
    assert len(run.data.train.dataset) > 3
    with pytest.raises(KeyboardInterrupt):
        fit(run._replace(evaluator=Stopping(run.evaluator)), Display(0))
    resumed = train(recipes[1])
    for ours, expected in zip(
        resumed.model.weights, straight.model.weights, strict=True
    ):
        # Softmax cancels the bias of keys. Its gradient is a rounding error, which Adam
        # scales to the size of the learning rate.
        if not ours.path.endswith("key/bias"):
            ours, expected = map(keras.ops.convert_to_numpy, (ours, expected))
            np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-6)
    losses = []
    for name in "ab":
        with (tmp_path / name / "history.csv").open() as file:
            rows = [*csv.DictReader(file)]
        losses.append([[float(row["loss"]), float(row["val_loss"])] for row in rows])
    assert len(losses[0]) == 2
    np.testing.assert_allclose(*losses, rtol=1e-6)
    written = read_options(tmp_path / "a/options.toml")
    assert written["train"] == options["train"]
    checksums = json.loads((tmp_path / "a/checksums.json").read_text())
    assert {*checksums} == {file.split(":")[0] for file in options["train"]}
    with pytest.raises(ValueError, match="`train` must be that of the run to resume"):
        changed = [file.replace(":2", ":3") for file in options["train"]]
        train(Recipe(**{**options, "train": changed}, output=str(tmp_path / "b")))
