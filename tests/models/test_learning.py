import itertools

import keras
import numpy as np
import pytest

from keras_transformer import (
    BeamSearch,
    LabelSmoothedCrossEntropy,
    MaskedTokenAccuracy,
    Seq2Seq,
)
from keras_transformer.layers import LocalWindow, RotaryEmbedding

START, END, SYMBOLS, LONGEST = 2, 3, range(4, 9), 3
WORDS = [
    list(word)
    for length in range(1, LONGEST + 1)
    for word in itertools.product(SYMBOLS, repeat=length)
]
BATCH_SIZE = 31  # a fifth of them
SEARCH = BeamSearch(2)


def padded(rows):
    return np.array([row + [0] * (LONGEST + 1 - len(row)) for row in rows])


INPUTS = {
    "encoder_token_ids": padded([word + [END] for word in WORDS]),
    "decoder_token_ids": padded([[START] + word[::-1] for word in WORDS]),
}
TARGETS = padded([word[::-1] + [END] for word in WORDS])


class CountingSeq2Seq(Seq2Seq):
    """Counts how often its search is called, that is traced but under PyTorch."""

    searches = 0

    def search(self, *arguments, **options):
        self.searches += 1
        return super().search(*arguments, **options)


@pytest.fixture
def model():
    return CountingSeq2Seq(
        num_layers=1,
        hidden_dim=32,
        intermediate_dim=64,
        num_heads=4,
        vocabulary_size=9,
        dropout=0.0,
        max_target_length=LONGEST + 1,
        positions=RotaryEmbedding(),
        attention_options={"num_key_value_heads": 2, "pattern": LocalWindow(3)},
        feed_forward_options={"gated": True, "use_bias": False},
        residual_options={"normalization": "rms"},
        activation="silu",
    )


@pytest.mark.slow
def test_learns_to_reverse_and_generates_with_the_current_weights(model, tmp_path):
    def generate():
        return model.generate(INPUTS["encoder_token_ids"], SEARCH).token_ids[:, 0]

    first, first_weights = generate(), model.get_weights()
    calls = model.searches
    epochs, steps = 50, len(WORDS) // BATCH_SIZE
    model.compile(
        optimizer=keras.optimizers.Adam(
            keras.optimizers.schedules.CosineDecay(1e-2, epochs * steps)
        ),
        loss=LabelSmoothedCrossEntropy(),
        weighted_metrics=[MaskedTokenAccuracy()],
    )
    model.fit(INPUTS, TARGETS, batch_size=BATCH_SIZE, epochs=epochs, verbose=0)
    np.testing.assert_array_equal(generate(), TARGETS)
    model.save_weights(tmp_path / "trained.weights.h5")
    model.set_weights(first_weights)
    np.testing.assert_array_equal(generate(), first)
    model.load_weights(tmp_path / "trained.weights.h5")
    np.testing.assert_array_equal(generate(), TARGETS)
    if keras.backend.backend() != "torch":  # which runs it eagerly every time
        assert model.searches == calls
