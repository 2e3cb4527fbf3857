"""Errors that the commands print before they import Keras and TensorFlow."""

import inspect
import json
import pathlib
import subprocess
import sys
import zipfile

import pytest
from error_box import unwrapped
from typer.testing import CliRunner

from keras_transformer import export
from keras_transformer_runtime.command import make_app
from keras_transformer_runtime.commands import model_files
from keras_transformer_runtime.engines.generation_options import GivenOptions

pytestmark = pytest.mark.once("torch")

ROOT = pathlib.Path(__file__).parents[3]
TRAIN = ["train", "--train", "a.en", "a.de", "--valid", "b.tsv", "--output", "runs/a"]
RESUMED = ["train", "--train", "b.tsv", "--valid", "b.tsv", "--output", "old"]
MODEL = "model.keras"
# The arguments of a command, a package that is not installed, and the error.
CASES = [
    (["train", *TRAIN[1:3], "a.ru", *TRAIN[4:]], "", "a.ru does not exist."),
    ([*TRAIN[:5], ".", *TRAIN[6:]], "", "is a folder."),
    ([*TRAIN, "--columns", "en", "de"], "", "has the columns 'a', 'b'"),
    ([*TRAIN, "--test", "none.tsv"], "", "`--test` must be files that exist; received"),
    ([*TRAIN, "--from", "none.keras"], "", "none.keras does not exist."),
    (
        [*TRAIN[:-1], "a.en"],
        "",
        "`--output` must be a folder; received `--output a.en`",
    ),
    ([*TRAIN, "--preset", "tiny"], "", "`--preset` must be 'transformer_tiny', 'tra"),
    ([*TRAIN, "--workers", "2"], "", "`--workers` above 1 must be used on JAX or P"),
    (
        [*TRAIN, "--devices", "2", "--model-parallel", "2"],
        "",
        "`--model-parallel` above 1 must be used on JAX; received `--model-parallel 2`",
    ),
    (
        [*TRAIN, "--devices", "2", "--clip-norm", "1"],
        "",
        "`--clip-norm` must be None with several devices on TensorFlow, since Keras",
    ),
    ([*TRAIN, "--dtype", "float8"], "", "`--dtype` must be 'float32', 'mixed_"),
    ([*TRAIN, "--bleu-tokenize", "14a"], "", "`--bleu-tokenize` must be one of sacre"),
    ([*TRAIN, "--normalization", "nfc"], "", '`--normalization` must be "nmt_nfkc", '),
    (
        [*TRAIN, "--character-coverage", "0.9"],
        "",
        "`--character-coverage` must be from",
    ),
    (
        [*RESUMED, "--seed", "2"],
        "",
        "`--seed` must be that of the run to res",
    ),
    (TRAIN, "sacrebleu", 'install: pip install "sacrebleu>=2.6"'),
    (TRAIN, "rapidfuzz", 'install: pip install "rapidfuzz>=3.14"'),
    (TRAIN, "tensorflow_text", 'install: pip install "tensorflow-text>=2.21"'),
    (TRAIN, "jax", "KERAS_BACKEND=jax requires the package jax. To install: pip insta"),
    ([*TRAIN, "--from", "hf://a/b"], "huggingface_hub", '"huggingface_hub>=1.0"'),
    (["translate", MODEL, "--workers", "2"], "", "`--workers` must be 1 to read or "),
    (
        ["translate", MODEL, "a.en", "c.de", "--workers", "2"],
        "ray",
        'requires the package ray. To install: pip install "ray[serve]>=2.60"',
    ),
    (
        ["evaluate", "a.en", "a.en", "a.de"],
        "",
        "a.en must be a .keras file, the folder",
    ),
    (
        ["evaluate", MODEL, "a.en", "a.de", "--bleu-tokenize", "14a"],
        "",
        "`--bleu-tokenize` must be one of sacreBLEU's",
    ),
    (["translate", "a.en", "a.en", "new"], "", "a.en must be a .keras file"),
    (["translate", MODEL, "a.en", "a.de"], "", "`TARGET` must not exist; received"),
    (["translate", MODEL, "a.en", "a.en"], "", "must not be the file `SOURCE`"),
    (["translate", MODEL, "-", "a.en"], "", "or replace the file with `--overwrite`."),
    (["export", "a.en", "new"], "", "a.en must be a .keras file"),
    (["export", MODEL, "old"], "", "`FOLDER` must be a new or an empty folder"),
    *(
        (["export", MODEL, "new", "--format", name], package, f'install "{package}>=')
        for name, package in {
            "ctranslate2": "ctranslate2",
            "onnx": "tf2onnx",
            "transformers": "safetensors",
        }.items()
    ),
    (
        ["import", "none", "new.keras"],
        "",
        "`FOLDER` must be a folder, or a name on the",
    ),
    (["import", "a/b", "new.keras"], "huggingface_hub", '"huggingface_hub>=1.0"'),
    (["import", "marian", "new.keras"], "yaml", 'pip install "pyyaml>=6.0"'),
    (["inspect", "a.en"], "", "`PATH` must be of a known kind; received `a.en`"),
    (["serve", "old"], "uvicorn", "`serve` requires the package uvicorn. "),
]
# Runs the command once for each case, in one process.
CODE = """
import contextlib, io, json, os, sys
sys.path.insert(0, sys.argv[1])
from keras_transformer_runtime.command import main
for arguments, package in json.loads(sys.argv[2]):
    os.environ["KERAS_BACKEND"] = "jax" if package == "jax" else "tensorflow"
    others = {name for name in sys.modules if name.partition(".")[0] == package}
    saved = {name: sys.modules.pop(name) for name in others}
    for name in ("keras_transformer_runtime.bleu",) if package else ():
        saved[name] = sys.modules.pop(name, None)
    sys.modules[package or "none"] = None
    sys.argv = ["keras-transformer", *arguments]
    with (
        contextlib.redirect_stderr(io.StringIO()) as stream,
        contextlib.redirect_stdout(io.StringIO()),
    ):
        try:
            main()
        except SystemExit as stop:
            code = stop.code
    del sys.modules[package or "none"]
    sys.modules.update({name: module for name, module in saved.items() if module})
    imported = {"keras", "keras_transformer", "tensorflow", "ray"} & {*sys.modules}
    print(json.dumps([code, stream.getvalue(), sorted(imported)]))
"""


