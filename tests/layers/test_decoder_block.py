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
    DecoderBlock,
    LearnedPositionalEncoding,
    LocalWindow,
    PositionalEncoding,
    RotaryEmbedding,
)

RNG = np.random.default_rng(19)
BATCH, TARGET_LENGTH, SOURCE_LENGTH, NUM_HEADS, KEY_DIM = 2, 5, 7, 3, 4
HIDDEN_DIM, SOURCE_DIM, INTERMEDIATE_DIM = NUM_HEADS * KEY_DIM, 10, 13
TARGET = RNG.normal(size=(BATCH, TARGET_LENGTH, HIDDEN_DIM)).astype("float32")
SOURCE = RNG.normal(size=(BATCH, SOURCE_LENGTH, SOURCE_DIM)).astype("float32")

TARGET_PADDING = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], bool)
SOURCE_PADDING = np.array([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]], bool)
TARGET_HOLES = RNG.random((BATCH, TARGET_LENGTH, TARGET_LENGTH)) < 0.6
SOURCE_HOLES = RNG.random((BATCH, TARGET_LENGTH, SOURCE_LENGTH)) < 0.6
TARGET_HOLES[:, :, 0] = SOURCE_HOLES[:, :, 0] = True

PADDING_MASKS = {
    "decoder_padding_mask": TARGET_PADDING,
    "encoder_padding_mask": SOURCE_PADDING,
}
ATTENTION_MASKS = {
    "decoder_attention_mask": TARGET_HOLES,
    "encoder_attention_mask": SOURCE_HOLES,
}
MASKS = {
    "none": {},
    "not causal": {"use_causal_mask": False},
    "padding": PADDING_MASKS,
    "attention": ATTENTION_MASKS,
    "all": {**PADDING_MASKS, **ATTENTION_MASKS},
}
TOLERANCE = {"float32": 1e-5, "mixed_float16": 2e-2, "mixed_bfloat16": 0.15}

each_norm_and_source = pytest.mark.parametrize(
    ("normalize_first", "source"),
    [(True, SOURCE), on_torch(False, None)],
    ids=["cross", "self"],
)


def decoder(cls=DecoderBlock, source=SOURCE, **arguments):
    layer = cls(INTERMEDIATE_DIM, NUM_HEADS, **arguments)
    layer.build(TARGET.shape, None if source is None else source.shape)
    return with_random_weights(layer)


def empty_cache(length=TARGET_LENGTH):
    return np.full((BATCH, 2, length, NUM_HEADS, KEY_DIM), 7.0, "float32")


def for_target(masks):
    return {name: mask for name, mask in masks.items() if "encoder" not in name}


def reference_masks(
    decoder_padding_mask=None,
    decoder_attention_mask=True,
    encoder_padding_mask=None,
    encoder_attention_mask=True,
    use_causal_mask=True,
):
    causal = reference.causal_mask(TARGET_LENGTH, TARGET_LENGTH)
    target = decoder_attention_mask & (causal if use_causal_mask else True)
    source = encoder_attention_mask
    if decoder_padding_mask is not None:
        target = target & decoder_padding_mask[:, None]
    if encoder_padding_mask is not None:
        source = source & encoder_padding_mask[:, None]
    return (
        np.broadcast_to(target, TARGET_HOLES.shape),
        np.broadcast_to(source, SOURCE_HOLES.shape),
    )


def assert_close(actual, expected, atol=1e-5, rtol=1e-7):
    actual, expected = to_numpy(actual), to_numpy(expected)
    np.testing.assert_allclose(actual, expected, atol=atol, rtol=rtol)


def weight_shapes(has_source):
    def attention(value_dim):
        value = (value_dim, 3, 4), (3, 4)
        return [(12, 3, 4), (3, 4), *value, *value, (3, 4, 12), (12,)]

    norm = [(12,), (12,)]
    cross = [*attention(10), *norm] if has_source else []
    feed_forward = [(12, 13), (13,), (13, 12), (12,)]
    return [*attention(12), *norm, *cross, *feed_forward, *norm]


@each_norm_and_source
def test_contract(normalize_first, source):
    arguments = {
        "intermediate_dim": 13,
        "num_heads": 3,
        "dropout": 0.2,
        "activation": "gelu",
        "layer_norm_epsilon": 1e-3,
        "normalize_first": normalize_first,
    }
    inputs = [TARGET] if source is None else [TARGET, source]
    shapes = weight_shapes(has_source=source is not None)
    check_layer(DecoderBlock, arguments, inputs, shapes)


@pytest.mark.parametrize(
    ("normalize_first", "dtype"),
    [
        (False, "float32"),
        (True, "mixed_float16"),
        on_torch(True, "float32"),
        on_torch(False, "mixed_bfloat16"),
    ],
)
def test_equals_the_reference(normalize_first, dtype):
    layer = decoder(normalize_first=normalize_first, dtype=dtype)
    weights, atol = layer.get_weights(), TOLERANCE[dtype]
    rtol = 2**-8 if dtype == "mixed_bfloat16" else 1e-7  # the output has 8 bits
    for masks in MASKS.values():
        expected, self_scores, cross_scores = reference.decoder_block(
            weights, TARGET, SOURCE, *reference_masks(**masks), normalize_first
        )
        output, scores = layer(TARGET, SOURCE, return_attention_scores=True, **masks)
        assert_close(layer(TARGET, SOURCE, **masks), expected, atol, rtol)
        assert_close(output, expected, atol, rtol)
        assert set(scores) == {"self_attention", "cross_attention"}
        assert_close(scores["self_attention"], self_scores, atol)
        assert_close(scores["cross_attention"], cross_scores, atol)


