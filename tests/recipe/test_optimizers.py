"""The optimizers and schedules of a run against references in NumPy."""

import keras
import numpy as np
import pytest

from keras_transformer import CausalLM, LabelSmoothedCrossEntropy, Seq2Seq
from keras_transformer.layers import (
    LearnedPositionalEncoding,
    RelativePositionBias,
    RotaryEmbedding,
)
from keras_transformer.recipe.optimizers import (
    describe_weight_decay,
    make_optimizer,
    make_schedule,
)
from keras_transformer_runtime.runs.option_checks import OPTIMIZERS
from keras_transformer_runtime.runs.recipe import PlannedRecipe

SIZES = {"num_layers": 1, "hidden_dim": 12, "intermediate_dim": 14, "num_heads": 3}
RATE = 0.125


def planned(**options):
    values = {
        **{"train": ["a.tsv"], "valid": 0.1, "output": "runs/a", "metric": "bleu"},
        **{"epochs": 8, "dropout": 0.1, "tokens_per_batch": 64, "learning_rate": RATE},
        **{"warmup_steps": 1, "cooldown": 0, "average": 1, "save_every": 5},
    }
    return PlannedRecipe.of({**values, **options})


@pytest.fixture(scope="module")
def models():
    """Models whose weights have all names and shapes that those of runs have."""
    return [
        Seq2Seq(
            **SIZES,
            source_vocabulary_size=17,
            target_vocabulary_size=19,
            positions=RelativePositionBias(),
            tie_embeddings="none",
        ),
        CausalLM(
            **SIZES,
            vocabulary_size=17,
            positions=RotaryEmbedding(),
            attention_options={"use_bias": False},
            feed_forward_options={"gated": True, "use_bias": False},
            residual_options={"normalization": "rms"},
        ),
        CausalLM(**SIZES, vocabulary_size=17, positions=LearnedPositionalEncoding(9)),
    ]


def updates(optimizer, weights, gradients):
    """Returns the differences of weights after one update; the weights are restored."""
    before = [keras.ops.convert_to_numpy(weight) for weight in weights]
    tensors = [keras.ops.convert_to_tensor(each) for each in gradients]
    if keras.backend.backend() == "torch":
        import torch

        with torch.no_grad():
            optimizer.apply(tensors, weights)
    else:
        optimizer.apply(tensors, weights)
    after = [keras.ops.convert_to_numpy(weight).copy() for weight in weights]
    for weight, value in zip(weights, before, strict=True):
        weight.assign(value)
    return [b - a for a, b in zip(before, after, strict=True)], before


def gradients_of(weights, seed=3):
    """Returns gradients that are far from 0, where `epsilon` would matter."""
    rng = np.random.default_rng(seed)
    drawn = [rng.normal(size=weight.shape) for weight in weights]
    return [(each + 0.1 * np.sign(each)).astype("float32") for each in drawn]


# Schedules.


def rates(count, batches=5, **options):
    schedule = make_schedule(planned(**options), batches)
    steps = keras.ops.convert_to_tensor(np.arange(count))
    return keras.ops.convert_to_numpy(schedule(steps))


def test_the_default_is_adam_with_the_inverse_square_root():
    optimizer = make_optimizer(planned(), make_schedule(planned(), 5))
    config = optimizer.get_config()
    assert config["name"] == "adam" and config["amsgrad"] is False
    numbers = {n: config[n] for n in ("beta_1", "beta_2", "epsilon")}
    assert numbers == {"beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-9}
    off = ("weight_decay", "clipnorm", "clipvalue", "global_clipnorm")
    assert [config[name] for name in off] == [None] * 4 and not config["use_ema"]
    n = np.arange(1, 41)
    expected = 0.2 * np.minimum(n / 7, np.sqrt(7 / n))
    expected *= np.where(n > 30, (41 - n) / 11, 1)  # the last two of 8 epochs
    found = rates(40, learning_rate=0.2, warmup_steps=7, cooldown=2)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_cosine_and_linear_end_with_the_run():
    n = np.arange(1, 41)
    done = np.clip((n - 7) / 34, 0, 1)
    rising = np.minimum(n / 7, 1)
    for name, decay in {
        "cosine": np.cos(np.pi * done / 2) ** 2,
        "linear": 1 - done,
    }.items():
        found = rates(40, warmup_steps=7, schedule=name)
        np.testing.assert_allclose(found, RATE * np.minimum(rising, decay), atol=1e-8)


def test_a_number_of_steps_ends_schedules_within_an_epoch():
    """36 steps are 7 epochs of 5 batches, and one batch of the eighth."""
    found = rates(36, warmup_steps=1, steps=36, schedule="linear")
    np.testing.assert_allclose(found, RATE * np.arange(36, 0, -1) / 36, rtol=1e-6)
    found = rates(36, steps=36, schedule="constant", cooldown=2)
    expected = [RATE] * 30 + [RATE * left / 7 for left in range(6, 0, -1)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


# Weight decay.


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_matrices_decay_and_other_weights_do_not(name, models):
    recipe = planned(optimizer=name, weight_decay=0.5)
    for model in models:
        weights = model.trainable_weights
        zeros = [np.zeros(weight.shape, "float32") for weight in weights]
        found, before = updates(make_optimizer(recipe, RATE), weights, zeros)
        counts = {"kernel": 0, "": 0}
        for weight, update, value in zip(weights, found, before, strict=True):
            kind = "kernel" if weight.path.endswith("/kernel") else ""
            counts[kind] += value.size
            decayed = -RATE * 0.5 * value if kind else 0 * value
            np.testing.assert_allclose(update, decayed, atol=1e-6, err_msg=weight.path)
        assert describe_weight_decay(model) == (
            f"of {counts['kernel']:,} parameters, not of {counts['']:,} in embeddings, "
            "biases and normalizations"
        )


# Updates with moments.


def adam_updates(gradients):
    m = v = 0.0
    for n, g in enumerate(gradients, start=1):
        m, v = 0.9 * m + 0.1 * g, 0.98 * v + 0.02 * g**2
        yield -RATE * m / (1 - 0.9**n) / np.sqrt(v / (1 - 0.98**n))


def lion_updates(gradients):
    m = 0.0
    for g in gradients:
        yield -RATE * np.sign(0.9 * m + 0.1 * g)
        m = 0.99 * m + 0.01 * g


def sgd_updates(gradients):
    momentum = 0.0
    for g in gradients:
        momentum = 0.9 * momentum - RATE * g
        yield 0.9 * momentum - RATE * g


def sgd(g):
    return next(sgd_updates([g]))


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("adam", adam_updates),
        ("adamw", adam_updates),
        ("lion", lion_updates),
        ("sgd", sgd_updates),
    ],
)
def test_three_updates(name, reference, models):
    weights = models[1].trainable_weights
    gradients = [gradients_of(weights, seed) for seed in range(3)]
    optimizer = make_optimizer(planned(optimizer=name, weight_decay=0.0), RATE)
    found = [updates(optimizer, weights, each)[0] for each in gradients]
    for index in range(len(weights)):
        expected = reference([each[index].astype("float64") for each in gradients])
        for each, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(each[index], wanted, atol=2e-6)


