"""A small training, for comparisons of one device with several."""

import keras
import numpy as np

import keras_transformer as kt

ROWS = 12
SIZES = {"hidden_dim": 8, "intermediate_dim": 12, "vocabulary_size": 12}


class BatchLogs(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.logs = []

    def on_train_batch_end(self, batch, logs=None):
        self.logs.append([float(value) for value in logs.values()])


def examples(rows=ROWS):
    """Rows of very different lengths; the first device gets most of the tokens."""
    rng = np.random.default_rng(0)
    ids = rng.integers(4, 12, (rows, 5)).astype("int32")
    targets = rng.integers(4, 12, (rows, 6)).astype("int32")
    targets[np.arange(rows) % 8 >= 4, 1:] = 0
    return {"encoder_token_ids": ids, "decoder_token_ids": targets}, targets


def build(
    kind=kt.Seq2Seq,
    num_heads=4,
    optimizer=None,
    loss=None,
    dropout=0.3,
    further_metrics=(),
    **options,
):
    keras.utils.set_random_seed(3)
    model = kind(num_layers=1, num_heads=num_heads, dropout=dropout, **SIZES)
    model.compile(
        keras.optimizers.SGD(0.5, momentum=0.9) if optimizer is None else optimizer,
        kt.LabelSmoothedCrossEntropy(0.1) if loss is None else loss,
        metrics=[
            *(kt.Perplexity(), kt.MaskedTokenAccuracy()),
            *(metric() for metric in further_metrics),
        ],
        **options,
    )
    return model


def fit(model, rows=ROWS, **options):
    """Rows that four devices do not divide: batches of 7 and 5, validation of 5."""
    logs = BatchLogs()
    callbacks = [logs, *options.pop("callbacks", ())]
    options = {"shuffle": False, "verbose": 0, "validation_data": examples(5)} | options
    history = model.fit(*examples(rows), batch_size=7, callbacks=callbacks, **options)
    return logs.logs, {name: values[-1] for name, values in history.history.items()}


def difference(one, several):
    """The greatest relative difference of the logs of batches and of the last epoch."""
    (batches, epoch), (other_batches, other_epoch) = one, several
    assert epoch.keys() == other_epoch.keys()
    values = [*np.ravel(batches), *epoch.values()]
    others = [*np.ravel(other_batches), *(other_epoch[name] for name in epoch)]
    scale = np.maximum(np.abs(values), 1e-3)
    return float((np.abs(np.subtract(values, others)) / scale).max())


def error(function, *args, **options):
    try:
        function(*args, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