class TestAgainstKerasHub:
    @staticmethod
    def pair(**arguments):
        arguments = {"activation": "gelu", "layer_norm_epsilon": 0.01, **arguments}
        ours = decoder(**arguments)
        theirs = decoder(keras_hub.layers.TransformerDecoder, **arguments)
        theirs.set_weights([1.2 * weight for weight in ours.get_weights()])
        ours.set_weights(theirs.get_weights())
        return ours, theirs

    @each_norm_and_source
    def test_with_masks(self, normalize_first, source):
        ours, theirs = self.pair(
            normalize_first=normalize_first, source=source, dropout=0.1
        )
        inputs = [TARGET] if source is None else [TARGET, source]
        for masks in MASKS.values():
            masks = for_target(masks) if source is None else masks
            assert_close(ours(*inputs, **masks), theirs(*inputs, **masks))

    def test_with_implicit_masks(self):
        ours, theirs = self.pair(normalize_first=True)
        inputs = with_mask(TARGET, TARGET_PADDING), with_mask(SOURCE, SOURCE_PADDING)
        output = to_numpy(ours(*inputs))
        with pytest.warns(UserWarning, match="will therefore destroy the mask"):
            expected = to_numpy(theirs(*inputs))
        # A query that is itself padding sees nothing here, but something there.
        np.testing.assert_allclose(
            output[TARGET_PADDING], expected[TARGET_PADDING], atol=1e-5
        )

    @each_norm_and_source
    def test_step_by_step_with_caches(self, normalize_first, source):
        ours, theirs = self.pair(normalize_first=normalize_first, source=source)
        states = []
        for layer in (ours, theirs):
            caches, outputs = [empty_cache()], []
            options = {"encoder_padding_mask": SOURCE_PADDING}
            if source is not None:
                options["encoder_sequence"] = source
                caches.append(empty_cache(SOURCE_LENGTH))
            for index in range(TARGET_LENGTH):
                names = ("self_attention_cache", "cross_attention_cache")
                output, *caches = layer(
                    TARGET[:, index : index + 1],
                    **dict(zip(names, caches, strict=False)),
                    self_attention_cache_update_index=index,
                    cross_attention_cache_update_index=None if index else 0,
                    **options,
                )
                outputs.append(to_numpy(output))
            states.append([np.concatenate(outputs, axis=1), *caches])
        assert len(states[0]) == len(states[1]) == (2 if source is None else 3)
        for one, other in zip(*states, strict=True):
            assert_close(one, other)


def test_a_mask_over_the_cache():
    layer = decoder(source=None)
    mask = np.array([[[1, 0, 1, 1, 1, 1, 1]], [[0, 1, 1, 1, 1, 1, 1]]], bool)
    output, _ = layer(
        TARGET,
        decoder_attention_mask=mask,
        self_attention_cache=empty_cache(length=7),
        self_attention_cache_update_index=0,
    )
    expected = layer(TARGET, decoder_attention_mask=mask[:, :, :TARGET_LENGTH])
    assert_close(output, expected)


def test_a_call_that_fills_the_cache_leaves_out_the_source_s_padding():
    layer = decoder()
    expected = to_numpy(layer(TARGET, SOURCE, encoder_padding_mask=SOURCE_PADDING))
    shape = (BATCH, 2, SOURCE_LENGTH, NUM_HEADS, KEY_DIM)
    output, *_ = layer(
        TARGET,
        with_mask(SOURCE, SOURCE_PADDING),
        self_attention_cache=empty_cache(),
        self_attention_cache_update_index=0,
        cross_attention_cache=np.zeros(shape, "float32"),
        cross_attention_cache_update_index=0,
    )
    np.testing.assert_allclose(to_numpy(output), expected, atol=1e-5)


