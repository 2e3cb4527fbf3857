"""`--engine`: the engines of each kind of path, and what `auto` chooses."""

import subprocess
import sys

import ctranslate2
import pytest
from ctranslate2_designs import model_of
from error_box import unwrapped
from typer.testing import CliRunner

from keras_transformer import BeamSearch, GreedySearch
from keras_transformer_runtime.command import make_app
from keras_transformer_runtime.commands.engine_choice import model_folders
from keras_transformer_runtime.engines.ctranslate2_engine import CTranslate2Engine

pytestmark = pytest.mark.once("torch")

TEXTS = ["abc", "", "feed"]
LINES = "".join(f"{text}\n" for text in TEXTS)
GREEDY = ["--num-beams", "1"]


@pytest.fixture(scope="module")
def model():
    return model_of(seed=5)


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    """The folder of a run, whose engines have different outputs."""
    folder = tmp_path_factory.mktemp("run")
    model_of(seed=2).save(folder / "model.keras")
    options = {"format": "ctranslate2", "check_texts": TEXTS}
    model.export(folder / "ctranslate2", BeamSearch(3, 0.0), **options)
    return folder


def translate(path, *options):
    arguments = ["translate", str(path), *map(str, options)]
    result = CliRunner().invoke(make_app(), arguments, input=LINES)
    return result.stdout.splitlines(), result.stderr, result


def failure(path, *options):
    *_, result = translate(path, *options)
    assert result.exit_code == 1
    return str(result.exception)


def test_a_run_is_decoded_with_ctranslate2(model, run):
    found, told, _ = translate(run)
    engine = CTranslate2Engine.load(run / "ctranslate2")
    expected = [row[0].text for row in engine.generate(TEXTS, engine.options)]
    assert found == expected
    assert told == f"Engine: CTranslate2, {run}/ctranslate2\n"
    found, told, _ = translate(run, "--quiet", *GREEDY)
    assert found == model.generate(TEXTS, GreedySearch()) and not told
    found, told, _ = translate(run / "ctranslate2", *GREEDY)
    assert found == model.generate(TEXTS, GreedySearch()) and not told


@pytest.mark.parametrize(
    "options, reason",
    [
        (
            ["--temperature", 1e-5, "--seed", 1],
            "`--seed` must not be given with CTranslate2, whose random numbers depend "
            "on the other texts of a batch; received `--seed 1`. ",
        ),
        (
            ["--num-beam-groups", 2, "--diversity-penalty", 1],
            "`--num-beam-groups` must be 1 with CTranslate2; received "
            "`--num-beam-groups 2`. ",
        ),
        (["--workers", 2], None),
    ],
)
def test_keras_where_ctranslate2_does_not_support_an_option(run, options, reason):
    if reason is None:
        assert "`workers` must be 1" in failure(run, *options)  # for a pipe
        return
    _, told, result = translate(run, *options)
    assert result.exit_code == 0
    assert told.startswith(f"Engine: Keras. {reason}")


def test_a_dictionary_requires_keras(run, tmp_path):
    (tmp_path / "terms.tsv").write_text("abc\tZY\n")
    options = ["--dictionary", tmp_path / "terms.tsv"]
    found, told, _ = translate(run, *options)
    assert told == "Engine: Keras. `--dictionary` requires it.\n" and "ZY" in found[0]
    message = failure(run / "ctranslate2", *options)
    assert message.startswith("`dictionary` requires the engine Keras; received ")
    message = failure(run, "--engine", "ctranslate2", *options)
    assert message.startswith("`dictionary` requires the engine Keras; received ")


