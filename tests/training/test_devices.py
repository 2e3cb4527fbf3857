"""Training on several devices with `distribute`."""

import json
import os
import pathlib
import subprocess
import sys

import keras
import pytest

import keras_transformer as kt

ROOT = pathlib.Path(kt.__file__).parent.parent


@pytest.fixture(scope="module")
def figures():
    if keras.backend.backend() != "jax":
        pytest.skip("`distribute` needs JAX")
    found = subprocess.run(
        [sys.executable, pathlib.Path(__file__).with_name("devices.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr[-2000:]
    return json.loads(found.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["to_one", "to_four", "micro_batches", "causal"])
def test_devices_train_as_one_device(figures, name):
    """Also a run that is resumed on another number of devices."""
    assert figures[name] < 1e-6


@pytest.mark.slow
def test_generated_ids_do_not_depend_on_the_devices(figures):
    on_one, on_four = figures["generated"]
    assert on_one == on_four


@pytest.mark.slow
def test_rows_are_added_until_the_devices_divide_them(figures):
    assert figures["rows_to_add"] == [0, 3, 1, 0]


@pytest.mark.slow
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
def test_the_documented_code_trains(figures):
    assert 0 < figures["documented"] < 10


def test_other_backends_are_refused():
    if keras.backend.backend() == "jax":
        pytest.skip("JAX has `distribute`")
    with pytest.raises(ValueError, match="KERAS_BACKEND=jax"), kt.distribute(2):
        pass


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
    if keras.backend.backend() != "jax":
        pytest.skip("`distribute` needs JAX")
    with pytest.raises(ValueError, match=message), kt.distribute(**options):
        pass


def test_the_distribution_ends_with_the_context():
    if keras.backend.backend() != "jax":
        pytest.skip("`distribute` needs JAX")
    with kt.distribute(devices=1) as distribution:
        assert keras.distribution.distribution() is distribution
    assert keras.distribution.distribution() is None
