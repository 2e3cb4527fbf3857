"""The stream of batches and its positions."""

import json

import pytest

from keras_transformer.dataset.batches import BatchStream
from keras_transformer.dataset.windows import PairWindow

pytestmark = pytest.mark.once("torch")

SIZES = [3, 0, 1, 11, 2]  # Numbers of batches of the windows, repeated.


def make_stream(batches_per_epoch=5, aligned=False):
    loaded = []

    def load(number):
        loaded.append(number)
        if aligned:
            return PairWindow(number, [(number, n) for n in range(batches_per_epoch)])
        return PairWindow(
            number, [(number, n) for n in range(SIZES[number % len(SIZES)])]
        )

    stream = BatchStream(load, batches_per_epoch, aligned)
    stream.loaded = loaded
    return stream


def read(stream):
    return [window.batches[index] for window, index in stream.epoch()]


@pytest.mark.parametrize("aligned", [False, True])
def test_restore_from_every_position(aligned):
    stream = make_stream(aligned=aligned)
    epochs, states = [], []
    for _ in range(6):
        epochs.append(read(stream))
        states += [json.loads(json.dumps(stream.state(n))) for n in range(5)]
    assert [(s["epoch"], s["batch"]) for s in states] == [
        (epoch, batch) for epoch in range(6) for batch in range(5)
    ]
    sizes = [5] * 30 if aligned else SIZES * 6
    every = [(window, n) for window, size in enumerate(sizes) for n in range(size)]
    assert [batch for epoch in epochs for batch in epoch] == every[:30]
    for state in states[:25]:
        other = make_stream(aligned=aligned)
        other.restore(state)
        assert other.state(state["batch"]) == state
        assert read(other) == epochs[state["epoch"]][state["batch"] :]
        assert other.loaded[0] >= state.get("window", state["epoch"])
        assert read(other) == epochs[state["epoch"] + 1]


def test_an_unfinished_epoch_counts_as_an_epoch():
    stream = make_stream()
    epochs = [read(stream) for _ in range(3)]
    stream = make_stream()
    next(stream.epoch())
    assert read(stream) == epochs[1]


def test_a_stream_of_empty_windows_is_an_error():
    stream = BatchStream(
        lambda number: PairWindow(number, [number] * (number < 2)), 5, False
    )
    epoch = stream.epoch()
    assert [next(epoch)[0].pairs, next(epoch)[0].pairs] == [0, 1]
    with pytest.raises(ValueError, match="1000 consecutive windows, from number 3 on"):
        next(epoch)
