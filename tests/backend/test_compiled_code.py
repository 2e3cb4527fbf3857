import os
import pathlib
import subprocess
import sys
import time

import keras
import pytest

from keras_transformer.backend import compiled_code

PROGRAM = """
import jax

jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
print(jax.jit(lambda x: x @ x)(jax.numpy.ones((2, 2))).sum())
"""


@pytest.fixture
def environment(monkeypatch):
    """Without the variable, which is restored after the test."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "")
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")


@pytest.fixture
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "keras_transformer"


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="the cache of JAX")
def test_a_process_keeps_its_code(home, environment):
    compiled_code.keep_compiled_code()
    folder = compiled_code.user_cache()
    for damage in (False, True):
        output = subprocess.check_output([sys.executable, "-c", PROGRAM], text=True)
        assert float(output) == 8
        files = [file for file in folder.iterdir() if file.stat().st_size]
        assert files or damage
        for file in files:
            file.write_bytes(b"damaged")


@pytest.mark.once("torch")
def test_a_given_folder_takes_precedence(home, monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "mine")
    compiled_code.keep_compiled_code()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "mine"
    assert not home.exists()


@pytest.mark.once("torch")
def test_without_a_folder_nothing_is_kept(home, environment):
    home.parent.write_text("")  # no folder
    compiled_code.keep_compiled_code()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


@pytest.mark.once("torch")
def test_the_folder_depends_on_the_machine(monkeypatch, home):
    folders = {compiled_code.user_cache()}
    monkeypatch.setattr(compiled_code, "_processor", lambda: "flags: another one")
    folders.add(compiled_code.user_cache())
    monkeypatch.setattr(compiled_code, "_version", lambda package: "0.0")
    folders.add(compiled_code.user_cache())
    assert len(folders) == 3
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
