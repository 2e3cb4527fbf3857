"""Runs the Python code of the pages, and checks the names on them."""

import ast
import dataclasses
import inspect
import pathlib
import re
import tempfile

import keras
import numpy as np
import pytest
from documented import NAMES, ROOT, TOY_MODEL, python_blocks, write_toy_text
from processor import has_vnni

import keras_transformer
from keras_transformer import layers
from keras_transformer.models import PRESETS
from keras_transformer.recipe import Recipe
from keras_transformer_runtime.command import COMMANDS
from keras_transformer_runtime.runs import early_checks
from keras_transformer_runtime.runs.option_checks import METRICS

pytestmark = [pytest.mark.slow, pytest.mark.once("torch")]

# What the README says of real data, made to fit the few lines of the test.
TOY_SIZES = {"vocabulary_size=8000": "vocabulary_size=29", "epochs=40": "epochs=1"}


SHORT_MODEL = {**TOY_MODEL, "max_target_length": 24}  # few steps of its searches


@pytest.fixture
def toy_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_toy_text(tmp_path)


def save_toy_model(**options):
    tokenizer = keras_transformer.SentencePieceTokenizer.train(
        ["train.en", "train.de"], vocabulary_size=29
    )
    model = keras_transformer.Seq2Seq(
        **{**SHORT_MODEL, "source_tokenizer": tokenizer, **options}
    )
    model.save("en-de.keras")


def read(page):
    return (ROOT / page).read_text("utf-8")


def save_toy_language_model():
    tokenizer = keras_transformer.SentencePieceTokenizer.train(
        "train.en", vocabulary_size=29
    )
    keras_transformer.CausalLM(**TOY_MODEL, tokenizer=tokenizer).save("stories.keras")


def run_page(page, sizes=(), leave_out="<nothing>"):
    """Runs the code of a page, with other sizes than it says; returns its names."""
    text = read(page)
    for size, toy_size in dict(sizes).items():
        assert size in text
        text = text.replace(size, toy_size)
    namespace = {}
    for _, code in python_blocks(text):
        if not re.search(leave_out, code):
            exec(compile(code, page, "exec"), namespace)
    return namespace


def test_readme_code_runs(toy_text, capsys):
    run_page("README.md", TOY_SIZES)
    assert pathlib.Path("saved_models/en-de/1/saved_model.pb").exists()
    run_page("docs/README.md")  # loads en-de.keras
    assert "pairs read" in capsys.readouterr().out


def test_getting_started_page_runs(toy_text, capsys):
    namespace = run_page("docs/getting_started.md", TOY_SIZES)
    namespace["classifier"].summary()
    assert pathlib.Path("en-de.keras").exists()
    assert "pairs read" in capsys.readouterr().out


def test_language_models_page_runs(toy_text, capsys):
    names = run_page("docs/language_models.md", leave_out="openai-community")
    shown = re.findall(r"# (\(1[01],\)|True)$", read("docs/language_models.md"), re.M)
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if re.fullmatch(r"\(1[01],\)|True", line)] == shown
    assert printed[-1] == "sgod owt"
    assert 0 < names["nats"] < 0.5
    assert pathlib.Path("saved_models/dogs/1/README.md").exists()


def test_training_page_runs(toy_text, capsys):
    namespace = run_page("docs/training.md", TOY_SIZES)
    assert "minutes_left" in capsys.readouterr().out
    assert pathlib.Path("en-de.keras").exists()
    assert namespace["frozen"] and namespace["result"].perplexity > 1
    fitted = namespace["model"].fit(
        namespace["train"].dataset,
        validation_data=namespace["valid"].dataset,
        callbacks=namespace["callbacks"],
        shuffle=False,
        epochs=2,
        verbose=0,
    )
    assert len(fitted.history["val_bleu"]) == 2


def test_translating_page_runs(toy_text, capsys):
    kt, words = keras_transformer, ["<pad>", "<unk>", "<s>", "</s>", "a", "sees"]
    tokenizers = {
        "words": kt.WordTokenizer(words),
        "en-de": kt.SentencePieceTokenizer.train("train.en", vocabulary_size=29),
    }
    for name, tokenizer in tokenizers.items():
        kt.Seq2Seq(**TOY_MODEL, source_tokenizer=tokenizer).save(f"{name}.keras")
    pathlib.Path("valid.en").rename("news.en")
    pathlib.Path("terms.tsv").write_text("sees two\tdogs\n")
    namespace = run_page("docs/translating.md")
    assert "8 (13, 8)" in capsys.readouterr().out
    lines = {"news.de": 13, "news.nbest": 13 * 8}
    for name, count in lines.items():
        assert pathlib.Path(name).read_text("utf-8").count("\n") == count
    assert len(namespace["chosen"]) == len(namespace["alignments"]) == 13
    assert not any("<unk>" in text for text in namespace["texts"])


def test_classifying_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = ["a great film\tgood", "what a bore\tbad", "a bore\tbad", "great\tgood"] * 9
    pathlib.Path("train.tsv").write_text("\n".join(rows))
    names = run_page("docs/classifying.md", leave_out="MiniLM")
    assert pathlib.Path("film.keras").exists()
    assert names["vectors"].shape == (2, 64)
    assert "good" in capsys.readouterr().out


