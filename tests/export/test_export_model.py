"""The formats and arguments of `export_model`, with writers that record their calls."""

import pytest

from keras_transformer import BeamSearch, GreedySearch, export
from keras_transformer.export import export_model

pytestmark = pytest.mark.once("torch")

MODEL = object()


@pytest.fixture
def calls(monkeypatch):
    """The calls of the writers: format, positional and keyword arguments."""
    calls = []

    def saved_model(model, filepath, search, *, quantization=None):
        calls.append(("saved_model", model, filepath, search, quantization))

    def ctranslate2(model, filepath, search):
        calls.append(("ctranslate2", model, filepath, search))

    def marian(model, filepath):
        calls.append(("marian", model, filepath))

    for writer in (saved_model, ctranslate2, marian):
        name = f"export_{writer.__name__}"
        monkeypatch.setattr(export, name, writer, raising=False)
    return calls


def test_each_format_has_a_writer(calls):
    export_model(MODEL, "1", GreedySearch(), quantization="int8")
    export_model(MODEL, "2", format="ctranslate2")
    export_model(MODEL, "3", GreedySearch(), format="marian")
    assert calls == [
        ("saved_model", MODEL, "1", GreedySearch(), "int8"),
        ("ctranslate2", MODEL, "2", BeamSearch()),
        ("marian", MODEL, "3"),
    ]


def test_the_arguments_of_keras(calls, capsys):
    arguments = {"format": "tf_saved_model", "input_signature": None}
    export_model(MODEL, filepath="1", **arguments, verbose=False)
    assert capsys.readouterr().out == ""
    export_model(MODEL, filepath="2", **arguments, verbose=True)
    assert calls == [
        ("saved_model", MODEL, folder, BeamSearch(), None) for folder in ("1", "2")
    ]
    assert "Saved the model at '2' in the format 'saved_model'" in (
        capsys.readouterr().out
    )


REFUSED = [
    ({"format": "hdf5"}, "`format` must be one of 'saved_model', .*`format='hdf5'`"),
    (
        {"format": "litert"},
        r"`format='litert'`. To write the forward pass .*format='litert'\)",
    ),
    ({"input_signature": [3]}, "`input_signature` must be `None`, .*keras.Model.expo"),
    ({"search": "onnx"}, "`search` must be a search .* Pass .*: `format='onnx'`"),
    (
        {"is_static": True},
        "`is_static` must not be given for `format='saved_model'`; received "
        "`is_static=True`. The options .*: `quantization`",
    ),
    (
        {"format": "ctranslate2", "card": {}},
        "`card` must not be given for `format='ctranslate2'`.* format are: none",
    ),
]


@pytest.mark.parametrize("arguments, message", REFUSED)
def test_arguments_that_are_refused(calls, arguments, message):
    with pytest.raises(ValueError, match=message):
        export_model(MODEL, "1", **arguments)
    assert calls == []
