"""Each scheme learns what can not be told without order: the token before."""

import keras
import numpy as np
import pytest

from keras_transformer.layers import (
    AlibiBias,
    DecoderBlock,
    LearnedPositionalEncoding,
    PositionalEncoding,
    RelativePositionBias,
    RotaryEmbedding,
)

pytestmark = [pytest.mark.slow, pytest.mark.once("torch")]

VOCABULARY_SIZE, LENGTH, HIDDEN_DIM, STEPS, BATCH = 7, 11, 32, 100, 61
SCHEMES = {
    "none": None,
    "sinusoidal": PositionalEncoding(),
    "learned": LearnedPositionalEncoding(max_length=LENGTH),
    "rotary": RotaryEmbedding(),
    "alibi": AlibiBias(max_bias=1),
    "relative": RelativePositionBias(num_buckets=8, max_distance=5),
}


def language_model(inputs, scheme):
    """One block; its logits say which token stood before each one."""
    x = keras.layers.Embedding(VOCABULARY_SIZE, HIDDEN_DIM)(inputs)
    x = DecoderBlock(2 * HIDDEN_DIM, 4, normalize_first=True, positions=scheme)(x)
    return keras.layers.Dense(VOCABULARY_SIZE)(x[:, 1:])


@pytest.fixture(scope="module")
def accuracies():
    """Of new sequences; all models are trained at once, each by itself."""
    keras.utils.set_random_seed(7)
    rng = np.random.default_rng(5)
    inputs = keras.Input((LENGTH,), dtype="int32")
    outputs = {name: language_model(inputs, SCHEMES[name]) for name in SCHEMES}
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        optimizer=keras.optimizers.Adam(1e-2),
        loss=dict.fromkeys(SCHEMES, loss),
        jit_compile=False,
    )
    tokens = rng.integers(0, VOCABULARY_SIZE, (STEPS * BATCH, LENGTH))
    model.fit(
        tokens,
        dict.fromkeys(SCHEMES, tokens[:, :-1]),
        batch_size=BATCH,
        shuffle=False,
        verbose=0,
    )
    new = rng.integers(0, VOCABULARY_SIZE, (BATCH, LENGTH))
    logits = model.predict(new, batch_size=BATCH, verbose=0)
    before = new[:, :-1]
    return {name: (x.argmax(-1) == before).mean() for name, x in logits.items()}


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name != "none"])
def test_with_positions(scheme, accuracies):
    assert accuracies[scheme] > 0.97


def test_without_positions(accuracies):
    assert accuracies["none"] < 0.6
