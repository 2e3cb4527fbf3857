import keras
import numpy as np
import pytest
from keras import ops
from layer_contract import check_layer, to_numpy

from keras_transformer.layers import RotaryEmbedding

RNG = np.random.default_rng(23)
HEADS = RNG.normal(size=(2, 5, 3, 4)).astype("float32")
ROWS = np.array([[0, 1, 2, 3, 4], [7, 11, 3, 3, 1000]])


def rotate(heads, positions, max_wavelength=10000.0):
    """Section 3.2.2, in pairs of halves, for positions `(batch, length)`."""
    half = heads.shape[-1] // 2
    output = np.zeros(heads.shape)
    for batch, length, head, i in np.ndindex(*heads.shape[:3], half):
        angle = positions[batch][length] / max_wavelength ** (i / half)
        point = complex(*heads[batch, length, head, [i, i + half]].astype("float64"))
        turned = point * np.exp(1j * angle)
        output[batch, length, head, [i, i + half]] = turned.real, turned.imag
    return output


def test_contract():
    check_layer(RotaryEmbedding, {"max_wavelength": 300}, [HEADS], [], [(None, 3, 4)])


def test_by_hand():
    heads = np.array([[[[3.0, 4.0]], [[3.0, 4.0]]]], "float32")
    output = to_numpy(RotaryEmbedding()(heads))[0, :, 0]
    turned = [3 * np.cos(1) - 4 * np.sin(1), 3 * np.sin(1) + 4 * np.cos(1)]
    np.testing.assert_allclose(output, [[3.0, 4.0], turned], atol=1e-6)


@pytest.mark.parametrize(("max_wavelength", "key_dim"), [(10000, 2), (50.0, 6)])
def test_equals_the_reference(max_wavelength, key_dim):
    heads = RNG.normal(size=(2, 5, 3, key_dim)).astype("float32")
    layer = RotaryEmbedding(max_wavelength)
    output = to_numpy(layer(heads, positions=ROWS))
    np.testing.assert_allclose(output, rotate(heads, ROWS, max_wavelength), atol=1e-3)
    output = to_numpy(layer(heads, positions=ROWS[0]))
    expected = rotate(heads, ROWS[[0, 0]], max_wavelength)
    np.testing.assert_allclose(output, expected, atol=1e-5)


@pytest.mark.parametrize("as_tensor", [False, True])
def test_start_index_shifts_the_positions(as_tensor):
    start_index = ops.convert_to_tensor(7, "int32") if as_tensor else 7
    output = to_numpy(RotaryEmbedding()(HEADS, start_index=start_index))
    expected = rotate(HEADS, [range(7, 12)] * 2)
    np.testing.assert_allclose(output, expected, atol=1e-5)


@pytest.mark.once("torch")
def test_products_depend_on_the_difference_of_positions_alone():
    layer = RotaryEmbedding(max_wavelength=100)
    query, key = RNG.normal(size=(2, 1, 1, 3, 8)).astype("float32")
    queries, keys = (np.repeat(x, 13, axis=1) for x in (query, key))

    def products(start_index):
        q = to_numpy(layer(queries, start_index=start_index))
        k = to_numpy(layer(keys, start_index=start_index))
        return np.einsum("bqhd,bkhd->hqk", q, k)

    near = products(0)
    np.testing.assert_allclose(products(200), near, atol=1e-3)
    for offset in range(-12, 13):
        diagonal = np.diagonal(near, offset, axis1=1, axis2=2)
        np.testing.assert_allclose(diagonal, diagonal[:, :1] + 0 * diagonal, atol=1e-4)
    assert np.ptp(near[:, 0], axis=1).min() > 0.1


@pytest.mark.parametrize(
    ("dtype", "policy"), [("float16", "{}"), ("bfloat16", "mixed_{}")]
)
def test_half_precision_rounds_once(dtype, policy):
    heads = to_numpy(ops.cast(HEADS, dtype))
    layer = RotaryEmbedding(dtype=policy.format(dtype))
    output = layer(heads, start_index=700)
    assert keras.backend.standardize_dtype(output.dtype) == dtype
    one_step = {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    expected = rotate(heads, [range(700, 705)] * 2)
    np.testing.assert_allclose(to_numpy(output), expected, rtol=one_step, atol=2e-4)


@pytest.mark.once("torch")
def test_odd_key_dim():
    with pytest.raises(ValueError, match="`key_dim` must be even.*`key_dim=5`. Choose"):
        RotaryEmbedding()(np.zeros((1, 2, 3, 5), "float32"))
