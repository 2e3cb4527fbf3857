"""Runs the tutorials at toy size, in the order in which they use each other's files."""

import pathlib
import re
import shutil

import keras
import numpy as np
import pytest
from documented import ROOT, write_toy_text
from marian_folders import trained_model

TUTORIALS = ROOT / "examples/tutorials"
pytestmark = [pytest.mark.slow, pytest.mark.once("torch")]


def run(name, sizes):
    """Runs a tutorial with other sizes than it says; returns its names."""
    code = (TUTORIALS / f"{name}.py").read_text("utf-8")
    for size, toy_size in sizes.items():
        assert size in code
        code = code.replace(size, toy_size)
    namespace = {"__name__": name}
    exec(compile(code, name, "exec"), namespace)
    return namespace


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of the tutorials, with their text."""
    folder = tmp_path_factory.mktemp("tutorials")
    write_toy_text(folder)
    for language in ("en", "de"):
        shutil.copy(folder / f"valid.{language}", folder / f"test.{language}")
    return folder


@pytest.fixture(autouse=True)
def in_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)


def test_translation_and_attention(capsys):
    sizes = {"vocabulary_size=8000": "vocabulary_size=29", "EPOCHS = 40": "EPOCHS = 1"}
    sizes['model.export("saved_models/en-de/1")'] = ""  # as in the README
    names = run("translation", sizes)
    assert len(names["translations"]) == 13
    assert "CorpusScore(score=" in capsys.readouterr().out
    names = run("attention", {})
    columns = len(names["columns"])
    assert names["heads"].shape == (4, columns, columns)
    highest = np.log2(len(names["columns"]))
    assert names["entropy"].min() >= 0 and names["entropy"].max() <= highest + 1e-6
    for picture in ("attention", "heads", "token", "tree"):
        assert pathlib.Path(f"{picture}.png").read_bytes().startswith(b"\x89PNG")


def test_marian(folder, capsys):
    trained_model(folder / "opus-mt-en-de")
    sizes = {"epochs=3": "epochs=1", 'model.export("saved_models/opus-en-de/1")': ""}
    names = run("marian", sizes)
    assert re.search(r"^before: \d+\.\d BLEU$", capsys.readouterr().out, re.MULTILINE)
    loaded = keras.saving.load_model("opus-en-de.keras")
    assert loaded.generate(names["sources"]) == names["model"].generate(
        names["sources"]
    )


def test_language_model(folder, capsys):
    text = "A man sees two dogs. The dogs see a man.\n" * 160
    (folder / "text.txt").write_text(text, "utf-8")
    sizes = {
        **{"num_layers=4": "num_layers=1", "hidden_dim=128": "hidden_dim=16"},
        **{"intermediate_dim=384": "intermediate_dim=24", "3e-3": "1e-2"},
        **{"LENGTH = 256": "LENGTH = 16", "max_length=200": "max_length=7"},
    }
    names = run("language_model", sizes)
    assert 0 < names["bits"].mean() < 3  # 4.1 if all 17 characters are as likely
    assert capsys.readouterr().out.count(" bits: ") == 5


def test_lines_of_the_tutorial_on_translation():
    """The table of the tutorial has the number of its lines of code."""
    source = (TUTORIALS / "translation.py").read_text("utf-8")
    code = source.split('"""\n', 1)[1]
    lines = [line for line in code.splitlines() if line and line[0] != "#"]
    (said,) = re.findall(r"lines of code, .* \| 254 \| (\d+) \|", source)
    assert int(said) == len(lines)
