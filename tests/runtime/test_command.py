import gzip
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import warnings
import zipfile

import keras
import numpy as np
import pytest
import typer
from error_box import unwrapped
from typer.testing import CliRunner

from keras_transformer import (
    BeamSearch,
    Ensemble,
    GreedySearch,
    Seq2Seq,
    evaluation,
)
from keras_transformer.recipe import Recipe
from keras_transformer.text import CharacterTokenizer
from keras_transformer_runtime.command import COMMANDS, main, make_app
from keras_transformer_runtime.files import write_json

pytestmark = pytest.mark.once("torch")

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
TEXTS = ["abc", "", "deadbeef"]


@pytest.fixture(scope="module")
def original():
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
    rng = np.random.default_rng(1)  # so that the outputs differ
    model.set_weights([rng.normal(size=weight.shape) for weight in model.weights])
    return model


@pytest.fixture(scope="module")
def folder(original, tmp_path_factory):
    folder = tmp_path_factory.mktemp("command")
    original.save(folder / "model.keras")
    (folder / "source").write_text("\n".join(TEXTS) + "\n")
    (folder / "references").write_text("UVWX\n\nXYZ\n")
    return folder


@pytest.fixture(scope="module")
def model(folder):
    """The model that the commands load."""
    return keras.saving.load_model(folder / "model.keras")


def run(*arguments, pipe=None):
    arguments = [str(part) for part in arguments]
    return CliRunner().invoke(make_app(arguments), arguments, input=pipe)


