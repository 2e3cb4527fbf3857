"""The SavedModel that is kept in the repository, to try serving with."""

import pathlib

import tensorflow as tf

FOLDER = pathlib.Path(__file__).parents[1] / "saved_models" / "pronounce" / "1"


def test_it_pronounces():
    serve = tf.saved_model.load(str(FOLDER)).signatures["serving_default"]
    outputs = serve(text=tf.constant(["knight", "", "attention"]))
    expected = [b"N AY T", b"", b"AH T EH N SH AH N"]
    assert outputs["text"].numpy().tolist() == expected
    assert outputs["score"].numpy()[1] == 0
    assert (outputs["score"].numpy()[::2] < 0).all()


def test_it_is_small():
    size = sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file())
    assert size <= 6_000_000
