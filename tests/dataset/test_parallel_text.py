"""The arguments of `parallel_dataset`: files, filters, numbers and errors."""

import gzip

import numpy as np
import pytest
from reversal import epoch_pairs, make_dataset, make_pairs, write

from keras_transformer.dataset import parallel_dataset
from keras_transformer.text import CharacterTokenizer, PromptTokenizer

pytestmark = pytest.mark.once("torch")

# Reading and filters.


def test_files(tmp_path):
    pairs = make_pairs(11)
    sources, targets = zip(*pairs, strict=True)
    source = write(tmp_path / "source.txt", sources)
    target = tmp_path / "target.txt.gz"
    target.write_bytes(gzip.compress("\n".join(targets).encode()))
    columns = write(tmp_path / "pairs.tsv", map("\t".join, pairs))
    expected = epoch_pairs(make_dataset(pairs=pairs))
    assert epoch_pairs(make_dataset(source, str(target))) == expected
    assert epoch_pairs(make_dataset(columns)) == expected
    twice = epoch_pairs(make_dataset(pairs=pairs * 2))
    assert epoch_pairs(make_dataset([source] * 2, [target] * 2)) == twice
    assert epoch_pairs(make_dataset([columns] * 2)) == twice


def test_dropped_pairs_are_counted():
    pairs = [("ab", "x"), ("", "x"), ("a", ""), ("abcd", "x"), ("abcd", "gfedc")]
    pairs += [("ab", "gfed"), ("abc", "gfe")]
    data = make_dataset(pairs=pairs, max_source_length=4, max_target_length=4)
    assert sorted(epoch_pairs(data)) == [("ab", "x"), ("abc", "gfe")]
    assert data.dropped == {
        "empty": 2,
        "max_source_length": 2,
        "max_target_length": 1,
        "max_length_ratio": 0,
        "duplicate": 0,
    }
    assert (data.pairs_read, data.pairs_kept) == (7, 2)


# Errors in the data.


@pytest.mark.parametrize("add_start_token", [False, True])
def test_a_prompt_of_one_token_is_not_empty(add_start_token):
    tokenizer = CharacterTokenizer.train(lines=["abxyz"])
    data = parallel_dataset(
        pairs=[("a", "xy"), ("ab", "x"), ("a", "xyz"), ("", "z")],
        source_tokenizer=PromptTokenizer(tokenizer, add_start_token),
        target_tokenizer=tokenizer,
        max_length_ratio=2,
    )
    assert data.pairs_kept == 2
    assert (data.dropped["empty"], data.dropped["max_length_ratio"]) == (1, 1)


def test_unequal_numbers_of_files(tmp_path):
    path = write(tmp_path / "a.txt", "abc")
    with pytest.raises(ValueError, match="equally many paths; received 2 and 1 paths"):
        make_dataset([path, path], path)


def test_empty_file(tmp_path):
    path, empty = write(tmp_path / "a.txt", "abc"), write(tmp_path / "b.txt", "")
    for args in ((path, empty), (empty, path), (empty,)):
        with pytest.raises(ValueError, match=r"b\.txt` is empty"):
            make_dataset(*args)


def test_all_pairs_dropped():
    message = "all 2 pairs were dropped: {'empty': 1, 'max_source_length': 1,"
    with pytest.raises(ValueError, match=message):
        make_dataset(pairs=[("", "x"), ("abc", "x")], max_source_length=2)


# Errors in the arguments.


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"target": "b.txt"},
        {"source": "a.txt", "pairs": [("a", "x")]},
        {"target": "b.txt", "pairs": [("a", "x")]},
    ],
    ids=["nothing", "target", "source and pairs", "target and pairs"],
)
def test_files_or_pairs(kwargs):
    with pytest.raises(ValueError, match="Either `source` .* or `pairs` must be given"):
        make_dataset(**kwargs)


def test_bad_pairs():
    for pairs, message in (
        ([("a", "x"), ("a", 1)], r"`pairs` must contain .*`pairs\[1\]="),
        (np.array([["a", "x"]]), "`pairs` must contain .*source, target. tup"),
        ([], "`pairs` must contain at least one pair"),
    ):
        with pytest.raises(ValueError, match=message):
            make_dataset(pairs=pairs)


@pytest.mark.parametrize("name", ["source_tokenizer", "target_tokenizer"])
def test_bad_tokenizer(name):
    with pytest.raises(
        ValueError, match=f"`{name}` must be a `keras_transformer.Tokenizer`; .*'bpe'`"
    ):
        make_dataset(pairs=[("a", "x")], **{name: "bpe"})


NUMBERS = ("tokens_per_batch", "max_shapes", "max_source_length", "max_target_length")


def test_bad_numbers():
    for name, value in zip(
        (*NUMBERS, "window", "batches_per_epoch"), (0, -1, 2.5) * 2, strict=True
    ):
        message = f"`{name}` must be an int of at least 1; received `{name}={value}`"
        with pytest.raises(ValueError, match=message):
            make_dataset(pairs=[("a", "x")], **{name: value})
    for ratio in (0.5, float("nan"), "3"):
        message = f"at least 1; .*`max_length_ratio={ratio!r}`"
        with pytest.raises(ValueError, match=message):
            make_dataset(pairs=[("a", "x")], max_length_ratio=ratio)
    for seed in (-1, 1.0, None):
        with pytest.raises(ValueError, match=f"`seed` must .*`seed={seed}`"):
            make_dataset(pairs=[("a", "x")], seed=seed)
