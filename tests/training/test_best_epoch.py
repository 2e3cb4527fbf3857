"""The best epoch, and the list of checkpoints."""

import math
import resource

import keras
import numpy as np
import pytest
from small_run import make_data, make_model

from keras_transformer import (
    Checkpoints,
    average_checkpoints,
    list_checkpoints,
    load_checkpoint,
)
from keras_transformer.evaluation import METRICS
from keras_transformer.training.checkpoints.best_epoch import BestEpoch

pytestmark = pytest.mark.once("torch")

BLEU = (10.0, 30.0, math.nan, 20.0, 30.0)


class Scores(keras.callbacks.Callback):
    """Logs a score and stores the weights of each epoch."""

    def __init__(self, scores=BLEU, name="val_bleu"):
        super().__init__()
        self.scores, self.name = scores, name
        self.weights = {}

    def on_epoch_end(self, epoch, logs=None):
        if self.scores[epoch] is not None:
            logs[self.name] = self.scores[epoch]
        self.weights[epoch + 1] = self.model.get_weights()


def fit(folder, scores, epochs=5, model=None, **options):
    data = make_data()
    settings = {"monitor": "val_bleu", "keep": 1, **options}
    model = model or make_model()
    model.fit(
        data.dataset,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=[scores, Checkpoints(folder, data, **settings)],
    )
    return model


def assert_best(folder, epoch, weights):
    model = make_model()
    best = load_checkpoint(model, folder / "best.npz")
    assert (best.epoch, best.batch, best.is_best) == (epoch, None, True)
    for a, b in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(a, b)
    return best


def test_the_weights_of_the_best_epoch_are_kept(tmp_path):
    scores = Scores()
    model = fit(tmp_path, scores)
    best = assert_best(tmp_path, 2, scores.weights[2])
    assert best.logs["val_bleu"] == 30.0
    names = {path.name for path in tmp_path.glob("*.npz")}
    assert names == {"best.npz", "epoch-0004.npz", "epoch-0005.npz"}
    history = model.history.history
    listed = list_checkpoints(tmp_path)
    assert [(each.epoch, each.batch) for each in listed] == [
        *((2, None), (4, None), (5, None))
    ]
    for each in listed:
        np.testing.assert_allclose(each.logs["loss"], history["loss"][each.epoch - 1])
    assert max(listed, key=lambda each: each.logs["val_bleu"]) == best
    last = load_checkpoint(make_model(), listed[-1].path)
    assert last == listed[-1]
    averaged = average_checkpoints(make_model(), tmp_path, last=2)
    assert [path.name for path in averaged] == ["epoch-0005.npz", "epoch-0004.npz"]


def test_the_best_epoch_after_a_resume(tmp_path):
    before, after = Scores(), Scores()
    fit(tmp_path, before, epochs=2)
    fit(tmp_path, after)
    assert after.weights.keys() == {3, 4, 5}
    assert_best(tmp_path, 2, before.weights[2])
    better = Scores((*BLEU, 31.0))
    fit(tmp_path, better, epochs=6)
    assert_best(tmp_path, 6, better.weights[6])


def test_the_lowest_loss(tmp_path):
    scores = Scores((3.0, 1.0, 2.0), "val_loss")
    fit(tmp_path, scores, epochs=3, monitor="val_loss")
    assert_best(tmp_path, 2, scores.weights[2])


def test_a_run_that_ends_between_the_best_weights_and_the_checkpoint(tmp_path):
    before = Scores()
    fit(tmp_path, before, epochs=2, save_every=3)
    (tmp_path / "epoch-0002.npz").unlink()
    fit(tmp_path, Scores((5.0, 5.0, 5.0)), epochs=3)
    assert_best(tmp_path, 2, before.weights[2])


def test_a_best_epoch_that_cannot_be_written(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    class FullDisk(Scores):
        """Limits the size of files at the end of the second epoch."""

        def on_epoch_begin(self, epoch, logs=None):
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

        def on_epoch_end(self, epoch, logs=None):
            super().on_epoch_end(epoch, logs)
            if epoch == 1:
                resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))

    scores = FullDisk((10.0, 30.0, 20.0))
    with pytest.warns(UserWarning) as warned:
        fit(tmp_path, scores, epochs=3)
    messages = " ".join(str(each.message) for each in warned)
    for name in ("best", "epoch-0002"):
        assert messages.count(f"{name}.npz is not saved: ") == 1
    assert_best(tmp_path, 3, scores.weights[3])


