import json

import keras
import numpy as np
import pytest
from designs import DESIGNS, SCHEMES
from keras import ops
from layer_contract import (
    HALF_POLICIES,
    check_layer,
    on_torch,
    to_numpy,
    weight_gradients,
    with_random_weights,
)

from keras_transformer.backend.compiling import compile_function
from keras_transformer.layers import (
    DecoderStack,
    EncoderBlock,
    EncoderStack,
)

RNG = np.random.default_rng(53)
BATCH, LENGTH, SOURCE_LENGTH, NUM_LAYERS, NUM_HEADS, KEY_DIM = 2, 5, 7, 2, 3, 4
HIDDEN_DIM, INTERMEDIATE_DIM = NUM_HEADS * KEY_DIM, 13
SIZES = {
    "num_layers": NUM_LAYERS,
    "intermediate_dim": INTERMEDIATE_DIM,
    "num_heads": NUM_HEADS,
}
TARGET = RNG.normal(size=(BATCH, LENGTH, HIDDEN_DIM)).astype("float32")
SOURCE = RNG.normal(size=(BATCH, SOURCE_LENGTH, HIDDEN_DIM)).astype("float32")
PADDING = np.arange(SOURCE_LENGTH) < [[SOURCE_LENGTH], [4]]

STACKS = [EncoderStack, DecoderStack]
each_stack = pytest.mark.parametrize("stack_class", STACKS)


def inputs_of(stack_class):
    return [SOURCE] if stack_class is EncoderStack else [TARGET, SOURCE]


def stack(stack_class, **arguments):
    """Pre-norm by default: with random weights, post-norm forgets its inputs."""
    layer = stack_class(**{**SIZES, "normalize_first": True, **arguments})
    layer.build(*(x.shape for x in inputs_of(stack_class)))
    return with_random_weights(layer)


def assert_close(actual, expected, atol=2e-5):
    np.testing.assert_allclose(to_numpy(actual), to_numpy(expected), atol=atol)


class TestEncoder:
    @pytest.mark.once("torch")
    @pytest.mark.parametrize("design", ["modern", "relative"])
    def test_is_its_blocks_in_a_row(self, design):
        layer = stack(EncoderStack, **{"normalize_first": False, **DESIGNS[design]()})
        x, expected_scores = SOURCE, []
        for block in layer.blocks:
            assert type(block) is EncoderBlock
            x, scores = block(x, padding_mask=PADDING, return_attention_scores=True)
            expected_scores.append(scores)
        expected = x if layer.norm is None else layer.norm(x)
        output, scores = layer(
            SOURCE, padding_mask=PADDING, return_attention_scores=True
        )
        assert_close(layer(SOURCE, padding_mask=PADDING), expected)
        assert_close(output, expected)
        assert len(scores) == NUM_LAYERS
        for one, other in zip(scores, expected_scores, strict=True):
            assert_close(one, other)


class TestDecoder:
    def steps(self, layer, histories, source, parents):
        """Outputs of every beam at every step, `histories` following `parents`.

        `histories (length, batch, num_beams, hidden_dim)` are the newest tokens.
        """
        num_beams = histories.shape[2]
        entries = np.arange(len(histories) * num_beams)
        ancestors = np.zeros((BATCH, num_beams, len(entries)), bool)
        caches = layer.empty_caches(source, len(entries))
        for step, newest in enumerate(histories):
            ancestors = np.take_along_axis(ancestors, parents[step][..., None], axis=1)
            ancestors |= entries == step * num_beams + np.arange(num_beams)[:, None]
            output, caches = layer.step(
                newest,
                caches,
                step * num_beams,
                attention_mask=ancestors,
                encoder_padding_mask=PADDING,
                positions=np.full(num_beams, step),
                cache_positions=entries // num_beams,
            )
            yield to_numpy(output)

    @pytest.mark.parametrize(
        "design",
        ["modern", *map(on_torch, ("learned", "relative", "grouped", "global"))],
    )
    def test_steps_of_beams_are_whole_calls(self, design):
        num_beams, rng = 3, np.random.default_rng(5)
        layer = stack(DecoderStack, **DESIGNS[design]())
        source = ops.convert_to_tensor(SOURCE)
        shape = LENGTH, BATCH, num_beams
        newest = rng.normal(size=(*shape, HIDDEN_DIM)).astype("float32")
        parents = rng.integers(0, num_beams, shape)
        histories = np.zeros((BATCH, num_beams, LENGTH, HIDDEN_DIM), "float32")
        beams, mask = (np.repeat(x, num_beams, axis=0) for x in (SOURCE, PADDING))
        for step, output in enumerate(self.steps(layer, newest, source, parents)):
            own = parents[step][..., None, None]
            histories = np.take_along_axis(histories, own, axis=1)
            histories[:, :, step] = newest[step]
            inputs = histories.reshape(-1, LENGTH, HIDDEN_DIM)
            whole = to_numpy(layer(inputs, beams, encoder_padding_mask=mask))
            assert_close(output.reshape(-1, HIDDEN_DIM), whole[:, step], atol=5e-5)

    def test_empty_caches(self):
        layer = stack(DecoderStack, attention_options={"num_key_value_heads": 1})
        caches = layer.empty_caches(ops.convert_to_tensor(SOURCE), cache_length=13)
        assert len(caches) == NUM_LAYERS
        for own, cross in caches:
            for cache, length in (own, 13), (cross, SOURCE_LENGTH):
                assert cache.keys.shape == (BATCH, 1, KEY_DIM, length)
                assert cache.values.shape == (BATCH, 1, length, KEY_DIM)
            assert not any(to_numpy(x).any() for x in own)
            assert all(to_numpy(x).all() for x in cross)


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    ("stack_class", "design"), [(DecoderStack, "modern"), (EncoderStack, "relative")]
)
def test_a_model_is_saved_whole(stack_class, design, tmp_path):
    inputs = inputs_of(stack_class)
    symbolic = [keras.Input(x.shape[1:]) for x in inputs]
    layer = stack_class(**SIZES, **DESIGNS[design]())
    model = keras.Model(symbolic, layer(*symbolic))
    with_random_weights(layer)
    model.save(tmp_path / "model.keras")
    restored = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(to_numpy(restored(inputs)), to_numpy(model(inputs)))


