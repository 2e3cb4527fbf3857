"""The walks of the map follow what `fit` and `generate` call."""

import pathlib
import re
import sys

import pytest

import keras_transformer as kt
from keras_transformer.text import CharacterTokenizer

PACKAGE = pathlib.Path(kt.__file__).parent
PAGE = PACKAGE.parent / "docs" / "source_tree.md"
STEP = re.compile(r"\| `([\w.]+)` \| \[`([\w/.]+)`\]\(")

pytestmark = pytest.mark.once("torch")


def walk(heading):
    section = PAGE.read_text("utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    return [(PACKAGE.parent / path, name) for name, path in STEP.findall(section)]


def missed(steps, function):
    """The steps that `function` does not call one after the other."""
    remaining = list(steps)

    def note(frame, event, _):
        code = frame.f_code
        here = pathlib.Path(code.co_filename), code.co_qualname
        if event == "call" and remaining and here == remaining[0]:
            del remaining[0]

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return remaining


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    (folder / "source").write_text("a toy\nmy toy\ntoys\n" * 3)
    (folder / "target").write_text("x\ny x\nx y z\n" * 3)
    return folder / "source", folder / "target"


@pytest.fixture(scope="module")
def model(files):
    source, target = (CharacterTokenizer.train([file]) for file in files)
    model = kt.Seq2Seq(
        num_layers=1,
        hidden_dim=8,
        intermediate_dim=8,
        num_heads=2,
        source_tokenizer=source,
        target_tokenizer=target,
    )
    model.compile("sgd", kt.LabelSmoothedCrossEntropy(0.1))
    return model


def test_a_text_through_generate(model):
    steps = walk("A text through `generate`")
    assert len(steps) > 10
    assert missed(steps, lambda: model.generate(["a toy"], max_length=3)) == []


def test_a_batch_through_training(model, files):
    def train():
        data = kt.parallel_dataset(
            *files,
            source_tokenizer=model.source_tokenizer,
            target_tokenizer=model.target_tokenizer,
            tokens_per_batch=100,
        )
        model.fit(data.dataset, shuffle=False, verbose=0)

    steps = walk("A batch through training")
    assert len(steps) > 10
    assert missed(steps, train) == []


def test_the_linked_files_exist():
    links = re.findall(r"\]\(\.\./([\w/.]+)\)", PAGE.read_text("utf-8"))
    assert [path for path in links if not (PACKAGE.parent / path).exists()] == []
