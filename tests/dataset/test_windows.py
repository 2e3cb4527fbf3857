import threading

import pytest

from keras_transformer.dataset.windows import Ahead

pytestmark = pytest.mark.once


def test_loads_the_next_window_in_the_background():
    loaded = []
    begun = threading.Event()

    def load(number):
        loaded.append((number, threading.get_ident()))
        if number == 4:
            begun.set()
        return f"window {number}"

    ahead = Ahead(load)
    assert ahead.load(3) == "window 3"
    assert begun.wait(10)
    assert ahead.load(4) == "window 4"
    assert ahead.load(4) == "window 4"
    assert ahead.load(11) == "window 11"
    assert ahead.load(11) == "window 11"
    numbers, threads = zip(*loaded, strict=True)
    assert [numbers.count(n) for n in (3, 4, 11)] == [1, 1, 1]
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()


def test_errors_arrive():
    def load(number):
        raise ValueError(f"no window {number}")

    with pytest.raises(ValueError, match="no window 3"):
        Ahead(load).load(3)


def test_what_failed_is_tried_again():
    """As a disk may be out of reach for a moment."""
    asked = []

    def load(number):
        asked.append(number)
        if asked == [3]:
            raise OSError("not now")
        return f"window {number}"

    ahead = Ahead(load)
    with pytest.raises(OSError, match="not now"):
        ahead.load(3)
    assert ahead.load(3) == "window 3"
    assert ahead.load(4) == "window 4"
    assert asked.count(3) == 2 and asked.count(4) == 1
