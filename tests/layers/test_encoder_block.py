import keras
import keras_hub
import numpy as np
import pytest
import reference
from layer_contract import (
    check_layer,
    on_torch,
    to_numpy,
    weight_gradients,
    with_mask,
    with_random_weights,
)

from keras_transformer.layers import (
    EncoderBlock,
    LearnedPositionalEncoding,
    LocalWindow,
    PositionalEncoding,
    PositionScheme,
)

RNG = np.random.default_rng(17)
BATCH, LENGTH, NUM_HEADS, HIDDEN_DIM, INTERMEDIATE_DIM = 2, 5, 3, 12, 13
INPUTS = RNG.normal(size=(BATCH, LENGTH, HIDDEN_DIM)).astype("float32")
PADDING = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
HOLES = RNG.random((BATCH, LENGTH, LENGTH)) < 0.6
HOLES[:, :, 0] = True

MASKS = {
    "none": {},
    "padding": {"padding_mask": PADDING},
    "attention": {"attention_mask": HOLES},
    "both": {"padding_mask": PADDING, "attention_mask": HOLES},
}
TOLERANCE = {"float32": 1e-5, "mixed_float16": 2e-2, "mixed_bfloat16": 0.15}

each_norm = pytest.mark.parametrize("normalize_first", [False, on_torch(True)])


def encoder(cls=EncoderBlock, **arguments):
    layer = cls(INTERMEDIATE_DIM, NUM_HEADS, **arguments)
    layer.build(INPUTS.shape)
    return with_random_weights(layer)


def joined(padding_mask=None, attention_mask=True):
    padding = True if padding_mask is None else padding_mask[:, None]
    return np.broadcast_to(attention_mask & padding, HOLES.shape)


def test_contract():
    arguments = {
        "intermediate_dim": 13,
        "num_heads": 3,
        "dropout": 0.2,
        "activation": "gelu",
        "layer_norm_epsilon": 1e-3,
        "normalize_first": True,
    }
    projection = [(12, 3, 4), (3, 4)]
    attention = [*projection * 3, (3, 4, 12), (12,)]
    feed_forward = [(12, 13), (13,), (13, 12), (12,)]
    check_layer(
        EncoderBlock, arguments, [INPUTS], [*attention, *[(12,)] * 4, *feed_forward]
    )


@pytest.mark.parametrize(
    ("normalize_first", "dtype"),
    [
        (False, "float32"),
        (True, "mixed_bfloat16"),
        on_torch(True, "float32"),
        on_torch(False, "mixed_float16"),
    ],
)
def test_equals_the_reference(normalize_first, dtype):
    layer = encoder(normalize_first=normalize_first, dtype=dtype)
    weights, atol = layer.get_weights(), TOLERANCE[dtype]
    for masks in MASKS.values():
        expected, expected_scores = reference.encoder_block(
            weights, INPUTS, joined(**masks), normalize_first
        )
        output, scores = layer(INPUTS, return_attention_scores=True, **masks)
        plain = to_numpy(layer(INPUTS, **masks))
        np.testing.assert_allclose(plain, expected, atol=atol)
        np.testing.assert_allclose(to_numpy(output), expected, atol=atol)
        np.testing.assert_allclose(to_numpy(scores), expected_scores, atol=atol)


@each_norm
def test_equals_keras_hub(normalize_first):
    arguments = {
        "normalize_first": normalize_first,
        "activation": "gelu",
        "layer_norm_epsilon": 0.01,
        "dropout": 0.1,
    }
    ours = encoder(**arguments)
    theirs = encoder(keras_hub.layers.TransformerEncoder, **arguments)
    theirs.set_weights([1.2 * weight for weight in ours.get_weights()])
    ours.set_weights(theirs.get_weights())
    implicit = with_mask(INPUTS, PADDING)
    for inputs, masks in (INPUTS, MASKS["both"]), (implicit, MASKS["attention"]):
        output, scores = ours(inputs, return_attention_scores=True, **masks)
        expected, expected_scores = theirs(
            inputs, return_attention_scores=True, **masks
        )
        # Keras takes the average of all values where a query sees nothing.
        seen = to_numpy(scores).any(axis=(1, 3))
        assert seen.sum() >= PADDING.sum()
        np.testing.assert_allclose(
            to_numpy(output)[seen], to_numpy(expected)[seen], atol=1e-5
        )
        by_query, expected_by_query = (
            to_numpy(x).transpose(0, 2, 1, 3)[seen] for x in (scores, expected_scores)
        )
        np.testing.assert_allclose(by_query, expected_by_query, atol=1e-5)