@pytest.fixture
def failure(monkeypatch, capsys):
    """Returns a function that runs a failing command and returns its message."""

    def failure(*arguments):
        monkeypatch.setattr(sys, "argv", ["", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 1
        return capsys.readouterr().err

    return failure


def outcome(*arguments):
    """Runs the command in a process: exit code, standard output and error."""
    process = subprocess.run(
        [sys.executable, "-m", "keras_transformer_runtime", *map(str, arguments)],
        capture_output=True,
        text=True,
    )
    return process.returncode, process.stdout, process.stderr


def test_the_table_has_every_command():
    assert [*typer.main.get_command(make_app()).commands] == [*COMMANDS]
    for name in COMMANDS:
        assert name in typer.main.get_command(make_app([name, "--help"])).commands


def test_translate(original, folder, tmp_path):
    target = tmp_path / "target.gz"
    files = folder / "model.keras", folder / "source", target
    options = ["--num-beams", 3, "--length-penalty", 1, "--quiet"]
    result = run("translate", *files, *options)
    assert result.exit_code == 0, result.output
    expected = original.generate(TEXTS, BeamSearch(3, length_penalty=1.0))
    with gzip.open(target, "rt") as lines:
        assert lines.read().splitlines() == expected


def test_translate_n_best(model, folder, tmp_path):
    target = tmp_path / "target"
    files = folder / "model.keras", folder / "source", target
    assert run("translate", *files, "--num-hypotheses", 2, "--quiet").exit_code == 0
    expected = model.generate(TEXTS, BeamSearch(num_hypotheses=2))
    lines = [line.split(" ||| ") for line in target.read_text().splitlines()]
    found = [[text for i, text, _ in lines if int(i) == number] for number in range(3)]
    assert found[0] == expected[0] and found[2] == expected[2]


def test_translate_with_groups_of_beams(model, folder, failure):
    options = ["--num-hypotheses", 2, "--num-beam-groups", 2, "--diversity-penalty", 3]
    result = run("translate", folder / "model.keras", *options, pipe="abc\n")
    assert result.exit_code == 0, result.output
    groups = {"num_beam_groups": 2, "diversity_penalty": 3.0}
    search = BeamSearch(num_hypotheses=2, **groups)
    (expected,) = model.generate(["abc"], search)
    found = [line.split(" ||| ")[1] for line in result.stdout.splitlines()]
    assert found == expected
    files = folder / "model.keras", folder / "source", folder / "groups"
    message = failure("translate", *files, "--num-beam-groups", 2)
    assert "must be a positive number for several groups" in message


@pytest.mark.parametrize("arguments", [(), ("-",), ("-", "-")])
def test_translate_standard_input(arguments, model, folder):
    lines = "".join(f"{text}\n" for text in TEXTS)
    result = run("translate", folder / "model.keras", *arguments, pipe=lines)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == model.generate(TEXTS)
    assert result.stderr == ""  # no progress bar without a terminal


def test_translate_between_files_and_pipes(model, folder, tmp_path):
    path, target = folder / "model.keras", tmp_path / "target.gz"
    options = ["--num-hypotheses", 2, "--num-beams", 3, "--quiet"]
    result = run("translate", path, folder / "source", *options)
    assert result.exit_code == 0 and not result.stderr
    assert len(result.stdout.splitlines()) == 5  # one for the empty text
    (expected, *_), *_ = model.generate(TEXTS, BeamSearch(3, num_hypotheses=2))
    assert result.stdout.startswith(f"0 ||| {expected} ||| ")
    again = run("translate", path, "-", target, *options, pipe="\n".join(TEXTS))
    assert again.exit_code == 0 and not again.output
    written, printed = (
        [line.rpartition(" ||| ") for line in text.splitlines()]
        for text in (gzip.decompress(target.read_bytes()).decode(), result.stdout)
    )
    assert [text for text, _, _ in written] == [text for text, _, _ in printed]
    scores = [[float(score) for _, _, score in found] for found in (written, printed)]
    np.testing.assert_allclose(*scores, atol=1e-4)
    result = run("translate", path, "-", target, pipe="abc")
    assert isinstance(result.exception, FileExistsError)
    options = ["--overwrite", "--quiet"]
    assert run("translate", path, "-", target, *options, pipe="").exit_code == 0
    assert gzip.decompress(target.read_bytes()) == b""


def test_translate_with_a_prefix_and_stops(model, folder, tmp_path):
    options = ["--prefix", "Z", "--stop", "VX", "--num-beams", 1, "--quiet"]
    (tmp_path / "terms.tsv").write_text("dead\tY\n")
    path = folder / "model.keras"
    found = run("translate", path, *options, pipe="abc\nfab\n").stdout.splitlines()
    search = {"search": GreedySearch(), "prefix": ["Z"] * 2}
    expected = model.generate(["abc", "fab"], stop=["VX"], **search)
    assert found == expected and all(text.startswith("Z") for text in found)
    whole = model.generate(["abc", "fab"], **search)
    stop = whole[0][2:4]
    options = ["--prefix", "Z", "--stop", stop, "--quiet"]
    options += ["--dictionary", tmp_path / "terms.tsv"]
    found = run("translate", path, *options, pipe="abc\nfab\n").stdout.splitlines()
    assert all(text.startswith("Z") and stop not in text for text in found)


def test_translate_with_a_dictionary(folder, failure, tmp_path):
    (tmp_path / "terms.tsv").write_text("abc\tZY\nf\tX\n")
    options = ["--dictionary", tmp_path / "terms.tsv", "--quiet"]
    path, target = folder / "model.keras", tmp_path / "target"
    result = run("translate", path, *options, pipe="abc\nf abc\nfab\n")
    assert result.exit_code == 0, result.output
    first, second, third = result.stdout.splitlines()
    assert "ZY" in first and "ZY" in second and "X" in second
    assert run("translate", path, "--quiet", pipe="fab\n").stdout == f"{third}\n"
    result = run("translate", path, folder / "source", target, *options)
    assert result.exit_code == 0, result.output
    (tmp_path / "terms.tsv").write_text("abc\n")
    message = failure(
        "translate", path, folder / "source", target, *options, "--overwrite"
    )
    assert "line 1 of" in message


def test_translate_too_long_lines(folder):
    path, long = folder / "model.keras", "abc\nabcdefabc\n"
    result = run("translate", path, "--quiet", pipe=long)
    assert "in line 2 of `standard input`" in str(result.exception)
    with pytest.warns(
        UserWarning, match="in `standard input`, for lines of more .*: 1"
    ):
        result = run("translate", path, "--too-long", "empty", pipe=long)
    assert result.exit_code == 0 and result.stdout.endswith("\n\n")


@pytest.mark.parametrize("pipes", [True, False])
def test_an_interrupt(pipes, folder, tmp_path, monkeypatch):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    name = "translate_stream" if pipes else "translate_file"
    monkeypatch.setattr(f"keras_transformer_runtime.commands.translate.{name}", stop)
    files = [] if pipes else [folder / "source", tmp_path / "target"]
    result = run("translate", folder / "model.keras", *files, "--quiet")
    assert result.exit_code == 130
    line = "Stopped.\n" if pipes else "Stopped. Run the same command to restart.\n"
    assert result.stderr == line
    (tmp_path / "target.unfinished.json").touch()
    result = run("translate", folder / "model.keras", *files, "--quiet")
    line = "Stopped.\n" if pipes else "Stopped. Run the same command to resume.\n"
    assert result.stderr == line


def test_the_folder_of_a_run_is_a_model(model, folder, tmp_path):
    shutil.copy(folder / "model.keras", tmp_path)
    recipe = Recipe(train=["a"], valid=["b"], output=str(tmp_path))
    (tmp_path / "options.toml").write_text(recipe.to_toml())
    result = run("translate", tmp_path, "--quiet", pipe="abc\n")
    assert result.stdout == model.generate("abc") + "\n"


def test_translate_refuses_a_named_pipe(folder, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    files = folder / "model.keras", tmp_path / "pipe", tmp_path / "target"
    assert "named pipe; redirect it to -" in refusal("translate", *files)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["news.txt"], "news.txt must be a .keras file, the folder of a run, or the "),
        (["en.keras"], "en.keras must be a .keras file; it is damaged"),
        (["run/options.toml"], "--config {0}/run/options.toml --output {0}/run"),
        (["run/saved_model.pb"], "run must contain keras_transformer.json, which"),
        (["run/model.bin"], "run must contain keras_transformer.json, which"),
        (["run/notes"], "run must contain model.keras, as the folder of a run "),
        (["run/config.json"], "must have the file "),
    ],
)
def test_paths_that_are_not_models(files, message, tmp_path):
    for name in files:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{{}}")
    first = pathlib.Path(files[0]).parts[0]
    result = run("translate", tmp_path / first, pipe="abc")
    assert result.exit_code == 1
    assert message.format(tmp_path) in str(result.exception)


