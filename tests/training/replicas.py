"""Trains on two replicas of TensorFlow and on one device; prints figures as JSON.

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
from device_runs import error
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


def build(devices, kind=kt.Seq2Seq, optimizer=None, metrics=(), **options):
    with kt.distribute(devices) if devices > 1 else contextlib.nullcontext():
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
            kt.LabelSmoothedCrossEntropy(0.1),
            metrics=[metric() for metric in metrics],
            jit_compile=False,
            **options,
        )
    return model


def train(devices, data, **options):
    model = build(devices, **options)
    logs = BatchLogs()
    history = fit(model, data, callbacks=[logs])
    return model, logs.logs + [v for values in history.values() for v in values]


def fit(model, data, **options):
    options = {"batch_size": 8, "shuffle": False, "verbose": 0, **options}
    x, y, *weights = data
    if weights:
        options["sample_weight"] = weights[0]
    return model.fit(x, y, **options).history


def difference(name, one, two):
    """The greatest differences of weights and of the logs of batches and epochs."""
    weights = zip(one[0].get_weights(), two[0].get_weights(), strict=True)
    moved = max(float(np.abs(a - b).max()) for a, b in weights)
    logs = float(np.abs(np.subtract(one[1], two[1])).max())
    return {name: [moved, logs]}


def compare(name, data, **options):
    one, two = (train(devices, data, **options) for devices in (1, 2))
    return difference(name, one, two), one, two


def resume(data):
    """A run that continues after its first epoch against one that is resumed there."""
    # Less to trace than Adam; its state is the momentum.
    sgd = {"optimizer": lambda: keras.optimizers.SGD(0.1, momentum=0.9)}
    whole, model = build(2, **sgd), build(2, **sgd)
    model.set_weights([weight + 1 for weight in model.get_weights()])
    with tempfile.TemporaryDirectory() as folder:
        fit(whole, data, callbacks=[kt.Checkpoints(folder)])
        fit(whole, data, epochs=2, initial_epoch=1)
        fit(model, data, epochs=2, callbacks=[kt.Checkpoints(folder)])
    steps = model.optimizer.iterations
    return {
        "resumed": max(
            float(np.abs(a - b).max())
            for a, b in zip(whole.get_weights(), model.get_weights(), strict=True)
        ),
        "resumed_steps": int(ops.convert_to_numpy(steps)),
    }


def uneven_batches():
    """A dataset of batches of 7, 1 and 4 rows."""
    inputs, targets = examples(12)

    def batches():
        for start, end in ((0, 7), (7, 8), (8, 12)):
            rows = {name: ids[start:end] for name, ids in inputs.items()}
            yield rows, targets[start:end]

    ids = tf.TensorSpec((None, None), tf.int32)
    signature = {name: ids for name in inputs}, ids
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    return dataset.apply(tf.data.experimental.assert_cardinality(3))


def train_on_uneven_batches(devices, **options):
    model, logs = build(devices, **options), BatchLogs()
    data = {"x": uneven_batches(), "validation_data": uneven_batches()}
    found = model.fit(**data, shuffle=False, verbose=0, callbacks=[logs]).history
    return model, logs.logs + [value for each in found.values() for value in each]


def errors():
    outside, data = build(1), examples(8)
    within = build(2)
    found = {"devices": error(kt.distribute(5).__enter__)}
    with kt.distribute(2) as names:
        assert len(names) == 2
        found["model"] = error(fit, outside, data)
        optimizer = outside.optimizer
        found["optimizer"] = error(build, 2, optimizer=lambda: optimizer)
        found["batch_size"] = error(fit, within, data, batch_size=3)
        found["model_parallel"] = error(kt.distribute(2, 2).__enter__)
    few = examples(5)
    metric = keras.metrics.SparseCategoricalAccuracy
    other = build(2, metrics=[metric])
    found["few_rows"] = error(within.evaluate, *few, verbose=0)
    found["first_batch"] = error(other.fit, uneven_batches(), verbose=0)
    options = {"gradient_accumulation_steps": 2}
    accumulating = build(2, optimizer=lambda: keras.optimizers.SGD(0.5, **options))
    found["accumulation"] = error(fit, accumulating, data)
    found["cleared"] = error(cleared)
    return found


def cleared():
    with kt.distribute(2):
        keras.utils.clear_session(free_memory=False)
        build(1)


def main():
    tf.config.set_logical_device_configuration(CPU, DEVICES)
    data = examples()
    found = {}
    metrics = {"metrics": [kt.Perplexity, kt.MaskedTokenAccuracy]}
    weighted, one, two = compare("loss", data, **metrics)
    found |= weighted
    found["evaluate"] = [
        model.evaluate(*data, batch_size=8, verbose=0) for model, _ in (one, two)
    ]
    one, two = (train_on_uneven_batches(devices, **metrics) for devices in (1, 2))
    found |= difference("uneven", one, two)
    options = {**metrics, "kind": Passes, "r_drop": 5.0, "micro_batches": 2}
    found |= compare("r_drop_micro_batches", data, **options)[0]
    # The second replica alone has an infinite weight in the second step.
    bad = *data, np.ones(data[1].shape, "float32")
    bad[2][15, 0] = np.inf
    skip = {"optimizer": lambda: kt.SkipNonFinite(keras.optimizers.SGD(0.5))}
    skipped, one, two = compare("skip", bad, **skip)
    found["skip"] = skipped["skip"][0]
    found["steps"] = [
        int(ops.convert_to_numpy(m.optimizer.iterations)) for m, _ in (one, two)
    ]
    found |= resume(data)
    found["predicted"] = [len(m.predict_on_batch(data[0])) for m, _ in (one, two)]
    found["errors"] = errors()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