@pytest.mark.parametrize("dtype", ["mixed_float16", on_torch("float32")])
def test_a_row_of_padding_alone_stays_finite(dtype):
    layer = encoder(dtype=dtype)
    masks = {"padding_mask": PADDING & [[False], [True]]}
    output, scores = layer(INPUTS, return_attention_scores=True, **masks)
    assert np.isfinite(to_numpy(output)).all()
    assert (to_numpy(scores)[0] == 0).all()
    gradients = weight_gradients(layer, INPUTS, **masks)
    assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_length_one():
    layer = encoder()
    output, scores = layer(INPUTS[:, :1], return_attention_scores=True)
    expected, _ = reference.encoder_block(layer.get_weights(), INPUTS[:, :1])
    np.testing.assert_allclose(to_numpy(output), expected, atol=1e-5)
    assert tuple(scores.shape) == (BATCH, NUM_HEADS, 1, 1)


def test_symbolic_shape_of_the_scores():
    output, scores = EncoderBlock(INTERMEDIATE_DIM, NUM_HEADS)(
        keras.Input((None, HIDDEN_DIM)), return_attention_scores=True
    )
    assert output.shape == (None, None, HIDDEN_DIM)
    assert scores.shape == (None, NUM_HEADS, None, None)


class TestDesign:
    def test_an_encoding_is_added_to_the_inputs(self):
        layer = encoder(positions=PositionalEncoding(), normalize_first=True)
        expected = encoder(normalize_first=True)(
            INPUTS + reference.positional_encoding(range(LENGTH), HIDDEN_DIM)
        )
        np.testing.assert_allclose(
            to_numpy(layer(INPUTS)), to_numpy(expected), atol=1e-5
        )

    def test_a_scheme_is_copied_with_the_dtype_of_the_block(self):
        scheme = LearnedPositionalEncoding(max_length=7)
        layers = [encoder(positions=scheme, dtype="mixed_bfloat16") for _ in range(2)]
        assert scheme.weights == []
        assert layers[0].encoding is not layers[1].encoding
        assert {x.encoding.dtype_policy.name for x in layers} == {"mixed_bfloat16"}

    def test_a_scheme_of_one_s_own(self):
        @keras.saving.register_keras_serializable("tests")
        class OnlyThePast(PositionScheme):
            def bias(self, query_positions, key_positions):
                later = key_positions[None, :] > query_positions[:, None]
                return keras.ops.cast(later, "float32")[None] * -1e9

        layer = encoder(positions=OnlyThePast())
        expected, expected_scores = reference.encoder_block(
            layer.get_weights(), INPUTS, reference.causal_mask(LENGTH, LENGTH)
        )
        output, scores = layer(INPUTS, return_attention_scores=True)
        np.testing.assert_allclose(to_numpy(output), expected, atol=1e-5)
        np.testing.assert_allclose(to_numpy(scores), expected_scores, atol=1e-6)

    def test_a_pattern(self):
        layer = encoder(attention_options={"pattern": LocalWindow(1)})
        distances = np.subtract.outer(np.arange(LENGTH), np.arange(LENGTH))
        mask = (np.abs(distances) <= 1) & PADDING[:, None]
        expected, _ = reference.encoder_block(layer.get_weights(), INPUTS, mask)
        output = layer(INPUTS, padding_mask=PADDING)
        np.testing.assert_allclose(to_numpy(output), expected, atol=1e-5)

    @pytest.mark.once("torch")
    @pytest.mark.parametrize("part", ["attention", "feed_forward", "residual"])
    def test_an_unknown_option_is_named(self, part):
        layer = EncoderBlock(
            INTERMEDIATE_DIM, NUM_HEADS, **{f"{part}_options": {"x": 1}}
        )
        with pytest.raises(ValueError, match="has no argument `x`; received `x=1`"):
            layer(INPUTS)


@pytest.mark.once("torch")
def test_hidden_dim_that_the_heads_do_not_divide_is_an_error():
    message = "`hidden_dim` must be divisible .*`hidden_dim=12`, `num_heads=5`"
    with pytest.raises(ValueError, match=message):
        EncoderBlock(INTERMEDIATE_DIM, num_heads=5)(INPUTS)
