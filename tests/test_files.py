"""Files that are whole or absent."""

import pathlib
import subprocess
import sys

import pytest

from keras_transformer.files import written_aside, written_whole

pytestmark = pytest.mark.once


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
