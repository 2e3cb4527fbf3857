"""Properties of the whole package: documentation, names, version."""

import ast
import contextlib
import dataclasses
import fnmatch
import inspect
import pathlib
import re
import subprocess
import tempfile
import tomllib
from importlib import metadata

import keras
import numpy as np
import pytest
from documented import (
    MODULES,
    NAMES,
    PACKAGE,
    ROOT,
    RUNTIME,
    TOY_MODEL,
    python_blocks,
    write_toy_text,
)
from processor import has_vnni

import keras_transformer
from keras_transformer import layers
from keras_transformer.models import PRESETS
from keras_transformer.recipe import Recipe
from keras_transformer_runtime.command import COMMANDS
from keras_transformer_runtime.packages import DEPENDENCIES, DISTRIBUTION, EXTRAS
from keras_transformer_runtime.runs import early_checks
from keras_transformer_runtime.runs.option_checks import METRICS

FILES = sorted([*PACKAGE.rglob("*.py"), *RUNTIME.rglob("*.py")])


def relative(path):
    return path.relative_to(ROOT).as_posix()


# Names and documentation.


@pytest.mark.parametrize("name", keras_transformer.__all__)
def test_public_name(name):
    assert name in dir(keras_transformer)
    public = getattr(keras_transformer, name)
    assert public.__name__ == name
    assert inspect.getdoc(public)


def test_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'Seq3Seq'"):
        keras_transformer.Seq3Seq  # noqa: B018


def test_public_names_are_sorted():
    assert keras_transformer.__all__ == sorted(set(keras_transformer.__all__))


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_module_has_a_docstring(module):
    assert module.__doc__
    for name in getattr(module, "__all__", []):
        assert hasattr(module, name)


def ours_with_configuration():
    """Our classes that Keras can save, without base classes and protocols."""
    classes = [
        value
        for module in MODULES
        for value in vars(module).values()
        if inspect.isclass(value) and value.__module__ == module.__name__
    ]
    return [
        value
        for value in classes
        if hasattr(value, "get_config")
        and not value.__name__.startswith("_")
        and not getattr(value, "_is_protocol", False)
        and not any(value in other.__bases__ for other in classes)
    ]


@pytest.mark.parametrize("value", ours_with_configuration())
def test_serialisable_class_is_registered(value):
    name = f"keras_transformer>{value.__name__}"
    assert keras.saving.get_registered_name(value) == name
    assert keras.saving.get_registered_object(name) is value


# Version, README, style.


def test_version():
    installed = metadata.distributions(name=DISTRIBUTION)
    assert {found.version for found in installed} <= {keras_transformer.__version__}
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    newest, *_ = re.findall(r"^## \[(\d\S*)\]", changelog, re.MULTILINE)
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    (cited,) = re.findall(r"^version: (\S+)$", citation, re.MULTILINE)
    assert newest == cited == keras_transformer.__version__


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_messages_advise_the_requirements_of_the_project():
    """A module with other requirements than the project would advise old versions."""
    assert PROJECT["name"] == DISTRIBUTION
    assert sorted(DEPENDENCIES.values()) == sorted(PROJECT["dependencies"])
    extras = PROJECT["optional-dependencies"]
    assert extras["evaluation"] == []
    for extra, packages in EXTRAS.items():
        own = [name for name in extras[extra] if not name.startswith(DISTRIBUTION)]
        assert sorted(packages.values()) == sorted(own)


# The name of the command as a requirement: `keras-transformer` in an installation, or
# with extras or a version.
TAKEN = r"keras[-_.]transformer(?![-\w])"
ADVICE = re.compile(
    rf"(?:pip3?|uv|pipx|conda|poetry)\s+(?:\w+\s+)*?(?:install|add|run)\b[^\n`]*?"
    rf"[ \t\"'=]{TAKEN}(?!/)|{TAKEN}\s*(?:\[[a-z]|[=<>~!]=)",
    re.IGNORECASE,
)


