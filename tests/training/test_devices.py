"""Training on several devices with `distribute`."""

import contextlib

import keras
import numpy as np
import pytest
from child_process import figures_of

import keras_transformer as kt

JAX = pytest.mark.once("jax")


@pytest.fixture(scope="module")
def figures():
    return figures_of("devices.py")


@pytest.mark.slow
@JAX
@pytest.mark.parametrize("name", ["to_one", "to_four", "micro_batches", "causal"])
def test_devices_train_as_one_device(figures, name):
    """Also a run that is resumed on another number of devices."""
    assert figures[name] < 1e-6


@pytest.mark.slow
@JAX
def test_generated_ids_do_not_depend_on_the_devices(figures):
    on_one, on_four = figures["generated"]
    assert on_one == on_four


@pytest.mark.slow
@JAX
def test_rows_are_added_until_the_devices_divide_them(figures):
    assert figures["rows_to_add"] == [0, 3, 1, 0]


@pytest.mark.slow
@JAX
def test_devices_share_the_weights_and_the_moments(figures):
    layouts = figures["layouts"]
    block = "decoder/block_0/"
    assert layouts == {
        "token_embedding/embeddings": "('model', None)",
        **{
            f"{block}self_attention/{name}/kernel": "(None, 'model', None)"
            for name in ("query", "key", "value")
        },
        **{
            f"{block}self_attention/{name}/bias": "('model', None)"
            for name in ("query", "key", "value")
        },
        f"{block}self_attention/attention_output/kernel": "('model', None, None)",
        f"{block}feed_forward/intermediate/kernel": "(None, 'model')",
        f"{block}feed_forward/intermediate/bias": "('model',)",
        f"{block}feed_forward/output/kernel": "('model', None)",
    }
    moments = {
        f"sgd/{path.replace('/', '_')}_momentum": axes for path, axes in layouts.items()
    }
    assert figures["moments"] == moments


@pytest.mark.slow
@JAX
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("heads", "`num_heads` must be a multiple of the `model_parallel=2`"),
        ("model", "`model` must be created within the `distribute`"),
        ("optimizer", "`optimizer` must be created within the `distribute`"),
        ("cleared", "`keras.utils.clear_session` must not be called within"),
        ("cleared_model", "`keras.utils.clear_session` must not be called within"),
        ("after", "`model` must be used within the `distribute`"),
        ("devices", "which has 4 (cpu:0, cpu:1, cpu:2, cpu:3); received `devices=5`"),
        ("key_heads", "holds the whole `key/kernel`: its 2 tokens or heads are not"),
        ("vocabulary", "`token_embedding/embeddings`: its 11 tokens or heads are"),
    ],
)
def test_errors_and_warnings(figures, name, message):
    assert message in figures["errors"][name]


@pytest.mark.slow
@JAX
def test_the_documented_code_trains(figures):
    assert 0 < figures["documented"] < 10


@JAX
def test_one_device():
    """The loss of a batch is that without `distribute`, also in micro-batches."""
    ids = np.array([[4, 5, 6], [5, 6, 0], [6, 4, 5]])
    losses = []
    for context in (contextlib.nullcontext(), kt.distribute(devices=1)):
        with context as names:
            assert names in (None, ["cpu:0"])
            keras.utils.set_random_seed(3)
            model = kt.CausalLM(
                num_layers=1,
                hidden_dim=4,
                intermediate_dim=4,
                num_heads=1,
                vocabulary_size=7,
            )
            model.compile("sgd", kt.LabelSmoothedCrossEntropy(), micro_batches=2)
            losses.append(model.train_on_batch(ids, ids))
    assert keras.distribution.distribution() is None
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)


@JAX
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": 0}, "`devices` must be an int of at least 1"),
        ({"devices": 1, "model_parallel": 2}, "`model_parallel` must divide"),
        ({"devices": ["cpu:7"]}, "`devices` must be devices of this machine"),
        ({"devices": ["cpu:0", "cpu:0"]}, "`devices` must be devices of this machine"),
    ],
)
def test_devices_are_checked(options, message):
    with pytest.raises(ValueError, match=message), kt.distribute(**options):
        pass
