"""The warm-up, with a replica that records its calls."""

import numpy as np
import pytest
from keras_transformer_runtime.serving.warm_up import Progress, WarmUp

from keras_transformer.export.saved_model.warmup import WarmupRequest

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


def test_the_smallest_batch_is_compiled_first_then_the_greatest():
    replica = Replica()
    warm_up = WarmUp(replica)
    assert warm_up.progress == Progress(0, 6) and not warm_up.progress.complete
    warm_up.compile_first()
    assert replica.calls == [(1, 8)] and warm_up.progress == Progress(1, 6)
    warm_up.compile_others()
    assert replica.calls == [(size, n) for size in (1, 8, 4) for n in LENGTHS]
    assert warm_up.progress == Progress(6, 6) and warm_up.progress.complete


def test_a_size_is_used_when_it_is_compiled_for_all_lengths():
    replica = Replica()
    warm_up = WarmUp(replica)
    assert replica.compiled_sizes == (1,)
    warm_up.compile_first()
    warm_up.compile_others()
    assert replica.sizes == [(1,)] * 4 + [(1, 8)] * 2
    assert replica.compiled_sizes == (1, 4, 8)


def test_an_error_is_in_the_progress():
    replica = Replica()
    warm_up = WarmUp(replica)
    warm_up.compile_first()

    def fail(signature, inputs):
        raise MemoryError("out of memory")

    replica.call = fail
    warm_up.compile_others()
    expected = Progress(1, 6, "batch 1 × length 16", "out of memory")
    assert warm_up.progress == expected
    assert replica.compiled_sizes == (1,)


def test_one_batch_size():
    replica = Replica()
    replica.batch_sizes = (4,)
    warm_up = WarmUp(replica)
    warm_up.compile_first()
    warm_up.compile_others()
    assert replica.calls == [(4, 8), (4, 16)] and replica.compiled_sizes == (4,)
