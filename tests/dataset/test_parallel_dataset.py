"""The batches of a `ParallelDataset`, its epochs, positions and statistics."""

import gc
import json
import weakref

import numpy as np
import pytest
import tensorflow as tf
from reversal import (
    TARGET,
    batch_texts,
    epoch_arrays,
    epoch_batches,
    epoch_pairs,
    make_dataset,
    make_pairs,
)

pytestmark = pytest.mark.once("torch")

# Batches.


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


def test_padding_with_any_id():
    """In Marian models, the start token is the padding."""

    class PadStarts:
        pad_token_id = 99
        language_token_pattern = None
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


def test_static_shapes():
    pairs = make_pairs(53)
    one = make_dataset(pairs=pairs, max_shapes=1, sample_weights=True)
    inputs, targets, weights = one.dataset.element_spec
    rows, source_length, target_length, _ = one.shapes[0]
    assert inputs["encoder_token_ids"].shape == [rows, source_length]
    assert inputs["decoder_token_ids"].shape == [rows, target_length]
    assert targets.shape == weights.shape == [rows, target_length]
    several = make_dataset(pairs=pairs, tokens_per_batch=97)
    assert several.dataset.element_spec[1].shape.as_list() == [None, None]


# Epochs.


@pytest.mark.parametrize(
    ("count", "tokens_per_batch", "max_shapes"),
    [(1, 97, 8), (13, 7, 3), (53, 97, 1), (211, 89, 8)],
)
def test_each_pair_once_in_few_shapes(count, tokens_per_batch, max_shapes):
    pairs = make_pairs(count)
    data = make_dataset(
        pairs=pairs, tokens_per_batch=tokens_per_batch, max_shapes=max_shapes
    )
    found = epoch_pairs(data)
    assert sorted(filter(any, found)) == sorted(pairs)
    shapes = [
        (*inputs["encoder_token_ids"].shape, targets.shape[1])
        for inputs, targets in epoch_arrays(data)
    ]
    assert sorted(shapes) == sorted(
        (shape.rows, shape.source_length, shape.target_length)
        for shape in data.shapes
        for _ in range(shape.batches)
    )
    assert len(set(shapes)) <= max_shapes
    assert len(shapes) == data.batches_per_epoch
    for rows, *lengths in shapes:
        assert rows == 1 or rows * max(lengths) <= tokens_per_batch
    filler = len(found) - len(pairs)
    assert filler < data.shapes[-1].batches


def test_epochs_differ_and_are_reproducible_with_the_seed():
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


def test_shuffling_mixes_the_buckets():
    def shapes_of_the_first_half(shuffle):
        data = make_dataset(pairs=make_pairs(211), tokens_per_batch=64, shuffle=shuffle)
        widths = [
            inputs["encoder_token_ids"].shape[1] + targets.shape[1]
            for inputs, targets in epoch_arrays(data)
        ]
        assert (widths != sorted(widths)) == shuffle
        return len(set(widths[: len(widths) // 2]))

    few = shapes_of_the_first_half(shuffle=False)
    assert few < shapes_of_the_first_half(shuffle=True)


def test_an_unused_dataset_is_freed():
    """TensorFlow never frees the generator itself."""
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


# Statistics.


def test_statistics():
    data = make_dataset(pairs=[("ab", "x"), ("c", "gfe"), ("", "x")])
    assert data.tokens_per_epoch == 2 + 4
    assert str(data).splitlines() == [
        "3 pairs read, 2 kept, dropped: empty 1",
        "1 batches per epoch in 1 shapes, 21.4% padding",
        "source_length target_length   rows batches",
        "            3             4      2       1",
    ]


# Positions.


@pytest.fixture
def data():
    return make_dataset(pairs=make_pairs(97), tokens_per_batch=53, max_shapes=3)


def test_start_epoch(data):
    epochs = [epoch_batches(data) for _ in range(3)]
    data.start_epoch(1)
    iter(data.dataset)  # an unused iterator is not an epoch
    assert [epoch_batches(data), epoch_batches(data)] == epochs[1:]
    data.start_epoch(0)
    assert epoch_batches(data) == epochs[0]


def test_restore(data):
    epochs = [epoch_batches(data) for _ in range(4)]
    data.start_epoch(2)
    iterator = data.dataset.as_numpy_iterator()
    next(iterator)
    state = json.loads(json.dumps(data.state(5)))
    assert state == {"epoch": 2, "batch": 5}
    other = make_dataset(pairs=make_pairs(97), tokens_per_batch=53, max_shapes=3)
    other.restore(state)
    assert other.state(7) == {"epoch": 2, "batch": 7}
    assert epoch_batches(other) == epochs[2][5:]
    assert epoch_batches(other) == epochs[3]
    assert len(other.dataset) == other.batches_per_epoch


def test_batch_and_lines_at_a_position(data):
    batches = epoch_batches(data)
    for number in (0, 3, len(batches) - 1):
        state = data.state(number)
        assert batch_texts(data.batch(state)) == batches[number]
        assert data.lines(state) == batches[number]
    assert data.state(2) == {"epoch": 0, "batch": 2}


@pytest.mark.parametrize(
    "state",
    [
        {"epoch": 0},
        {"epoch": 0, "batch": 10**6},
        {"epoch": "0", "batch": 0},
        {"epoch": 0, "batch": 0, "step": 0},
    ],
)
def test_bad_state(data, state):
    with pytest.raises(ValueError, match="`state` must be a result of `state"):
        data.restore(state)


def test_numpy_integers():
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


def test_bad_number_of_an_epoch(data):
    for epoch in (-1, 1.0, None):
        with pytest.raises(ValueError, match=f"`epoch` must .*`epoch={epoch}`"):
            data.start_epoch(epoch)
        with pytest.raises(ValueError, match=f"`batches` must .*`batches={epoch}`"):
            data.state(epoch)