def test_adafactor_changes_weights_in_proportion_to_their_size(models):
    weights = models[1].trainable_weights
    gradients = gradients_of(weights)
    optimizer = make_optimizer(planned(optimizer="adafactor"), RATE)
    found, before = updates(optimizer, weights, gradients)
    for weight, update, value, g in zip(weights, found, before, gradients, strict=True):
        if g.ndim == 2:
            squares = g**2
            rows, columns = squares.mean(1, keepdims=True), squares.mean(0)
            u = g / np.sqrt(rows * columns / rows.mean())
            u /= max(1, np.sqrt((u**2).mean()))
            size = max(1e-3, np.sqrt((value**2).mean()))
            np.testing.assert_allclose(
                update, -RATE * size * u, rtol=1e-3, atol=1e-6, err_msg=weight.path
            )


def newton_schulz(g):
    """Moves the singular values of a matrix near to 1, five times."""
    u, s, v = np.linalg.svd(g.astype("float64"), full_matrices=False)
    s /= np.linalg.norm(s)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return u @ np.diag(s) @ v


def test_muon_updates_the_matrices_of_the_feed_forward_networks(models):
    """All others have the first update of Adam."""
    recipe = planned(optimizer="muon", weight_decay=0.0)
    for model in models:
        weights = model.trainable_weights
        gradients = gradients_of(weights)
        found, _ = updates(make_optimizer(recipe, RATE), weights, gradients)
        by_muon = 0
        for weight, update, g in zip(weights, found, gradients, strict=True):
            if "feed_forward/" in weight.path and weight.path.endswith("/kernel"):
                by_muon += 1
                scale = -RATE * 0.2 * np.sqrt(max(g.shape))
                expected, atol = scale * newton_schulz(g), 2e-4
            else:
                expected, atol = next(adam_updates([g])), 1e-6
            np.testing.assert_allclose(update, expected, atol=atol, err_msg=weight.path)
        assert by_muon in (2, 3, 4)


@pytest.mark.parametrize("norm", [0.5, 1e6])
def test_the_norm_of_all_gradients_together_is_limited(norm, models):
    weights = models[1].trainable_weights
    gradients = gradients_of(weights)
    optimizer = make_optimizer(planned(optimizer="sgd", clip_norm=norm), RATE)
    found, _ = updates(optimizer, weights, gradients)
    total = np.sqrt(sum((g.astype("float64") ** 2).sum() for g in gradients))
    for update, gradient in zip(found, gradients, strict=True):
        expected = sgd(gradient) * min(1, norm / total)
        np.testing.assert_allclose(update, expected, atol=1e-6)


# In a model.


@pytest.mark.parametrize(
    ("name", "dtype", "micro_batches"),
    [
        ("adamw", "mixed_float16", 1),
        ("lion", "mixed_bfloat16", 2),
        ("muon", "float32", 2),
        ("adafactor", "float32", 1),
        ("sgd", "mixed_float16", 2),
    ],
)
def test_each_optimizer_trains_a_compiled_model(name, dtype, micro_batches):
    keras.utils.set_random_seed(3)
    model = CausalLM(**SIZES, vocabulary_size=17, dtype=dtype, dropout=0.0)
    recipe = planned(optimizer=name, weight_decay=0.1, clip_norm=1.0, schedule="cosine")
    model.compile(
        make_optimizer(recipe, make_schedule(recipe, 2)),
        LabelSmoothedCrossEntropy(0.0),
        micro_batches=micro_batches,
    )
    ids = np.array([[2, 5, 7, 11, 13], [2, 6, 6, 3, 0]])
    x, y = ids[:, :-1], ids[:, 1:]
    losses = [float(model.train_on_batch(x, y)) for _ in range(3)]
    assert np.isfinite(losses).all() and losses[-1] != losses[0]
