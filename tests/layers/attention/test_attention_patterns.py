import json

import keras
import numpy as np
import pytest
import reference
from keras import ops
from layer_contract import gradients, on_torch, to_numpy

from keras_transformer.layers import (
    GlobalLocal,
    LocalWindow,
    Strided,
    scaled_dot_product_attention,
)

RNG = np.random.default_rng(29)
BATCH, LENGTH, NUM_HEADS, KEY_DIM, VALUE_DIM = 2, 71, 3, 5, 7  # 71: three blocks

# Each pattern with its definition: does position i attend to position j?
PATTERNS = {
    LocalWindow(0): lambda i, j: i == j,
    LocalWindow(3): lambda i, j: abs(i - j) <= 3,
    LocalWindow(19): lambda i, j: abs(i - j) <= 19,
    Strided(3, 7): lambda i, j: i - j in (-6, -3, 0, 3, 6),
    Strided(2, 41): lambda i, j: abs(i - j) <= 41 and i % 2 == j % 2,
    Strided(5, 4): lambda i, j: i == j,
    GlobalLocal(2, 3): lambda i, j: abs(i - j) <= 2 or i < 3 or j < 3,
    GlobalLocal(17, 1): lambda i, j: abs(i - j) <= 17 or i == 0 or j == 0,
}
TOLERANCE = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}

each_pattern = pytest.mark.parametrize("pattern", PATTERNS, ids=repr)
one_of_each = pytest.mark.parametrize(
    ("pattern", "use_causal_mask"),
    [(LocalWindow(3), True), (Strided(3, 7), False), (GlobalLocal(2, 3), True)],
)


def definition(pattern, query_positions, key_positions, use_causal_mask=False):
    mask = np.zeros((len(query_positions), len(key_positions)), bool)
    for row, i in enumerate(query_positions):
        for column, j in enumerate(key_positions):
            seen = PATTERNS[pattern](i, j)
            mask[row, column] = seen and (j <= i or not use_causal_mask)
    return mask


def heads(length, batch=BATCH):
    dims = (KEY_DIM, KEY_DIM, VALUE_DIM)
    arrays = [RNG.normal(size=(batch, length, NUM_HEADS, dim)) for dim in dims]
    return [array.astype("float32") for array in arrays]


