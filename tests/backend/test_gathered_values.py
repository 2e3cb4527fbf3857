import keras
import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.backend import processes


@pytest.mark.once("jax")
def test_files_are_written_with_values_that_are_gathered(tmp_path, monkeypatch):
    """`tests/training/test_processes.py` has two processes, whose values are parts."""
    model = kt.CausalLM(
        vocabulary_size=11,
        num_layers=1,
        hidden_dim=4,
        intermediate_dim=5,
        num_heads=2,
    )
    model.build({"token_ids": (1, 2)})
    model.compile("sgd", kt.LabelSmoothedCrossEntropy())
    before = model.get_weights()
    monkeypatch.setattr(processes, "count_processes", lambda: 2)
    monkeypatch.setattr(
        processes, "values_here", lambda all_: [each.value + 1 for each in all_]
    )
    monkeypatch.setattr(processes, "greatest", lambda values: values)
    model.save(tmp_path / "model.keras")
    for weight, expected in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, expected)
    saved = keras.saving.load_model(tmp_path / "model.keras")
    for weight, expected in zip(saved.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, expected + 1)


@pytest.mark.once("torch")
def test_variables_have_other_values_for_a_while():
    variable, other = keras.Variable([1.0, 2.0]), keras.ops.ones(2)
    with pytest.raises(OSError), processes._replaced_values([variable], [other]):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable), [1.0, 1.0])
        raise OSError
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable), [1.0, 2.0])


@pytest.mark.once("torch")
def test_variables_without_the_private_name_are_in_a_stateless_scope():
    variable, other = keras.Variable([1.0, 2.0]), keras.ops.ones(2)
    del variable._value
    with processes._replaced_values([variable], [other]):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable), [1.0, 1.0])
