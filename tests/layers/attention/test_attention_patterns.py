import json
import math
import re

import keras
import numpy as np
import pytest
import reference
from keras import ops
from layer_contract import gradients, to_numpy

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
    "pattern", [LocalWindow(3), Strided(3, 7), GlobalLocal(2, 3)], ids=repr
)
causal_or_not = pytest.mark.parametrize(
    "use_causal_mask", [False, True], ids=["both ways", "causal"]
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


def blocked(pattern, query, key, value, key_mask=None, use_causal_mask=False):
    def attend(*heads):
        return pattern.attend(
            dense(pattern, use_causal_mask), *heads, key_mask, use_causal_mask
        )

    return compiled(attend)(*map(ops.convert_to_tensor, (query, key, value)))


class TestMask:
    @each_pattern
    def test_is_the_definition(self, pattern):
        positions = np.arange(23)
        mask = pattern.mask(positions, positions)
        assert ops.dtype(mask) == "bool"
        np.testing.assert_array_equal(
            ops.convert_to_numpy(mask), definition(pattern, positions, positions)
        )

    @each_pattern
    def test_of_any_positions(self, pattern):
        queries = np.array([[[41, 2, 7]], [[0, 1, 43]]])
        keys = np.array([[40, 3, 0, 2, 1], [5, 13, 44, 8, 4]])
        mask = ops.convert_to_numpy(pattern.mask(queries, keys))
        assert mask.shape == (2, 2, 3, 5)
        for i, j in np.ndindex(2, 2):
            expected = definition(pattern, queries[i, 0], keys[j])
            np.testing.assert_array_equal(mask[i, j], expected)


class TestBlocks:
    @each_pattern
    @pytest.mark.parametrize("length", [1, 32, 70, 71])
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

    @one_of_each
    @pytest.mark.parametrize("dtype", TOLERANCE)
    def test_in_every_precision(self, pattern, dtype):
        inputs = [ops.cast(x, dtype) for x in heads(LENGTH)]
        output = blocked(pattern, *inputs)
        assert keras.backend.standardize_dtype(output.dtype) == dtype
        expected, _ = reference.scaled_dot_product_attention(
            *map(to_numpy, inputs),
            definition(pattern, range(LENGTH), range(LENGTH))[None],
        )
        np.testing.assert_allclose(to_numpy(output), expected, atol=TOLERANCE[dtype])

    @one_of_each
    @causal_or_not
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

    @one_of_each
    def test_keys_and_values_may_have_fewer_heads(self, pattern):
        query, key, value = heads(LENGTH)
        key, value = key[:, :, :1], value[:, :, :1]

        def attend(query, key, value, *others):
            assert key.shape[2] == value.shape[2] == 1
            key, value = (ops.repeat(x, NUM_HEADS, axis=2) for x in (key, value))
            return dense(pattern)(query, key, value, *others)

        shared = [np.repeat(x, NUM_HEADS, axis=2) for x in (key, value)]
        grouped = compiled(lambda *heads: pattern.attend(attend, *heads))
        np.testing.assert_allclose(
            to_numpy(grouped(*map(ops.convert_to_tensor, (query, key, value)))),
            to_numpy(blocked(pattern, query, *shared)),
            atol=1e-6,
        )

    @one_of_each
    @causal_or_not
    def test_are_handed_over_with_their_positions(self, pattern, use_causal_mask):
        """Each position is a query at least once, with all of its keys."""
        labels = 1 + np.arange(BATCH * LENGTH, dtype="float32")
        labels = labels.reshape(BATCH, LENGTH, 1, 1)
        seen = np.zeros((BATCH, LENGTH, LENGTH), int)

        def attend(*block):
            query, key, value, queries, keys, mask = map(to_numpy, block)
            sequences = np.repeat(np.arange(BATCH), len(queries))
            queries, keys = (
                np.tile(x, (BATCH, 1)).astype(int) for x in (queries, keys)
            )
            mask = mask.astype(bool)
            np.testing.assert_array_equal(key, value)
            for row, sequence in enumerate(sequences):
                own = labels[sequence].ravel()
                visible = keys[row][mask[row]]
                np.testing.assert_array_equal(key[row, mask[row], 0, 0], own[visible])
                for label, i in zip(query[row, :, 0, 0], queries[row], strict=True):
                    if label:
                        assert label == own[i]
                        counts = np.bincount(visible, minlength=LENGTH)
                        assert counts.max() <= 1
                        seen[sequence, i] |= counts
            return block[0]

        heads, everything = (
            ops.convert_to_tensor(labels),
            np.ones((BATCH, LENGTH), bool),
        )
        pattern.attend(attend, *[heads] * 3, everything, use_causal_mask)
        needed = definition(pattern, range(LENGTH), range(LENGTH), use_causal_mask)
        assert (seen.astype(bool) >= needed).all()

    @one_of_each
    def test_of_a_length_unknown_when_traced(self, pattern):
        attend = traced_once(lambda *heads: pattern.attend(dense(pattern), *heads))
        for batch, length in ((1, 2), (3, LENGTH)):
            inputs = heads(length, batch)
            mask = definition(pattern, range(length), range(length))[None]
            expected, _ = reference.scaled_dot_product_attention(*inputs, mask)
            np.testing.assert_allclose(
                to_numpy(attend(*map(ops.convert_to_tensor, inputs))),
                expected,
                atol=1e-5,
            )


def traced_once(function):
    """One graph for all batch sizes and lengths, if the backend supports it."""
    if keras.backend.backend() != "tensorflow":
        return compiled(function)
    import tensorflow as tf

    dims = (KEY_DIM, KEY_DIM, VALUE_DIM)
    shapes = [tf.TensorSpec((None, None, NUM_HEADS, dim)) for dim in dims]
    return tf.function(function, input_signature=shapes)


def compiled(function):
    """JAX compiles a whole function faster than its single operations."""
    if keras.backend.backend() != "jax":
        return function
    import jax

    fast = {
        "xla_backend_optimization_level": 0,
        "xla_llvm_disable_expensive_passes": True,
    }
    return jax.jit(function, compiler_options=fast)


class TestMemory:
    """No tensor of blockwise attention, forward or backward, grows with length²."""

    LENGTH = 1009

    def sizes(self, attention):
        inputs = [np.ones((1, self.LENGTH, 1, 2), "float32")] * 3
        return SIZES[keras.backend.backend()](
            lambda *heads: ops.sum(ops.square(attention(*heads))),
            [ops.convert_to_tensor(x) for x in inputs],
        )

    @one_of_each
    @causal_or_not
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


def tensorflow_sizes(function, inputs):
    import tensorflow as tf

    def both_ways(*tensors):
        return tf.gradients(function(*tensors), tensors)

    compiler = tf.function(both_ways, jit_compile=True)
    program = compiler.experimental_get_compiler_ir(*inputs)(stage="hlo")
    shapes = re.findall(r"\w\[([\d,]+)\]", program)
    return [math.prod(map(int, shape.split(","))) for shape in shapes]


def jax_sizes(function, inputs):
    import jax
    from jax.extend.core import jaxprs_in_params

    def sizes(program):
        for equation in program.eqns:
            yield from (variable.aval.size for variable in equation.outvars)
            for inner in jaxprs_in_params(equation.params):
                yield from sizes(inner)

    both_ways = jax.grad(function, argnums=range(len(inputs)))
    return list(sizes(jax.make_jaxpr(both_ways)(*inputs).jaxpr))


def torch_sizes(function, inputs):
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    found = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            outputs = operation(*args, **(kwargs or {}))
            tensors = [x for x in tree_leaves(outputs) if isinstance(x, torch.Tensor)]
            found.extend(tensor.numel() for tensor in tensors)
            return outputs

    inputs = [x.clone().requires_grad_() for x in inputs]
    with Recorder():
        torch.autograd.grad(function(*inputs), inputs)
    return found


SIZES = {"tensorflow": tensorflow_sizes, "jax": jax_sizes, "torch": torch_sizes}


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
        ("pattern_class", "arguments", "message"),
        [
            (
                LocalWindow,
                {"radius": -1},
                "`radius` must be an int of at least 0; .*`radius=-1`",
            ),
            (LocalWindow, {"radius": 2.5}, "`radius` must be .*`radius=2.5`"),
            (
                Strided,
                {"stride": 0, "radius": 3},
                "`stride` must be an int of at least 1; .*=0`",
            ),
            (Strided, {"stride": 2, "radius": -7}, "`radius` must be .*`radius=-7`"),
            (
                GlobalLocal,
                {"radius": 2, "global_tokens": 0},
                "`global_tokens` must be an int of at least 1; .*`global_tokens=0`",
            ),
            (GlobalLocal, {"radius": None, "global_tokens": 1}, "`radius=None`"),
        ],
    )
    def test_name_the_argument_out_of_range(self, pattern_class, arguments, message):
        with pytest.raises(ValueError, match=message):
            pattern_class(**arguments)
