import keras
import numpy as np
import pytest
from keras import ops
from scripted_step import END, written_step

from keras_transformer.decoding import (
    BeamSearch,
    GNMTLengthPenalty,
    PowerLengthPenalty,
    RelativeLength,
    coverage_penalty,
)
from keras_transformer.decoding.lengths import output_lengths


def test_divisors_equal_the_formulas():
    for penalty, expected in (
        (GNMTLengthPenalty(0.6), [1.0, 2.0**0.6, 3.0**0.6]),
        (GNMTLengthPenalty(-1.0), [1.0, 0.5, 1 / 3]),
        (PowerLengthPenalty(0.5), [1.0, 7.0**0.5, 13.0**0.5]),
    ):
        divisors = penalty(np.array([[1, 7, 13]]))
        assert keras.backend.standardize_dtype(divisors.dtype) == "float32"
        np.testing.assert_allclose(
            ops.convert_to_numpy(divisors), [expected], rtol=1e-6
        )


def test_coverage_penalty_is_equation_14():
    coverage = np.array([[[0.5, 3.0, 0.25], [1.0, 1.0, 0.0]]], "float32")
    mask = np.array([[True, True, False]])
    penalty = coverage_penalty(coverage, mask, beta=0.4)
    expected = [[0.4 * np.log(0.5), 0.0]]
    np.testing.assert_allclose(ops.convert_to_numpy(penalty), expected, atol=1e-6)
    seen = coverage_penalty(coverage, np.array([[True] * 3]), beta=0.4)
    assert np.isfinite(ops.convert_to_numpy(seen)).all()


@pytest.mark.once("torch")
def test_coverage_prefers_attention_to_the_whole_source():
    script = {(): {3: 0.6, 4: 0.4}, (3,): {END: 1.0}, (4,): {END: 1.0}}
    step = written_step(script, script)
    attention = np.zeros((2, 5, 3))
    attention[:, 2] = [0.4, 0.0, 0.0]  # at the start
    attention[:, 3] = [0.6, 0.4, 0.0]
    attention[:, 4] = [0.5, 0.9, 0.0]
    attention[1, :, 2] = 0.5  # here the source has a third token
    search = {"num_beams": 2, "length_penalty": 0.5, "num_hypotheses": 2}
    without = step.search(BeamSearch(**search), 3, attention=attention)
    assert without.token_ids[:, 0, 0].tolist() == [3, 3]
    result = step.search(
        BeamSearch(**search, coverage_penalty=0.9), 3, attention=attention
    )
    assert result.token_ids[:, :, 0].tolist() == [[4, 3], [4, 3]]
    divisor = (7 / 6) ** 0.5
    covered = [np.log(0.4) / divisor + 0.9 * np.log(0.9 * 0.9)]
    covered += [np.log(0.6) / divisor + 0.9 * np.log(1.0 * 0.4)]
    np.testing.assert_allclose(result.scores, [covered, covered], atol=1e-5)


@pytest.mark.once("torch")
def test_coverage_is_reordered_with_the_beams():
    step = written_step(
        {
            (): {3: 0.6, 4: 0.4},
            (3,): {3: 0.3, 4: 0.3, END: 0.4},
            (4,): {3: 1.0},
            (4, 3): {END: 1.0},
        }
    )
    attention = np.zeros((1, 5, 2))
    attention[0, 2:] = [[0.3, 0.1], [0.2, 0.1], [0.1, 0.7]]  # start, 3, 4
    search = BeamSearch(2, length_penalty=0.0, coverage_penalty=0.5)
    result = step.search(search, 4, attention=attention)
    assert result.token_ids[0, 0, :3].tolist() == [4, 3, END]
    expected = np.log(0.4) + 0.5 * np.log(0.6 * 0.9)
    np.testing.assert_allclose(result.scores, [[expected]], atol=1e-4)


def test_relative_lengths():
    lengths = np.array([1, 4, 7], "int32")
    found = output_lengths(RelativeLength(1.5, -3), lengths)
    assert ops.convert_to_numpy(found).tolist() == [1, 3, 7]
    assert [output_lengths(RelativeLength(1.5, -3), n) for n in (1, 4, 7)] == [1, 3, 7]
    assert ops.convert_to_numpy(output_lengths(5, lengths)).tolist() == [5, 5, 5]
    assert output_lengths(5, 9) == 5


@pytest.mark.parametrize(("factor", "length"), [(2.3, 100), (2.3, 50), (2.1, 50)])
def test_a_length_is_the_same_for_a_number_and_a_tensor(factor, length):
    """As float64 has it, 2.3 * 100 is below 230."""
    relative = RelativeLength(factor)
    tensor = ops.convert_to_tensor([length], "int32")
    expected = int(ops.convert_to_numpy(output_lengths(relative, tensor))[0])
    assert output_lengths(relative, length) == expected


@pytest.mark.once("torch")
@pytest.mark.parametrize("numbers", [(-1, 0), (1, float("nan")), (float("inf"), 0)])
def test_invalid_relative_lengths(numbers):
    with pytest.raises(ValueError, match="`factor` must be a number of at least 0"):
        RelativeLength(*numbers)