def padding(length):
    """A mask with holes in one sequence and only padding in the other."""
    mask = np.zeros((BATCH, length), bool)
    mask[0] = RNG.random(length) < 0.7
    mask[0, length // 2] = True
    return mask


def dense(pattern, use_causal_mask=False):
    """The argument `attend` of `AttentionPattern.attend`."""

    def attend(query, key, value, query_positions, key_positions, key_mask):
        mask = pattern.mask(query_positions, key_positions)
        if use_causal_mask:
            causal = key_positions[:, None] <= query_positions[:, :, None]
            mask = ops.logical_and(mask, causal)
        rows, query_length, key_length = ops.shape(mask)
        if key_mask is not None:
            key_mask = ops.reshape(key_mask, (-1, rows, 1, key_length))
            mask = ops.logical_and(mask, key_mask)
        mask = ops.reshape(mask, (-1, query_length, key_length))
        return scaled_dot_product_attention(query, key, value, mask)

    return attend


def compiled(function):
    """JAX compiles a whole function faster than its single operations."""
    if keras.backend.backend() != "jax":
        return function
    import jax

    return jax.jit(function)


def blocked(pattern, query, key, value, key_mask=None, use_causal_mask=False):
    def attend(*heads):
        return pattern.attend(
            dense(pattern, use_causal_mask), *heads, key_mask, use_causal_mask
        )

    return compiled(attend)(*map(ops.convert_to_tensor, (query, key, value)))


@each_pattern
def test_mask(pattern):
    queries = np.array([[[41, 2, 7]], [[0, 1, 43]]])
    keys = np.array([[40, 3, 0, 2, 1], [5, 13, 44, 8, 4]])
    mask = pattern.mask(queries, keys)
    assert ops.dtype(mask) == "bool" and tuple(mask.shape) == (2, 2, 3, 5)
    for i, j in np.ndindex(2, 2):
        expected = definition(pattern, queries[i, 0], keys[j])
        np.testing.assert_array_equal(ops.convert_to_numpy(mask)[i, j], expected)


class TestBlocks:
    @pytest.mark.parametrize(
        ("pattern", "length"),
        [
            (LocalWindow(3), 70),
            (Strided(3, 7), 71),
            (GlobalLocal(2, 3), 70),
            on_torch(LocalWindow(0), 71),
            on_torch(LocalWindow(19), 71),
            on_torch(Strided(2, 41), 71),
            on_torch(Strided(5, 4), 32),
            on_torch(GlobalLocal(17, 1), 70),
            on_torch(LocalWindow(3), 1),
            on_torch(Strided(3, 7), 1),
            on_torch(GlobalLocal(2, 3), 2),
        ],
    )
    def test_equal_the_reference(self, pattern, length):
        """Causal for even lengths; one sequence contains only padding."""
        use_causal_mask = length % 2 == 0
        inputs, key_mask = heads(length), padding(length)
        mask = definition(pattern, range(length), range(length), use_causal_mask)
        mask = mask & key_mask[:, None]
        output = blocked(pattern, *inputs, key_mask, use_causal_mask)
        expected, _ = reference.scaled_dot_product_attention(*inputs, mask)
        assert tuple(output.shape) == (BATCH, length, NUM_HEADS, VALUE_DIM)
        np.testing.assert_allclose(to_numpy(output), expected, atol=1e-5)
        assert (to_numpy(output)[~mask.any(-1)] == 0).all()

    @pytest.mark.parametrize(
        ("pattern", "dtype"),
        [(Strided(3, 7), "float16"), (GlobalLocal(2, 3), "bfloat16")],
    )
    def test_in_half_precision(self, pattern, dtype):
        inputs = [ops.cast(x, dtype) for x in heads(LENGTH)]
        output = blocked(pattern, *inputs)
        assert keras.backend.standardize_dtype(output.dtype) == dtype
        mask = definition(pattern, range(LENGTH), range(LENGTH))[None]
        expected, _ = reference.scaled_dot_product_attention(
            *map(to_numpy, inputs), mask
        )
        np.testing.assert_allclose(to_numpy(output), expected, atol=TOLERANCE[dtype])

    @one_of_each
    def test_gradients_equal_the_dense_route_s(self, pattern, use_causal_mask):
        inputs, key_mask = heads(LENGTH), padding(LENGTH)
        mask = definition(pattern, range(LENGTH), range(LENGTH), use_causal_mask)
        mask = mask & key_mask[:, None]

        def loss(*heads):
            output = pattern.attend(
                dense(pattern, use_causal_mask), *heads, key_mask, use_causal_mask
            )
            return ops.sum(ops.sin(output))

        def dense_loss(*heads):
            return ops.sum(ops.sin(scaled_dot_product_attention(*heads, mask)))

        for actual, expected in zip(
            gradients(loss, *inputs), gradients(dense_loss, *inputs), strict=True
        ):
            assert np.abs(expected[0]).max() > 0.1
            np.testing.assert_allclose(actual, expected, atol=1e-5)

    @pytest.mark.once
    @one_of_each
    def test_of_a_length_unknown_when_traced(self, pattern, use_causal_mask):
        import tensorflow as tf

        dims = (KEY_DIM, KEY_DIM, VALUE_DIM)
        shapes = [tf.TensorSpec((None, None, NUM_HEADS, dim)) for dim in dims]

        @tf.function(input_signature=shapes)
        def attend(*heads):
            attend = dense(pattern, use_causal_mask)
            return pattern.attend(attend, *heads, use_causal_mask=use_causal_mask)

        for batch, length in ((1, 2), (3, LENGTH)):
            inputs = heads(length, batch)
            mask = definition(pattern, range(length), range(length), use_causal_mask)
            expected, _ = reference.scaled_dot_product_attention(*inputs, mask[None])
            output = to_numpy(attend(*map(ops.convert_to_tensor, inputs)))
            np.testing.assert_allclose(output, expected, atol=1e-5)


@pytest.mark.once("jax")
class TestMemory:
    """No tensor of blockwise attention, forward or backward, grows with length²."""

    LENGTH = 1009

    def sizes(self, attention):
        import jax
        from jax.extend.core import jaxprs_in_params

        def sizes(program):
            for equation in program.eqns:
                yield from (variable.aval.size for variable in equation.outvars)
                for inner in jaxprs_in_params(equation.params):
                    yield from sizes(inner)

        def loss(*heads):
            return ops.sum(ops.square(attention(*heads)))

        inputs = [np.ones((1, self.LENGTH, 1, 2), "float32")] * 3
        both_ways = jax.grad(loss, argnums=(0, 1, 2))
        return list(sizes(jax.make_jaxpr(both_ways)(*inputs).jaxpr))

    @one_of_each
    def test_is_linear_in_the_length(self, pattern, use_causal_mask):
        def attention(*heads):
            attend = dense(pattern, use_causal_mask)
            return pattern.attend(attend, *heads, use_causal_mask=use_causal_mask)

        sizes = self.sizes(attention)
        assert len(sizes) > 30
        assert max(sizes) < 50 * self.LENGTH

    def test_of_the_dense_route_is_not(self):
        positions = np.arange(self.LENGTH, dtype="int32")[None]
        attend = dense(LocalWindow(3))
        sizes = self.sizes(lambda *heads: attend(*heads, positions, positions, None))
        assert max(sizes) >= self.LENGTH**2


@pytest.mark.once("torch")
class TestObjects:
    @each_pattern
    def test_come_back_from_their_configuration(self, pattern):
        name = f"keras_transformer>{type(pattern).__name__}"
        assert keras.saving.get_registered_name(type(pattern)) == name
        stored = json.loads(json.dumps(keras.saving.serialize_keras_object(pattern)))
        restored = keras.saving.deserialize_keras_object(stored)
        assert restored is not pattern
        assert restored == pattern
        assert hash(restored) == hash(pattern)

    def test_compare_and_print_by_their_arguments(self):
        assert len({*PATTERNS, *PATTERNS}) == len(PATTERNS)
        assert LocalWindow(np.int64(3)) == LocalWindow(3)
        assert repr(GlobalLocal(2, 3)) == "GlobalLocal(radius=2, global_tokens=3)"
        assert Strided(3, 7) == Strided(radius=7, stride=3)

    @each_pattern
    def test_pay_when_the_sequence_is_long(self, pattern):
        assert not pattern.is_worthwhile(1)
        assert not pattern.is_worthwhile(31)
        assert pattern.is_worthwhile(997)
        assert pattern.is_worthwhile(None)

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (
                lambda: LocalWindow(radius=-1),
                "`radius` must be an int of at least 0; .*`radius=-1`",
            ),
            (lambda: LocalWindow(radius=2.5), "`radius` must be .*`radius=2.5`"),
            (
                lambda: Strided(stride=0, radius=3),
                "`stride` must be an int of at least 1; .*=0`",
            ),
            (lambda: Strided(stride=2, radius=-7), "`radius` must be .*`radius=-7`"),
            (
                lambda: GlobalLocal(radius=2, global_tokens=0),
                "`global_tokens` must be an int of at least 1; .*`global_tokens=0`",
            ),
            (lambda: GlobalLocal(radius=None, global_tokens=1), "`radius=None`"),
        ],
    )
    def test_name_the_argument_out_of_range(self, make, message):
        with pytest.raises(ValueError, match=message):
            make()