def test_evaluate(model, folder):
    files = [folder / name for name in ("model.keras", "source", "references")]
    result = run("evaluate", *files, "--num-beams", 2)
    assert result.exit_code == 0, result.output
    references = ["UVWX", "", "XYZ"]
    outputs = model.generate(TEXTS, BeamSearch(2))
    chrf = evaluation.chrf(outputs, references)
    perplexity = model.score(TEXTS, references).perplexity
    lines = result.output.splitlines()[-8:]
    bleu_line, bleu_signature, chrf_line, chrf_signature, exact, *rates, last = lines
    assert exact.split()[:2] == ["exact", "match"]
    assert [line.split()[0] for line in rates] == ["token", "character"]
    assert bleu_line.split()[0] == "bleu" and "tok:13a" in bleu_signature
    assert chrf_line.split() == ["chrf", f"{chrf.score:.2f}"]
    assert chrf_signature.strip() == chrf.signature
    assert last.split() == ["perplexity", f"{perplexity:.2f}"]


def test_evaluate_a_file_with_columns(folder, tmp_path, failure):
    model, names = folder / "model.keras", ("source", "references")
    expected = run("evaluate", model, *(folder / name for name in names)).output
    sides = [(folder / name).read_text("utf-8").splitlines() for name in names]
    rows = [{"id": 7, "x": s, "y": t} for s, t in zip(*sides, strict=True)]
    path, two = tmp_path / "text.jsonl", tmp_path / "two.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    two.write_text("\n".join(json.dumps({**row, "id": {}}) for row in rows))
    assert run("evaluate", model, path, "--columns", "x", "y").output == expected
    result = run("evaluate", model, two)
    assert result.output.replace("Columns: x y\n", "") == expected != result.output
    error = failure("evaluate", model, path)
    assert "received no `--columns`, and the file has the columns 'id', 'x'" in error
    error = failure("evaluate", model, *[path] * 2, "--columns", "x", "y")
    assert "`--columns` must be given with one file that has source and" in error


def test_evaluate_with_options_of_sacrebleu(model, folder, tmp_path):
    outputs = model.generate(TEXTS, BeamSearch(2))
    (tmp_path / "references").write_text("\n".join(outputs).lower())
    (tmp_path / "source.gz").write_bytes(gzip.compress("\n".join(TEXTS).encode()))
    files = folder / "model.keras", tmp_path / "source.gz", tmp_path / "references"
    options = ["--num-beams", 2, "--lowercase", "--bleu-tokenize", "char"]
    result = run("evaluate", *files, *options)
    assert result.exit_code == 0, result.output
    bleu_line, signature = result.output.splitlines()[-8:-6]
    assert "case:lc" in signature and "tok:char" in signature
    assert bleu_line.split() == ["bleu", "100.00"]