def texts_of_the_repository():
    """All texts of the repository, without the files that Git ignores."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if found.returncode:  # not a checkout
        return [path for path in ROOT.rglob("*") if path.suffix in {".py", ".md"}]
    paths = [ROOT / name for name in found.stdout.splitlines()]
    return [path for path in paths if path.is_file() and not path.is_symlink()]


@pytest.mark.once("torch")
def test_no_text_advises_a_project_of_others():
    """`keras-transformer` on PyPI is another project."""
    texts = {}
    for path in texts_of_the_repository():
        with contextlib.suppress(UnicodeDecodeError):
            texts[relative(path)] = path.read_text("utf-8")
    assert len(texts) > 400 and "pyproject.toml" in texts
    found = {name: ADVICE.search(text) for name, text in texts.items()}
    found.pop(relative(pathlib.Path(__file__)))
    assert not {name: match.group() for name, match in found.items() if match}


@pytest.mark.parametrize(
    "advice",
    [
        "pip install keras-transformer",
        'pip install "keras-transformer[hub]"',
        "python -m pip install --upgrade keras_transformer",
        "uv add keras-transformer",
        'dependencies = ["keras-transformer>=0.1"]',
        "keras-transformer==0.1.0",
        "keras.transformer[serve]",
    ],
)
def test_advice_of_a_project_of_others_is_found(advice):
    assert ADVICE.search(advice)
    assert not ADVICE.search(advice.replace("transformer", "transformer-toolkit"))
    for text in ("keras-transformer train", 'pip install ".[hub]"', "pip install ."):
        assert not ADVICE.search(text)


# What the README says of real data, made to fit the few lines of the test.
TOY_SIZES = {"vocabulary_size=8000": "vocabulary_size=29", "epochs=40": "epochs=1"}


SHORT_MODEL = {**TOY_MODEL, "max_target_length": 24}  # few steps of its searches


@pytest.fixture
def toy_text(tmp_path, monkeypatch, unchecked_exports):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(PRESETS, "transformer_tiny", SHORT_MODEL)
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


@pytest.mark.once("torch")
def test_readme_code_runs(toy_text, capsys):
    run_page("README.md", TOY_SIZES)
    assert pathlib.Path("saved_models/en-de/1/saved_model.pb").exists()
    run_page("docs/README.md")  # loads en-de.keras
    assert "pairs read" in capsys.readouterr().out


@pytest.mark.once("torch")
def test_getting_started_page_runs(toy_text, capsys):
    namespace = run_page("docs/getting_started.md", TOY_SIZES)
    namespace["classifier"].summary()
    assert pathlib.Path("en-de.keras").exists()
    assert "pairs read" in capsys.readouterr().out


@pytest.mark.once("torch")
def test_language_models_page_runs(toy_text, capsys):
    names = run_page("docs/language_models.md", leave_out="openai-community")
    shown = re.findall(r"# (\(1[01],\)|True)$", read("docs/language_models.md"), re.M)
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if re.fullmatch(r"\(1[01],\)|True", line)] == shown
    assert printed[-1] == "sgod owt"
    assert 0 < names["nats"] < 0.5
    assert pathlib.Path("saved_models/dogs/1/README.md").exists()


@pytest.mark.once("torch")
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


@pytest.mark.once("torch")
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


@pytest.mark.once("torch")
def test_sharing_page_runs(toy_text, capsys):
    save_toy_model()
    run_page("docs/sharing.md", leave_out="hf://|huggingface")
    text = (ROOT / "docs/sharing.md").read_text("utf-8")
    shown = re.search(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    listed = [line.split()[0] for line in shown[1].splitlines()[1:]]
    assert listed == sorted(path.name for path in pathlib.Path("en-de").iterdir())


@pytest.mark.once("torch")
@pytest.mark.skipif(not has_vnni(), reason="products of int8 saturate")
def test_ctranslate2_page_runs(toy_text, capsys):
    save_toy_model()
    save_toy_language_model()
    run_page("docs/ctranslate2.md", leave_out="openai-community")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert lines[2].startswith("a man sees") and lines[3].startswith("two")


@pytest.mark.once("torch")
def test_saved_model_page_runs(toy_text, capsys):
    save_toy_model(max_target_length=7)
    run_page("docs/saved_model.md")
    assert capsys.readouterr().out.splitlines()[-1] == "(1, 2)"
    card = pathlib.Path("saved_models/en-de/1/README.md").read_text("utf-8")
    assert "| BLEU | 40.5 |" in card
    assert pathlib.Path("en-de-onnx/decoder_step.onnx").exists()


DOCUMENTATION = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize(
    "name",
    [
        *["layers", "data", "pictures"],
        # Many searches, each of which the tests of decoding run on every backend.
        pytest.param("decoding", marks=pytest.mark.once("torch")),
    ],
)
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


PAGES = [
    ROOT / name
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
]
PAGES += [
    path for path in DOCUMENTATION if path.stem != "index"
]  # written for the site


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_names_on_a_page_exist(page):
    text = page.read_text("utf-8")
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\((?!https?:)([^)#]+)", prose)
    files = re.findall(r"(?<!-)\b[\w/]+/\w+\.(?:py|md|toml)\b", text)
    assert not [name for name in links if not (page.parent / name).exists()]
    assert not [name for name in files if not (ROOT / name).exists()]


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_sections_that_a_page_links_to_exist(page):
    links = re.findall(r"\]\((?!\w+:)([^)#]*)#([^)]+)\)", page.read_text("utf-8"))
    assert not [
        (name, section)
        for name, section in links
        if section not in sections_of(page.parent / name if name else page)
    ]


def sections_of(page):
    headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8").lower(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", h).replace(" ", "-") for h in headings}


# Deprecated names, by how pages and programs would use them; a test that does gets a
# warning, which is an error.
DEPRECATED = re.compile(
    r"(?:kt|keras_transformer)\.(?:export_saved_model|save_marian|seq2seq)\b|"
    r"\bsave_marian\b|\bconsistency(?:=|_loss\b)|--consistency\b|\bStepModel\b|"
    r"\bdecoding\.(?:Sentences|run)\b|\.pays\b|\brecipe\.Trained\b|\bvalid_bleu\b|"
    r"\bbleu[-_]every\b|[( ]processors=|\bserving\.(?:read|make)_options\b"
)


def test_deprecated_names_are_not_used():
    folders = ("docs", "examples", "benchmarks")
    texts = [
        path
        for path in texts_of_the_repository()
        if relative(path) == "README.md" or relative(path).startswith(folders)
    ]
    for path in texts:
        if path.suffix in {".md", ".py"}:
            assert not DEPRECATED.search(path.read_text("utf-8")), path


@pytest.mark.parametrize(
    "code",
    [
        "kt.save_marian(model)",
        "BeamSearch(processors=[])",
        "--bleu-every 4",
        "x.pays()",
    ],
)
def test_deprecated_names_are_found(code):
    assert DEPRECATED.search(code)
    assert not DEPRECATED.search("BeamSearch(logits_processors=[]) r_drop=1 export(")


# The cells of a table that say what something is called here.


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


NAMED_HERE = {
    code
    for cell in cells_here((ROOT / "docs/migration.md").read_text("utf-8"))
    for code in re.findall("`([^`]+)`", cell)
}


@pytest.mark.parametrize("code", sorted(NAMED_HERE))
def test_migration_page_names_what_exists(code):
    options = {f"--{f.name.replace('_', '-')}" for f in dataclasses.fields(Recipe)}
    first, _, further = code.partition(" ")
    if first == "keras-transformer":
        assert further in COMMANDS
    elif first.startswith("--"):
        assert first in options and further in {
            *("", *PRESETS, *early_checks.DTYPES, *METRICS)
        }
    else:
        check_call(code)


@pytest.mark.parametrize(
    "code", ["BeamSearch(beams=5)", "BeamSaerch", "keras.optimisers"]
)
def test_names_of_the_migration_page_are_checked(code):
    assert len(NAMED_HERE) > 60
    with pytest.raises((AssertionError, AttributeError)):
        check_call(code)


@pytest.mark.once("torch")
def test_migration_page_runs(toy_text, monkeypatch):
    small = {
        "hidden_dim=256": "hidden_dim=8",
        "intermediate_dim=2048": "intermediate_dim=16",
    }
    run_page("docs/migration.md", {**TOY_SIZES, **small})


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_make_targets_that_a_page_names_exist(page):
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = re.findall(r"^([\w%-]+):", makefile, re.MULTILINE)
    patterns = [target.replace("%", "*") for target in targets]
    named = re.findall(r"(?:^|`|=\S* )make (\w[\w-]*)", page.read_text("utf-8"), re.M)
    for target in named:
        assert any(fnmatch.fnmatch(target, pattern) for pattern in patterns), target


def test_pages_name_the_two_commands():
    readme = (ROOT / "README.md").read_text("utf-8")
    assert "make demo" in readme
    assert "make test" in readme


SOURCES = [
    path
    for folder in (PACKAGE, RUNTIME, "examples", "tests", "benchmarks", "docs")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "_build" not in path.parts
]


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_source_is_finished(path):
    text = path.read_text("utf-8")
    assert not re.search(r"\b(TO" r"DO|FIX" r"ME|NotImplemented" r"Error)\b", text)
    assert str(ROOT) not in text


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_module_is_short(path):
    lines = path.read_text("utf-8").count("\n")
    assert lines <= 500
