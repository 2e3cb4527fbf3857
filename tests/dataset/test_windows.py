import threading

import pytest

from keras_transformer.dataset.windows import Prefetcher

pytestmark = pytest.mark.once("torch")


def test_prefetcher_loads_the_next_window_in_the_background():
    loaded = []
    started = threading.Event()

    def load(number):
        loaded.append((number, threading.get_ident()))
        if number == 4:
            started.set()
        return f"window {number}"

    prefetcher = Prefetcher(load)
    assert prefetcher.load(3) == "window 3"
    assert started.wait(10)
    assert prefetcher.load(4) == "window 4"
    assert prefetcher.load(4) == "window 4"
    assert prefetcher.load(11) == "window 11"
    assert prefetcher.load(11) == "window 11"
    numbers, threads = zip(*loaded, strict=True)
    assert [numbers.count(n) for n in (3, 4, 11)] == [1, 1, 1]
    assert len(set(threads)) == 1
    assert threads[0] != threading.get_ident()


def test_prefetcher_raises_the_error_of_the_loading():
    def load(number):
        raise ValueError(f"no window {number}")

    with pytest.raises(ValueError, match="no window 3"):
        Prefetcher(load).load(3)


def test_prefetcher_loads_again_after_an_error():
    """For example, a network disk is not available for a moment."""
    requested = []

    def load(number):
        requested.append(number)
        if requested == [3]:
            raise OSError("not now")
        return f"window {number}"

    prefetcher = Prefetcher(load)
    with pytest.raises(OSError, match="not now"):
        prefetcher.load(3)
    assert prefetcher.load(3) == "window 3"
    assert prefetcher.load(4) == "window 4"
    assert requested.count(3) == 2 and requested.count(4) == 1
