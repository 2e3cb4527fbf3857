import gc
import gzip
import json
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from reversal import (
    SOURCE,
    TARGET,
    batch_texts,
    epoch_batches,
    epoch_pairs,
    make_dataset,
    make_pairs,
    write,
    write_pairs,
)

# What a batch holds.


def test_batch_by_hand():
    pairs = [("ab", "x"), ("c", "gfe")]
    data = make_dataset(pairs=pairs, shuffle=False)
    ((inputs, targets),) = list(data.dataset)
    assert inputs["encoder_token_ids"].numpy().tolist() == [[4, 5, 3], [6, 3, 0]]
    assert inputs["decoder_token_ids"].numpy().tolist() == [[2, 4, 0, 0], [2, 5, 6, 7]]
    assert targets.numpy().tolist() == [[4, 3, 0, 0], [5, 6, 7, 3]]
    assert {targets.dtype, *(x.dtype for x in inputs.values())} == {tf.int32}
    assert data.padding_fraction == pytest.approx(3 / 14)


def test_sample_weights():
    data = make_dataset(pairs=[("ab", "x"), ("c", "gfe")], sample_weights=True)
    ((_, targets, weights),) = list(data.dataset)
    assert weights.dtype == tf.float32
    assert weights.numpy().tolist() == (targets.numpy() != 0).tolist()


def test_padding_may_be_any_id():
    """As in Marian's models: the start token is the padding."""

    class PadStarts:
        pad_token_id = 99
        start_token_id = 99

        def tokenize(self, texts, add_start=False, add_end=False):
            rows = TARGET.tokenize(texts, add_start, add_end)
            return tf.where(rows == TARGET.start_token_id, 99, rows)

    data = make_dataset(
        pairs=[("ab", "x"), ("c", "gfe")],
        target_tokenizer=PadStarts(),
        shuffle=False,
        sample_weights=True,
    )
    ((inputs, targets, weights),) = list(data.dataset)
    decoder = inputs["decoder_token_ids"].numpy().tolist()
    assert decoder == [[99, 4, 99, 99], [99, 5, 6, 7]]
    assert targets.numpy().tolist() == [[4, 3, 99, 99], [5, 6, 7, 3]]
    assert weights.numpy().tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]


def test_shapes_are_static_where_they_can_be():
    pairs = make_pairs(53)
    one = make_dataset(pairs=pairs, max_shapes=1, sample_weights=True)
    inputs, targets, weights = one.dataset.element_spec
    rows, source_length, target_length, _ = one.shapes[0]
    assert inputs["encoder_token_ids"].shape == [rows, source_length]
    assert inputs["decoder_token_ids"].shape == [rows, target_length]
    assert targets.shape == weights.shape == [rows, target_length]
    several = make_dataset(pairs=pairs, tokens_per_batch=97)
    assert several.dataset.element_spec[1].shape.as_list() == [None, None]


# Buckets and epochs.


@pytest.mark.parametrize(
    ("count", "tokens_per_batch", "max_shapes"),
    [(1, 97, 8), (2, 7, 8), (13, 7, 3), (53, 97, 1), (53, 97, 3), (211, 89, 8)],
)
def test_every_pair_once_in_few_shapes(count, tokens_per_batch, max_shapes):
    pairs = make_pairs(count)
    data = make_dataset(
        pairs=pairs, tokens_per_batch=tokens_per_batch, max_shapes=max_shapes
    )
    found = epoch_pairs(data)
    assert sorted(filter(any, found)) == sorted(pairs)
    shapes = [
        (*inputs["encoder_token_ids"].shape, targets.shape[1])
        for inputs, targets in data.dataset
    ]
    assert sorted(shapes) == sorted(
        (shape.rows, shape.source_length, shape.target_length)
        for shape in data.shapes
        for _ in range(shape.batches)
    )
    assert len(set(shapes)) <= max_shapes
    assert len(shapes) == data.batches_per_epoch == len(data.dataset)
    for rows, *lengths in shapes:
        assert rows == 1 or rows * max(lengths) <= tokens_per_batch
    filler = len(found) - len(pairs)
    assert filler < data.shapes[-1].batches


def test_padding_fraction_is_counted():
    data = make_dataset(pairs=make_pairs(61), tokens_per_batch=113, max_shapes=3)
    ids = np.concatenate(
        [np.ravel(x) for inputs, y in data.dataset
         for x in (inputs["encoder_token_ids"], y)]
    )  # fmt: skip
    assert data.padding_fraction == pytest.approx(np.mean(ids == 0))