def test_evaluate_too_long_lines(model, folder, tmp_path):
    files = [folder / "model.keras", tmp_path / "source", tmp_path / "references"]
    sources, references = ["abc", "abcdefabc", "d"], ["UVWX", "X", "UVWXYZ"]
    files[1].write_text("\n".join(sources))
    files[2].write_text("\n".join(references))
    message = f"10 tokens in line 2 of `{files[1]}`"
    assert message in str(run("evaluate", *files).exception)
    message = f"received 7 tokens in line 3 of `{files[2]}`"
    result = run("evaluate", files[0], folder / "source", files[2])
    assert message in str(result.exception)
    with pytest.warns(UserWarning, match="2 of 3 pairs have a side with more tokens"):
        result = run("evaluate", *files, "--too-long", "empty")
    chrf_line, *_, last = result.output.splitlines()[-6:]
    outputs = [model.generate("abc"), "", model.generate("d")]
    assert chrf_line.split()[1] == f"{evaluation.chrf(outputs, references).score:.2f}"
    perplexity = model.score(["abc"], ["UVWX"]).perplexity
    assert last.split() == ["perplexity", f"{perplexity:.2f}"]


def test_evaluate_checks_its_arguments_first(folder, tmp_path, failure):
    model, source = folder / "model.keras", folder / "source"
    error = failure("evaluate", model, source, source, "--bleu-tokenize", "14a")
    assert "error: `--bleu-tokenize` must be one of sacreBLEU's" in error
    assert "received `--bleu-tokenize 14a`" in error
    (tmp_path / "short").write_text("UV\n")
    error = failure("evaluate", model, source, tmp_path / "short")
    assert "error: `SOURCE` and `REFERENCES` must have the same number of" in error
    (tmp_path / "long").write_text("UV\n\nUVWXYZ\n")
    error = failure("evaluate", model, source, tmp_path / "long")
    assert "error: `REFERENCES` must have at most `max_target_length=5`" in error
    assert f"in line 3 of `{tmp_path}/long`" in error and "`--too-long empty`" in error


@pytest.mark.slow
def test_export_and_inspect(folder, tmp_path):
    options = ["--num-beams", 2, "--card", "training_data=a=b", "--constraints"]
    result = run("export", folder / "model.keras", tmp_path / "1", *options)
    assert result.exit_code == 0, result.output
    assert "## Training data\n\na=b\n" in (tmp_path / "1" / "README.md").read_text()
    facts = facts_of(tmp_path / "1")
    assert facts["kind"] == "SavedModel"
    expected = (
        "text string(·,) → score float32(·,), text string(·,), truncated bool(·,)"
    )
    assert facts["serving_default"] == expected
    inputs = "constraints string(·,), prefix string(·,), text string(·,)"
    assert facts["constrained"].startswith(inputs)
    assert facts["model card"].endswith("README.md")
    assert facts["next"] == f"keras-transformer serve {tmp_path}"
    facts |= {"kind": "versions of a SavedModel", "versions": "1"}
    assert facts_of(tmp_path) == facts


def test_import_an_exported_model(model, folder, tmp_path, monkeypatch, failure):
    new = tmp_path / "1"
    options = ["--format", "ctranslate2"]
    result = run("export", folder / "model.keras", new, *options)
    assert result.exit_code == 0, result.output
    facts = facts_of(new)
    assert facts["kind"] == "CTranslate2 model"
    assert facts["format"] == "version 6, weights in float32"
    assert facts["loaded as"] == "Seq2Seq" and facts["hidden_dim"] == "6"
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
    error = failure("import", tmp_path / "none", tmp_path / "new.keras")
    assert "error: `FOLDER` must be a folder, or a name" in error
    result = run(
        "export", folder / "model.keras", new / "2", "--format", "transformers"
    )
    assert "must have the design of a family" in str(result.exception)


def facts_of(path):
    """Returns what `inspect` prints, by name."""
    result = run("inspect", path)
    assert result.exit_code == 0, result.exception
    facts, last = {}, ""
    for line in result.output.splitlines():
        name, value = re.fullmatch(r"((?:\S+ )*\S+)? +(\S.*)", line).groups()
        last = name or last
        facts[last] = f"{facts[last]} {value}" if name is None else value
    return facts