def test_a_best_epoch_of_another_run_or_that_is_damaged(tmp_path):
    fit(tmp_path, Scores((99.0,)), epochs=1)
    (tmp_path / "epoch-0001.npz").unlink()
    scores = Scores((1.0, 0.5))
    fit(tmp_path, scores, epochs=1)
    assert_best(tmp_path, 1, scores.weights[1])
    (tmp_path / "best.npz").write_bytes(b"PK")
    with pytest.warns(UserWarning, match="skipped: .*best.npz is damaged"):
        fit(tmp_path, scores, epochs=2)
    assert_best(tmp_path, 2, scores.weights[2])


def test_a_log_that_is_missing_is_a_warning(tmp_path):
    match = "`monitor='val_bleu'` must be one of the logs .* epoch 1 has loss, perp"
    with pytest.warns(UserWarning, match=match) as warnings:
        fit(tmp_path, Scores((None, None, 7.0)), epochs=3)
    assert sum("monitor" in str(each.message) for each in warnings) == 1
    assert load_checkpoint(make_model(), tmp_path / "best.npz").epoch == 3


@pytest.mark.filterwarnings("ignore:The loss is NaN or infinite")
def test_weights_that_are_not_finite_are_not_the_best(tmp_path):
    model = make_model(keras.optimizers.SGD(float("inf")))
    with pytest.warns(UserWarning, match="epoch-0001.npz is not saved, as we"):
        fit(tmp_path, Scores(), epochs=1, model=model)
    assert not [*tmp_path.glob("*.npz")]


def test_checkpoints_within_epochs_are_listed(tmp_path):
    fit(tmp_path, Scores(), epochs=1, monitor=None, save_every=4)
    (tmp_path / "epoch-0002.npz").write_bytes(b"PK")
    (tmp_path / "epoch-0002-after-batch-000003.npz").write_bytes(
        (tmp_path / "epoch-0001.npz").read_bytes()
    )
    with pytest.warns(UserWarning, match="damaged") as warnings:
        listed = list_checkpoints(tmp_path)
    assert sum("damaged" in str(each.message) for each in warnings) == 2
    within, end = listed
    assert (within.epoch, within.batch, within.logs) == (1, 4, {})
    assert within.path.name == "epoch-0001-after-batch-000004.npz"
    assert (end.epoch, end.batch) == (1, None)
    assert end.logs.keys() == {"loss", "perplexity", "val_bleu"}
    assert list_checkpoints(tmp_path / "none") == []


def test_files_that_cannot_be_loaded(tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    with pytest.raises(FileNotFoundError, match=r"best.npz'`, which does not exist. `"):
        load_checkpoint(model, tmp_path / "best.npz")
    fit(tmp_path, Scores(), epochs=1)
    with pytest.raises(ValueError, match=r"of the same model .* \(12, 6\) in place of"):
        load_checkpoint(model, tmp_path / "best.npz")
    (tmp_path / "best.npz").write_bytes(b"PK")
    with pytest.raises(OSError, match="best.npz is damaged"):
        load_checkpoint(model, tmp_path / "best.npz")


@pytest.mark.parametrize(
    "monitor, mode, best",
    [
        ("loss", "auto", 0),
        ("val_loss", "auto", 0),
        ("val_perplexity", "auto", 0),
        ("val_mean_squared_error", "auto", 0),
        ("val_accuracy", "auto", 2),
        ("val_masked_token_accuracy", "auto", 2),
        *((f"val_{n}", "auto", 0 if m.is_error else 2) for n, m in METRICS.items()),
        ("val_bleu", "min", 0),
        ("val_loss", "max", 2),
        ("seconds", "max", 2),
    ],
)
def test_modes(monitor, mode, best):
    epoch, values = BestEpoch(monitor, mode), [-1.0, 2.0, 7.0, math.nan]
    for value in (*values, *reversed(values)):
        if epoch.is_better({monitor: value}):
            epoch.set({monitor: value})
            found = value
    assert found == values[best]


@pytest.mark.parametrize(
    "arguments, match",
    [
        ({"monitor": "val_bleu", "mode": "up"}, "`mode` must be 'auto', 'min' or 'max"),
        ({"monitor": "seconds"}, "`mode` must be 'min' or 'max' .*`monitor='seconds'`"),
        ({"monitor": 3}, "`monitor` must be the name of a log; .*`monitor=3`"),
    ],
)
def test_invalid_arguments(arguments, match):
    with pytest.raises(ValueError, match=match):
        Checkpoints("runs", **arguments)
