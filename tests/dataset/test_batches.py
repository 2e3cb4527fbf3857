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
    return [batch for _, batch in stream.epoch()]


def test_epochs_divide_the_stream():
    stream = make_stream()
    found = [batch for _ in range(9) for batch in read(stream)]
    assert len(found) == 45
    expected = [(w, n) for w in range(30) for n in range(SIZES[w % len(SIZES)])]
    assert found == expected[:45]


def test_next_epoch_loads_again_only_the_window_in_which_it_starts():
    stream = make_stream()
    for _ in range(9):
        read(stream)
    assert all(stream.loaded.count(number) <= 4 for number in stream.loaded)
    assert stream.loaded == sorted(stream.loaded)


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
    for state in states[:25]:
        other = make_stream(aligned=aligned)
        other.restore(state)
        assert other.state(state["batch"]) == state
        assert read(other) == epochs[state["epoch"]][state["batch"] :]
        assert other.loaded[0] >= state.get("window", state["epoch"])
        assert read(other) == epochs[state["epoch"] + 1]


@pytest.mark.parametrize("aligned", [False, True])
def test_start_at_any_epoch(aligned):
    stream = make_stream(aligned=aligned)
    epochs = [read(stream) for _ in range(7)]
    for number in (5, 2, 6, 0):
        for found in (stream, make_stream(aligned=aligned)):
            found.restore({"epoch": number, "batch": 3})
            assert read(found) == epochs[number][3:]


def test_an_unfinished_epoch_counts_as_an_epoch():
    stream = make_stream()
    epochs = [read(stream) for _ in range(3)]
    stream = make_stream()
    next(stream.epoch())
    assert read(stream) == epochs[1]


def test_state_during_an_epoch():
    stream = make_stream()
    read(stream)
    running = stream.epoch()
    for _ in range(3):
        next(running)
    assert stream.state(3)["epoch"] == 1
    assert stream.state(5) | {"window": 0, "offset": 0} == {
        "epoch": 2,
        "batch": 0,
        "window": 0,
        "offset": 0,
    }
    found = make_stream()
    found.restore(stream.state(3))
    assert read(found) == [batch for _, batch in running]


def test_batch_at_a_position():
    stream = make_stream()
    epochs = [read(stream), read(stream)]
    state = stream.state(4)
    assert stream.at(state)[1] == epochs[1][4]
    assert stream.state(0)["epoch"] == 1
    assert read(stream) == read_epoch(2)


def read_epoch(number):
    stream = make_stream()
    return [read(stream) for _ in range(number + 1)][-1]


def test_a_stream_of_empty_windows_is_an_error():
    stream = BatchStream(
        lambda number: PairWindow(number, [number] * (number < 2)), 5, False
    )
    epoch = stream.epoch()
    assert [next(epoch)[1], next(epoch)[1]] == [0, 1]
    with pytest.raises(ValueError, match="1000 consecutive windows, from number 3 on"):
        next(epoch)