def test_inspect_a_model(model, folder):
    facts = facts_of(folder / "model.keras")
    assert facts["class"] == "Seq2Seq" and facts["hidden_dim"] == "6"
    assert facts["parameters"] == f"{model.count_params():,}"
    assert facts["positions"] == "PositionalEncoding"
    assert facts["max_source_length"] == "9"
    assert facts["source vocabulary"] == "10, CharacterTokenizer"


def test_the_folder_of_a_preset_is_a_model(model, folder, tmp_path):
    model.save_to_preset(tmp_path / "preset")
    facts = facts_of(tmp_path / "preset")
    assert facts["class"] == "Seq2Seq"
    assert facts["parameters"] == f"{model.count_params():,}"
    files = tmp_path / "preset", folder / "source", tmp_path / "target"
    assert run("translate", *files, "--quiet").exit_code == 0
    assert files[2].read_text().splitlines() == model.generate(TEXTS)


def test_inspect_an_ensemble(model, tmp_path):
    Ensemble([model, model.__class__.from_config(model.get_config())]).save(
        tmp_path / "both.keras"
    )
    assert facts_of(tmp_path / "both.keras")["models"] == "2"


def refusal(*arguments):
    """Returns the message for wrong usage, in one line and without its frame."""
    result = run(*arguments)
    assert result.exit_code == 2
    return unwrapped(result.output)


def test_wrong_usage(folder, tmp_path):
    model = folder / "model.keras"
    assert "not exist" in refusal("inspect", tmp_path / "none.keras")
    for source in ("none", "."):
        assert f"file {source} does not exist" in refusal("translate", model, source)
    assert "'references'" in refusal("evaluate", model, folder / "source").lower()
    message = refusal("export", model, "out", "--card", "Multi30k")
    assert "--card must be NAME=TEXT; received Multi30k" in message
    options = ["--format", "onnx", "--constraints"]
    message = refusal("export", model, "out", *options)
    assert "--constraints is for --format saved_model" in message
    message = refusal("evaluate", model, model, model, "--num-beams", 0)
    assert "greater than or equal to 1" in message or "x>=1" in message


def test_errors_have_no_traceback(folder, tmp_path):
    target = tmp_path / "target"
    target.write_text("mine")
    files = folder / "model.keras", folder / "source", target
    code, output, error = outcome("translate", *files, "--quiet")
    assert code == 1 and "Traceback" not in error
    assert any(line.startswith("error: `TARGET`") for line in error.splitlines())
    assert f"received `{target}`" in error and "with `--overwrite`." in error
    assert target.read_text() == "mine"


def test_output_is_utf_8_in_every_locale(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), "latin-1")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "argv", ["", "evaluate", "--help"])
    with pytest.raises(SystemExit) as stop:
        main()
    stream.flush()
    assert stop.value.code == 0 and "…" in stream.buffer.getvalue().decode()


