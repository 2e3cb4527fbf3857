import atexit
import os
import pathlib
import shutil
import subprocess
import sys
import time
import zlib

import keras
import pytest

from keras_transformer.backend import compiled_code

PROGRAM = """
import jax

jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
print(jax.jit(lambda x: x @ x)(jax.numpy.ones((2, 2))).sum())
"""


TENSORFLOW_PROGRAM = """
from keras_transformer.backend.compiled_code import keep_compiled_code

keep_compiled_code()
import tensorflow as tf

print(tf.function(lambda x: x @ x, jit_compile=True)(tf.ones((2, 2))).numpy().sum())
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Without the variables, which are restored after the test."""
    for name in ("JAX_COMPILATION_CACHE_DIR", "TF_XLA_FLAGS"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(atexit, "register", lambda *_: None)


@pytest.fixture
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "keras_transformer"


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="the cache of JAX")
def test_a_process_keeps_its_code(home):
    compiled_code.keep_compiled_code()
    folder = compiled_code.user_cache("jaxlib")
    for damage in (False, True):
        output = subprocess.check_output([sys.executable, "-c", PROGRAM], text=True)
        assert float(output) == 8
        files = [file for file in folder.iterdir() if file.stat().st_size]
        assert files or damage
        for file in files:
            file.write_bytes(b"damaged")


@pytest.mark.once("torch")
def test_a_given_folder_takes_precedence(home, monkeypatch):
    flags = "--tf_xla_persistent_cache_directory=mine"
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "mine")
    monkeypatch.setenv("TF_XLA_FLAGS", flags)
    compiled_code.keep_compiled_code()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "mine"
    assert os.environ["TF_XLA_FLAGS"] == flags
    assert not home.exists()


@pytest.mark.once("torch")
def test_without_a_folder_nothing_is_kept(home):
    home.parent.write_text("")  # no folder
    compiled_code.keep_compiled_code()
    assert not {"JAX_COMPILATION_CACHE_DIR", "TF_XLA_FLAGS"} & set(os.environ)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="of TensorFlow")
def test_tensorflow_keeps_its_code(home):
    """TensorFlow alone would raise an error for the damaged file."""
    files = []
    for content in (b"damaged", None):
        command = [sys.executable, "-c", TENSORFLOW_PROGRAM]
        assert float(subprocess.check_output(command, text=True)) == 8
        (file,) = home.glob("*/*.pb")
        files.append((file.name, file.stat().st_ino))
        assert not [*home.glob("*/tmp*")]
        if content:
            file.with_name(f"12345678-{file.name[9:]}").write_bytes(content)
    assert files[0] == files[1]


@pytest.mark.once("torch")
def test_files_of_tensorflow(home, monkeypatch):
    """Of a process: those with the right checksum, the newest first."""
    folder = compiled_code.user_cache("tensorflow", "tensorflow-cpu")

    def add(name, content, checksum=None, seconds=100):
        checksum = checksum or f"{zlib.crc32(content):08x}"
        file = folder / f"{checksum}-{name}"
        file.write_bytes(content)
        written = time.time() - seconds
        os.utime(file, (written, written))
        return file

    good, other = add("good.pb", b"good"), add("other.pb", b"other", seconds=300)
    damaged = add("damaged.pb", b"da", f"{zlib.crc32(b'damaged'):08x}", 200)
    ended = []
    monkeypatch.setattr(atexit, "register", lambda *call: ended.append(call))
    compiled_code.keep_compiled_code()
    (own,) = folder.glob("tmp*")
    assert os.environ["TF_XLA_FLAGS"] == compiled_code.tensorflow_flags(own)
    assert sorted(file.name for file in own.iterdir()) == ["good.pb", "other.pb"]
    assert not damaged.exists()
    (own / "new.pb").write_bytes(b"new")
    (own / "unfinished.pb.tmp").write_bytes(b"n")
    ((add_new_files, *arguments),) = ended
    add_new_files(*arguments[:-1], os.getpid() + 1)  # in a child process
    assert own.exists()
    add_new_files(*arguments)
    new = folder / f"{zlib.crc32(b'new'):08x}-new.pb"
    assert {*folder.iterdir()} == {good, other, new}
    # The oldest files are removed.
    monkeypatch.delenv("TF_XLA_FLAGS")
    monkeypatch.setattr(compiled_code, "_GREATEST_BYTES", len(b"new" + b"good") + 1)
    compiled_code.keep_compiled_code()
    assert {*folder.glob("*.pb")} == {good, new}


@pytest.mark.once("torch")
def test_nothing_is_kept_on_a_full_disk(home, monkeypatch):
    usage = shutil.disk_usage("/")._replace(free=2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    compiled_code.keep_compiled_code()
    assert "TF_XLA_FLAGS" not in os.environ


@pytest.mark.once("torch")
def test_the_folder_depends_on_the_machine(monkeypatch, home):
    folders = {compiled_code.user_cache("numpy"), compiled_code.user_cache("keras")}
    monkeypatch.setattr(compiled_code, "_processor", lambda: "flags: another one")
    folders.add(compiled_code.user_cache("numpy"))
    monkeypatch.setattr(compiled_code, "_version", lambda package: "0.0")
    folders.add(compiled_code.user_cache("numpy"))
    assert len(folders) == 4
    assert all(folder.parent == home and folder.is_dir() for folder in folders)
    assert all(folder.stat().st_mode & 0o077 == 0 for folder in folders)


@pytest.mark.once("torch")
def test_old_files_are_removed(home):
    old_version = home / "compiled-old"
    old_version.mkdir(parents=True)
    for name, days in (("old", 31), ("new", 29)):
        file = old_version / name
        file.touch()
        written = time.time() - days * 24 * 3600
        os.utime(file, (written, written))
    of_killed_process = old_version / "tmp1234"
    of_killed_process.mkdir()
    (of_killed_process / "code.pb").touch()
    os.utime(of_killed_process, (0, 0))
    other = home / "other"
    other.touch()
    os.utime(other, (0, 0))
    compiled_code.user_cache()
    assert [file.name for file in old_version.iterdir()] == ["new"]
    assert other.exists()


@pytest.mark.once("torch")
@pytest.mark.parametrize("problem", ["file", "owner", "no home"])
def test_no_folder_without_permission(problem, monkeypatch, home):
    if problem == "file":
        home.parent.write_text("")
    elif problem == "owner":
        monkeypatch.setattr(os, "getuid", lambda: -1)
    else:
        monkeypatch.delenv("XDG_CACHE_HOME")
        error = RuntimeError("no home")
        monkeypatch.setattr(pathlib.Path, "home", lambda: (_ for _ in ()).throw(error))
    assert compiled_code.user_cache() is None
