import sys

import keras
import numpy as np
import pytest
from keras import ops

import keras_transformer as kt
from keras_transformer.backend import compiling
from keras_transformer.backend.compiling import compile_function, while_loop
from keras_transformer.inference.batch_search import search_batch
from keras_transformer.inference.request import Request

STEPS = 2 * compiling.EAGER_STEPS
KERNEL = np.array([[0.5, -1.0], [0.25, 1.0]], "float32")
IS_TORCH = keras.backend.backend() == "torch"


@pytest.fixture
def model():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, use_bias=False)])
    model.set_weights([KERNEL])
    return model


@pytest.fixture
def calls():
    return []


@pytest.fixture
def looped(model, calls):
    """`x` and the steps made, after `x = model(x) + shift`, `count` times."""

    def advance(constants, index, nest):
        calls.append(nest["x"].shape)
        return index + 1, {"x": model(nest["x"]) + constants["shift"]}

    def function(x, shift, count):
        values = ops.convert_to_tensor(0), {"x": x}
        index, nest = while_loop(
            lambda index, _: index < count, advance, values, {"shift": shift}
        )
        return nest["x"], index

    compiled = compile_function(function, model)

    def call(x, shift, count=STEPS):
        x, index = compiled(*map(ops.convert_to_tensor, (x, shift, count)))
        return ops.convert_to_numpy(x), int(index)

    return call


def expected(x, shift, kernel=KERNEL, count=STEPS):
    for _ in range(count):
        x = x @ kernel + shift
    return x


X = np.array([[1.0, 2.0], [3.0, -4.0], [0.5, 0.0]], "float32")
SHIFT = np.array([0.125, -0.5], "float32")


def test_it_makes_all_steps(looped):
    x, index = looped(X, SHIFT)
    np.testing.assert_allclose(x, expected(X, SHIFT), rtol=1e-4)
    assert index == STEPS
    assert looped(X, SHIFT, 0)[1] == 0


def test_constants_and_weights_are_those_of_the_call(looped, model):
    looped(X, SHIFT)
    x, _ = looped(X, 2 * SHIFT)
    np.testing.assert_allclose(x, expected(X, 2 * SHIFT), rtol=1e-4)
    model.set_weights([KERNEL.T])
    x, _ = looped(X + 1, SHIFT)
    np.testing.assert_allclose(x, expected(X + 1, SHIFT, KERNEL.T), rtol=1e-4)


def test_lora_takes_effect(looped, model):
    looped(X, SHIFT)
    model.layers[0].enable_lora(rank=1)
    for weight in model.layers[0].trainable_weights:
        weight.assign(np.full(weight.shape, 0.25))
    x, _ = looped(X, SHIFT)
    kernel = KERNEL + 1 / 16
    np.testing.assert_allclose(x, expected(X, SHIFT, kernel), rtol=1e-4)


@pytest.mark.skipif(not IS_TORCH, reason="compiles the loop")
class TestRecording:
    def test_is_made_after_some_steps(self, looped, calls):
        looped(X, SHIFT)
        assert len(calls) == compiling.EAGER_STEPS + 1
        looped(X, SHIFT)
        assert len(calls) == compiling.EAGER_STEPS + 1

    def test_is_of_the_shapes(self, looped, calls):
        looped(X, SHIFT)
        x, _ = looped(X[:2], SHIFT)
        np.testing.assert_allclose(x, expected(X[:2], SHIFT), rtol=1e-4)
        assert set(calls) == {(3, 2), (2, 2)}

    def test_leaves_the_arguments_alone(self, looped):
        x = X.copy()
        looped(x, SHIFT)
        np.testing.assert_array_equal(x, X)

    def test_needs_no_private_module(self, looped, calls, monkeypatch):
        name = "torch.fx.experimental.proxy_tensor"
        monkeypatch.setitem(sys.modules, name, None)
        x, _ = looped(X, SHIFT)
        np.testing.assert_allclose(x, expected(X, SHIFT), rtol=1e-4)
        assert len(calls) == STEPS

    @pytest.mark.parametrize("ask", [ops.convert_to_numpy, lambda x: x.tolist()])
    def test_is_not_needed(self, model, ask):
        def advance(constants, x):
            return (x * 2 if np.max(ask(x)) < 5 else x + constants,)

        def function(x):
            return while_loop(lambda x: ops.max(x) < 50, advance, (x,), 1.0 + 0 * x)

        (x,) = compile_function(function, model)(ops.convert_to_tensor([1.0]))
        assert ops.convert_to_numpy(x).tolist() == [50.0]


SEARCHES = {
    "greedy": kt.GreedySearch(),
    "greedy, rules": kt.GreedySearch(
        logits_processors=[kt.NoRepeatNGram(2), kt.RepetitionPenalty(1.3)]
    ),
    "beams": kt.BeamSearch(3, num_hypotheses=2),
    "coverage": kt.BeamSearch(2, coverage_penalty=0.2),
    "beams, rules": kt.BeamSearch(
        2, logits_processors=[kt.SuppressTokens([5]), kt.BannedSequences([[6, 7]])]
    ),
    "samples": kt.Sampling(num_samples=2, top_k=5, temperature=0.8),
    "nucleus": kt.Sampling(top_p=0.9, min_p=0.01),
}


@pytest.mark.skipif(not IS_TORCH, reason="compiles the loop")
@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_searches_that_are_recorded(search, monkeypatch):
    import torch

    recordings, record = [], compiling._record

    def remember(*arguments):
        recordings.append(record(*arguments))
        return recordings[-1]

    monkeypatch.setattr(compiling, "EAGER_STEPS", 0)
    monkeypatch.setattr(compiling, "_record", remember)
    model = kt.Seq2Seq(
        vocabulary_size=20,
        num_layers=1,
        hidden_dim=8,
        intermediate_dim=16,
        num_heads=2,
    )
    prefixes = np.array([[5, 6], [0, 0]], "int32")
    batches = [[[4, 5, 6, 3], [7, 8, 3, 0]], [[9, 4, 3, 0], [11, 12, 13, 3]]]
    for sources in np.array(batches, "int32"):
        found = model.generate(
            sources,
            search,
            max_length=14,
            min_length=6,
            prefix=[[5, 6], []],
            seed=3,
        )
        with torch.no_grad():
            request = Request(search, 14, 6)
            eager = search_batch(model, sources, request, prefixes, 3)
        longest = found.token_ids.shape[2]
        eager = eager._replace(token_ids=eager.token_ids[:, :, :longest])
        for tensor, other in zip(found, eager, strict=True):
            np.testing.assert_allclose(tensor, ops.convert_to_numpy(other), rtol=1e-5)
    assert recordings and None not in recordings