def test_standard_output_is_closed(failure, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert "Standard output must be open" in failure("generate", "a.keras")


def test_warnings_name_options(folder, monkeypatch, capsys):
    def warn(app):
        warnings.simplefilter("default")
        warnings.warn("`num_beams=9` is a lot", stacklevel=1)

    monkeypatch.setattr(typer.Typer, "__call__", warn)
    monkeypatch.setattr(sys, "argv", ["", "translate"])
    main()
    assert capsys.readouterr().err == "warning: `--num-beams 9` is a lot\n"


def test_other_models_are_refused(tmp_path, failure):
    layers = [keras.layers.Input((1,)), keras.layers.Dense(1)]
    keras.Sequential(layers).save(tmp_path / "other.keras")
    with zipfile.ZipFile(tmp_path / "broken.keras", "w") as file:
        file.writestr("config.json", "{")
    with zipfile.ZipFile(tmp_path / "zip.keras", "w") as file:
        file.writestr("holiday.txt", "")
    messages = {
        "other": "must contain a model of this library",
        "broken": "error: ",
        "zip": "zip.keras must be a .keras file of this library; it is damaged or ",
    }
    for name, message in messages.items():
        assert message in failure("inspect", tmp_path / f"{name}.keras")


@pytest.mark.parametrize("content", [b"", b"\xff" * 99])
def test_inspect_a_damaged_saved_model(content, tmp_path, failure):
    (tmp_path / "saved_model.pb").write_bytes(content)
    error = failure("inspect", tmp_path)
    assert "saved_model.pb must be a SavedModel; it is damaged" in error


def test_a_damaged_model_has_no_traceback(folder, tmp_path, failure):
    content = bytearray((folder / "model.keras").read_bytes())
    middle = slice(len(content) // 2, len(content) // 2 + 200)
    content[middle] = bytes(byte ^ 0xFF for byte in content[middle])
    (tmp_path / "model.keras").write_bytes(content)
    error = failure("inspect", tmp_path / "model.keras")
    assert error.splitlines()[-1].startswith("error: ")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (FloatingPointError("The loss is NaN"), "error: The loss is NaN\n"),
        (
            ModuleNotFoundError("No module named 'sacrebleu'", name="sacrebleu"),
            "error: No module named 'sacrebleu'. To install: pip install "
            '"sacrebleu>=2.6"\n',
        ),
        (
            ModuleNotFoundError("No module named 'yaml.cyaml'", name="yaml.cyaml"),
            "error: No module named 'yaml.cyaml'. To install: pip install "
            '"pyyaml>=6.0"\n',
        ),
        (
            ModuleNotFoundError("No module named 'mecab'", name="mecab"),
            "error: No module named 'mecab'\n",
        ),
    ],
)
def test_errors_are_printed(error, line, failure, monkeypatch):
    def fail(app):
        raise error

    monkeypatch.setattr(typer.Typer, "__call__", fail)
    assert failure("train") == line
    assert failure() == line


def test_serve_names_models_by_their_folders(tmp_path, monkeypatch):
    served = []
    monkeypatch.setattr("keras_transformer_runtime.serving.serve", served.append)
    releases = [tmp_path / name / "en-de" for name in ("a", "b")]
    for folder in releases:
        folder.mkdir(parents=True)
    link = tmp_path / "de-en"
    link.symlink_to(releases[0])
    assert run("serve", link, releases[1]).exit_code == 0
    assert list(served[0].models) == ["de-en", "en-de"]
    assert not served[0].models["de-en"].wait_for_versions
    version = tmp_path / "runs/fr-de/saved_model/1"
    version.mkdir(parents=True)
    for path in (version, version.parent, version.parent.parent):
        assert run("serve", path).exit_code == 0
        assert served.pop().models["fr-de"].folder == path
    assert run("serve", link, "--wait-for-versions").exit_code == 0
    assert served.pop().models["de-en"].wait_for_versions
    assert "models must have different names" in refusal("serve", *releases)
    assert len(served) == 1


def test_serve_errors(tmp_path, failure):
    version = tmp_path / "runs/en-de/saved_model/1"
    version.mkdir(parents=True)
    (version / "saved_model.pb").touch()
    shutil.copytree(version, tmp_path / "saved_models/en-de/1")
    error = failure("serve", tmp_path / "saved_models")
    assert f"Give one of them, such as {tmp_path}/saved_models/en-de\n" in error
    for path in (version, version.parent):  # which lacks `variables`
        error = failure("serve", path, "--engine", "saved_model")
        assert "`folder` of the model en-de must be a run, a SavedModel, or" in error
        assert "or set `--wait-for-versions`" in error
    error = failure("serve", version.parent, "--split-sentences", "EN")
    assert "`--split-sentences`: string should" in error
    assert "'--port'" in refusal("serve", version.parent, "--port", -1)


def test_the_search_of_a_run(model, folder, tmp_path):
    """The folder of a run selects the search, unless options do; a file does not."""
    shutil.copy(folder / "model.keras", tmp_path)
    recipe = Recipe(train=["a"], valid=["b"], output=str(tmp_path), num_beams=3)
    (tmp_path / "options.toml").write_text(recipe.to_toml())
    write_json(tmp_path / "figures.json", {"length_penalty": 1.4})

    def output(path, *options):
        arguments = (
            path,
            folder / "source",
            "-",
            "--num-hypotheses",
            2,
            "--quiet",
            *options,
        )
        return run("translate", *arguments).stdout

    path = tmp_path / "model.keras"
    typed = ["--num-beams", 3, "--length-penalty", 1.4]
    assert output(tmp_path) == output(path, *typed) != output(path)
    typed = ["--num-beams", 2, "--length-penalty", 0]
    assert output(tmp_path, *typed) == output(path, *typed)
