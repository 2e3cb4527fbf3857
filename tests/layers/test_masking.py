import numpy as np
import pytest
import reference
from keras import ops

from keras_transformer.layers.masking import (
    attention_mask_from_padding,
    causal_mask,
    merge_masks,
    padding_mask,
    sliding_window_mask,
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


@pytest.mark.parametrize("offset", [0, 1, 4])
def test_causal_mask_takes_tensors(offset):
    tensor = ops.convert_to_tensor(offset, "int32")
    np.testing.assert_array_equal(
        ops.convert_to_numpy(causal_mask(3, 7, tensor)),
        reference.causal_mask(3, 7, offset),
    )


def test_sliding_window_mask_by_hand():
    assert to_ints(sliding_window_mask(3, 4, window=2)) == [
        [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1]]
    ]
    assert to_ints(sliding_window_mask(1, 5, window=2, offset=3)) == [[[0, 0, 1, 1, 1]]]
    assert to_ints(sliding_window_mask(2, 3, window=1)) == [[[1, 0, 0], [0, 1, 0]]]


def test_merge_masks_is_their_logical_and():
    rows = np.array([[[True], [False]]])
    keys = np.array([[[1, 0, 1]]], "int32")
    assert to_ints(merge_masks(None, rows, None, keys)) == [[[1, 0, 1], [0, 0, 0]]]
    assert to_ints(merge_masks(keys)) == [[[1, 0, 1]]]
    assert merge_masks(None, None) is None
    assert merge_masks() is None


def test_attention_mask_from_padding_adds_the_axis_of_the_queries():
    mask = attention_mask_from_padding(np.ones((2, 3), bool))
    assert tuple(mask.shape) == (2, 1, 3)
    assert attention_mask_from_padding(None) is None
