import pytest

from keras_transformer import Seq2Seq
from keras_transformer.export.writing import (
    check_has_tokenizers,
    new_folder,
    run_python,
    sample_texts,
)
from keras_transformer.text import CharacterTokenizer

SIZES = {"num_layers": 1, "hidden_dim": 6, "intermediate_dim": 7, "num_heads": 3}
LETTERS = CharacterTokenizer(["<pad>", "<unk>", "<s>", "</s>", *"abcdef"])


@pytest.mark.parametrize("exists", [False, True])
def test_a_folder_gets_its_name_at_the_end(tmp_path, exists):
    target = tmp_path / "models" / "1"
    if exists:
        target.mkdir(parents=True)
    with new_folder(target) as folder:
        folder.mkdir()
        (folder / "notes.txt").write_text("mine")
        assert not target.exists() or not list(target.iterdir())
    assert (target / "notes.txt").read_text() == "mine"
    assert list(target.parent.iterdir()) == [target]


def test_nothing_is_left_of_a_folder_that_failed(tmp_path):
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "1") as folder:
        folder.mkdir()
        1 / 0  # noqa: B018
    assert list(tmp_path.iterdir()) == []


def test_nor_of_the_folders_that_were_made_for_it(tmp_path):
    (tmp_path / "models").mkdir()
    target = tmp_path / "models" / "en" / "de" / "1"
    with pytest.raises(ZeroDivisionError), new_folder(target):
        1 / 0  # noqa: B018
    assert list(tmp_path.rglob("*")) == [tmp_path / "models"]
    with pytest.raises(ZeroDivisionError), new_folder(target):
        (target.parents[1] / "notes.txt").write_text("another's")
        1 / 0  # noqa: B018
    assert (tmp_path / "models/en/notes.txt").read_text() == "another's"


def test_an_existing_target_is_not_replaced(tmp_path):
    (tmp_path / "1").mkdir()
    file = tmp_path / "1" / "notes.txt"
    file.write_text("mine")
    for target in (tmp_path / "1", file, str(file)):
        message = "`filepath` must not exist or be an empty folder; received `filepath="
        with pytest.raises(FileExistsError, match=message), new_folder(target):
            pass
    assert file.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [tmp_path / "1"]


def test_a_folder_that_cannot_be_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for target in (".", "/"):
        message = f"`filepath` must .*`filepath='{target}'`"
        with pytest.raises(ValueError, match=message), new_folder(target):
            pass


def test_what_a_link_leads_to_is_written(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "1").symlink_to(tmp_path / "disk")
    with new_folder(tmp_path / "1") as folder:
        folder.mkdir()
    assert (tmp_path / "1").is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {"1", "disk"}


def test_a_model_without_tokenizers():
    message = "`model` must have tokenizers to be exported; .* Give it tokenizers"
    with pytest.raises(ValueError, match=message):
        check_has_tokenizers(Seq2Seq(**SIZES, vocabulary_size=11))


@pytest.mark.parametrize("limit", [2, 9, None])
def test_sample_texts_are_short_enough_and_hold_an_empty_one(limit):
    model = Seq2Seq(**SIZES, source_tokenizer=LETTERS, max_source_length=limit)
    *texts, empty = sample_texts(model)
    assert empty == ""
    assert set("abcde") <= set("".join(texts)) <= set("abcdef")
    lengths = LETTERS.tokenize(texts, add_end=True).row_lengths().numpy()
    assert 1 < max(lengths) <= (limit or 7)


def test_a_process_that_fails_is_quoted():
    assert run_python("print(input())", "out of ink") == '"out of ink"\n'
    with pytest.raises(RuntimeError, match="child process .* last words: out of ink"):
        run_python("raise SystemExit('out of ink')", {})
