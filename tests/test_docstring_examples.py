"""The examples of docstrings: they run, and print what they say."""

import doctest
import functools
import inspect
import io
import pathlib
import re

import pytest
import tensorflow as tf
from documented import MODULES, NAMES, ROOT, TOY_MODEL, python_blocks, write_toy_text
from processor import has_vnni

import keras_transformer as kt
from keras_transformer.export.saved_model.warmup import FILE
from keras_transformer.recipe import LabelRecipe, Recipe

# Why an example with this in it is compiled and no more.
NOT_RUN = {
    "Helsinki-NLP/": "it downloads a published model",
    "openai-community/": "it downloads a published model",
    "HuggingFaceTB/": "it downloads a published model",
    "sentence-transformers/": "it downloads a published model",
    "compare_with_transformers(": "tests/interoperability/test_families.py does it",
    "serve(read_server_options(": "it serves until it is stopped",
    "serve.run(application(": "it requires Ray; tests/serving/test_on_ray.py does it",
    "kt.distribute(": "it requires several devices",
    "kt.Pipeline(": "it requires several devices and JAX",
}
EXAMPLES = [
    pytest.param(module, inspect.cleandoc("\n" + code), id=f"{module.__name__}-{i}")
    for module in [kt, *MODULES]
    for i, (_, code) in enumerate(
        python_blocks(pathlib.Path(module.__file__).read_text("utf-8"))
    )
]

TRAIN, VALID = ([f"{part}.en", f"{part}.de"] for part in ("train", "valid"))
TOY_RECIPE = {
    **{
        "vocabulary_size": 29,
        "max_length": 24,
        "epochs": 1,
        "cooldown": 0,
        "warmup_steps": 1,
    },
    **{"num_beams": 1, "export": False, "verbose": 0},
}
TOY_ENCODER = {
    "num_layers": 1,
    "hidden_dim": 8,
    "intermediate_dim": 8,
    "num_heads": 2,
}
TOY_LABELS = {"epochs": 1, "export": False, "verbose": 0}
SERVING = """
[models.pronounce]
folder = "saved_models/pronounce"
"""


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    """What examples take for granted: texts, data, and models that know nothing."""
    folder = tmp_path_factory.mktemp("toys")
    write_toy_text(folder)
    files = [str(folder / name) for name in TRAIN]
    pieces = kt.SentencePieceTokenizer.train(files, vocabulary_size=29)
    words = kt.WordTokenizer.train(files)
    pieces_model, other_model, word_model = (
        kt.Seq2Seq(**TOY_MODEL, source_tokenizer=tokenizer, max_target_length=24)
        for tokenizer in (pieces, pieces, words)
    )
    data = kt.parallel_dataset(*files, source_tokenizer=pieces, target_tokenizer=pieces)
    encoder = kt.TextEncoder(**TOY_ENCODER, tokenizer=pieces)
    classifier = kt.TextClassifier(encoder, ["bad", "good"])
    sources, references = (pathlib.Path(file).read_text().split("\n") for file in files)
    return {
        **{"model": pieces_model, "model_of_another_seed": other_model},
        "classifier": classifier,
        **{"word_model": word_model, "train": data, "valid": data},
        **{"language_model": kt.CausalLM(**TOY_MODEL, tokenizer=pieces)},
        **{"train_files": TRAIN, "valid_files": VALID},
        **{"texts": sources[:3], "sources": sources[:3]},
        **{"valid_sources": sources[:3], "valid_references": references[:3]},
    }


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The model of the repository with one warm-up request: each compiles a shape."""
    folder = tmp_path_factory.mktemp("served") / "pronounce"
    folder.joinpath("1/assets.extra").mkdir(parents=True)
    original = ROOT / "saved_models/pronounce/1"
    for name in ("saved_model.pb", "variables", "keras_transformer.json"):
        folder.joinpath("1", name).symlink_to(original / name)
    first = next(tf.data.TFRecordDataset(str(original / FILE)).as_numpy_iterator())
    with tf.io.TFRecordWriter(str(folder / "1" / FILE)) as writer:
        writer.write(first)
    return folder


@pytest.fixture
def folder(tmp_path, monkeypatch, served):
    """A working folder with the files that examples read; a recipe in it is small."""
    monkeypatch.chdir(tmp_path)
    write_toy_text(tmp_path)
    (tmp_path / "news.en").write_text("a man\ntwo dogs\n")
    films = "".join(f"a good film {n}\tgood\nno plot {n}\tbad\n" for n in range(9))
    (tmp_path / "films.tsv").write_text(f"text\tlabel\n{films}")
    (tmp_path / "terms.tsv").write_text("two dogs\tman\n")
    (tmp_path / "serving.toml").write_text(SERVING)
    (tmp_path / "runs/en-de").mkdir(parents=True)
    options = Recipe(**TOY_RECIPE, train=TRAIN, valid=VALID, output="runs/en-de")
    (tmp_path / "runs/en-de/options.toml").write_text(options.to_toml())
    (tmp_path / "saved_models").mkdir()
    (tmp_path / "saved_models/pronounce").symlink_to(served)
    return tmp_path


@pytest.mark.slow
@pytest.mark.once("torch")
@pytest.mark.parametrize(("module", "code"), EXAMPLES)
def test_fenced_example(module, code, toys, folder):
    few = code.replace("epochs=40", "epochs=6")
    few = re.sub(r"\b(\w+\.)*Recipe\(", "toy_recipe(", few)
    few = few.replace("LabelRecipe(", "toy_label_recipe(")
    compiled = compile(few, module.__name__, "exec")
    for part, reason in NOT_RUN.items():
        if part in code:
            pytest.skip(reason)
    if "export_ctranslate2(" in code and not has_vnni():
        pytest.skip("products of int8 saturate")
    toys["model"].compile("adam", kt.LabelSmoothedCrossEntropy())
    printed = io.StringIO()
    printing = {"print": functools.partial(print, file=printed)}
    names = {
        **NAMES,
        **toys,
        **vars(module),
        **printing,
        "toy_recipe": functools.partial(Recipe, **TOY_RECIPE),
        "toy_label_recipe": functools.partial(LabelRecipe, **TOY_LABELS),
    }
    exec(compiled, names)
    said = re.findall("# (.*)", code)
    assert not said or printed.getvalue().splitlines() == said


@pytest.mark.once("torch")
@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_interactive_examples(module, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in doctest.DocTestFinder().find(module, extraglobs=NAMES):
        runner.run(test)
    assert not runner.failures, capsys.readouterr().out
