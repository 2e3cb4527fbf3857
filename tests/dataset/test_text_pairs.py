import gzip
import json

import pytest

from keras_transformer.dataset import read_pairs
from keras_transformer.dataset.text_pairs import (
    FilePairs,
    ListedPairs,
    open_corpora,
)

pytestmark = pytest.mark.once("torch")

PAIRS = [("ab", "x"), ("", "yé"), ("c d", ""), ("e", "zz"), ("f", "z")]


@pytest.fixture(params=["list", "tab", "csv", "jsonl", "two files"])
def corpus(request, tmp_path):
    if request.param == "list":
        return ListedPairs(PAIRS)
    if request.param != "two files":
        path = tmp_path / f"pairs.{request.param}"
        lines = {
            "tab": [f"{s}\t{t}" for s, t in PAIRS],
            "csv": ["en,id,de", *(f'"{s}",0,{t}' for s, t in PAIRS)],
            "jsonl": [json.dumps({"de": t, "en": s}) for s, t in PAIRS],
        }
        path.write_text("\n".join(lines[request.param]), "utf-8")
        return open_corpora(path, None, columns=["en", "de"])[0]
    paths = [tmp_path / "source.txt", tmp_path / "target.txt.gz"]
    texts = ["\n".join(side).encode() for side in zip(*PAIRS, strict=True)]
    paths[0].write_bytes(texts[0])
    paths[1].write_bytes(gzip.compress(texts[1]))
    return open_corpora(*paths)[0]


def test_corpus(corpus):
    assert list(corpus) == PAIRS
    assert corpus.count() == len(PAIRS)
    read = corpus.reader()
    assert read(0, 2) == PAIRS[:2]
    assert read(2, 5) == PAIRS[2:]
    assert corpus.reader()(3, 4) == PAIRS[3:4]


@pytest.mark.parametrize("count", [FilePairs.count, list])
def test_unequal_line_counts(tmp_path, count):
    short, long = tmp_path / "short.txt", tmp_path / "long.txt"
    short.write_text("a\nb\n", "utf-8")
    long.write_text("a\nb\nc\nd\ne\n", "utf-8")
    with pytest.raises(ValueError, match=r"2 in `.*short\.txt` and 5 in `.*long\.txt`"):
        count(*open_corpora(short, long))
    with pytest.raises(ValueError, match=r"5 in `.*long\.txt` and 2 in `.*short\.txt`"):
        count(*open_corpora(long, short))


def test_read_pairs(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("a\tx\nb\ty\n", "utf-8")
    assert read_pairs([path, path]) == [("a", "x"), ("b", "y")] * 2
    assert read_pairs(pairs=iter(PAIRS)) == PAIRS
    for name, text in (("s", "c\n"), ("t", "z\n")):
        (tmp_path / name).write_text(text, "utf-8")
    sources, targets = [path, tmp_path / "s"], [None, tmp_path / "t"]
    assert read_pairs(sources, targets) == [("a", "x"), ("b", "y"), ("c", "z")]


@pytest.mark.parametrize("arguments", [([],), ([], [])])
def test_no_files(arguments):
    with pytest.raises(ValueError, match="`source` must contain at least one path"):
        open_corpora(*arguments, *[None] * (3 - len(arguments)))
