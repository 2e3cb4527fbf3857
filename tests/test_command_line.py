import gzip
import subprocess
import sys
import zipfile

import keras
import numpy as np
import pytest
from typer.testing import CliRunner

from keras_transformer import BeamSearch, Ensemble, Seq2Seq, command_line, evaluation
from keras_transformer.text import CharacterTokenizer

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
TEXTS = ["abc", "", "deadbeef"]


@pytest.fixture(scope="module")
def model():
    model = Seq2Seq(
        num_layers=1,
        hidden_dim=6,
        intermediate_dim=7,
        num_heads=3,
        normalize_first=True,
        max_source_length=9,
        max_target_length=5,
        source_tokenizer=CharacterTokenizer([*SPECIAL, *"abcdef"]),
        target_tokenizer=CharacterTokenizer([*SPECIAL, *"UVWXYZ"]),
    )
    rng = np.random.default_rng(1)  # the outputs differ
    model.set_weights([rng.normal(size=weight.shape) for weight in model.weights])
    return model


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("command_line")
    model.save(folder / "model.keras")
    (folder / "source").write_text("\n".join(TEXTS) + "\n")
    (folder / "references").write_text("UVWX\n\nXYZ\n")
    return folder


def run(*arguments):
    return CliRunner().invoke(command_line.app, [str(part) for part in arguments])


def outcome(*arguments):
    """What the whole command leaves: exit code, standard output and error."""
    process = subprocess.run(
        [sys.executable, "-m", "keras_transformer", *map(str, arguments)],
        capture_output=True,
        text=True,
    )
    return process.returncode, process.stdout, process.stderr


def test_translate(model, folder, tmp_path):
    target = tmp_path / "target.gz"
    files = folder / "model.keras", folder / "source", target
    options = ["--num-beams", 3, "--length-penalty", 1, "--quiet"]
    result = run("translate", *files, *options)
    assert result.exit_code == 0, result.output
    expected = model.generate(TEXTS, BeamSearch(3, length_penalty=1.0))
    with gzip.open(target, "rt") as lines:
        assert lines.read().splitlines() == expected


def test_translate_n_best(model, folder, tmp_path):
    target = tmp_path / "target"
    files = folder / "model.keras", folder / "source", target
    assert run("translate", *files, "--n-best", 2, "--quiet").exit_code == 0
    expected = model.generate(TEXTS, BeamSearch(num_hypotheses=2))
    lines = [line.split(" ||| ") for line in target.read_text().splitlines()]
    found = [[text for i, text, _ in lines if int(i) == number] for number in range(3)]
    assert found[0] == expected[0] and found[2] == expected[2]


def test_evaluate(model, folder):
    files = [folder / name for name in ("model.keras", "source", "references")]
    result = run("evaluate", *files, "--num-beams", 2)
    assert result.exit_code == 0, result.output
    references = ["UVWX", "", "XYZ"]
    outputs = model.generate(TEXTS, BeamSearch(2))
    chrf = evaluation.chrf(outputs, references)
    perplexity = model.score(TEXTS, references).perplexity
    bleu_line, chrf_line, last = result.output.splitlines()[-3:]
    assert bleu_line.split()[:1] == ["bleu"] and "tok:13a" in bleu_line
    assert chrf_line.split()[:2] == ["chrf", f"{chrf.score:.2f}"]
    assert last.split() == ["perplexity", f"{perplexity:.2f}"]


@pytest.mark.once
def test_export_and_inspect(folder, tmp_path):
    options = ["--num-beams", 2, "--card", "training_data=a=b"]
    result = run("export", folder / "model.keras", tmp_path / "1", *options)
    assert result.exit_code == 0, result.output
    assert "## Training data\n\na=b\n" in (tmp_path / "1" / "README.md").read_text()
    result = run("inspect", tmp_path / "1")
    lines = dict(line.split(maxsplit=1) for line in result.output.splitlines())
    expected = "text string(·,) → score float32(·,), text string(·,)"
    assert lines["serving_default"] == expected
    assert "nbest" in lines


def test_import_of_what_was_exported(model, folder, tmp_path, monkeypatch):
    new = tmp_path / "1"
    options = ["--format", "ctranslate2"]
    result = run("export", folder / "model.keras", new, *options)
    assert result.exit_code == 0, result.output
    result = run("import", new, tmp_path / "again.keras")
    assert result.exit_code == 0 and "ctranslate2: " in result.output
    again = keras.saving.load_model(tmp_path / "again.keras")
    ids = [[4, 5, 6, 3], [9, 3]]
    one, other = (m.score(ids, [[7, 3], [8, 5, 3]]).scores for m in (model, again))
    np.testing.assert_allclose(one, other, atol=1e-5)
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download",
        lambda name, **options: str(new) if name == "user/model" else None,
    )
    result = run("import", "user/model", tmp_path / "hub.keras")
    assert "ctranslate2: " in result.output
    assert "exists" in refusal("import", new, tmp_path / "again.keras")
    assert "end in .keras" in refusal("import", new, tmp_path / "model.h5")
    code, _, error = outcome("import", tmp_path / "none", tmp_path / "new.keras")
    assert code == 1 and "error: `folder` must be a folder, or a name" in error
    result = run("export", folder / "model.keras", new / "2", "--format", "marian")
    assert "must be a `MarianTokenizer`" in str(result.exception)


