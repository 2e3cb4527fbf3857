"""Tests of the checks of arguments."""

import pytest

from keras_transformer_runtime.arguments import check_ints, check_numbers, check_one_of

pytestmark = pytest.mark.once("torch")


@pytest.mark.parametrize("number", [0, 0.25, 1])
def test_numbers_within_the_bounds_are_accepted(number):
    check_numbers(0, 1, rate=number)


@pytest.mark.parametrize(
    "number", [-0.1, 1, pytest.param(10**400, id="huge"), float("nan"), "0", True, None]
)
def test_other_numbers_are_refused(number):
    expected = "`rate` must be a finite number of at least 0 and below 1; received"
    with pytest.raises(ValueError, match=expected):
        check_numbers(0, below=1, rate=number)


def test_a_number_without_bounds_is_finite():
    check_numbers(shift=-1e30)
    with pytest.raises(ValueError, match="finite number; received `shift=inf`"):
        check_numbers(shift=float("inf"))


def test_none_is_accepted_only_if_optional():
    check_numbers(0, optional=True, rate=None)
    check_ints(1, optional=True, count=None)
    check_one_of(["a"], optional=True, kind=None)
    with pytest.raises(ValueError, match="`kind` must be 'a'; received `kind=None`"):
        check_one_of(["a"], kind=None)


def test_the_choices_and_the_remedy_are_named():
    expected = "`kind` must be 'a', 'b' or 'c'; received `kind='d'`. Pass another."
    with pytest.raises(ValueError, match=expected):
        check_one_of(["a", "b", "c"], kind="d", remedy="Pass another.")


def test_choices_differ_by_their_types():
    with pytest.raises(ValueError, match="`count` must be 1; received `count=True`"):
        check_one_of([1], count=True)
