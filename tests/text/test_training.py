"""Training of tokenizers on files or lines."""

import gzip

import pytest
from training_text import LINES

from keras_transformer.text import SentencePieceTokenizer, WordTokenizer

pytestmark = pytest.mark.once


def test_training_files(tmp_path):
    plain, zipped = tmp_path / "a.txt", tmp_path / "b.txt.gz"
    plain.write_text("\n".join(LINES[:2]) + "\n", "utf-8")
    zipped.write_bytes(gzip.compress("\n".join(LINES[2:]).encode()))
    for cls, size in ((SentencePieceTokenizer, 61), (WordTokenizer, 13)):
        from_files = cls.train([plain, str(zipped)], size)
        from_lines = cls.train(lines=LINES, vocabulary_size=size)
        assert from_files.get_config() == from_lines.get_config()
    assert WordTokenizer.train(plain).token_to_id("dogs") > 3


@pytest.mark.parametrize("cls", [SentencePieceTokenizer, WordTokenizer])
class TestTrainingErrors:
    def test_files_or_lines(self, cls):
        with pytest.raises(ValueError, match="Exactly one of `files` and `lines`"):
            cls.train()
        with pytest.raises(ValueError, match="and also `lines`"):
            cls.train("a.txt", lines=LINES)
        with pytest.raises(ValueError, match="Pass a path as `files`"):
            cls.train(lines="a.txt")

    def test_missing_file(self, cls, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"none\.txt"):
            cls.train(tmp_path / "none.txt")

    def test_empty_text(self, cls, tmp_path):
        path = tmp_path / "empty.txt"
        path.touch()
        with pytest.raises(ValueError, match=r"empty\.txt` is empty"):
            cls.train(path)
        with pytest.raises(ValueError, match="only blank lines"):
            cls.train(lines=["", " "])

    def test_invalid_utf8(self, cls, tmp_path):
        path = tmp_path / "latin.txt"
        path.write_bytes("gut\nsüß\n".encode("latin1"))
        with pytest.raises(ValueError, match=r"line 2 of `.*latin\.txt` .*iconv"):
            cls.train(path)

    def test_utf16(self, cls, tmp_path):
        path = tmp_path / "windows.txt"
        for codec in ("utf-16", "utf-16-le", "utf-16-be"):
            path.write_bytes("good\n".encode(codec))
            with pytest.raises(ValueError, match=r"windows\.txt` .*iconv -f utf-16"):
                cls.train(path)

    def test_too_small_a_vocabulary(self, cls):
        with pytest.raises(ValueError, match="`vocabulary_size=4`"):
            cls.train(lines=LINES, vocabulary_size=4)
