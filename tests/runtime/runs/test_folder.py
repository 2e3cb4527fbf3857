import shutil

import pytest

from keras_transformer.recipe import Recipe
from keras_transformer_runtime.runs import folder
from keras_transformer_runtime.runs.folder import (
    latest_position,
    next_version,
    recipe_to_resume,
)
from keras_transformer_runtime.runs.recipe import PlannedRecipe

pytestmark = pytest.mark.once("torch")

FILES = {"train": ["a"], "valid": ["b"]}


PLANNED = {
    **{"dropout": 0.3, "epochs": 40, "tokens_per_batch": 4096, "learning_rate": 4e-3},
    **{"warmup_steps": 2000, "cooldown": 10, "average": 10, "save_every": 500},
    "metric": "bleu",
}


@pytest.mark.parametrize("epochs, done, warns", [(6, 4, 1), (6, 3, 0), (4, 3, 1)])
def test_warns_of_another_end_when_the_learning_rate_falls(
    epochs, done, warns, recwarn, tmp_path
):
    """The run has 5 epochs, and the learning rate falls in the last two."""
    begin(tmp_path / "run", done, epochs=5, cooldown=2)
    recipe = planned(output=tmp_path / "run", epochs=epochs, cooldown=2)
    folder.warn_of_another_cooldown(recipe, 5)
    messages = [str(warning.message) for warning in recwarn]
    assert len(messages) == warns
    message = f"`epochs={epochs}` replaces `epochs=5` in epoch {done}"
    assert all(message in found for found in messages)


def planned(**options):
    return PlannedRecipe.of({**FILES, **PLANNED, **options})


def test_versions_are_numbers(tmp_path):
    for name in ("2", "7-old", "notes"):
        (tmp_path / name).mkdir()
    assert next_version(tmp_path).name == "3"


def begin(output, done, **options):
    """Writes the folder of a run with a checkpoint after `done` epochs."""
    (output / "checkpoints").mkdir(parents=True)
    (output / "checkpoints" / f"epoch-{done:04}.npz").touch()
    recipe = planned(output=output, **options)
    (output / "options.toml").write_text(recipe.to_toml())


def test_latest_position(tmp_path):
    assert latest_position(str(tmp_path)) is None
    begin(tmp_path / "run", 3)
    assert latest_position(str(tmp_path / "run")) == (3, 0)


def test_epochs_must_not_be_fewer_than_complete_ones(tmp_path):
    begin(tmp_path / "run", 7)
    message = (
        "`epochs` must be at least 7, .* complete epochs in .*; received `epochs=6`"
    )
    with pytest.raises(ValueError, match=message):
        recipe_to_resume(Recipe(**FILES, output=tmp_path / "run", epochs=6))
    assert recipe_to_resume(Recipe(**FILES, output=tmp_path / "run")).epochs == 40
    assert recipe_to_resume(Recipe(**FILES, output=tmp_path / "other")) is None


def test_options_of_the_run_complete_those_that_are_given(tmp_path):
    begin(tmp_path, 3, dropout=0.25)
    given = Recipe(**FILES, output=tmp_path, epochs=50, metric="chrf")
    resumed = recipe_to_resume(given)
    assert (resumed.epochs, resumed.metric, resumed.dropout) == (50, "chrf", 0.25)
    with pytest.raises(ValueError, match="`dropout` must be that of the run to resume"):
        recipe_to_resume(Recipe(**FILES, output=tmp_path, dropout=0.1))


def test_warns_in_an_epoch_where_the_learning_rate_falls(tmp_path):
    begin(tmp_path, 3, epochs=5, cooldown=2)
    (tmp_path / "checkpoints/epoch-0004-after-batch-000007.npz").touch()
    with pytest.warns(UserWarning, match="replaces `epochs=5` in epoch 4"):
        recipe = planned(output=tmp_path, epochs=6, cooldown=2)
        folder.warn_of_another_cooldown(recipe, 5)


def test_a_run_with_missing_files_is_refused(tmp_path):
    begin(tmp_path, 3)
    recipe = Recipe(**FILES, output=tmp_path)
    (tmp_path / "options.toml").rename(tmp_path / "elsewhere")
    with pytest.raises(
        ValueError, match=r"`output` must .* whose options\.toml are miss"
    ):
        recipe_to_resume(recipe)
    (tmp_path / "elsewhere").rename(tmp_path / "options.toml")
    shutil.rmtree(tmp_path / "checkpoints")
    assert recipe_to_resume(recipe) is None
    (tmp_path / "model.keras").touch()
    with pytest.raises(
        ValueError, match="`output` must .* whose checkpoints are missing"
    ):
        recipe_to_resume(recipe)