@pytest.mark.parametrize(
    ("stack_class", "design"),
    [
        (DecoderStack, "modern"),
        on_torch(EncoderStack, "learned"),
        on_torch(DecoderStack, "relative"),
    ],
)
def test_every_weight_is_trained(stack_class, design):
    layer = stack(stack_class, **DESIGNS[design]())
    gradients = weight_gradients(layer, *inputs_of(stack_class))
    for weight, gradient in zip(layer.trainable_weights, gradients, strict=True):
        assert np.isfinite(gradient).all(), weight.path
        # A bias of the keys moves all logits of a query alike.
        assert gradient.any() or "key/bias" in weight.path, weight.path


@pytest.mark.parametrize(
    ("stack_class", "design", "policy"),
    [
        (EncoderStack, "modern", "mixed_float16"),
        on_torch(DecoderStack, "relative", "mixed_bfloat16"),
    ],
)
def test_half_precision(stack_class, design, policy):
    layer = stack(stack_class, **DESIGNS[design](), dtype=policy)
    output = layer(*inputs_of(stack_class))
    assert keras.backend.standardize_dtype(output.dtype) == HALF_POLICIES[policy]
    expected = to_numpy(
        stack(stack_class, **DESIGNS[design]())(*inputs_of(stack_class))
    )
    difference = to_numpy(output) - expected
    assert np.abs(difference).max() < 0.1 * np.abs(expected).max()


def test_scores_under_jit():
    layer = stack(DecoderStack, **DESIGNS["modern"]())

    def call(*inputs):
        return layer(*inputs, return_attention_scores=True)

    inputs = list(map(ops.convert_to_tensor, (TARGET, SOURCE)))
    outputs = keras.tree.flatten(compile_function(call, layer)(*inputs))
    expected = keras.tree.flatten(call(*inputs))
    assert len(outputs) == len(expected) == 1 + 2 * NUM_LAYERS
    for one, other in zip(outputs, expected, strict=True):
        assert_close(one, other)


