"""The SavedModel in the repository, an example for serving."""

import pathlib

import pytest
import tensorflow as tf
from typer.testing import CliRunner

from keras_transformer_runtime.command import make_app

pytestmark = pytest.mark.once

FOLDER = pathlib.Path(__file__).parents[1] / "saved_models" / "pronounce" / "1"


@pytest.mark.slow
def test_pronunciations():
    serve = tf.saved_model.load(str(FOLDER)).signatures["serving_default"]
    outputs = serve(text=tf.constant(["knight", "", "attention"]))
    expected = [b"N AY T", b"", b"AH T EH N SH AH N"]
    assert outputs["text"].numpy().tolist() == expected
    assert outputs["score"].numpy()[1] == 0
    assert (outputs["score"].numpy()[::2] < 0).all()


@pytest.mark.slow
def test_the_command_translate():
    arguments, lines = ["translate", str(FOLDER.parent)], "knight\n\nattention\n"
    result = CliRunner().invoke(make_app(), arguments, input=lines)
    assert result.stdout == "N AY T\n\nAH T EH N SH AH N\n" and not result.stderr


def test_the_size_is_limited():
    size = sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file())
    assert size <= 6_000_000
