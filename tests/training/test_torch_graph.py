"""`compile(jit_compile=True)` on PyTorch: graphs whose steps equal the eager ones."""

import functools
import inspect
import warnings

import keras
import numpy as np
import pytest
from designs import modern

from keras_transformer import CausalLM, LabelSmoothedCrossEntropy, MaskedTokenAccuracy
from keras_transformer.backend import step_graph
from keras_transformer.layers import RotaryEmbedding
from keras_transformer.models import Seq2Seq
from keras_transformer.training import SkipNonFinite

pytestmark = pytest.mark.once("torch")
VOCABULARY_SIZE, ROWS, LENGTH = 31, 5, 7
SMALL = {
    "vocabulary_size": VOCABULARY_SIZE,
    "num_layers": 1,
    "hidden_dim": 8,
    "intermediate_dim": 12,
    "num_heads": 2,
    "dropout": 0.2,
}
DESIGNS = {
    "post-norm": lambda: Seq2Seq(**SMALL),
    "modern": lambda: Seq2Seq(**{**SMALL, **modern()}),
    "grouped": lambda: Seq2Seq(
        **SMALL,
        positions=RotaryEmbedding(),
        normalize_first=True,
        attention_options={"num_key_value_heads": 1},
    ),
    "tied": lambda: Seq2Seq(**SMALL, tie_embeddings="all"),
    "causal": lambda: CausalLM(**SMALL),
}
OPTIONS = {
    "plain": lambda: {"optimizer": keras.optimizers.SGD(0.3, global_clipnorm=0.5)},
    "adam": lambda: {
        "optimizer": keras.optimizers.AdamW(1e-2, epsilon=1e-3, use_ema=True)
    },
    "micro-batches": lambda: {
        "optimizer": keras.optimizers.SGD(0.3, momentum=0.7),
        "micro_batches": 2,
    },
    "r-drop": lambda: {"optimizer": keras.optimizers.SGD(0.3), "r_drop": 3.0},
    "skip": lambda: {"optimizer": SkipNonFinite(keras.optimizers.SGD(0.3, 0.9))},
}


@pytest.fixture(params=["recorded", pytest.param("compiled", marks=pytest.mark.slow)])
def compiler(request, monkeypatch):
    """Returns a tolerance. The compiler adds in another order, and takes a minute."""
    if request.param == "compiled":
        return 1e-5
    monkeypatch.setattr(step_graph, "compile_graph", lambda graph: graph)
    return 1e-6


@pytest.fixture
def recorded(monkeypatch):
    monkeypatch.setattr(step_graph, "compile_graph", lambda graph: graph)