@each_stack
class TestDesign:
    def test_contract(self, stack_class):
        arguments = {
            **SIZES,
            "num_layers": 1,
            "dropout": 0.2,
            "activation": "gelu",
            "layer_norm_epsilon": 1e-3,
            "normalize_first": True,
            "attention_options": {"num_key_value_heads": 1},
            "rematerialize": True,
        }
        inputs = inputs_of(stack_class)
        attention = [(12, 3, 4), (3, 4), *[(12, 1, 4), (1, 4)] * 2, (3, 4, 12), (12,)]
        norm, feed_forward = [(12,), (12,)], [(12, 13), (13,), (13, 12), (12,)]
        if stack_class is EncoderStack:
            block = [*attention, *norm, *norm, *feed_forward]
        else:
            block = [*[*attention, *norm] * 2, *feed_forward, *norm]
        check_layer(stack_class, arguments, inputs, [*block, *norm])

    @pytest.mark.once("torch")
    @pytest.mark.parametrize("scheme", ["learned", "relative"])
    def test_positions_are_copied_for_each_block(self, stack_class, scheme):
        given = SCHEMES[scheme]()
        layer = stack(stack_class, positions=given)
        added = given.added_to_inputs
        schemes = [
            block.encoding if added else block.self_attention.positions
            for block in layer.blocks
        ]
        assert given not in schemes and given.weights == []
        if added:
            assert schemes[1:] == [None] * (NUM_LAYERS - 1)
        own = schemes[:1] if added else schemes
        assert len(set(map(id, own))) == (1 if added else NUM_LAYERS)
        assert all(type(copy) is type(given) for copy in own)
        plain = len(stack(stack_class).weights)
        assert len(layer.weights) == plain + sum(len(copy.weights) for copy in own)

    @pytest.mark.once("torch")
    def test_stochastic_depth_rises_linearly(self, stack_class):
        options = {"stochastic_depth": 0.3}
        layer = stack(stack_class, num_layers=3, residual_options=options)
        rates = [
            residual.stochastic_depth
            for block in layer.blocks
            for residual in (block.self_attention_residual, block.feed_forward_residual)
        ]
        np.testing.assert_allclose(rates, [0.1, 0.1, 0.2, 0.2, 0.3, 0.3])
        assert layer.residual_options == {"stochastic_depth": 0.3}

    @pytest.mark.parametrize("windows", [[None, 2], on_torch([3, 3])])
    def test_a_window_for_each_block(self, stack_class, windows):
        options = {"sliding_window": windows, "num_key_value_heads": 1}
        layer = stack(stack_class, attention_options=options)
        inputs = inputs_of(stack_class)
        scores = layer(*inputs, return_attention_scores=True)[1]
        places = np.arange(inputs[0].shape[1])
        gaps = places[:, None] - places
        for window, each in zip(windows, scores, strict=True):
            each = each["self_attention"] if isinstance(each, dict) else each
            seen = np.abs(gaps) < (window or len(places))
            if stack_class is DecoderStack:
                seen &= gaps >= 0
                assert layer.blocks[0].cross_attention.pattern is None
            assert ((to_numpy(each) > 0) == seen).all()
        assert layer.has_equal_blocks() == (len({*windows}) == 1)
        stored = json.loads(json.dumps(keras.saving.serialize_keras_object(layer)))
        restored = keras.saving.deserialize_keras_object(stored)
        assert restored.get_config() == layer.get_config()
        assert restored.attention_options == options
        restored.set_weights(layer.get_weights())
        assert_close(restored(*inputs), layer(*inputs), atol=1e-6)

    @pytest.mark.once("torch")
    def test_windows_that_do_not_fit(self, stack_class):
        options = {"sliding_window": (None, 2, 3)}
        message = r"`sliding_window` must be .* 2 blocks; received 3 in .*\(None, 2, 3"
        with pytest.raises(ValueError, match=message):
            stack(stack_class, num_layers=2, attention_options=options)
        options = {"sliding_window": [None, 0]}
        with pytest.raises(
            ValueError, match="`sliding_window` must be an int of at le"
        ):
            stack(stack_class, num_layers=2, attention_options=options)

    @pytest.mark.once("torch")
    def test_options_reach_every_sub_layer(self, stack_class):
        design = DESIGNS["modern"]()
        layer = stack(stack_class, **design)
        for block in layer.blocks:
            own = block.self_attention
            assert own.pattern == design["attention_options"]["pattern"]
            assert type(own.positions) is type(design["positions"])
            attentions = [own]
            if stack_class is DecoderStack:
                cross = block.cross_attention
                assert cross.pattern is cross.positions is None
                attentions.append(cross)
            for attention in attentions:
                assert attention.num_key_value_heads == 1
                assert (attention.dropout, attention.use_bias) == (0.3, False)
            assert block.feed_forward.gated and block.feed_forward.dropout == 0.1
            assert block.feed_forward_residual.normalization == "rms"
            assert block.feed_forward_residual.dropout == 0.2
        assert type(layer.norm) is keras.layers.RMSNormalization

    @pytest.mark.once("torch")
    def test_the_last_normalization_has_the_options_of_the_others(self, stack_class):
        options = {"normalize_first": True, "layer_norm_epsilon": 0.25}
        layer = stack(stack_class, residual_options=options, normalize_first=False)
        assert layer.norm.epsilon == layer.blocks[0].feed_forward_residual.norm.epsilon
        assert layer.norm.epsilon == 0.25
        for options in {"normalize_first": False}, {"normalization": None}:
            layer = stack(stack_class, residual_options=options, normalize_first=True)
            assert layer.norm is None

    def test_dropout_of_every_kind_is_for_training_alone(self, stack_class):
        design, inputs = DESIGNS["modern"](), inputs_of(stack_class)
        layer, plain = (stack(stack_class, **x) for x in (design, without_any(design)))
        assert_close(layer(*inputs), plain(*inputs), atol=1e-6)
        dropped = to_numpy(layer(*inputs, training=True))
        assert np.abs(dropped - to_numpy(plain(*inputs))).max() > 0.01

    @pytest.mark.once("torch")
    def test_shapes_without_a_call(self, stack_class):
        shapes = [x.shape for x in inputs_of(stack_class)]
        assert stack_class(**SIZES).compute_output_shape(*shapes) == shapes[0]


def without_any(design):
    """The design with every rate of dropout zero."""
    rates = {"dropout": 0.0, "stochastic_depth": 0.0}
    return {
        name: {key: rates.get(key, value) for key, value in option.items()}
        if isinstance(option, dict)
        else rates.get(name, option)
        for name, option in design.items()
    }
