"""A small model and its data, for tests that train several times."""

import keras
import numpy as np

from keras_transformer import (
    CharacterTokenizer,
    LabelSmoothedCrossEntropy,
    Perplexity,
    WarmupInverseSquareRoot,
    parallel_dataset,
)

EPOCHS, BATCHES = 3, 7
ROWS, LENGTH = 5, 4
LETTERS = "abcdefgx"


def make_data():
    """Returns reversed words, in batches of one shape. Only one word has an x."""
    rng = np.random.default_rng(11)
    letters = rng.choice(list(LETTERS[:-1]), (BATCHES * ROWS, LENGTH - 1))
    words = ["".join(word) for word in letters]
    words[17] = "x" + words[17][1:]
    tokenizer = CharacterTokenizer.train(lines=[LETTERS])
    return parallel_dataset(
        pairs=[(word, word[::-1]) for word in words],
        source_tokenizer=tokenizer,
        target_tokenizer=tokenizer,
        tokens_per_batch=ROWS * LENGTH,
    )


def make_model(optimizer=None, loss=None):
    """Returns a compiled sequence-to-sequence model without attention."""
    source = keras.Input((None,), dtype="int32", name="encoder_token_ids")
    target = keras.Input((None,), dtype="int32", name="decoder_token_ids")
    embed = keras.layers.Embedding(4 + len(LETTERS), 6)
    pooled = keras.layers.GlobalAveragePooling1D(keepdims=True)(embed(source))
    x = keras.layers.Dropout(0.3)(keras.layers.Add()([embed(target), pooled]))
    logits = keras.layers.Dense(4 + len(LETTERS))(x)
    model = keras.Model([source, target], logits)
    schedule = WarmupInverseSquareRoot(3e-2, 5)
    model.compile(
        optimizer=optimizer or keras.optimizers.Adam(schedule, beta_2=0.98),
        loss=loss or LabelSmoothedCrossEntropy(),
        metrics=[Perplexity()],
    )
    return model


class LossLog(keras.callbacks.Callback):
    """Stores loss and perplexity of each batch, by epoch and batch from 0."""

    def __init__(self):
        super().__init__()
        self.logs = {}

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        batch += self.params.get("first_batch", 0)
        self.logs[self.epoch, batch] = logs["loss"], logs["perplexity"]
