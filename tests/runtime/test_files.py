"""Files and folders that are whole or absent, and JSON."""

import os
import pathlib
import stat
import struct
import subprocess
import sys
import zipfile
import zlib

import pytest

from keras_transformer_runtime import files
from keras_transformer_runtime.files import (
    check_is_file,
    check_zip_members,
    checked_file,
    new_folder,
    read_json,
    write_json,
    written_whole,
)

pytestmark = pytest.mark.once

# Files.


def test_a_file_appears_when_it_is_complete(tmp_path):
    path = tmp_path / "figures.json"
    with written_whole(path) as file:
        file.write(b"{}")
        assert not path.exists()
    assert path.read_bytes() == b"{}"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_keeps_the_old_file(tmp_path):
    path = tmp_path / "figures.json"
    path.write_bytes(b"before")
    with pytest.raises(OSError, match="disk full"), written_whole(path) as file:
        file.write(b"half")
        raise OSError("disk full")
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_the_temporary_file_has_the_same_name(tmp_path):
    path = tmp_path / "model.keras"
    with written_whole(str(path)) as file:
        aside = pathlib.Path(file.name)
        assert aside.parents[1] == tmp_path and aside.name == "model.keras"
        assert permissions(aside.parent) == "0o700"
        file.write(b"zip")
    assert path.read_bytes() == b"zip"


def in_another_process(path, text, then=""):
    code = (
        "import os, sys; from keras_transformer_runtime.files import written_whole\n"
        f"with written_whole(sys.argv[1]) as file: file.write({text!r}); {then}"
    )
    return subprocess.run([sys.executable, "-c", code, path]).returncode


def test_a_killed_process_keeps_the_old_file(tmp_path):
    path = tmp_path / "model.keras"
    path.write_bytes(b"before")
    assert in_another_process(path, b"half", "os._exit(9)") == 9
    assert path.read_bytes() == b"before"
    with written_whole(path) as file:
        file.write(b"all")
    assert path.read_bytes() == b"all"


def test_several_processes_write_the_same_file(tmp_path):
    path = tmp_path / "model.keras"
    with written_whole(path) as file:
        file.write(b"ours, ")
        file.flush()
        assert in_another_process(path, b"theirs") == 0
        assert path.read_bytes() == b"theirs"
        file.write(b"whole")
    assert path.read_bytes() == b"ours, whole"
    assert list(tmp_path.iterdir()) == [path]


def test_the_target_of_a_link_is_replaced(tmp_path):
    (tmp_path / "disk").mkdir()
    target, link = tmp_path / "disk" / "real.keras", tmp_path / "model.keras"
    target.write_bytes(b"before")
    link.symlink_to(target)
    with written_whole(link) as file:
        assert pathlib.Path(file.name).parents[1] == target.parent
        file.write(b"after")
    assert link.is_symlink()
    assert target.read_bytes() == b"after"


def in_a_killed_process(code, path):
    """Runs code that must not return; the process has no chance to clean up."""
    code = (
        "import os, signal, sys; from keras_transformer_runtime.files import *\n"
        "def die(): os.kill(os.getpid(), signal.SIGKILL)\n"
        f"{code}"
    )
    assert subprocess.run([sys.executable, "-c", code, path]).returncode == -9


def test_unfinished_files_of_killed_processes_are_removed(tmp_path):
    path = tmp_path / "model.keras"
    in_a_killed_process(
        "with written_whole(sys.argv[1]) as file: file.write(b'half'); die()", path
    )
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".unfinished-model.keras-")
    with written_whole(path) as file:
        assert not left.exists()
        file.write(b"all")
    assert list(tmp_path.iterdir()) == [path]


def test_other_files_are_not_removed(tmp_path):
    others = [
        tmp_path / ".unfinished-other.keras-01234567",
        tmp_path / ".unfinished-model.keras-7",
        tmp_path / "mine",
    ]
    for other in others:
        other.mkdir()
        (other / "file").touch()
    link = tmp_path / ".unfinished-model.keras-01234567"
    link.symlink_to(tmp_path / "mine")
    file = tmp_path / ".unfinished-model.keras-12345678"
    file.touch()
    with written_whole(tmp_path / "model.keras"):
        pass
    assert all((other / "file").exists() for other in others)
    assert link.is_symlink() and file.exists()


def test_a_link_can_be_replaced(tmp_path):
    (tmp_path / "mine").write_bytes(b"mine")
    (tmp_path / "record.json").symlink_to(tmp_path / "mine")
    write_json(tmp_path / "record.json", [], follow_links=False)
    assert not (tmp_path / "record.json").is_symlink()
    assert (tmp_path / "mine").read_bytes() == b"mine"


def permissions(path):
    return oct(stat.S_IMODE(path.stat().st_mode))


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o400, 0o666])
def test_the_permissions_of_a_file_stay(tmp_path, mode):
    path = tmp_path / "model.keras"
    path.touch()
    path.chmod(mode)
    with written_whole(path) as file:
        file.write(b"new")
    assert permissions(path) == oct(mode)
    assert path.read_bytes() == b"new"


def test_a_new_file_has_the_usual_permissions(tmp_path):
    (tmp_path / "usual").touch()
    with written_whole(tmp_path / "new"):
        pass
    assert permissions(tmp_path / "new") == permissions(tmp_path / "usual")


# Folders.


