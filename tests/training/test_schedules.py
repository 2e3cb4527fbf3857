"""The schedules against formulas, by hand and under a real optimizer."""

import json
import math

import keras
import numpy as np
import pytest

from keras_transformer.training import WarmupDecay, WarmupInverseSquareRoot


def paper(update, hidden_dim, warmup_steps):
    return hidden_dim**-0.5 * min(update**-0.5, update * warmup_steps**-1.5)


def rate(schedule, step):
    return float(keras.ops.convert_to_numpy(schedule(step)))


@pytest.mark.parametrize(
    ("step", "expected"),
    [(0, 0.5), (1, 1.0), (2, 1.5), (3, 2.0), (15, 1.0), (35, 2 / 3)],
)
def test_by_hand(step, expected):
    schedule = WarmupInverseSquareRoot(peak_learning_rate=2.0, warmup_steps=4)
    assert rate(schedule, step) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("step", [0, 1, 3998, 3999, 4000, 4001, 99_999, 10**8])
def test_equation_3(step):
    schedule = WarmupInverseSquareRoot.from_hidden_dim(512, warmup_steps=4000)
    assert rate(schedule, step) == pytest.approx(paper(step + 1, 512, 4000), rel=1e-6)


def test_scale_is_a_factor():
    schedule = WarmupInverseSquareRoot.from_hidden_dim(37, warmup_steps=11, scale=3.0)
    assert rate(schedule, 6) == pytest.approx(3 * paper(7, 37, 11), rel=1e-6)


def test_no_warmup_starts_at_the_peak():
    schedule = WarmupInverseSquareRoot(0.3, warmup_steps=1)
    assert rate(schedule, 0) == pytest.approx(0.3, rel=1e-6)


def test_last_integer_step_does_not_overflow():
    schedule = WarmupInverseSquareRoot(1.0, warmup_steps=4000)
    expected = math.sqrt(4000 / 2**31)
    last = keras.ops.convert_to_tensor(2**31 - 1, dtype="int32")
    assert rate(schedule, last) == pytest.approx(expected, rel=1e-6)


def test_many_steps_in_one_call_in_float32():
    schedule = WarmupInverseSquareRoot.from_hidden_dim(13, warmup_steps=7)
    rates = schedule(np.arange(23))
    assert keras.backend.standardize_dtype(rates.dtype) == "float32"
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(rates),
        [paper(update, 13, 7) for update in range(1, 24)],
        rtol=1e-6,
    )


def test_cooldown_by_hand():
    schedule = WarmupInverseSquareRoot(2.0, 4, total_steps=16, cooldown_steps=3)
    plain = WarmupInverseSquareRoot(2.0, 4)
    factors = [rate(schedule, step) / rate(plain, step) for step in range(18)]
    assert factors == pytest.approx([1.0] * 13 + [0.75, 0.5, 0.25, 0.25, 0.25])


def test_cooldown_from_the_first_update():
    schedule = WarmupInverseSquareRoot(1.0, 1, total_steps=2, cooldown_steps=2)
    expected = [2 / 3, math.sqrt(1 / 2) / 3]
    assert [rate(schedule, step) for step in (0, 1)] == pytest.approx(expected)


@pytest.mark.once("torch")
@pytest.mark.parametrize("total, cooldown", [(None, 1), (5, 6), (5, -1), (5, 0.5)])
def test_invalid_cooldown(total, cooldown):
    message = f"`cooldown_steps` must be .* received `cooldown_steps={cooldown}`"
    with pytest.raises(ValueError, match=message):
        WarmupInverseSquareRoot(1.0, 1, total_steps=total, cooldown_steps=cooldown)


@pytest.mark.parametrize("accumulation", [None, 3])
def test_each_update_of_an_optimizer_has_the_rate_of_its_number(accumulation):
    """With a constant gradient of 1, SGD subtracts the learning rate from a weight."""
    steps = accumulation or 1
    schedule = WarmupInverseSquareRoot(0.5, 2, gradient_accumulation_steps=steps)
    optimizer = keras.optimizers.SGD(schedule, gradient_accumulation_steps=accumulation)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile(optimizer, loss=lambda y_true, y_pred: y_pred)
    weights = [model.get_weights()[0].item()]
    for _ in range(5 * steps):
        model.train_on_batch(np.ones((1, 1)), np.ones((1, 1)))
        weights.append(model.get_weights()[0].item())
    moves = -np.diff(weights).reshape(5, steps)
    assert not moves[:, :-1].any()
    expected = [0.5 * min(n / 2, math.sqrt(2 / n)) for n in range(1, 6)]
    np.testing.assert_allclose(moves[:, -1], expected, atol=1e-6)


def test_serialises():
    schedule = WarmupInverseSquareRoot(0.02, 17, 5, total_steps=9, cooldown_steps=3)
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(schedule)))
    assert config["registered_name"] == "keras_transformer>WarmupInverseSquareRoot"
    copy = keras.saving.deserialize_keras_object(config)
    assert copy.get_config() == schedule.get_config()
    assert rate(copy, 41) == rate(schedule, 41)