# The options that every run has.
PLANNED = [
    *("epochs = 9", "dropout = 0.3", "tokens_per_batch = 4096", "average = 1"),
    *("learning_rate = 0.1", "warmup_steps = 5", "cooldown = 0", "save_every = 5"),
    "metric = 'bleu'",
]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("early")
    for name in ("a.en", "a.de", "b.tsv", "old/checkpoints/epoch-0001.npz"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "b.tsv").write_text("a\tb\n", "utf-8")
    files = [f'{name} = ["{folder}/b.tsv"]' for name in ("train", "valid")]
    lines = [*files, 'output = "old"', *PLANNED]
    (folder / "old/options.toml").write_text("\n".join(lines))
    for name in ("marian/decoder.yml", "marian/model.npz"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    with zipfile.ZipFile(folder / MODEL, "w") as file:
        file.writestr("config.json", "{}")
    cases = [[arguments, package] for arguments, package, _ in CASES]
    process = subprocess.run(
        [sys.executable, "-c", CODE, str(ROOT), json.dumps(cases)],
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert process.returncode == 0, process.stderr
    return [json.loads(line) for line in process.stdout.splitlines()]


@pytest.mark.parametrize("number", range(len(CASES)))
def test_an_error_does_not_wait_for_keras(number, outcomes):
    _, _, message = CASES[number]
    code, error, imported = outcomes[number]
    assert code == 1 and not imported
    assert error.startswith("error: ") and message in error
    assert error.count("\n") == 1


def test_options_of_formats(tmp_path):
    """The command knows the options before it imports the functions that write."""
    names = {name for known in model_files.OPTIONS.values() for name in known}
    for format, known in model_files.OPTIONS.items():
        if format is model_files.Format.transformers:
            assert known == ()
            continue
        writer = getattr(export, f"export_{format.value}")
        accepted = {*inspect.signature(writer).parameters}
        if "options" in accepted:
            accepted |= {*GivenOptions.__annotations__}
        assert names & accepted == {*known}
    options = ["--format", "onnx", "--card", "a=b"]
    result = CliRunner().invoke(
        make_app(), ["export", __file__, str(tmp_path / "new"), *options]
    )
    assert result.exit_code == 2
    assert "--card is for --format saved_model" in unwrapped(result.output)
