"""Trains under `MirroredStrategy` and on one device; prints figures as JSON.

`test_distribution` runs it as a process: TensorFlow must not have started before the
number of logical devices is set.
"""

import contextlib
import json
import tempfile
import threading

import keras
import numpy as np
import tensorflow as tf
from keras import ops

import keras_transformer as kt

CPU = tf.config.list_physical_devices("CPU")[0]
DEVICES = [tf.config.LogicalDeviceConfiguration()] * 2
STEPS = 3


class Passes(kt.Seq2Seq):
    """A model whose second pass in a step has other logits, as with dropout."""

    passes = threading.local()

    def call(self, *args, training=None, **kwargs):
        logits = super().call(*args, training=training, **kwargs)
        if not training:
            return logits
        count = self.passes.count = getattr(self.passes, "count", 0) + 1
        return logits if count % 2 else 1.5 * logits


class BatchLogs(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.logs = []

    def on_train_batch_end(self, batch, logs=None):
        self.logs += [float(value) for value in logs.values()]


def examples(rows=8 * STEPS - 3):
    """Rows of very different lengths; the first replica gets most of the tokens."""
    rng = np.random.default_rng(0)
    ids = rng.integers(4, 11, (rows, 5)).astype("int32")
    targets = rng.integers(4, 11, (rows, 6)).astype("int32")
    targets[np.arange(rows) % 8 >= 4, 1:] = 0
    return {"encoder_token_ids": ids, "decoder_token_ids": targets}, targets


def build(strategy, kind=kt.Seq2Seq, optimizer=None, loss=None, **options):
    with strategy.scope() if strategy else contextlib.nullcontext():
        keras.utils.set_random_seed(3)
        model = kind(
            num_layers=1,
            hidden_dim=4,
            intermediate_dim=4,
            num_heads=1,
            vocabulary_size=11,
            dropout=0.0,
        )
        optimizer = keras.optimizers.SGD(0.5) if optimizer is None else optimizer()
        model.compile(
            optimizer,
            loss or kt.LabelSmoothedCrossEntropy(0.1),
            metrics=[kt.Perplexity(), kt.MaskedTokenAccuracy()],
            jit_compile=False,
            **options,
        )
    return model


def train(strategy, data, epochs=1, callbacks=(), **options):
    model = build(strategy, **options)
    logs = BatchLogs()
    history = model.fit(
        *data,
        batch_size=8,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=[logs, *callbacks],
    ).history
    return model, logs.logs + [v for values in history.values() for v in values]


def difference(name, one, two):
    """The greatest differences of weights and of the logs of batches and epochs."""
    weights = zip(one[0].get_weights(), two[0].get_weights(), strict=True)
    moved = max(float(np.abs(a - b).max()) for a, b in weights)
    logs = float(np.abs(np.subtract(one[1], two[1])).max())
    return {name: [moved, logs]}


def compare(name, strategy, data, **options):
    one, two = (train(each, data, **options) for each in (None, strategy))
    return difference(name, one, two), one, two


def resume(strategy, data):
    """An uninterrupted run against one that stops after its first epoch."""
    # Less to trace than Adam; its state is the momentum.
    sgd = {"optimizer": lambda: keras.optimizers.SGD(0.1, momentum=0.9)}
    whole = train(strategy, data, 2, **sgd)
    with tempfile.TemporaryDirectory() as folder:
        for epochs in (1, 2):
            model, _ = train(
                strategy, data, epochs, callbacks=[kt.Checkpoints(folder)], **sgd
            )
    steps = model.optimizer.iterations
    return {
        "resumed": max(
            float(np.abs(a - b).max())
            for a, b in zip(whole[0].get_weights(), model.get_weights(), strict=True)
        ),
        "resumed_steps": int(ops.convert_to_numpy(steps)),
    }


def first_epoch(strategy):
    """The epochs that `fit` and `evaluate` begin when they run once each."""
    begun = []

    def epoch():
        begun.append(len(begun))
        inputs, targets = examples(8)
        yield inputs, targets

    ids = tf.TensorSpec([8, None], tf.int32)
    inputs = {"encoder_token_ids": ids, "decoder_token_ids": ids}
    dataset = tf.data.Dataset.from_generator(epoch, output_signature=(inputs, ids))
    model = build(strategy)
    model.fit(dataset, epochs=1, verbose=0)
    model.evaluate(dataset, verbose=0)
    return {"epochs": len(begun)}


def error(function, *args, **kwargs):
    try:
        function(*args, **kwargs)
    except ValueError as error:
        return str(error)
    return ""


def main():
    tf.config.set_logical_device_configuration(CPU, DEVICES)
    mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    data = examples()
    found = {}
    weighted, one, two = compare("loss", mirrored, data)
    found |= weighted
    found["evaluate"] = [
        model.evaluate(*data, batch_size=8, verbose=0) for model, _ in (one, two)
    ]
    options = {"kind": Passes, "r_drop": 5.0, "micro_batches": 2}
    found |= compare("r_drop_micro_batches", mirrored, data, **options)[0]
    # The second replica alone has an id outside the vocabulary in the second step.
    bad = data[0], data[1].copy()
    bad[1][15, 0] = 999
    skip = {"optimizer": lambda: kt.SkipNonFinite(keras.optimizers.SGD(0.5))}
    skipped, one, two = compare("skip", mirrored, bad, **skip)
    found["skip"] = skipped["skip"][0]
    found["steps"] = [
        int(ops.convert_to_numpy(m.optimizer.iterations)) for m, _ in (one, two)
    ]
    found |= resume(mirrored, data)
    found |= first_epoch(mirrored)
    clipped = {"optimizer": lambda: keras.optimizers.SGD(0.5, global_clipnorm=1.0)}
    found["clipping"] = error(train, mirrored, data, **clipped)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
