import numpy as np
import pytest
import reference
from keras import ops

from keras_transformer.layers.masking import (
    attention_mask_from_padding,
    causal_mask,
    merge_masks,
    padding_mask,
    with_head_axis,
)


def to_ints(mask):
    assert ops.dtype(mask) == "bool"
    return ops.convert_to_numpy(mask).astype(int).tolist()


@pytest.mark.parametrize(
    ("pad_token_id", "expected"),
    [(0, [[1, 1, 0], [1, 0, 1]]), (9, [[1, 0, 1], [1, 1, 1]])],
)
def test_padding_mask_is_false_on_the_pad_token_alone(pad_token_id, expected):
    mask = padding_mask(np.array([[5, 9, 0], [6, 0, 2]]), pad_token_id)
    assert to_ints(mask) == expected


def test_causal_mask_by_hand():
    assert to_ints(causal_mask(3, 3)) == [[[1, 0, 0], [1, 1, 0], [1, 1, 1]]]
    assert to_ints(causal_mask(2, 5, offset=2)) == [[[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]]
    assert to_ints(causal_mask(1, 1)) == [[[1]]]


def test_causal_mask_takes_tensors():
    mask = causal_mask(3, 7, ops.convert_to_tensor(4, "int32"))
    expected = reference.causal_mask(3, 7, 4)
    np.testing.assert_array_equal(ops.convert_to_numpy(mask), expected)


def test_merge_masks_is_their_logical_and():
    rows = np.array([[[True], [False]]])
    keys = np.array([[[1, 0, 1]]], "int32")
    assert to_ints(merge_masks(None, rows, None, keys)) == [[[1, 0, 1], [0, 0, 0]]]
    assert to_ints(merge_masks(keys)) == [[[1, 0, 1]]]
    assert merge_masks(None, None) is None
    assert merge_masks() is None


def test_merge_masks_adds_the_head_axis():
    by_head = np.array([[[[1, 1]], [[0, 1]]], [[[1, 1]], [[1, 0]]]], bool)
    padding = np.array([[[1, 1]], [[0, 1]]], bool)
    assert to_ints(merge_masks(by_head, padding)) == [
        [[[1, 1]], [[0, 1]]],
        [[[0, 1]], [[0, 0]]],
    ]


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((3, 5), (1, 1, 3, 5)), ((2, 3, 5), (2, 1, 3, 5)), ((2, 7, 3, 5), (2, 7, 3, 5))],
)
def test_with_head_axis_adds_what_is_missing_in_front_of_the_queries(shape, expected):
    assert tuple(with_head_axis(np.ones(shape, bool)).shape) == expected
    assert with_head_axis(None) is None


def test_attention_mask_from_padding_adds_the_axis_of_the_queries():
    mask = attention_mask_from_padding(np.ones((2, 3), bool))
    assert tuple(mask.shape) == (2, 1, 3)
    assert attention_mask_from_padding(None) is None
