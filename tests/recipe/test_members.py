"""Runs of several members, and a model that learns from them."""

import pathlib
import shutil

import numpy as np
import pytest

import keras_transformer as kt
from keras_transformer.recipe import Recipe, train
from keras_transformer_runtime.runs.early_checks import check_early

TORCH = pytest.mark.once("torch")
SIZES = {"num_layers": 1, "hidden_dim": 8, "intermediate_dim": 8, "num_heads": 2}
OPTIONS = {
    **SIZES,
    **{"epochs": 10, "learning_rate": 0.03, "tokens_per_batch": 64, "dropout": 0.1},
    **{"num_beams": 2, "export": False, "verbose": 0},
}


@pytest.fixture(scope="module")
def pairs():
    rng = np.random.default_rng(1)
    words = ["".join(rng.choice(list("abcd"), rng.integers(2, 5))) for _ in range(60)]
    return [(word, " ".join(word.upper())) for word in dict.fromkeys(words)]


@pytest.fixture(scope="module")
def text(tmp_path_factory, pairs):
    path = tmp_path_factory.mktemp("text") / "words.tsv"
    path.write_text("".join(f"{word}\t{target}\n" for word, target in pairs))
    return str(path)


def recipe_of(text, output, **options):
    return Recipe(
        **{"train": [text], "valid": 0.2, "output": str(output), **OPTIONS, **options}
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory, text):
    """The recipe of an ensemble, and its result."""
    recipe = recipe_of(text, tmp_path_factory.mktemp("ensemble") / "run", members=2)
    return recipe, train(recipe)


def weights(model):
    return np.concatenate([weight.ravel() for weight in model.get_weights()])


@TORCH
@pytest.mark.slow
def test_the_ensemble_has_the_weights_of_its_members(run):
    recipe, result = run
    assert isinstance(result.model, kt.Ensemble)
    found = []
    for index, model in enumerate(result.model.models, 1):
        saved = train(recipe.member(index)).model
        np.testing.assert_array_equal(weights(model), weights(saved))
        found.append(weights(saved))
    assert not np.array_equal(*found)
    assert recipe.member(2).seed == recipe.seed + 1


@TORCH
@pytest.mark.slow
def test_a_complete_ensemble_is_read(run):
    recipe, result = run
    checkpoints = [*pathlib.Path(recipe.output).glob("member-*/checkpoints/*.npz")]
    written = [path.stat().st_mtime_ns for path in checkpoints]
    again = train(recipe)
    assert checkpoints and written == [path.stat().st_mtime_ns for path in checkpoints]
    assert again.figures == result.figures
    np.testing.assert_array_equal(weights(again.model), weights(result.model))


@TORCH
@pytest.mark.slow
def test_a_run_that_was_stopped_has_the_same_members(run, tmp_path):
    recipe, result = run
    copy = tmp_path / "run"
    shutil.copytree(recipe.output, copy)
    for path in (copy / "member-2", copy / "member-1/figures.json"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name in ("model.keras", "figures.json"):
        (copy / name).unlink()
    resumed = train(recipe_of(*recipe.train, copy, members=2))
    np.testing.assert_array_equal(weights(resumed.model), weights(result.model))
    assert resumed.figures == result.figures


@TORCH
@pytest.mark.slow
def test_a_model_learns_from_the_ensemble(run, text, pairs, tmp_path):
    recipe, result = run
    output = tmp_path / "run"
    shutil.copytree(recipe.output, output / "teacher")
    student = train(recipe_of(text, output, members=2, distill=True))
    assert isinstance(student.model, kt.Seq2Seq)
    sources, targets = (
        (output / f"distilled/train.{side}").read_text().splitlines()
        for side in ("source", "target")
    )
    found = dict.fromkeys(zip(sources, targets, strict=True))
    held_out = (output / "teacher/member-1/data/valid.source").read_text().splitlines()
    kept = [pair for pair in pairs if pair[0] not in held_out]
    outputs = result.model.generate([source for source, _ in kept], result.search)
    taught = zip((source for source, _ in kept), outputs, strict=True)
    assert set(found) == {*kept, *(pair for pair in taught if pair[1])}
    assert set(found) > set(kept)
    options = Recipe.from_toml(output / "options.toml")
    assert options.train == [
        str(output / f"distilled/train.{side}") for side in ("source", "target")
    ]
    assert (options.members, options.distill) == (1, False)


@TORCH
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"members": 0}, "`members` must be an int of at least 1"),
        ({"distill": True}, "`distill` must not be given with one model"),
        (
            {"members": 2, "model": "causal", "num_beams": 5},
            "`members` must not be given with `model=",
        ),
        (
            {"members": 2, "export_format": "ctranslate2"},
            "`export_format` must not be 'ctranslate2' with several `members`",
        ),
    ],
)
def test_options_are_checked(text, options, message):
    with pytest.raises(ValueError, match=message):
        recipe_of(text, "run", **options)


@TORCH
def test_the_folder_of_one_model_is_refused(text, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/epoch-0001.npz").touch()
    with pytest.raises(ValueError, match="which has the checkpoints of one model"):
        check_early(recipe_of(text, tmp_path, members=2))
    check_early(recipe_of(text, tmp_path, members=2, distill=True))
