"""The SavedModel in the repository, an example for serving."""

import pathlib

import pytest
import tensorflow as tf

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


def test_the_size_is_limited():
    size = sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file())
    assert size <= 6_000_000
