"""The command `check-pretrained` says whether transformers computes the same."""

import published_models
import pytest
import transformers
from typer.testing import CliRunner

from keras_transformer_runtime.command import make_app

pytestmark = pytest.mark.once("torch")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("folder") / "llama"
    published_models.write_folder("llama 3", path)
    return path


def run(*arguments):
    command = ["check-pretrained", *map(str, arguments)]
    return CliRunner().invoke(make_app(command), command)


def test_equal_models(folder, tmp_path):
    result = run(folder)
    assert result.exit_code == 0, result.output
    words = [line.split()[:2] for line in result.output.splitlines()]
    assert words == [["logits", "equal"], ["greedy", "search"], ["tokens", "equal"]]
    texts = tmp_path / "texts"
    texts.write_text("a man\ntwo dogs\n")
    assert "2 of 2 texts equal" in run(folder, "--texts", texts).output


def test_different_models(folder, monkeypatch):
    other = transformers.LlamaForCausalLM.from_pretrained(folder)
    other.model.norm.weight.data *= 1.1
    monkeypatch.setattr(
        transformers.LlamaForCausalLM, "from_pretrained", lambda *_, **__: other
    )
    result = run(folder)
    assert result.exit_code == 1 and "DIFFERENT" in result.output


def test_a_folder_without_a_model(tmp_path):
    result = run(tmp_path)
    assert isinstance(result.exception, FileNotFoundError)
    assert "config.json" in str(result.exception)