class TestDesign:
    def test_an_encoding_is_added_at_the_given_positions(self):
        layer, plain = decoder(positions=PositionalEncoding()), decoder()
        positions = [3, 7, 11, 2, 0]
        encoded = TARGET + reference.positional_encoding(positions, HIDDEN_DIM)
        output = layer(
            TARGET, SOURCE, positions=np.array(positions), use_causal_mask=False
        )
        assert_close(output, plain(encoded, SOURCE, use_causal_mask=False))

    def test_positions_of_keys_without_a_cache(self):
        layer, p = decoder(positions=RotaryEmbedding()), np.arange(TARGET_LENGTH)

        def output(queries, keys):
            positions = {"positions": queries, "cache_positions": keys}
            return to_numpy(layer(TARGET, SOURCE, use_causal_mask=False, **positions))

        apart = output(p, p + 2)
        np.testing.assert_allclose(output(p + 1, p + 3), apart, atol=1e-5)
        assert np.abs(output(p, p) - apart).max() > 1e-3

    def test_pattern_and_positions_are_for_the_self_attention_alone(self):
        options = {"pattern": LocalWindow(1), "num_key_value_heads": 1}
        layer = decoder(positions=RotaryEmbedding(), attention_options=options)
        assert layer.self_attention.pattern == LocalWindow(1)
        assert isinstance(layer.self_attention.positions, RotaryEmbedding)
        assert layer.cross_attention.pattern is None
        assert layer.cross_attention.positions is None
        assert layer.cross_attention.num_key_value_heads == 1
        _, scores = layer(TARGET, SOURCE, return_attention_scores=True)
        assert (to_numpy(scores["cross_attention"]) > 0).all()
        window = np.tri(5, k=0, dtype=bool) & ~np.tri(5, k=-2, dtype=bool)
        assert ((to_numpy(scores["self_attention"]) > 0) == window).all()

    def test_more_tokens_than_positions(self):
        layer = decoder(positions=LearnedPositionalEncoding(max_length=5))
        assert np.isfinite(to_numpy(layer(TARGET, SOURCE))).all()
        message = "`max_length` must be at least .*`max_length=5`.* 6 tokens"
        with pytest.raises(ValueError, match=message):
            layer(np.pad(TARGET, ((0, 0), (0, 1), (0, 0))), SOURCE)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", on_torch("float32")])
def test_rows_of_padding_alone_stay_finite(dtype):
    layer = decoder(dtype=dtype)
    masks = {name: mask & [[False], [True]] for name, mask in PADDING_MASKS.items()}
    output, scores = layer(TARGET, SOURCE, return_attention_scores=True, **masks)
    assert np.isfinite(to_numpy(output)).all()
    for score in map(to_numpy, scores.values()):
        assert (score[0] == 0).all()
        np.testing.assert_allclose(score[1].sum(-1), 1, atol=1e-2)
    gradients = weight_gradients(layer, TARGET, SOURCE, **masks)
    assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_length_one():
    layer = decoder()
    target, source = TARGET[:, :1], SOURCE[:, :1]
    expected, *_ = reference.decoder_block(layer.get_weights(), target, source)
    output, scores = layer(target, source, return_attention_scores=True)
    assert_close(output, expected)
    assert {tuple(s.shape) for s in scores.values()} == {(BATCH, NUM_HEADS, 1, 1)}


def test_symbolic_shapes():
    output, scores = DecoderBlock(INTERMEDIATE_DIM, NUM_HEADS)(
        keras.Input((5, HIDDEN_DIM)),
        keras.Input((7, SOURCE_DIM)),
        return_attention_scores=True,
    )
    assert output.shape == (None, 5, HIDDEN_DIM)
    assert scores["self_attention"].shape == (None, NUM_HEADS, 5, 5)
    assert scores["cross_attention"].shape == (None, NUM_HEADS, 5, 7)


@pytest.mark.once("torch")
class TestErrors:
    @pytest.mark.parametrize("sizes", [(0, 2), (7, -2)])
    def test_sizes_must_be_positive(self, sizes):
        with pytest.raises(ValueError, match="must be an int of at least 1"):
            DecoderBlock(*sizes)

    def test_positions_among_the_options(self):
        options = {"positions": RotaryEmbedding()}
        with pytest.raises(ValueError, match="`attention_options` must not contain"):
            decoder(attention_options=options)

    def test_heads_that_do_not_divide_hidden_dim(self):
        message = "`hidden_dim` must be divisible .*`hidden_dim=12`, `num_heads=5`"
        with pytest.raises(ValueError, match=message):
            DecoderBlock(INTERMEDIATE_DIM, num_heads=5)(TARGET, SOURCE)

    @pytest.mark.parametrize(
        "arguments",
        [
            {"encoder_sequence": SOURCE},
            {"cross_attention_cache": empty_cache(SOURCE_LENGTH)},
        ],
    )
    def test_a_source_for_a_block_built_without(self, arguments):
        (name,) = arguments
        with pytest.raises(ValueError, match=f"`{name}` must be `None`"):
            decoder(source=None)(TARGET, **arguments)

    @pytest.mark.parametrize(
        "arguments",
        [
            {},
            {
                "self_attention_cache": empty_cache(),
                "self_attention_cache_update_index": 0,
                "cross_attention_cache": empty_cache(SOURCE_LENGTH),
                "cross_attention_cache_update_index": 0,
            },
        ],
    )
    def test_no_source_for_a_block_built_with_one(self, arguments):
        message = "`encoder_sequence` must be given .*`encoder_sequence=None`"
        with pytest.raises(ValueError, match=message):
            decoder()(TARGET, **arguments)

    @pytest.mark.parametrize("given", ["self", "cross"])
    def test_one_cache_of_two(self, given):
        caches = {f"{given}_attention_cache": empty_cache()}
        message = f"must both be given .* received only `{given}_attention_cache`"
        with pytest.raises(ValueError, match=message):
            decoder()(TARGET, SOURCE, **caches)
