"""The arguments of `export_model` that are refused before anything is written."""

import pytest

from keras_transformer.export import export_model

pytestmark = pytest.mark.once("torch")

REFUSED = [
    ({"format": "hdf5"}, "`format` must be 'saved_model', .*`format='hdf5'`"),
    (
        {"format": "litert"},
        r"`format='litert'`. To write the forward pass .*format='litert'\)",
    ),
    ({"input_signature": [3]}, "`input_signature` must be `None`, .*keras.Model.expo"),
    ({"search": "onnx"}, "`search` must be a search .* Pass .*: `format='onnx'`"),
    (
        {"is_static": True},
        "`is_static` must not be given for `format='saved_model'`; received "
        "`is_static=True`. The options .*: `card`, .*`quantization`",
    ),
    (
        {"format": "onnx", "card": {}},
        "`card` must not be given for `format='onnx'`.* format are: `check_texts`",
    ),
]


@pytest.mark.parametrize("arguments, message", REFUSED)
def test_arguments_that_are_refused(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        export_model(object(), tmp_path / "1", **arguments)
    assert list(tmp_path.iterdir()) == []
