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
from keras_transformer.training import TokenTrainer

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


class SmallTrainer(TokenTrainer):
    """A model of this library, whose `fit` gives its callbacks to `Checkpoints`."""

    pad_token_id = 0

    def __init__(self, network):
        super().__init__()
        self.network = network

    def call(self, inputs, training=None):
        return self.network(inputs, training=training)


def make_network():
    """Returns a sequence-to-sequence model of Keras, without attention."""
    source = keras.Input((None,), dtype="int32", name="encoder_token_ids")
    target = keras.Input((None,), dtype="int32", name="decoder_token_ids")
    embed = keras.layers.Embedding(4 + len(LETTERS), 6)
    pooled = keras.layers.GlobalAveragePooling1D(keepdims=True)(embed(source))
    x = keras.layers.Dropout(0.3)(keras.layers.Add()([embed(target), pooled]))
    logits = keras.layers.Dense(4 + len(LETTERS))(x)
    inputs = {"encoder_token_ids": source, "decoder_token_ids": target}
    return keras.Model(inputs, logits)


def make_model(optimizer=None, loss=None):
    """Returns a compiled and built `SmallTrainer`."""
    model = SmallTrainer(make_network())
    model({name: np.zeros((1, 2), "int32") for name in model.network.input})
    return compile_model(model, optimizer, loss)


def compile_model(model, optimizer=None, loss=None):
    """Compiles a model, and returns it."""
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
