"""Damaged model files: each is a ValueError with the name of the file."""

import json
import os
import zipfile

import pytest

from keras_transformer import Seq2Seq
from keras_transformer.recipe import loading

pytestmark = pytest.mark.once("torch")

SIZES = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 3}


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    """The members of a `.keras` file by name."""
    path = tmp_path_factory.mktemp("saved") / "model.keras"
    Seq2Seq(**SIZES, vocabulary_size=11).save(path)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write(path, members, **changes):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**members, **changes}.items():
            if content is not None:
                archive.writestr(name, content)
    return path


def check_refused(path):
    with pytest.raises(ValueError, match=path.name):
        loading.load_trained_model(path)


DAMAGE = {
    "no weights": {"model.weights.h5": None},
    "no configuration": {"config.json": None},
    "other weights": {"model.weights.h5": b"garbage" * 100},
    "no JSON": {"config.json": b"{"},
    "not UTF-8": {"config.json": b"\xff\xfe{}"},
    "a list": {"config.json": b"[1, 2]"},
    "no object": {"config.json": b'{"config": 5}'},
    "deep": {"config.json": b'{"config":' * 100_000},
    "a long number": {"config.json": b'{"config": %s}' % (b"9" * 100_000)},
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_member(members, tmp_path, damage):
    check_refused(write(tmp_path / "model.keras", members, **damage))


def test_a_file_that_is_cut(members, tmp_path):
    path = write(tmp_path / "model.keras", members)
    whole = path.read_bytes()
    for size in (0, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        check_refused(path)
    cut = {"model.weights.h5": members["model.weights.h5"][:-500]}
    check_refused(write(path, members, **cut))


def test_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "model.keras")
    check_refused(tmp_path / "model.keras")


def test_another_class_is_not_built(members, tmp_path):
    layer = {"module": "keras.layers", "class_name": "Dense", "registered_name": None}
    inputs = {**layer, "class_name": "InputLayer", "config": {"batch_shape": [1, 2]}}
    dense = {**layer, "config": {"units": 2**50}}
    content = {
        **{**layer, "module": "keras", "class_name": "Sequential"},
        "config": {"name": "a", "layers": [inputs, dense]},
    }
    path = tmp_path / "model.keras"
    write(path, members, **{"config.json": json.dumps(content)})
    with pytest.raises(ValueError, match="of this library.*contains a Sequential"):
        loading.load_trained_model(path)


WRONG = [None, 5, -1, 0.5, "x", [], [1], {"a": 1}, float("nan"), 10**30]


def test_wrong_entries(members, tmp_path):
    content = json.loads(members["config.json"])
    contents = [
        {name: value for name, value in content.items() if name != "config"},
        {**content, "class_name": 5},
        {**content, "module": [1], "registered_name": 5},
    ]
    for index, name in enumerate([*content["config"]][::2]):  # others take too long
        config = {**content["config"], name: WRONG[7 * index % len(WRONG)]}
        contents.append({**content, "config": config})
    refused = 0
    for changed in contents:
        path = tmp_path / "model.keras"
        write(path, members, **{"config.json": json.dumps(changed)})
        try:
            loading.load_trained_model(path)
        except ValueError as error:
            assert "model.keras" in str(error)
            refused += 1
    assert refused > 8