def test_epochs_differ_and_repeat_with_the_seed():
    pairs = make_pairs(101)

    def epochs(**kwargs):
        data = make_dataset(pairs=pairs, tokens_per_batch=64, **kwargs)
        return epoch_pairs(data), epoch_pairs(data)

    first, second = epochs(seed=3)
    assert first != second
    assert sorted(first) == sorted(second)
    assert (first, second) == epochs(seed=3)
    assert first not in epochs(seed=5)
    plain = epochs(shuffle=False)
    assert plain[0] == plain[1]


def test_shuffling_mixes_pairs_within_buckets():
    data = make_dataset(pairs=make_pairs(61), tokens_per_batch=97, max_shapes=1)
    first, second = ({frozenset(b) for b in epoch_batches(data)} for _ in range(2))
    assert not first & second


def test_shuffling_mixes_the_buckets():
    def shapes_of_the_first_half(shuffle):
        data = make_dataset(pairs=make_pairs(211), tokens_per_batch=64, shuffle=shuffle)
        widths = [
            inputs["encoder_token_ids"].shape[1] + targets.shape[1]
            for inputs, targets in data.dataset
        ]
        assert (widths != sorted(widths)) == shuffle
        return len(set(widths[: len(widths) // 2]))

    few = shapes_of_the_first_half(shuffle=False)
    assert few < shapes_of_the_first_half(shuffle=True)


def test_outlives_a_cleared_session():
    data = make_dataset(pairs=make_pairs(13), shuffle=False)
    expected = epoch_pairs(data)
    tf.random.set_seed(3)
    keras.utils.clear_session()
    assert epoch_pairs(data) == expected


# What is read and what is dropped.


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


def test_unequal_and_repeated_pairs():
    pairs = [("ab", "xx"), ("ab", "x"), ("ab", "xxx"), ("ab", "xx"), ("ba", "x")]
    data = make_dataset(pairs=pairs, max_length_ratio=1.5, drop_duplicates=True)
    assert sorted(epoch_pairs(data)) == [("ab", "xx"), ("ab", "xxx")]
    assert (data.dropped["max_length_ratio"], data.dropped["duplicate"]) == (2, 1)
    assert make_dataset(pairs=pairs).pairs_kept == 5


def test_tokens_per_epoch():
    data = make_dataset(pairs=[("ab", "x"), ("c", "gfe"), ("", "x")])
    assert data.tokens_per_epoch == 2 + 4


def test_account():
    data = make_dataset(pairs=[("ab", "x"), ("c", "gfe"), ("", "x")])
    assert str(data).splitlines() == [
        "3 pairs read, 2 kept (dropped: empty 1, max_source_length 0, "
        "max_target_length 0, max_length_ratio 0, duplicate 0)",
        "1 batches an epoch in 1 shapes, 21.4% padding",
        "source_length target_length   rows batches",
        "            3             4      2       1",
    ]


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


# Errors.


def test_unequal_line_counts(tmp_path):
    source = write(tmp_path / "a.txt", "abc")
    target = write(tmp_path / "b.txt", "xx")
    message = r"same number of lines; received 3 in `.*a\.txt` and 2 in `.*b\.txt`"
    with pytest.raises(ValueError, match=message):
        make_dataset(source, target)


def test_unequally_many_files(tmp_path):
    path = write(tmp_path / "a.txt", "abc")
    with pytest.raises(ValueError, match="equally many files; received 2 and 1 paths"):
        make_dataset([path, path], path)


def test_empty_file(tmp_path):
    path, empty = write(tmp_path / "a.txt", "abc"), write(tmp_path / "b.txt", "")
    for args in ((path, empty), (empty, path), (empty,)):
        with pytest.raises(ValueError, match=r"b\.txt` is empty"):
            make_dataset(*args)


def test_invalid_utf8(tmp_path):
    path = tmp_path / "latin.txt"
    path.write_bytes("a\ndé\n".encode("latin1"))
    with pytest.raises(ValueError, match=r"UTF-8; line 2 of `.*latin\.txt`"):
        make_dataset(write(tmp_path / "a.txt", "ab"), path)


@pytest.mark.parametrize(("line", "count"), [("ab", 1), ("a\tb\tc", 3)])
def test_not_two_columns(tmp_path, line, count):
    path = write(tmp_path / "pairs.tsv", ["a\tx", line])
    with pytest.raises(ValueError, match=rf"line 2 of `.*pairs\.tsv` has {count}\."):
        make_dataset(path)


def test_nothing_left():
    message = "all 2 were dropped: {'empty': 1, 'max_source_length': 1,"
    with pytest.raises(ValueError, match=message):
        make_dataset(pairs=[("", "x"), ("abc", "x")], max_source_length=2)


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


@pytest.mark.parametrize("pair", ["ab", ("a",), ("a", 1), ("a", "b", "c")])
def test_bad_pair(pair):
    with pytest.raises(ValueError, match=r"`pairs` must hold .*`pairs\[1\]="):
        make_dataset(pairs=[("a", "x"), pair])


def test_pairs_of_an_array():
    with pytest.raises(ValueError, match="`pairs` must hold .*source, target. tuples"):
        make_dataset(pairs=np.array([["a", "x"], ["b", "y"]]))


@pytest.mark.parametrize("name", ["source_tokenizer", "target_tokenizer"])
def test_tokenizers_are_needed(name):
    with pytest.raises(ValueError, match=f"`{name}` must be a `Tokenizer`; .*'bpe'`"):
        make_dataset(pairs=[("a", "x")], **{name: "bpe"})


def test_a_dataset_that_nobody_has_is_freed():
    """What is left of it is what TensorFlow keeps of each generator."""
    data = make_dataset(pairs=make_pairs(13))
    dataset, stream = data.dataset, weakref.ref(data._stream)
    iterator = iter(dataset)
    del data, dataset
    gc.collect()
    assert stream() is not None
    assert len(list(iterator)) >= 1
    del iterator
    gc.collect()
    assert stream() is None


def test_no_pairs():
    with pytest.raises(ValueError, match="`pairs` must hold at least one pair"):
        make_dataset(pairs=[])


@pytest.mark.parametrize("value", [0, -1, 2.5])
@pytest.mark.parametrize(
    "name",
    [
        *("tokens_per_batch", "max_shapes", "max_source_length", "max_target_length"),
        *("window", "batches_per_epoch"),
    ],
)
def test_bad_numbers(name, value):
    message = f"`{name}` must be an int of at least 1; received `{name}={value}`"
    with pytest.raises(ValueError, match=message):
        make_dataset(pairs=[("a", "x")], **{name: value})


@pytest.mark.parametrize("ratio", [0.5, 0, float("nan"), "3"])
def test_bad_length_ratio(ratio):
    with pytest.raises(ValueError, match=f"1 or more; .*`max_length_ratio={ratio!r}`"):
        make_dataset(pairs=[("a", "x")], max_length_ratio=ratio)


# Use.


def test_fit():
    """Stock Keras: a padded id costs nothing, and Keras knows the epoch's length."""
    data = make_dataset(pairs=make_pairs(31), tokens_per_batch=64, sample_weights=True)
    source = keras.Input([None], dtype="int32", name="encoder_token_ids")
    target = keras.Input([None], dtype="int32", name="decoder_token_ids")
    summary = keras.layers.GlobalAveragePooling1D(keepdims=True)(
        keras.layers.Embedding(SOURCE.vocabulary_size, 5)(source)
    )
    hidden = keras.layers.Embedding(TARGET.vocabulary_size, 5)(target) + summary
    outputs = keras.layers.Dense(TARGET.vocabulary_size)(hidden)
    model = keras.Model([source, target], outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.1), loss)
    history = model.fit(data.dataset, epochs=3, shuffle=False, verbose=0).history[
        "loss"
    ]
    assert history[-1] < 0.9 * history[0]
    assert int(model.optimizer.iterations) == 3 * data.batches_per_epoch


def test_fit_waits_for_no_tuning():
    data = make_dataset(pairs=make_pairs(31))
    assert data.dataset.options().autotune.enabled is False


# Positions.


@pytest.fixture
def data():
    return make_dataset(pairs=make_pairs(97), tokens_per_batch=53, max_shapes=3)


def test_an_iterator_that_was_not_used_is_no_epoch(data):
    first = epoch_batches(data)
    data.start_epoch(0)
    iter(data.dataset)
    assert epoch_batches(data) == first


def test_epochs_can_be_chosen(data):
    epochs = [epoch_batches(data) for _ in range(3)]
    data.start_epoch(1)
    assert [epoch_batches(data), epoch_batches(data)] == epochs[1:]
    data.start_epoch(0)
    assert epoch_batches(data) == epochs[0]


def test_restored_position(data):
    epochs = [epoch_batches(data) for _ in range(4)]
    data.start_epoch(2)
    iterator = data.dataset.as_numpy_iterator()
    next(iterator)
    state = json.loads(json.dumps(data.state(5)))
    assert state == {"epoch": 2, "batch": 5}
    other = make_dataset(pairs=make_pairs(97), tokens_per_batch=53, max_shapes=3)
    other.restore(state)
    assert other.state(7) == {"epoch": 2, "batch": 7}
    assert [epoch_batches(other), epoch_batches(other)] == [epochs[2][5:], epochs[3]]
    assert len(other.dataset) == other.batches_per_epoch


def test_end_of_an_epoch_is_the_start_of_the_next(data):
    epoch_batches(data)
    state = data.state(data.batches_per_epoch)
    assert state == {"epoch": 1, "batch": 0}
    data.restore(state)
    restored = epoch_batches(data)
    data.start_epoch(1)
    assert restored == epoch_batches(data)


def test_batch_and_lines_at_a_position(data):
    batches = epoch_batches(data)
    for number in (0, 3, len(batches) - 1):
        state = data.state(number)
        assert batch_texts(data.batch(state)) == batches[number]
        assert data.lines(state) == batches[number]
    assert data.state(2) == {"epoch": 0, "batch": 2}


def test_lines_of_files(tmp_path):
    pairs = make_pairs(11)
    first = write_pairs(tmp_path, "first", pairs[:5])
    second = write_pairs(tmp_path, "second", pairs[5:])
    data = make_dataset(*map(list, zip(first, second, strict=True)), max_shapes=1)
    assert sorted(data.lines({"epoch": 3, "batch": 0})) == sorted(pairs)


@pytest.mark.parametrize(
    "state",
    [
        {"epoch": 0},
        {"epoch": 0, "batch": -1},
        {"epoch": 0, "batch": 10**6},
        {"epoch": "0", "batch": 0},
        {"epoch": 0, "batch": 0, "step": 0},
        {"epoch": -1, "batch": 0},
    ],
)
def test_bad_state(data, state):
    with pytest.raises(ValueError, match="`state` must be what `state"):
        data.restore(state)


def test_numbers_of_numpy():
    kwargs = {"tokens_per_batch": 53, "max_shapes": 2, "seed": 3, "shard": (0, 2)}
    numbers = {k: np.int64(v) for k, v in kwargs.items() if k != "shard"}
    pairs = make_pairs(40)
    data = make_dataset(pairs=pairs, **kwargs)
    same = make_dataset(pairs=pairs, **numbers, shard=np.int64([0, 2]).tolist())
    same.start_epoch(np.int64(0))
    assert epoch_batches(data) == epoch_batches(same)
    assert data.state(np.int64(2)) == {"epoch": 0, "batch": 2}
    same.restore({name: np.int64(n) for name, n in data.state(2).items()})
    data.restore(data.state(2))
    assert epoch_batches(data) == epoch_batches(same)


def test_the_state_of_a_stream_is_json_whatever_the_numbers(tmp_path):
    limits = {"max_source_length": 9, "max_target_length": 9}
    options = {"window": 16, "batches_per_epoch": 3, **limits}
    numbers = {name: np.int64(number) for name, number in options.items()}
    data = make_dataset(*write_pairs(tmp_path, "text", make_pairs(40)), **numbers)
    assert json.loads(json.dumps(data.state(4))) == data.state(np.int64(4))


@pytest.mark.parametrize("epoch", [-1, 1.0, None])
def test_a_number_of_an_epoch(epoch):
    data = make_dataset(pairs=[("a", "x")])
    with pytest.raises(ValueError, match=f"`epoch` must .*`epoch={epoch}`"):
        data.start_epoch(epoch)
    with pytest.raises(ValueError, match=f"`batches` must .*`batches={epoch}`"):
        data.state(epoch)


@pytest.mark.parametrize("seed", [-1, 1.0, None])
def test_a_seed(seed):
    with pytest.raises(ValueError, match=f"`seed` must .*`seed={seed}`"):
        make_dataset(pairs=[("a", "x")], seed=seed)
