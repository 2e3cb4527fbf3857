import numpy as np
import pytest
from keras import ops
from layer_contract import to_numpy, with_random_weights

from keras_transformer import Alignment, Seq2Seq
from keras_transformer.inference.alignment import align_batch
from keras_transformer.text import CharacterTokenizer

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
SOURCE = CharacterTokenizer([*SPECIAL, *"abcdef"])
TARGET = CharacterTokenizer([*SPECIAL, *"UVWXYZÄ"])
once = pytest.mark.once("torch")
SIZES = {"hidden_dim": 6, "intermediate_dim": 7, "num_heads": 3}
SOURCES = [[4, 5, 6, 3], [9, 3], [7, 8, 4, 7, 5, 8, 8, 9, 3], [5, 5, 8], [3]]
TARGETS = [[9, 3], [4, 10, 7, 3], [5, 3], [8, 8, 8, 9, 9], [3]]


def seq2seq(num_layers=3, **arguments):
    model = Seq2Seq(
        **SIZES,
        num_layers=num_layers,
        normalize_first=True,
        source_tokenizer=SOURCE,
        target_tokenizer=TARGET,
        **arguments,
    )
    with_random_weights(model)
    model.set_weights([4 * weight for weight in model.get_weights()])
    return model


@pytest.fixture(scope="module")
def model():
    return seq2seq(max_source_length=9, max_target_length=7)


def reference_attention(model, source, target, layer):
    """One pair alone, head by head."""
    inputs = {
        "encoder_token_ids": np.array([source]),
        "decoder_token_ids": np.array([[model.start_token_id, *target[:-1]]]),
    }
    _, scores = model(inputs, return_attention_scores=True)
    heads = to_numpy(scores["cross"][layer])[0]
    return sum(heads) / len(heads)


def check(model, alignments, layer):
    rows = zip(SOURCES, TARGETS, alignments, strict=True)
    for source, target, (attention, positions) in rows:
        assert attention.shape == (len(target), len(source))
        assert (attention.dtype, positions.dtype) == ("float32", "int32")
        expected = reference_attention(model, source, target, layer)
        np.testing.assert_allclose(attention, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(attention.sum(axis=1), 1, atol=1e-5)
        ends = len(source) > 1 and source[-1] == 3
        words = attention[:, :-1] if ends else attention
        np.testing.assert_array_equal(positions, words.argmax(axis=1))


def test_the_default_layer_is_the_second_to_last(model):
    alignments = model.align(SOURCES, TARGETS, batch_size=2)
    assert all(isinstance(alignment, Alignment) for alignment in alignments)
    check(model, alignments, 1)
    # End tokens attract nothing.
    most = []
    for source, (attention, positions) in zip(SOURCES[:3], alignments, strict=False):
        most += (attention.argmax(axis=1) == len(source) - 1).tolist()
        assert positions.max() < len(source) - 1
    assert any(most) and not all(most)
    np.testing.assert_array_equal(alignments[4].positions, [0])
    # Weights are read at each call.
    weights = model.get_weights()
    model.set_weights([0 * weight for weight in weights])
    one = model.align(SOURCES, TARGETS, batch_size=2)[0]
    np.testing.assert_allclose(one.attention, np.full((2, 4), 1 / 4), atol=1e-6)
    model.set_weights(weights)


@once
def test_other_layers(model):
    for layer in (0, -1):
        check(model, model.align(SOURCES, TARGETS, layer=layer), layer)
    model = seq2seq(num_layers=1)
    check(model, model.align(SOURCES, TARGETS), 0)


@once
def test_texts_are_aligned_as_their_token_ids(model):
    expected = model.align(SOURCES[:2], TARGETS[:2])
    found = model.align(["abc", "f"], ["Z", "UÄX"])
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.attention, other.attention, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(one.positions, other.positions)
    (one,) = model.align("f", "UÄX")
    np.testing.assert_allclose(
        one.attention, expected[1].attention, rtol=1e-4, atol=1e-5
    )


@once
def test_half_precision_is_averaged_in_float32():
    model = seq2seq(dtype="mixed_bfloat16")
    for one in model.align(SOURCES, TARGETS):
        assert one.attention.dtype == "float32"
        np.testing.assert_allclose(one.attention.sum(axis=1), 1, atol=0.02)


def test_padding_at_the_start_stays_there(model):
    targets = np.array([[2, 9, 4], [2, 8, 0], [2, 5, 0]])
    at_end = np.array([[5, 6, 7, 3, 0], [5, 8, 0, 0, 0], [3, 0, 0, 0, 0]])
    at_start = np.array([[0, 5, 6, 7, 3], [0, 0, 0, 5, 8], [0, 0, 0, 0, 3]])
    np.testing.assert_array_equal(to_numpy(model.source_mask(at_start)), at_start != 0)
    first, second = (
        align_batch(
            model,
            {
                "encoder_token_ids": ops.convert_to_tensor(sources, "int32"),
                "decoder_token_ids": ops.convert_to_tensor(targets, "int32"),
            },
        )
        for sources in (at_end, at_start)
    )
    moves, attention = (1, 3, 4), to_numpy(first.attention)
    expected = [np.roll(row, n, 1) for row, n in zip(attention, moves, strict=True)]
    np.testing.assert_allclose(to_numpy(second.attention), expected, atol=1e-6)
    np.testing.assert_array_equal(
        to_numpy(second.positions), to_numpy(first.positions) + np.array([moves]).T
    )


@once
def test_no_pairs_and_errors(model):
    assert model.align([], []) == []
    for layer in (3, -4):
        message = rf"`layer` must be from -3 to 2, .* has 3 layers; .*`layer={layer}`"
        with pytest.raises(ValueError, match=message):
            model.align(["a"], ["U"], layer=layer)
    with pytest.raises(ValueError, match="received 1 targets and 2 sources"):
        model.align(["a", "b"], ["U"])
    with pytest.raises(ValueError, match="at least one token each, .* row 1"):
        model.align([[4, 3], []], [[4, 3], [3]])
    with pytest.raises(ValueError, match="`batch_size` must be an int .*=0`"):
        model.align(["a"], ["U"], batch_size=0)