def test_inspect_a_model(model, folder):
    result = run("inspect", folder / "model.keras")
    assert result.exit_code == 0, result.output
    facts = dict(line.split(maxsplit=1) for line in result.output.splitlines())
    assert facts["class"] == "Seq2Seq" and facts["hidden_dim"] == "6"
    assert facts["parameters"] == f"{model.count_params():,}"
    assert facts["positions"] == "PositionalEncoding"
    assert facts["max_source_length"] == "9"
    assert "source vocabulary  10, CharacterTokenizer" in result.output


def test_a_preset_is_a_model_too(model, folder, tmp_path):
    model.save_to_preset(tmp_path / "preset")
    output = run("inspect", tmp_path / "preset").output
    assert "Seq2Seq" in output and f"{model.count_params():,}" in output
    files = tmp_path / "preset", folder / "source", tmp_path / "target"
    assert run("translate", *files, "--quiet").exit_code == 0
    assert files[2].read_text().splitlines() == model.generate(TEXTS)


def test_inspect_an_ensemble(model, tmp_path):
    Ensemble([model, model.__class__.from_config(model.get_config())]).save(
        tmp_path / "both.keras"
    )
    assert "models             2" in run("inspect", tmp_path / "both.keras").output


def refusal(*arguments):
    """What is printed about wrong usage, in one line and without its frame."""
    result = run(*arguments)
    assert result.exit_code == 2
    return " ".join(result.output.replace("│", " ").split())


def test_wrong_usage(folder, tmp_path):
    model = folder / "model.keras"
    assert "not exist" in refusal("inspect", tmp_path / "none.keras")
    assert "'references'" in refusal("evaluate", model, folder / "source").lower()
    message = refusal("export", model, "out", "--card", "Multi30k")
    assert "--card must be NAME=TEXT, not Multi30k" in message
    message = refusal("evaluate", model, model, model, "--num-beams", 0)
    assert "greater than or equal to 1" in message or "x>=1" in message


def test_errors_have_no_traceback(folder, tmp_path):
    target = tmp_path / "target"
    target.write_text("mine")
    files = folder / "model.keras", folder / "source", target
    code, output, error = outcome("translate", *files, "--quiet")
    assert code == 1 and "Traceback" not in error
    assert any(line.startswith("error: `target`") for line in error.splitlines())
    assert str(target) in error and target.read_text() == "mine"


def test_other_models_are_refused(tmp_path, monkeypatch, capsys):
    layers = [keras.layers.Input((1,)), keras.layers.Dense(1)]
    keras.Sequential(layers).save(tmp_path / "other.keras")
    with zipfile.ZipFile(tmp_path / "broken.keras", "w") as file:
        file.writestr("config.json", "{")
    with zipfile.ZipFile(tmp_path / "zip.keras", "w") as file:
        file.writestr("holiday.txt", "")
    messages = {
        "other": "must hold a Seq2Seq",
        "broken": "error: ",
        "zip": "zip.keras must be a .keras file: There is no item",
    }
    for name, message in messages.items():
        path = str(tmp_path / f"{name}.keras")
        monkeypatch.setattr(sys, "argv", ["", "inspect", path])
        with pytest.raises(SystemExit) as stop:
            command_line.main()
        assert stop.value.code == 1
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"\xff" * 99])
def test_inspect_a_damaged_saved_model(content, tmp_path, monkeypatch, capsys):
    (tmp_path / "saved_model.pb").write_bytes(content)
    monkeypatch.setattr(sys, "argv", ["", "inspect", str(tmp_path)])
    with pytest.raises(SystemExit) as stop:
        command_line.main()
    assert stop.value.code == 1
    assert (
        "saved_model.pb must be of a SavedModel; it is dam" in capsys.readouterr().err
    )


def test_a_damaged_model_and_a_bad_loss_have_no_traceback(
    folder, tmp_path, monkeypatch, capsys
):
    content = bytearray((folder / "model.keras").read_bytes())
    middle = slice(len(content) // 2, len(content) // 2 + 200)
    content[middle] = bytes(byte ^ 0xFF for byte in content[middle])
    (tmp_path / "model.keras").write_bytes(content)

    def diverge():
        raise FloatingPointError("The loss is NaN")

    arguments = ["", "inspect", str(tmp_path / "model.keras")]
    monkeypatch.setattr(sys, "argv", arguments)
    for app in (command_line.app, diverge):
        monkeypatch.setattr(command_line, "app", app)
        with pytest.raises(SystemExit) as stop:
            command_line.main()
        assert stop.value.code == 1
        assert capsys.readouterr().err.splitlines()[-1].startswith("error: ")


def test_a_missing_package_is_named_with_what_installs_it(monkeypatch, capsys):
    def without_the_package():
        raise ModuleNotFoundError("No module named 'sacrebleu'", name="sacrebleu")

    monkeypatch.setattr(command_line, "app", without_the_package)
    with pytest.raises(SystemExit) as stop:
        command_line.main()
    assert stop.value.code == 1
    assert "keras-transformer[evaluation]" in capsys.readouterr().err


def test_served_models_have_the_names_of_their_folders(tmp_path, monkeypatch):
    served = []
    monkeypatch.setattr("keras_transformer.serving.serve", served.append)
    releases = [tmp_path / name / "en-de" for name in ("a", "b")]
    for folder in releases:
        folder.mkdir(parents=True)
    link = tmp_path / "de-en"
    link.symlink_to(releases[0])
    assert run("serve", link, releases[1]).exit_code == 0
    assert list(served[0].models) == ["de-en", "en-de"]
    again = run("serve", *releases)
    assert again.exit_code == 2
    assert "models must have different names" in again.output
    assert len(served) == 1