@pytest.mark.parametrize("exists", [False, True])
def test_a_folder_appears_when_it_is_complete(tmp_path, exists):
    target = tmp_path / "models" / "1"
    if exists:
        target.mkdir(parents=True)
    with new_folder(target) as folder:
        folder.mkdir()
        (folder / "notes.txt").write_text("mine")
        assert not target.exists() or not list(target.iterdir())
    assert (target / "notes.txt").read_text() == "mine"
    assert list(target.parent.iterdir()) == [target]


def test_a_failed_folder_is_removed(tmp_path):
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "1") as folder:
        folder.mkdir()
        1 / 0  # noqa: B018
    assert list(tmp_path.iterdir()) == []


def test_an_existing_target_is_not_replaced(tmp_path):
    (tmp_path / "1").mkdir()
    file = tmp_path / "1" / "notes.txt"
    file.write_text("mine")
    for target, found in [(tmp_path / "1", "not empty"), (file, "a file")]:
        message = f"`filepath` must be a new or an empty folder; .*, which is {found}"
        with pytest.raises(FileExistsError, match=message), new_folder(target):
            pass
    assert file.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [tmp_path / "1"]


def test_the_working_folder_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = "`filepath` must not be the working folder; received `filepath='.'`"
    with pytest.raises(ValueError, match=message), new_folder("."):
        pass


def test_a_folder_is_written_through_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "1").symlink_to(tmp_path / "disk")
    with new_folder(tmp_path / "1") as folder:
        folder.mkdir()
    assert (tmp_path / "1").is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {"1", "disk"}


def test_the_folder_of_a_killed_process_is_removed(tmp_path):
    code = (
        "with new_folder(sys.argv[1]) as folder:\n"
        "    folder.mkdir(); (folder / 'weights').touch(); die()"
    )
    in_a_killed_process(code, tmp_path / "1")
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".unfinished-1-")
    with new_folder(tmp_path / "1") as ours:
        ours.mkdir()
        assert not left.exists()
        with new_folder(tmp_path / "1") as other:
            other.mkdir()
        assert ours.exists()  # Its process is alive.
    assert list(tmp_path.iterdir()) == [tmp_path / "1"]


def test_without_locks_nothing_is_removed(tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError("no locks")

    monkeypatch.setattr(files.fcntl, "flock", refuse)
    left = tmp_path / ".unfinished-1-01234567"
    (left / "1").mkdir(parents=True)
    with new_folder(tmp_path / "1") as folder:
        folder.mkdir()
    monkeypatch.setattr(files, "fcntl", None)
    with new_folder(tmp_path / "2") as folder, written_whole(tmp_path / "a") as file:
        folder.mkdir()
        file.write(b"a")
    assert sorted(p.name for p in tmp_path.iterdir()) == [left.name, "1", "2", "a"]


def test_the_permissions_of_an_empty_folder_stay(tmp_path):
    (tmp_path / "1").mkdir(0o700)
    with new_folder(tmp_path / "1") as folder:
        folder.mkdir()
        assert permissions(folder.parent) == "0o700"
    assert permissions(tmp_path / "1") == "0o700"


def test_a_required_file_of_a_folder(tmp_path):
    (tmp_path / "config.json").touch()
    assert checked_file(tmp_path / "config.json") == tmp_path / "config.json"
    message = f"`preset` must have the file model.h5; there is none in {tmp_path}"
    with pytest.raises(FileNotFoundError, match=message):
        checked_file(tmp_path / "model.h5", "preset")


# Zip files.


def zip_file(path, method, content, claim):
    """Writes a zip file whose headers give a member another size and checksum."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a", content, method)
    raw = bytearray(path.read_bytes())
    forged = struct.pack("<I", zlib.crc32(content[: claim + 1]))
    size = struct.pack("<I", claim)
    for start, offset in ((b"PK\3\4", 14), (b"PK\1\2", 16)):
        at = raw.index(start) + offset
        raw[at : at + 4], raw[at + 8 : at + 12] = forged, size
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize("claim", [50, 199, 201])
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_member_of_another_size_than_its_header_says(tmp_path, method, claim):
    path = zip_file(tmp_path / "a.zip", method, bytes(200), claim)
    with zipfile.ZipFile(path) as archive, pytest.raises(ValueError, match="'a' has a"):
        check_zip_members(archive, 1000)
    with zipfile.ZipFile(zip_file(path, method, bytes(200), 200)) as archive:
        check_zip_members(archive, 200)
        with pytest.raises(ValueError, match="would have 200 bytes, more than the 199"):
            check_zip_members(archive, 199)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_member_that_is_unpacked_at_once(tmp_path, method):
    path = zip_file(tmp_path / "a.zip", method, bytes(200), 200)
    with zipfile.ZipFile(path) as archive, pytest.raises(ValueError, match="another m"):
        check_zip_members(archive, 1000)


# JSON.


def test_json_round_trip(tmp_path):
    path = tmp_path / "config.json"
    for content in ({"name": "Übung"}, ["a", 1]):
        write_json(path, content)
        assert read_json(path, type(content)) == content
    assert path.read_text("utf-8") == '[\n  "a",\n  1\n]\n'
    with pytest.raises(ValueError, match=r"must hold a JSON object; it holds \['a', 1"):
        read_json(path)


@pytest.mark.parametrize(
    "content", [b"", b'{"a', b"\xff", b"[" * 100_000, b'["\\ud800"]']
)
def test_other_content_than_json(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match="config.json must be a JSON file; it is not"):
        read_json(tmp_path / "config.json")


def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    for read in (read_json, check_is_file):
        with pytest.raises(ValueError, match="config.json must be a file; it is a"):
            read(tmp_path / "config.json")
    with pytest.raises(ValueError, match="/dev/zero must be a file"):
        check_is_file("/dev/zero")
