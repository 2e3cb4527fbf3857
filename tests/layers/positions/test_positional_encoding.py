import numpy as np
import pytest
import reference
import torch
from keras import ops
from layer_contract import check_layer, on_torch, to_numpy
from transformers.models.m2m_100.modeling_m2m_100 import (
    M2M100SinusoidalPositionalEmbedding,
)

from keras_transformer.layers import LearnedPositionalEncoding, PositionalEncoding


def encode(length, hidden_dim, dtype="float32", interleaved=True, **arguments):
    layer = PositionalEncoding(interleaved=interleaved, dtype=dtype)
    return to_numpy(layer(np.zeros((1, length, hidden_dim), "float32"), **arguments))[0]


def test_contract():
    inputs = np.random.default_rng(2).normal(size=(2, 5, 6)).astype("float32")
    arguments = {"max_wavelength": 300, "interleaved": False, "offset": 2}
    check_layer(PositionalEncoding, arguments, [inputs], [])


def test_by_hand():
    expected = [
        [0.0, 1.0, 0.0, 1.0],
        [np.sin(1.0), np.cos(1.0), np.sin(0.01), np.cos(0.01)],
        [np.sin(2.0), np.cos(2.0), np.sin(0.02), np.cos(0.02)],
    ]
    np.testing.assert_allclose(encode(3, 4), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("length", "hidden_dim", "interleaved"),
    [(13, 7, True), (1, 2, False), on_torch(13, 64, False), on_torch(1, 1, True)],
)
def test_equals_the_reference(length, hidden_dim, interleaved):
    expected = reference.positional_encoding(
        range(length), hidden_dim, interleaved=interleaved
    )
    table = encode(length, hidden_dim, interleaved=interleaved)
    np.testing.assert_allclose(table, expected, atol=1e-5)


def test_is_added_to_the_inputs():
    inputs = np.random.default_rng(3).normal(size=(2, 3, 5)).astype("float32")
    expected = inputs + reference.positional_encoding(range(3), 5, max_wavelength=50)
    output = PositionalEncoding(max_wavelength=50)(inputs)
    np.testing.assert_allclose(to_numpy(output), expected, atol=1e-5)


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    ("leading", "learned"), [((), False), ((2, 3), True), ((2, 1, 3), False)]
)
def test_positions_are_those_of_the_last_axis_but_one(leading, learned):
    layer = LearnedPositionalEncoding(max_length=9) if learned else PositionalEncoding()
    inputs = np.random.default_rng(4).normal(size=(*leading, 7, 6)).astype("float32")
    expected = inputs + to_numpy(layer(np.zeros((1, 7, 6), "float32")))[0]
    np.testing.assert_allclose(to_numpy(layer(inputs)), expected, atol=1e-6)


@pytest.mark.parametrize("as_tensor", [False, True])
def test_start_index_shifts_the_positions(as_tensor):
    start_index = 3
    index = ops.convert_to_tensor(start_index, "int32") if as_tensor else start_index
    expected = encode(11, 6)[start_index : start_index + 5]
    np.testing.assert_allclose(encode(5, 6, start_index=index), expected, atol=1e-6)


def test_explicit_positions():
    table = encode(11, 6)
    layer, zeros = PositionalEncoding(), np.zeros((2, 3, 6), "float32")
    shared, per_row = np.array([4, 4, 9]), np.array([[0, 1, 2], [7, 3, 10]])
    output = to_numpy(layer(zeros, positions=shared))
    np.testing.assert_allclose(output, np.stack([table[shared]] * 2), atol=1e-6)
    output = to_numpy(layer(zeros, positions=per_row))
    np.testing.assert_allclose(output, table[per_row], atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "policy"), [("float16", "mixed_{}"), ("bfloat16", "{}")]
)
def test_half_precision_table_is_the_reference_rounded_once(dtype, policy):
    length, hidden_dim = 700, 8
    table = reference.positional_encoding(range(length), hidden_dim)
    rounded = to_numpy(ops.cast(table.astype("float32"), dtype))
    encoded = encode(length, hidden_dim, policy.format(dtype))
    # float32 angles may tip a value over to the next half-precision number.
    one_step = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    np.testing.assert_allclose(encoded, rounded, rtol=2 * one_step, atol=1e-4)
    assert np.mean(encoded == rounded) > 0.99


@pytest.mark.parametrize("hidden_dim", [6, on_torch(26)])
def test_fairseq_s_table(hidden_dim):
    """M2M-100 and NLLB of transformers have the sinusoids of fairseq."""
    pad, length = 1, 13
    theirs = M2M100SinusoidalPositionalEmbedding(29, hidden_dim, padding_idx=pad)
    half = hidden_dim // 2
    layer = PositionalEncoding(10000 ** (half / (half - 1)), False, offset=2)
    zeros = np.zeros((1, length, hidden_dim), "float32")
    expected = theirs(torch.full((1, length), pad + 3)).numpy()
    np.testing.assert_allclose(to_numpy(layer(zeros)), expected, atol=1e-5)
    cached = theirs(torch.full((1, 1), pad + 3), cache_length=length - 1).numpy()
    last = zeros[:, -1:]
    for options in ({"start_index": length - 1}, {"positions": np.array([length - 1])}):
        np.testing.assert_allclose(to_numpy(layer(last, **options)), cached, atol=1e-5)
    np.testing.assert_allclose(cached, expected[:, -1:], atol=1e-6)


def test_an_offset_shifts_all_positions():
    inputs = np.random.default_rng(5).normal(size=(2, 5, 6)).astype("float32")
    layer, plain = PositionalEncoding(offset=3), PositionalEncoding()
    rows = np.array([[0, 1, 2, 3, 4], [7, 3, 10, 0, 0]])
    for ours, expected in (
        (layer(inputs), plain(inputs, start_index=3)),
        (layer(inputs, start_index=2), plain(inputs, start_index=5)),
        (layer(inputs, positions=rows), plain(inputs, positions=rows + 3)),
    ):
        np.testing.assert_allclose(to_numpy(ours), to_numpy(expected), atol=1e-6)


@pytest.mark.once("torch")
@pytest.mark.parametrize("offset", [-1, 2.5, None])
def test_offsets_that_are_no_numbers_of_positions(offset):
    message = f"`offset` must be an int of at least 0; .*`offset={offset}`"
    with pytest.raises(ValueError, match=message):
        PositionalEncoding(offset=offset)
