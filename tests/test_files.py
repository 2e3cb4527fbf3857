"""Files and folders that are whole or absent, and JSON."""

import pathlib
import subprocess
import sys

import pytest

from keras_transformer.files import (
    checked_file,
    new_folder,
    read_json,
    write_json,
    written_aside,
    written_whole,
)

pytestmark = pytest.mark.once

# Files.


def test_a_file_is_there_at_the_end_and_not_before(tmp_path):
    path = tmp_path / "figures.json"
    with written_whole(path) as file:
        file.write(b"{}")
        assert not path.exists()
    assert path.read_bytes() == b"{}"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_what_was_there(tmp_path):
    path = tmp_path / "figures.json"
    path.write_bytes(b"before")
    with pytest.raises(OSError, match="disk full"), written_whole(path) as file:
        file.write(b"half")
        raise OSError("disk full")
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_the_other_name_has_the_same_ending(tmp_path):
    path = tmp_path / "model.keras"
    with written_aside(str(path)) as aside:
        assert aside.parent == tmp_path and aside.suffix == ".keras"
        aside.write_bytes(b"zip")
    assert path.read_bytes() == b"zip"


def in_another_process(path, text, then=""):
    code = (
        "import os, sys; from keras_transformer.files import written_whole\n"
        f"with written_whole(sys.argv[1]) as file: file.write({text!r}); {then}"
    )
    return subprocess.run([sys.executable, "-c", code, path]).returncode


def test_a_process_that_is_killed_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "model.keras"
    path.write_bytes(b"before")
    assert in_another_process(path, b"half", "os._exit(9)") == 9
    assert path.read_bytes() == b"before"
    with written_whole(path) as file:
        file.write(b"all")
    assert path.read_bytes() == b"all"


def test_processes_do_not_disturb_each_other(tmp_path):
    path = tmp_path / "model.keras"
    with written_whole(path) as file:
        file.write(b"ours, ")
        file.flush()
        assert in_another_process(path, b"theirs") == 0
        assert path.read_bytes() == b"theirs"
        file.write(b"whole")
    assert path.read_bytes() == b"ours, whole"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_link_leads_to_is_replaced(tmp_path):
    (tmp_path / "disk").mkdir()
    target, link = tmp_path / "disk" / "real.keras", tmp_path / "model.keras"
    target.write_bytes(b"before")
    link.symlink_to(target)
    with written_whole(link) as file:
        assert pathlib.Path(file.name).parent == target.parent
        file.write(b"after")
    assert link.is_symlink()
    assert target.read_bytes() == b"after"


# Folders.


@pytest.mark.parametrize("exists", [False, True])
def test_a_folder_gets_its_name_at_the_end(tmp_path, exists):
    target = tmp_path / "models" / "1"
    if exists:
        target.mkdir(parents=True)
    with new_folder(target) as folder:
        folder.mkdir()
        (folder / "notes.txt").write_text("mine")
        assert not target.exists() or not list(target.iterdir())
    assert (target / "notes.txt").read_text() == "mine"
    assert list(target.parent.iterdir()) == [target]


def test_nothing_is_left_of_a_folder_that_failed(tmp_path):
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "1") as folder:
        folder.mkdir()
        1 / 0  # noqa: B018
    assert list(tmp_path.iterdir()) == []


def test_nor_of_the_folders_that_were_made_for_it(tmp_path):
    (tmp_path / "models").mkdir()
    target = tmp_path / "models" / "en" / "de" / "1"
    with pytest.raises(ZeroDivisionError), new_folder(target):
        1 / 0  # noqa: B018
    assert list(tmp_path.rglob("*")) == [tmp_path / "models"]
    with pytest.raises(ZeroDivisionError), new_folder(target):
        (target.parents[1] / "notes.txt").write_text("another's")
        1 / 0  # noqa: B018
    assert (tmp_path / "models/en/notes.txt").read_text() == "another's"


def test_an_existing_target_is_not_replaced(tmp_path):
    (tmp_path / "1").mkdir()
    file = tmp_path / "1" / "notes.txt"
    file.write_text("mine")
    for target in (tmp_path / "1", file, str(file)):
        message = "`filepath` must not exist or be an empty folder; received `filepath="
        with pytest.raises(FileExistsError, match=message), new_folder(target):
            pass
    assert file.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [tmp_path / "1"]


def test_a_folder_that_cannot_be_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for target in (".", "/"):
        message = f"`filepath` must .*`filepath='{target}'`"
        with pytest.raises(ValueError, match=message), new_folder(target):
            pass


def test_what_a_link_leads_to_is_written(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "1").symlink_to(tmp_path / "disk")
    with new_folder(tmp_path / "1") as folder:
        folder.mkdir()
    assert (tmp_path / "1").is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {"1", "disk"}


def test_a_file_that_a_folder_must_have(tmp_path):
    (tmp_path / "config.json").touch()
    assert checked_file(tmp_path / "config.json") == tmp_path / "config.json"
    message = f"`preset` must have the file model.h5; there is none in {tmp_path}"
    with pytest.raises(FileNotFoundError, match=message):
        checked_file(tmp_path / "model.h5", "preset")


# JSON.


def test_json_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "config.json"
    for content in ({"name": "Übung"}, ["a", 1]):
        write_json(path, content)
        assert read_json(path, type(content)) == content
    assert path.read_text("utf-8") == '[\n  "a",\n  1\n]\n'
    with pytest.raises(ValueError, match=r"must hold a JSON object; it holds \['a', 1"):
        read_json(path)


@pytest.mark.parametrize("content", [b"", b'{"a', b"\xff", b"[" * 100_000])
def test_what_is_not_json(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match="config.json must be a JSON file; it is not"):
        read_json(tmp_path / "config.json")
