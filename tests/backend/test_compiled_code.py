import os
import pathlib
import subprocess
import sys
import time

import keras
import pytest

from keras_transformer.backend import compiled_code

PROGRAMS = {
    "tensorflow": """
import tensorflow as tf

function = tf.function(lambda x: tf.linalg.matmul(x, x), jit_compile=True)
print(function(tf.ones((2, 2))).numpy().sum())
""",
    "jax": """
import jax

jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
print(jax.jit(lambda x: x @ x)(jax.numpy.ones((2, 2))).sum())
""",
}


@pytest.fixture
def environment(monkeypatch):
    """The variables, which are restored after the test."""
    for name in ("TF_XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "keras_transformer"


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="PyTorch without XLA")
def test_a_process_keeps_its_code(tmp_path, environment):
    folder = tmp_path / "folder with spaces"
    folder.mkdir()
    compiled_code.keep_compiled_code(folder)
    program = PROGRAMS[keras.backend.backend()]
    output = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert float(output) == 8
    assert [file for file in folder.iterdir() if file.stat().st_size]


@pytest.mark.once("torch")
def test_a_given_folder_takes_precedence(monkeypatch):
    flags = "--tf_xla_persistent_cache_directory=mine"
    monkeypatch.setenv("TF_XLA_FLAGS", flags)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "mine")
    compiled_code.keep_compiled_code("other")
    assert os.environ["TF_XLA_FLAGS"] == flags
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "mine"


@pytest.mark.once("torch")
def test_other_flags_remain(monkeypatch, environment):
    monkeypatch.setenv("TF_XLA_FLAGS", "--tf_xla_clustering_debug")
    compiled_code.keep_compiled_code("folder")
    flags = os.environ["TF_XLA_FLAGS"].split()
    assert flags[0] == "--tf_xla_clustering_debug"
    assert "--tf_xla_persistent_cache_directory='folder'" in flags


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
