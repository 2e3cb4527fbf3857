"""Models whose blocks are divided among devices, by `Pipeline`."""

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
        pytest.skip("`Pipeline` needs JAX")
    found = subprocess.run(
        [sys.executable, pathlib.Path(__file__).with_name("pipelines.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr[-2000:]
    return json.loads(found.stdout.splitlines()[-1])


@pytest.mark.slow
def test_gradients_and_seeds_are_those_of_the_model(figures):
    """With dropout, rematerialization and padding.

    The blocks compute in float64, the logits and the gradient of the embedding, which
    is their matrix, in float32.
    """
    assert figures["greatest_gradient"] > 0.1
    assert figures["loss"] < 1e-6
    assert figures["blocks"] < 1e-7
    assert figures["others"] < 1e-6
    assert figures["seeds"] == 0
    assert figures["drawn"] == 2  # a seed goes on by one for each part


@pytest.mark.slow
def test_the_devices_divide_the_blocks(figures):
    encoder_block, decoder_block = 16, 26
    assert figures["divided"] == encoder_block + decoder_block
    assert figures["whole"] == 1 + 2 * 2  # embedding, two normalizations
    assert figures["bubble"] == 3 / 5


@pytest.mark.slow
def test_outputs_are_those_of_the_model(figures):
    """With two blocks on a device, and positions in the attention."""
    assert figures["outputs"] < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("devices", "`devices` must be at most 4, the number of devices of JAX"),
        ("blocks", "`devices` must divide the number of blocks of each stack; rece"),
        ("depth", "`model` must have equal blocks in each stack for a pipeline; thos"),
        ("frozen", "`model` must have equal blocks in each stack for a pipeline; tho"),
        ("stacks", "`model` must be built and have an `EncoderStack` or a `DecoderSt"),
        ("rows", "`micro_batches` must divide the rows of a batch; received `micro_b"),
    ],
)
def test_errors(figures, name, message):
    assert message in figures["errors"][name]


@pytest.mark.slow
def test_the_documented_code_trains(figures):
    before, after = figures["documented"]
    assert after < before


def test_other_backends_are_refused():
    if keras.backend.backend() == "jax":
        pytest.skip("JAX has `Pipeline`")
    with pytest.raises(ValueError, match="KERAS_BACKEND=jax"):
        kt.Pipeline(keras.Sequential())
