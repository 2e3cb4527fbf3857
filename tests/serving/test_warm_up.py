"""The warm-up, with a replica that records its calls."""

import threading

import numpy as np
import pytest

from keras_transformer.export.saved_model.warmup import WarmupRequest
from keras_transformer.serving.warm_up import Progress, WarmUp

pytestmark = pytest.mark.once

LENGTHS = (8, 16)


class Replica:
    folder = "models/m/1"
    batch_sizes = (1, 4, 8)

    def __init__(self):
        self.compiled_sizes = self.batch_sizes
        self.calls = []
        self.sizes = []

    def warmup_requests(self):
        rows = (np.ones([2, length], "int32") for length in LENGTHS)
        return [WarmupRequest("tokens", {"token_ids": row}) for row in rows]

    def call(self, signature, inputs):
        self.calls.append(np.shape(inputs["token_ids"]))
        self.sizes.append(self.compiled_sizes)


def test_the_smallest_batch_is_compiled_first_then_the_greatest(tmp_path):
    replica = Replica()
    warm_up = WarmUp(replica, tmp_path)
    assert warm_up.progress == Progress(0, 6) and not warm_up.progress.complete
    warm_up.compile_first()
    assert replica.calls == [(1, 8)] and warm_up.progress == Progress(1, 6)
    warm_up.compile_others()
    assert replica.calls == [(size, n) for size in (1, 8, 4) for n in LENGTHS]
    assert warm_up.progress == Progress(6, 6) and warm_up.progress.complete


def test_a_size_is_used_when_it_is_compiled_for_all_lengths(tmp_path):
    replica = Replica()
    warm_up = WarmUp(replica, tmp_path)
    assert replica.compiled_sizes == (1,)
    warm_up.compile_first()
    warm_up.compile_others()
    assert replica.sizes == [(1,)] * 4 + [(1, 8)] * 2
    assert replica.compiled_sizes == (1, 4, 8)


def test_replicas_compile_different_shapes_at_a_time(tmp_path):
    first, second = Replica(), Replica()
    compiling, may_end = threading.Event(), threading.Event()

    def slow(signature, inputs):
        first.calls.append(np.shape(inputs["token_ids"]))
        compiling.set()
        assert may_end.wait(60)

    first.call = slow
    slow_warm_up = WarmUp(first, tmp_path)
    thread = threading.Thread(target=slow_warm_up.compile_first)
    thread.start()
    assert compiling.wait(60)
    assert slow_warm_up.progress.current == "batch 1 × length 8"

    def record(signature, inputs):
        second.calls.append(np.shape(inputs["token_ids"]))
        if len(second.calls) == 5:  # all except the shape of the first replica
            may_end.set()

    second.call = record
    warm_up = WarmUp(second, tmp_path)
    warm_up.compile_first()
    thread.join()
    assert first.calls == [(1, 8)]
    assert second.calls[0] == (1, 16) and second.calls[-1] == (1, 8)
    assert len(second.calls) == 6


def test_an_error_is_in_the_progress(tmp_path):
    replica = Replica()
    warm_up = WarmUp(replica, tmp_path)
    warm_up.compile_first()

    def fail(signature, inputs):
        raise MemoryError("out of memory")

    replica.call = fail
    warm_up.compile_others()
    expected = Progress(1, 6, "batch 1 × length 16", "out of memory")
    assert warm_up.progress == expected
    assert replica.compiled_sizes == (1,)


def test_one_batch_size(tmp_path):
    replica = Replica()
    replica.batch_sizes = (4,)
    warm_up = WarmUp(replica, tmp_path)
    warm_up.compile_first()
    warm_up.compile_others()
    assert replica.calls == [(4, 8), (4, 16)] and replica.compiled_sizes == (4,)