def test_a_recorded_stop(tmp_path):
    model = model_of(seed=12, max_target_length=7)
    model.save(tmp_path / "model.keras")
    wholes = model.generate(TEXTS, GreedySearch())
    assert "UW" in wholes[2]
    paths = [str(tmp_path / name) for name in ("model.keras", "1")]
    options = ["--format", "ctranslate2", *GREEDY, "--stop", "UW", "--stop", "never"]
    result = CliRunner().invoke(make_app(), ["export", *paths, *options])
    assert result.exit_code == 0, result.output
    found, *_ = translate(paths[1])
    assert found == [whole.partition("UW")[0] for whole in wholes]
    found, *_ = translate(paths[1], "--stop", "WW")
    assert found == [whole.partition("WW")[0] for whole in wholes]
    options = ["--format", "onnx", "--stop", "UW"]
    result = CliRunner().invoke(make_app(), ["export", *paths, *options])
    expected = "--stop is for --format saved_model or ctranslate2"
    assert expected in unwrapped(result.output)


def test_a_gpu_selects_keras(run, monkeypatch):
    monkeypatch.setattr(ctranslate2, "get_cuda_device_count", lambda: 1)
    keras = model_of(seed=2).generate(TEXTS, GreedySearch())
    found, told, _ = translate(run, *GREEDY)
    assert found == keras and told.startswith("Engine: Keras. The machine has a GPU.")
    found, told, _ = translate(run, "--engine", "ctranslate2", *GREEDY)
    assert found != keras and not told


def test_engines_that_a_path_lacks(run):
    assert [*model_folders(run)] == ["keras", "ctranslate2"]
    message = failure(run, "--engine", "saved_model")
    assert f"{run} must have a model for `engine=saved_model`; it has none" in message
    command = f"keras-transformer export {run} {run}/saved_model --format saved_model"
    assert command in message
    message = failure(run / "ctranslate2", "--engine", "keras")
    assert "it has none. Use `--engine ctranslate2`." in message
    file = run / "model.keras"
    message = failure(file, "--engine", "ctranslate2")
    assert f"export {file} {run}/model --format ctranslate2" in message
    *_, result = translate(run, "--engine", "onnx")
    assert result.exit_code == 2 and "'onnx' is not one of" in unwrapped(result.output)


def test_the_latest_version_of_a_saved_model(tmp_path):
    for version in ("2", "10", "x"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "saved_model.pb").touch()
    assert model_folders(tmp_path) == {"saved_model": tmp_path / "10"}
    assert model_folders(tmp_path / "2") == {"saved_model": tmp_path / "2"}


@pytest.mark.slow
@pytest.mark.parametrize("command", ["translate", "evaluate"])
def test_the_commands_need_no_tensorflow(run, tmp_path, command):
    (tmp_path / "source").write_text("abc\nfeed\n")
    arguments = [command, str(run / "ctranslate2"), str(tmp_path / "source")]
    arguments += [str(tmp_path / "source")] if command == "evaluate" else []
    code = f"""
import sys
from keras_transformer_runtime.command import make_app
make_app({arguments!r})({arguments!r}, standalone_mode=False)
print(*sorted({{"keras", "keras_transformer", "tensorflow"}} & sys.modules.keys()))
"""
    process = [sys.executable, "-c", code]
    found = subprocess.run(process, capture_output=True, text=True, check=True)
    *written, loaded = found.stdout.split("\n")[:-1]
    assert written and loaded == ""


def test_aligned_words(tmp_path):
    model = model_of(seed=12, max_target_length=7)
    model.export(tmp_path / "1", format="ctranslate2", check_texts=TEXTS)
    options = ["--num-beams", 3, "--length-penalty", 0]
    model.save(tmp_path / "model.keras")
    for path in (tmp_path / "1", tmp_path / "model.keras"):
        texts, *_ = translate(path, *options)
        assert texts[0] and texts[2] and not texts[1]
        found, *_ = translate(path, *options, "--align")
        assert found == [f"{texts[0]} ||| 0-0", " ||| ", f"{texts[2]} ||| 0-0"]
    several = [*options, "--num-hypotheses", 2]
    lines, *_ = translate(path, *several)
    found, *_ = translate(path, *several, "--align")
    ends = [" ||| " if "|||  |||" in line else " ||| 0-0" for line in lines]
    assert found == [line + end for line, end in zip(lines, ends, strict=True)]
