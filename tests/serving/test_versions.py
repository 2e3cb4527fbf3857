import pathlib

import pytest

from keras_transformer_runtime.serving.server_options import ModelOptions
from keras_transformer_runtime.serving.versions import check_versions, selected_versions

pytestmark = pytest.mark.once

NAMES = ["1", "2", "10", "03", "-4", "x", "5.tmp", "٦"]


@pytest.fixture
def folder(tmp_path):
    for name in NAMES:
        (tmp_path / name / "variables").mkdir(parents=True)
        (tmp_path / name / "saved_model.pb").touch()
        (tmp_path / name / "variables/variables.index").touch()
    (tmp_path / "11/variables").mkdir(parents=True)
    (tmp_path / "11/saved_model.pb").touch()  # an incomplete copy
    (tmp_path / "12").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("versions", "expected"),
    [("latest", [10]), ("all", [1, 2, 10]), ([2, 1, 7], [1, 2])],
)
def test_complete_versions_with_plain_numbers(versions, expected, folder):
    options = ModelOptions(folder=folder, versions=versions)
    assert selected_versions(options) == expected


def test_none(tmp_path):
    assert selected_versions(ModelOptions(folder=tmp_path)) == []


def test_a_model_without_versions_is_an_error_unless_it_is_waited_for(folder):
    found = ModelOptions(folder=folder, versions=[2, 7])
    none = ModelOptions(folder=folder, versions=[7, 11])
    check_versions({"found": found})
    with pytest.raises(ValueError, match=r"model none .*versions=\[7, 11\]. Export a"):
        check_versions({"found": found, "none": none})
    check_versions({"none": none.model_copy(update={"wait_for_versions": True})})


def test_unreadable_folders_are_left_out(folder, monkeypatch):
    is_file = pathlib.Path.is_file

    def refused(path):
        if "10" in path.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(pathlib.Path, "is_file", refused)
    assert selected_versions(ModelOptions(folder=folder, versions="all")) == [1, 2]
