"""Sizes that a file claims, compared with those of its weights before it is loaded."""

import io
import json
import os
import zipfile

import h5py
import keras
import numpy as np
import pytest
from designs import DESIGNS

from keras_transformer import Ensemble, Seq2Seq
from keras_transformer.models.file_checks import (
    check_fits_memory,
    check_keras_file,
    check_weights,
    least_sizes,
    stored_sizes,
)

pytestmark = pytest.mark.once("torch")

SIZES = {"num_layers": 2, "hidden_dim": 12, "intermediate_dim": 7, "num_heads": 2}
HUGE_TABLE = {
    "module": "keras_transformer.layers",
    "class_name": "LearnedPositionalEncoding",
    "config": {"max_length": 2**40},
    "registered_name": "keras_transformer>LearnedPositionalEncoding",
}


def layer(name, build_shape=None, **config):
    """Returns a layer of Keras as a configuration has it."""
    build = {"build_config": {"input_shape": build_shape}} if build_shape else {}
    return {"module": "keras.layers", "class_name": name, "config": config, **build}


HUGE = [
    {"num_layers": 10**30},
    {"num_decoder_layers": 10**9},
    {"hidden_dim": 2**40},
    {"num_heads": 2**40, "attention_options": {"key_dim": 1}},
    {"attention_options": {"value_dim": 2**40}},
    {
        "vocabulary_size": None,
        "source_vocabulary_size": 7,
        "target_vocabulary_size": 2**31,
    },
    {"positions": HUGE_TABLE},
    {"positions": [None, HUGE_TABLE]},
    {
        "positions": {
            "module": "keras_transformer.layers",
            "class_name": "RelativePositionBias",
            "config": {"num_buckets": 2**40, "max_distance": 2**41},
            "registered_name": "keras_transformer>RelativePositionBias",
        }
    },
    {"source_embedding": layer("Embedding", input_dim=2**20, output_dim=2**20)},
    {"source_embedding": layer("Dense", (None, 2**38), units=4)},
    {
        "source_embedding": layer(
            "Sequential", layers=[layer("Conv1D", filters=2**40, kernel_size=3)]
        )
    },
]


@pytest.fixture(scope="module")
def model():
    return Seq2Seq(**SIZES, vocabulary_size=11)


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model.keras"
    model.save(path)
    return path


def changed_copy(saved, path, compress=zipfile.ZIP_STORED, **members):
    """Writes a `.keras` file with other members; `None` leaves one out."""
    with zipfile.ZipFile(saved) as old, zipfile.ZipFile(path, "w", compress) as new:
        for name in old.namelist():
            content = members.pop(name, old.read(name))
            if content is not None:
                new.writestr(name, content)
        for name, content in members.items():
            new.writestr(name, content)
    return path


def config_of(saved):
    with zipfile.ZipFile(saved) as archive:
        return json.loads(archive.read("config.json"))


@pytest.mark.parametrize("name", DESIGNS)
def test_no_model_is_smaller(name):
    tie = "none" if name == "modern" else "all"
    model = Seq2Seq(
        **{**SIZES, **DESIGNS[name]()}, vocabulary_size=11, tie_embeddings=tie
    )
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(model)))
    least = least_sizes(config["config"])
    assert model.count_params() / 4 < least.numbers <= model.count_params()
    assert len(model.weights) / 6 < least.arrays <= len(model.weights)


def test_an_ensemble_is_as_large_as_its_models(model):
    config = keras.saving.serialize_keras_object(Ensemble([model, model]))["config"]
    one = least_sizes(model.get_config())
    assert least_sizes(config) == (2 * one.numbers, 2 * one.arrays)
    for models in ([5], [{"config": 5}], "models", None):
        assert least_sizes({"models": models}).numbers == 0


def test_the_sizes_of_stored_arrays(model, saved, tmp_path):
    model.save_weights(tmp_path / "model.weights.h5")
    size = (tmp_path / "model.weights.h5").stat().st_size
    stored = stored_sizes(tmp_path / "model.weights.h5", size)
    assert stored == (model.count_params(), len(model.weights))
    check_weights(model.get_config(), stored)
    assert check_keras_file(saved) == config_of(saved)


@pytest.mark.parametrize("change", HUGE, ids=str)
def test_a_configuration_that_is_too_large(model, saved, tmp_path, change):
    content = config_of(saved)
    content["config"].update(change)
    path = changed_copy(
        saved, tmp_path / "m.keras", **{"config.json": json.dumps(content)}
    )
    with pytest.raises(ValueError, match="the weights have .* numbers in .* arrays"):
        check_keras_file(path)
    # Keras itself loads it, without the check above.
    with pytest.raises(ValueError, match="must fit in memory, .* received one of"):
        keras.saving.load_model(path)


def test_memory_that_is_unknown(model, monkeypatch):
    """Systems other than Unix do not tell it."""
    monkeypatch.delattr(os, "sysconf")
    check_fits_memory({**model.get_config(), "num_layers": 10**30})


def weights_with(**options):
    file = io.BytesIO()
    with h5py.File(file, "w") as weights:
        weights.create_dataset("a", **options)
    return file


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_arrays_that_are_not_in_the_file(compression):
    """An array without values takes no room, whatever its shape."""
    options = {"shape": (10**5, 10**6), "dtype": "float32"}
    if compression:
        options.update(chunks=(100, 100), compression=compression)
    file = weights_with(**options)
    message = "'a' is compressed" if compression else "claim to have 400000000000 bytes"
    with pytest.raises(ValueError, match=message):
        stored_sizes(file, len(file.getvalue()))


def test_arrays_of_other_files(tmp_path):
    (tmp_path / "raw").write_bytes(bytes(4000))
    files = [
        weights_with(
            shape=(9,), dtype="float32", external=[(str(tmp_path / "raw"), 0, 4000)]
        )
    ]
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["x"] = np.zeros(9, "float32")
    layout = h5py.VirtualLayout((9,), "float32")
    layout[...] = h5py.VirtualSource(tmp_path / "other.h5", "x", (9,))
    files.append(io.BytesIO())
    with h5py.File(files[-1], "w") as weights:
        weights.create_virtual_dataset("a", layout)
    for file in files:
        with pytest.raises(ValueError, match="the array 'a' is in another file"):
            stored_sizes(file, len(file.getvalue()))


def test_a_file_that_expands(saved, tmp_path):
    path = changed_copy(
        saved, tmp_path / "m.keras", zipfile.ZIP_DEFLATED, more=bytes(50_000_000)
    )
    assert path.stat().st_size < 200_000
    with pytest.raises(ValueError, match="its members would have 50"):
        check_keras_file(path)


def test_a_file_that_was_compressed_later(saved, tmp_path):
    path = changed_copy(saved, tmp_path / "m.keras", zipfile.ZIP_DEFLATED)
    assert check_keras_file(path) == config_of(saved)
    assert isinstance(keras.saving.load_model(path), Seq2Seq)
