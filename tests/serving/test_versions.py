import pathlib

import pytest

from keras_transformer_runtime.engines.encoder_description import EncoderDescription
from keras_transformer_runtime.engines.model_description import FILE
from keras_transformer_runtime.serving.served_model import load_version
from keras_transformer_runtime.serving.server_options import ModelOptions
from keras_transformer_runtime.serving.versions import (
    VersionFolder,
    check_versions,
    selected_versions,
)

pytestmark = pytest.mark.once("torch")

NAMES = ["1", "2", "10", "03", "-4", "x", "5.tmp", "٦"]
SAVED_MODEL = ("saved_model.pb", "variables/variables.index", FILE)
CTRANSLATE2 = ("model.bin", FILE)


def add(folder, names=SAVED_MODEL):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


@pytest.fixture
def folder(tmp_path):
    for name in NAMES:
        add(tmp_path / name)
    for number, missing in enumerate(SAVED_MODEL[:2], start=11):  # incomplete copies
        add(tmp_path / str(number), [x for x in SAVED_MODEL if x != missing])
    (tmp_path / "20").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("versions", "expected"),
    [("latest", [10]), ("all", [1, 2, 10]), ([2, 1, 7], [1, 2])],
)
def test_complete_versions_with_plain_numbers(versions, expected, folder):
    options = ModelOptions(folder=folder, versions=versions)
    assert selected_versions(options) == {
        number: VersionFolder(folder / str(number), "saved_model")
        for number in expected
    }


def test_none(tmp_path):
    assert selected_versions(ModelOptions(folder=tmp_path)) == {}


def test_each_version_has_its_engine(tmp_path):
    add(tmp_path / "1")
    add(tmp_path / "2", CTRANSLATE2)

    def engines(**options):
        found = selected_versions(ModelOptions(folder=tmp_path, **options))
        return {number: version.engine for number, version in found.items()}

    assert engines(versions="all") == {1: "saved_model", 2: "ctranslate2"}
    assert engines(engine="saved_model") == {1: "saved_model"}
    dictionary = tmp_path / "terms.tsv"
    dictionary.touch()
    assert engines(dictionary=dictionary) == {1: "saved_model"}
    for folder in ("1", "2"):  # Not every SavedModel has a description.
        (tmp_path / folder / FILE).unlink()
    assert engines() == {1: "saved_model"}


def test_a_folder_of_a_model_is_a_version(tmp_path):
    for name, number in (("en-de", 1), ("7", 7)):
        add(tmp_path / name, CTRANSLATE2)
        options = ModelOptions(folder=tmp_path / name)
        version = VersionFolder((tmp_path / name).resolve(), "ctranslate2")
        assert selected_versions(options) == {number: version}


def test_a_run_has_the_models_of_its_engines(tmp_path):
    add(tmp_path / "saved_model" / "1")
    options = ModelOptions(folder=tmp_path)
    saved = VersionFolder(tmp_path / "saved_model" / "1", "saved_model")
    assert selected_versions(options) == {1: saved}
    add(tmp_path / "ctranslate2", CTRANSLATE2)
    fast = VersionFolder(tmp_path / "ctranslate2", "ctranslate2")
    assert selected_versions(options) == {1: fast}
    options = ModelOptions(folder=tmp_path, engine="saved_model")
    assert selected_versions(options) == {1: saved}


def test_a_model_without_versions_is_an_error_unless_it_is_waited_for(folder):
    found = ModelOptions(folder=folder, versions=[2, 7])
    none = ModelOptions(folder=folder, versions=[7, 11])
    check_versions({"found": found})
    with pytest.raises(ValueError, match=r"model none .*versions=\[7, 11\]. Export a"):
        check_versions({"found": found, "none": none})
    check_versions({"none": none.model_copy(update={"wait_for_versions": True})})
    other = ModelOptions(folder=folder, engine="ctranslate2")
    with pytest.raises(ValueError, match="must be a run, a model for CTranslate2, or"):
        check_versions({"other": other})


@pytest.mark.parametrize("name", ["languages", "split_sentences", "dictionary"])
def test_options_of_generated_texts_are_refused_for_a_classifier(name, tmp_path):
    add(tmp_path / "films" / "1")
    EncoderDescription("classify", ("bad", "good")).write(tmp_path / "films" / "1")
    (tmp_path / "terms.tsv").touch()
    values = {"languages": ("en", "de"), "split_sentences": "en"}
    given = {name: values.get(name, tmp_path / "terms.tsv")}
    options = ModelOptions(folder=tmp_path / "films", **given)
    message = (
        f"`{name}` must be given for models that generate texts alone; received .*"
    )
    message += f"films, whose task is 'classify'. Remove `{name}`, or set it for other"
    with pytest.raises(ValueError, match=message):
        check_versions({"films": options})
    [version] = selected_versions(options).values()
    with pytest.raises(ValueError, match=message):  # a version that appears later
        load_version(version, options, threads=1)
    check_versions({"films": ModelOptions(folder=tmp_path / "films")})
    (tmp_path / "films" / "1" / FILE).write_text("{")  # loading it says so
    check_versions({"films": options})


def test_unreadable_folders_are_left_out(folder, monkeypatch):
    is_file = pathlib.Path.is_file

    def refused(path):
        if "10" in path.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(pathlib.Path, "is_file", refused)
    options = ModelOptions(folder=folder, versions="all")
    assert [*selected_versions(options)] == [1, 2]