@pytest.mark.once("torch")
@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan, "1e-3"])
def test_peak_learning_rate_is_checked(value):
    with pytest.raises(ValueError, match="`peak_learning_rate` must be a finite numb"):
        WarmupInverseSquareRoot(value)


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    "argument", ["hidden_dim", "warmup_steps", "gradient_accumulation_steps"]
)
@pytest.mark.parametrize("value", [0, -3, 2.5])
def test_counts_are_checked(argument, value):
    arguments = {"hidden_dim": 512, argument: value}
    message = rf"`{argument}` must be an int of at least 1; .*`{argument}={value}`"
    with pytest.raises(ValueError, match=message):
        WarmupInverseSquareRoot.from_hidden_dim(**arguments)


@pytest.mark.once("torch")
def test_scale_is_checked():
    with pytest.raises(ValueError, match="`scale` must be .* received `scale=0`"):
        WarmupInverseSquareRoot.from_hidden_dim(512, scale=0)


# Cosine, linear and constant.


def cosine_rate(n, peak, warmup, total):
    """The rate of update `n` of 1, 2, …, as a wave from the end of the warm-up."""
    if n <= warmup:
        return peak * n / warmup
    n = min(n, total)
    return peak * math.cos(math.pi / 2 * (n - warmup) / (total + 1 - warmup)) ** 2


def linear_rate(n, peak, warmup, total):
    """The same, on the line from the peak to 0 after the last update."""
    rates = np.interp(n, [0, warmup, total + 1], [0.0, peak, 0.0])
    return max(rates, peak / (total + 1 - warmup) if n > warmup else 0)


def constant_rate(n, peak, warmup, total):
    return peak * min(1.0, n / warmup)


@pytest.mark.parametrize(
    ("decay", "expected"),
    [("cosine", cosine_rate), ("linear", linear_rate), ("constant", constant_rate)],
)
@pytest.mark.parametrize(("warmup", "total"), [(5, 23), (1, 3), (1, 1), (7, 7)])
def test_decays(decay, expected, warmup, total):
    schedule = WarmupDecay(0.3, warmup, decay, total_steps=total)
    steps = np.arange(total + 3)
    rates = keras.ops.convert_to_numpy(schedule(keras.ops.convert_to_tensor(steps)))
    wanted = [expected(n, 0.3, warmup, total) for n in steps + 1]
    np.testing.assert_allclose(rates, wanted, rtol=2e-6)
    assert rates.min() > 0 and rates[warmup - 1] == np.float32(0.3)


def test_decays_by_hand():
    cosine = WarmupDecay(1.0, 2, "cosine", total_steps=5)
    expected = [0.5, 1.0, 0.853553, 0.5, 0.146447, 0.146447]
    assert [rate(cosine, step) for step in range(6)] == pytest.approx(expected, 1e-5)
    linear = WarmupDecay(1.0, 2, "linear", total_steps=5)
    expected = [0.5, 1.0, 0.75, 0.5, 0.25, 0.25]
    assert [rate(linear, step) for step in range(6)] == pytest.approx(expected, 1e-6)
    cooled = WarmupDecay(1.0, 2, "constant", total_steps=5, cooldown_steps=2)
    expected = [0.5, 1.0, 1.0, 2 / 3, 1 / 3, 1 / 3]
    assert [rate(cooled, step) for step in range(6)] == pytest.approx(expected, 1e-6)


def test_a_warmup_that_is_longer_than_the_run():
    schedule = WarmupDecay(1.0, 9, "cosine", total_steps=4)
    assert [rate(schedule, step) for step in (0, 3, 8, 99)] == pytest.approx(
        [1 / 9, 4 / 9, 1.0, 1.0], 1e-6
    )


def test_a_decay_counts_updates_not_batches():
    batches = WarmupDecay(
        1.0, 2, "linear", gradient_accumulation_steps=3, total_steps=5
    )
    updates = WarmupDecay(1.0, 2, "linear", total_steps=5)
    assert [rate(batches, step) for step in range(15)] == [
        rate(updates, step // 3) for step in range(15)
    ]


def test_a_decay_serialises():
    schedule = WarmupDecay(0.02, 3, "constant", 5, total_steps=9, cooldown_steps=3)
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(schedule)))
    copy = keras.saving.deserialize_keras_object(config)
    assert isinstance(copy, WarmupDecay)
    assert copy.get_config() == schedule.get_config()
    assert [rate(copy, n) for n in (1, 41)] == [rate(schedule, n) for n in (1, 41)]


@pytest.mark.once("torch")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decay": "cosin", "total_steps": 5}, "`decay` must be 'cosine', 'linear' or"),
        ({"decay": "linear"}, "`decay='linear'` must have `total_steps`, where the"),
        (
            {"decay": "cosine", "total_steps": 5, "cooldown_steps": 2},
            "no cool-down; received `total_steps=5`, `cooldown_steps=2`",
        ),
        (
            {"decay": "constant", "cooldown_steps": 2},
            "`cooldown_steps` must be at most",
        ),
    ],
)
def test_invalid_decays(options, message):
    with pytest.raises(ValueError, match=message):
        WarmupDecay(1.0, **options)
