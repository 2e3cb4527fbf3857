"""Validation and test texts that are held out from the training text."""

import pathlib

import pytest

from keras_transformer.dataset.text_pairs import open_files
from keras_transformer.recipe import held_out
from keras_transformer.recipe.held_out import default_fraction, text_files
from keras_transformer_runtime.runs.corpora import CorpusFiles

pytestmark = pytest.mark.once("torch")

PAIRS = [(f"source {i % 700}", f"target {i}") for i in range(2000)]
SHARES = {"valid": 0.1}


def read(corpora):
    (corpus,) = corpora
    lines = [
        pathlib.Path(path).read_text("utf-8").splitlines() for path in corpus.files
    ]
    return list(zip(*lines, strict=True))


def hold_out(pairs, shares, folder, is_kept=False):
    corpora = [(CorpusFiles(["a.tsv"]), pairs)]
    return held_out.hold_out(corpora, None, shares, folder, is_kept)


def test_every_pair_is_in_one_part_and_no_source_in_two(tmp_path):
    files = hold_out(PAIRS, {"valid": 0.1, "test": 0.2}, tmp_path / "data")
    parts = [read(files[name]) for name in ("train", "valid", "test")]
    assert sorted(sum(parts, [])) == sorted(PAIRS)
    sources = [{source for source, _ in part} for part in parts]
    assert not sources[0] & sources[1] | sources[0] & sources[2]
    assert not sources[1] & sources[2]
    train, valid, test = (len(part) / len(PAIRS) for part in parts)
    assert (train, valid, test) == pytest.approx((0.7, 0.1, 0.2), abs=0.05)
    assert parts[0] == [pair for pair in PAIRS if pair in set(parts[0])]  # in order


def test_the_part_ignores_order_letter_case_and_spaces(tmp_path):
    first = read(hold_out(PAIRS, SHARES, tmp_path / "a")["valid"])
    changed = [(f" {source.upper()} ", target) for source, target in PAIRS[::-1]]
    again = read(hold_out(changed, SHARES, tmp_path / "b")["valid"])
    assert sorted(target for _, target in again) == sorted(t for _, t in first)


def test_more_is_held_out_with_a_greater_fraction(tmp_path):
    less, more = (
        {*read(hold_out(PAIRS, {"valid": share}, tmp_path / str(share))["valid"])}
        for share in (0.05, 0.15)
    )
    assert less < more


def planned(folder, **changes):
    (folder / "a.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS))
    plan = {"train": [str(folder / "a.tsv")], "valid": ["valid.tsv"], "test": 0.3}
    plan |= {"model": "seq2seq", "columns": None, "documents": None}
    return {**plan, "output": str(folder), **changes}


def files_of(plan, pairs):
    folder = pathlib.Path(plan["output"], "data")
    return text_files(
        plan, lambda shares, is_kept: hold_out(pairs, shares, folder, is_kept)
    )


def test_files_are_passed_on(tmp_path):
    files = files_of(planned(tmp_path), PAIRS)
    assert files.valid == [CorpusFiles(["valid.tsv"])]
    assert len(read(files.test)) == pytest.approx(600, abs=100)
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [
        *("origin.json", "test.source", "test.target", "train.source", "train.target")
    ]


@pytest.mark.parametrize(
    "changes", [{"test": 0.2}, {"columns": ["a", "b"]}, {"train": None}, {}]
)
def test_parts_of_other_texts_or_options_are_replaced(tmp_path, changes):
    plan = planned(tmp_path)
    before = read(files_of(plan, PAIRS).test)
    assert read(files_of(plan, []).test) == before  # kept
    if not changes:  # The same file has another text.
        (tmp_path / "a.tsv").write_text("other\ttext\n")
    if "train" in changes:
        (tmp_path / "b.tsv").write_text((tmp_path / "a.tsv").read_text())
        changes = {"train": [str(tmp_path / "b.tsv")]}
    other = PAIRS[:1000]
    after = read(files_of({**plan, **changes}, other).test)
    assert {*after} <= {*other} and len(after) < len(before)


def test_texts_with_line_breaks_and_corpora_with_weights(tmp_path):
    pairs = [(f"{s}\nmore", f'"{t}"\n') for s, t in PAIRS]
    corpora = [
        (CorpusFiles(["a.jsonl"], 2.0), pairs[:1200]),
        (CorpusFiles(["b.en", "b.de"], 1.0), pairs[1200:]),
    ]
    columns = ["x.en", "x.de"]
    parts = held_out.hold_out(corpora, columns, {"valid": 0.1}, tmp_path, False)
    assert [corpus.weight for corpus in parts["train"]] == [2.0, 1.0]
    found = [
        [*open_files(corpus.files, None, columns)[0]]
        for corpus in (*parts["train"], *parts["valid"])
    ]
    assert sorted(sum(found, [])) == sorted(pairs)
    assert {*found[0]} < {*pairs[:1200]} and {*found[1]} < {*pairs[1200:]}
    sources = [{source for source, _ in part} for part in found]
    assert not sources[2] & (sources[0] | sources[1])
    assert 130 < len(found[2]) < 270


@pytest.mark.parametrize(
    "pairs, shares",
    [(PAIRS[:3], {"valid": 1e-4}), (PAIRS[:2], {"valid": 0.1, "test": 0.89999})],
)
def test_a_part_must_not_be_empty(tmp_path, pairs, shares):
    with pytest.raises(ValueError, match="must have enough text for each part after"):
        hold_out(pairs, shares, tmp_path)
    assert not [*tmp_path.iterdir()]


def test_default_fraction():
    assert default_fraction(100) == 0.1
    assert default_fraction(20_000) == 0.05
    assert default_fraction(500_000) == 0.002
    assert 0.5e-4 < default_fraction(20_000_000) < 2e-4
    assert default_fraction(10**9) > 0
