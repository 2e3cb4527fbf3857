import pytest

from keras_transformer.dataset.windows import Prefetcher

pytestmark = pytest.mark.once("torch")


def test_prefetcher_loads_each_window_once_and_again_after_an_error():
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
    for number in (3, 4, 4, 11, 11):
        assert prefetcher.load(number) == f"window {number}"
    assert [requested.count(number) for number in (3, 4, 11)] == [2, 1, 1]
