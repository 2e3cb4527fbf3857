import shutil

import pytest

from keras_transformer.recipe import Recipe, folder
from keras_transformer.recipe.folder import next_version, trained_part

pytestmark = pytest.mark.once

FILES = {"train": ["a"], "valid": ["b"]}


@pytest.mark.parametrize("epochs, done, warns", [(6, 4, 1), (6, 3, 0), (4, 3, 1)])
def test_another_end_once_the_rate_has_begun_to_fall(epochs, done, warns, recwarn):
    """The run was for 5 epochs, with the fall in the last two."""
    recipe = Recipe(**FILES, output="c", epochs=epochs, cooldown=2)
    folder._warn_of_another_cooldown(recipe, 5, done)
    messages = [str(warning.message) for warning in recwarn]
    assert len(messages) == warns
    message = f"`epochs={epochs}` replaces `epochs=5` in epoch {done}"
    assert all(message in found for found in messages)


def test_only_numbers_are_versions(tmp_path):
    for name in ("2", "7-old", "notes"):
        (tmp_path / name).mkdir()
    assert next_version(tmp_path).name == "3"


def begin(output, done, **options):
    """Leaves the folder of a run whose newest checkpoint is after `done` epochs."""
    (output / "checkpoints").mkdir(parents=True)
    (output / "checkpoints" / f"epoch-{done:04}.npz").touch()
    recipe = Recipe(**FILES, output=output, **options)
    (output / "options.toml").write_text(recipe.to_toml())


def test_how_far_a_run_is(tmp_path):
    assert trained_part(str(tmp_path)) is None
    begin(tmp_path / "run", 3)
    assert trained_part(str(tmp_path / "run")) == (3, 0)


def test_a_run_cannot_go_on_to_where_it_has_been(tmp_path):
    begin(tmp_path / "run", 7)
    message = (
        "`epochs` must be at least 7, .* complete epochs in .*; received `epochs=6`"
    )
    with pytest.raises(ValueError, match=message):
        folder.can_resume(Recipe(**FILES, output=tmp_path / "run", epochs=6))
    assert folder.can_resume(Recipe(**FILES, output=tmp_path / "run", epochs=40))
    assert not folder.can_resume(Recipe(**FILES, output=tmp_path / "other"))


def test_an_epoch_in_which_the_rate_falls_has_begun(tmp_path):
    begin(tmp_path, 3, epochs=5, cooldown=2)
    (tmp_path / "checkpoints/epoch-0003-batch-000007.npz").touch()
    with pytest.warns(UserWarning, match="replaces `epochs=5` in epoch 4"):
        assert folder.can_resume(Recipe(**FILES, output=tmp_path, epochs=6, cooldown=2))


def test_a_run_of_which_files_are_gone_is_not_made_over(tmp_path):
    begin(tmp_path, 3)
    recipe = Recipe(**FILES, output=tmp_path)
    (tmp_path / "options.toml").rename(tmp_path / "elsewhere")
    with pytest.raises(
        ValueError, match=r"`output` must .* whose options\.toml are miss"
    ):
        folder.can_resume(recipe)
    (tmp_path / "elsewhere").rename(tmp_path / "options.toml")
    shutil.rmtree(tmp_path / "checkpoints")
    assert not folder.can_resume(recipe)
    (tmp_path / "model.keras").touch()
    with pytest.raises(
        ValueError, match="`output` must .* whose checkpoints are missing"
    ):
        folder.can_resume(recipe)