def make_batch(model, rows=ROWS, length=LENGTH, seed=0):
    """Ids of a batch with padding."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(4, VOCABULARY_SIZE, (2, rows, length + 1), dtype="int32")
    ids[0, 1, 4:] = ids[1, 2, 3:] = 0
    targets = ids[1, :, 1:]
    if isinstance(model, CausalLM):
        return ids[1, :, :-1], targets
    inputs = {"encoder_token_ids": ids[0, :, 1:], "decoder_token_ids": ids[1, :, :-1]}
    return inputs, targets


def train(jit_compile, make=DESIGNS["post-norm"], options=OPTIONS["plain"], steps=3):
    """Losses of some steps, of a validation, and the weights after them."""
    import torch

    keras.utils.set_random_seed(5)
    model = make()
    model.compile(
        loss=LabelSmoothedCrossEntropy(0.1),
        metrics=[MaskedTokenAccuracy()],
        jit_compile=jit_compile,
        **options(),
    )
    logs = [model.train_on_batch(*make_batch(model, seed=i)) for i in range(steps)]
    logs.append(model.train_on_batch(*make_batch(model, rows=3, length=5)))
    logs.append(model.test_on_batch(*make_batch(model)))
    prediction = model.predict_on_batch(make_batch(model)[0])
    values = [np.array(v) for v in (*model.variables, *model.optimizer.variables)]
    return model, logs, [prediction, *values, torch.random.get_rng_state().numpy()]


def fallbacks(caught):
    messages = [str(warning.message) for warning in caught]
    return [message for message in messages if "jit_compile" in message]


def count_graphs(model):
    return len(inspect.unwrap(model.train_function)._step._gradients._graphs)


def assert_equal_runs(make, options, tolerance):
    _, eager_logs, eager = train(False, make, options)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # There is no fallback.
        model, logs, values = train(True, make, options)
    np.testing.assert_allclose(logs, eager_logs, rtol=1e-6, atol=1e-6)
    for value, expected in zip(values, eager, strict=True):
        np.testing.assert_allclose(value, expected, rtol=tolerance, atol=tolerance)
    return model


@pytest.mark.parametrize("design", DESIGNS)
def test_a_graph_equals_the_eager_step(design, compiler):
    """With dropout, whose masks are equal, and a last batch of another shape."""
    model = assert_equal_runs(DESIGNS[design], OPTIONS["plain"], compiler)
    assert count_graphs(model) == 2


@pytest.mark.parametrize("options", [name for name in OPTIONS if name != "plain"])
def test_options_of_compile_are_part_of_the_graph(options, compiler):
    assert_equal_runs(DESIGNS["post-norm"], OPTIONS[options], compiler)


def test_bfloat16_trains_as_eager_steps_do(compiler):
    """The compiler rounds less often."""
    make = functools.partial(Seq2Seq, **SMALL, dtype="mixed_bfloat16")
    _, eager, _ = train(False, make)
    _, logs, _ = train(True, make)
    np.testing.assert_allclose(logs, eager, rtol=0.02, atol=0.02)


def test_a_skipped_update_changes_no_variable(recorded):
    keras.utils.set_random_seed(5)
    model = DESIGNS["post-norm"]()
    model.compile(**OPTIONS["skip"](), loss=LabelSmoothedCrossEntropy(0.1))
    model.jit_compile = True
    model.train_on_batch(*make_batch(model))
    bias = model.weights[-1]
    bias.assign(keras.ops.full(bias.shape, np.nan))
    before = [np.array(v) for v in model.optimizer.variables]
    model.train_on_batch(*make_batch(model))
    for variable, value in zip(model.optimizer.variables, before, strict=True):
        np.testing.assert_array_equal(variable, value)


def test_an_update_that_reads_its_state_runs_eagerly(recorded):
    """Gradients still have a graph."""

    def options():
        return {"optimizer": keras.optimizers.SGD(0.3, gradient_accumulation_steps=2)}

    make = DESIGNS["post-norm"]
    _, eager_logs, eager = train(False, make, options)
    with pytest.warns(UserWarning, match="update of the optimizer runs") as caught:
        model, logs, values = train(True, make, options)
    (message,) = fallbacks(caught)
    assert "depends on the value of a tensor" in message
    assert count_graphs(model) == 2
    np.testing.assert_allclose(logs, eager_logs, rtol=1e-6, atol=1e-6)
    for value, expected in zip(values, eager, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"rematerialize": True}, "layers are recomputed for the gradient"),
        (None, "depends on the value of a tensor"),
    ],
)
def test_a_step_without_a_graph_runs_eagerly_with_one_warning(change, reason, recorded):
    def make():
        model = Seq2Seq(**{**SMALL, **(change or {})})
        if change is None:
            # On PyTorch, Keras makes a generator from the value of this seed.
            model.embedding_dropout = keras.layers.Dropout(0.3, seed=3)
        return model

    _, eager_logs, eager = train(False, make)
    with pytest.warns(UserWarning, match="train step runs eagerly") as caught:
        _, logs, values = train(True, make)
    # Each of the functions of training, validation and prediction has its warning.
    message, *others = fallbacks(caught)
    assert reason in message
    assert "Use `jit_compile=False`" in message
    assert all("train step" not in other for other in others)
    np.testing.assert_array_equal(logs, eager_logs)
    for value, expected in zip(values, eager, strict=True):
        np.testing.assert_array_equal(value, expected)


def test_a_frozen_weight_makes_another_graph(recorded):
    """Without another `compile`, the optimizer has other weights than its graph."""
    model, *_ = train(True)
    weight = model.trainable_weights[0]
    value = np.array(weight)
    weight.trainable = False
    with pytest.warns(UserWarning, match="update of the optimizer runs eagerly"):
        model.train_on_batch(*make_batch(model))
    np.testing.assert_array_equal(weight, value)


def fit(jit_compile):
    keras.utils.set_random_seed(5)
    model = DESIGNS["post-norm"]()
    inputs, targets = make_batch(model, rows=10)
    model.compile(
        **OPTIONS["plain"](),
        loss=LabelSmoothedCrossEntropy(0.1),
        metrics=[MaskedTokenAccuracy()],
        jit_compile=jit_compile,
    )
    options = {"batch_size": 5, "verbose": 0}
    data = (inputs, targets)
    return model, model.fit(*data, epochs=2, validation_data=data, **options).history


def test_fit_runs_graphs(recorded):
    model, history = fit(True)
    _, eager = fit(False)
    assert count_graphs(model) == 1
    assert history.keys() == eager.keys()
    for name, values in eager.items():
        assert history[name] == pytest.approx(values, abs=1e-6)


def test_more_shapes_than_graphs_run_eagerly(recorded, monkeypatch):
    monkeypatch.setattr(step_graph, "MAX_SHAPES", 2)
    model, *_ = train(True)
    with pytest.warns(UserWarning, match="more than 2 shapes") as caught:
        for length in (3, 4):
            model.train_on_batch(*make_batch(model, length=length))
    assert len(fallbacks(caught)) == 1
    assert count_graphs(model) == 2


def test_steps_are_compiled_on_request():
    model = DESIGNS["post-norm"]()
    model.compile(loss=LabelSmoothedCrossEntropy())
    assert model.jit_compile is False