def test_sharing_page_runs(toy_text, capsys):
    save_toy_model()
    run_page("docs/sharing.md", leave_out="hf://|huggingface")
    text = (ROOT / "docs/sharing.md").read_text("utf-8")
    shown = re.search(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    listed = [line.split()[0] for line in shown[1].splitlines()[1:]]
    assert listed == sorted(path.name for path in pathlib.Path("en-de").iterdir())


@pytest.mark.skipif(not has_vnni(), reason="products of int8 saturate")
def test_ctranslate2_page_runs(toy_text, capsys):
    save_toy_model()
    save_toy_language_model()
    run_page("docs/ctranslate2.md", leave_out="openai-community")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 9
    assert lines[6].startswith("a man sees") and lines[7].startswith("two")


def test_saved_model_page_runs(toy_text, capsys):
    save_toy_model(max_target_length=7)
    run_page("docs/saved_model.md")
    assert capsys.readouterr().out.splitlines()[-1] == "(1, 2)"
    card = pathlib.Path("saved_models/en-de/1/README.md").read_text("utf-8")
    assert "| BLEU | 40.5 |" in card
    assert pathlib.Path("en-de-onnx/decoder_step.onnx").exists()


DOCUMENTATION = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("name", ["layers", "data", "pictures", "decoding"])
def test_documentation_code_runs_and_prints_what_it_says(
    name, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    page = ROOT / f"docs/{name}.md"
    text = page.read_text("utf-8")
    check_blocks(text, {}, capsys)


def check_blocks(text, namespace, capsys):
    """Runs the Python of a page, which prints what its comments say."""
    for _, code in python_blocks(text):
        exec(compile(code, "page", "exec"), namespace)
        said = re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE)
        assert capsys.readouterr().out.splitlines() == said


def test_a_custom_model_is_decoded_on_every_backend(capsys):
    text = (ROOT / "docs/decoding.md").read_text("utf-8")
    section = text.partition("## Decode a model of your own")[2].partition("\n## ")[0]
    names = {"kt": keras_transformer, "np": np, "ops": keras.ops}
    check_blocks(section, names, capsys)
    assert names["best"]  # the last block has run


def test_documentation_has_every_layer():
    text = (ROOT / "docs/layers.md").read_text("utf-8")
    assert [name for name in layers.__all__ if f"`{name}" not in text] == []


PAGES = [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "SECURITY")]
PAGES += [path for path in DOCUMENTATION if path.stem != "index"]


@pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix()
)
def test_links_of_a_page(page):
    text = page.read_text("utf-8")
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for name, _, section in re.findall(r"\]\((?!\w+:)([^)#]*)(#([^)]+))?\)", prose):
        target = page.parent / name if name else page
        assert target.exists(), name
        assert not section or section in sections_of(target), f"{name}#{section}"
    files = re.findall(r"(?<!-)\b[\w/]+/\w+\.(?:py|md|toml)\b", text)
    assert not [name for name in files if not (ROOT / name).exists()]


def sections_of(page):
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8").lower(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", h).replace(" ", "-") for h in headings}


# The cells of the tables of the migration page that have the names of this library.


def cells_here(text):
    cells, column = [], None
    for line in text.splitlines():
        row = [cell.strip() for cell in line.split("|")[1:-1]]
        if "here" in row:
            column = row.index("here")
        elif not row:
            column = None
        elif column is not None and not row[column].startswith("---"):
            cells.append(row[column])
    return cells


def check_call(code):
    """Resolves the names and keywords of an expression such as `f(x=..., y=g())`."""
    public = {name: getattr(keras_transformer, name) for name in dir(keras_transformer)}
    arguments = inspect.signature(keras_transformer.Seq2Seq).parameters
    for node in ast.walk(ast.parse(code, mode="eval")):
        if isinstance(node, ast.Name):
            assert node.id in {**public, **NAMES, **arguments}, node.id
        elif isinstance(node, ast.Attribute | ast.Call):
            named = node.func if isinstance(node, ast.Call) else node
            value = eval(ast.unparse(named), {**public, **NAMES})
            keywords = {keyword.arg for keyword in getattr(node, "keywords", [])}
            taken = {*inspect.signature(value).parameters} if keywords else set()
            if inspect.isclass(value) and issubclass(value, keras.layers.Layer):
                taken |= {*inspect.signature(keras.layers.Layer.__init__).parameters}
            if "overrides" not in taken:
                assert keywords <= taken, code


def test_migration_page_names_what_exists():
    cells = cells_here((ROOT / "docs/migration.md").read_text("utf-8"))
    names = {code for cell in cells for code in re.findall("`([^`]+)`", cell)}
    assert len(names) > 60
    options = {f"--{f.name.replace('_', '-')}" for f in dataclasses.fields(Recipe)}
    options = options - {"--start-from"} | {"--from"}
    values = {"", *PRESETS, *early_checks.DTYPES, *METRICS}
    for code in names:
        first, _, further = code.partition(" ")
        if first == "keras-transformer":
            assert further in COMMANDS
        elif first.startswith("--"):
            assert first in options and further in values, code
        else:
            check_call(code)


def test_migration_page_runs(toy_text):
    small = {
        "hidden_dim=256": "hidden_dim=8",
        "intermediate_dim=2048": "intermediate_dim=16",
    }
    run_page("docs/migration.md", {**TOY_SIZES, **small})
