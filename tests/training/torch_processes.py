"""Trains in two processes of PyTorch and in one; prints figures as JSON.

`test_torch_processes` runs it. Without arguments it starts the two processes with
`torchrun`, and prints the figures of both.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import keras
import numpy as np
import torch
from device_runs import build, difference, error, examples, fit
from torch import distributed

import keras_transformer as kt
from keras_transformer.backend.processes import fail_together, of_first_process
from keras_transformer.backend.torch_processes import own_masks

ADAM = {"optimizer": lambda: keras.optimizers.Adam(0.05, global_clipnorm=0.5)}
# Of `build`; the optimizer is made for each run.
CASES = {
    "plain": {},
    "clipped": ADAM,
    "micro_batches": {"micro_batches": 2},
    "compiled": {"kind": kt.CausalLM, "jit_compile": True, **ADAM},
    "keras_metric": {"further_metrics": [keras.metrics.SparseCategoricalAccuracy]},
}


class SendsSignal(keras.callbacks.Callback):
    """Sends SIGTERM to one of the processes in the second epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1 and distributed.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def model_of(optimizer=None, **options):
    keras.utils.clear_session(free_memory=False)
    options |= {"dropout": 0.0, "optimizer": optimizer() if optimizer else None}
    return build(**options)


def run(folder=None, epochs=1, kind=kt.Seq2Seq, **options):
    """Trains on batches of 7 and 5 rows, or on one; returns the logs and the model."""
    model = model_of(kind=kind, **options)
    callbacks = [kt.Checkpoints(folder)] if folder else []
    if kind is kt.Seq2Seq:
        logs = fit(model, epochs=epochs, callbacks=callbacks)
    else:
        ids = examples()[0]["decoder_token_ids"]
        found = [model.train_on_batch(ids[:7], ids[:7], return_dict=True)]
        logs = [[*map(float, found[0].values())]], {}
    return logs, model


def unequal_batches(rank):
    inputs, targets = examples(7)
    targets[-1] += rank * (targets[-1] > 0)
    build().fit(inputs, targets, verbose=0)


def other_loss(**options):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)
    build(loss=loss).fit(*examples(7), verbose=0)


def classifier():
    tokenizer = kt.WordTokenizer.train(lines=["a b"])
    sizes = {"hidden_dim": 8, "intermediate_dim": 8, "num_heads": 1}
    encoder = kt.TextEncoder(num_layers=1, **sizes, tokenizer=tokenizer, max_length=9)
    model = kt.TextClassifier(encoder, ["x", "y"])
    model.compile("sgd")
    model.fit(["a", "b"], ["x", "y"], verbose=0)


class KeepsLosses(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.losses = []

    def on_epoch_end(self, epoch, logs=None):
        self.losses.append(logs["val_loss"])


def val_losses(rank):
    """What callbacks get if the processes round differently."""
    model, own = model_of(), KeepsLosses()
    evaluate = model.evaluate

    def rounded(*args, **options):
        found = evaluate(*args, **options)
        return {name: value + 1e-3 * rank for name, value in found.items()}

    model.evaluate = rounded
    fit(model, 7, epochs=2, callbacks=[own])
    return own.losses


def write_presets(folder):
    """A method that writes several files, before and after a further `fit`."""
    model = model_of()
    fit(model, 7)
    model.save_to_preset(folder / "preset")
    fit(model, 7)
    model.save_to_preset(folder / "preset 2")


@fail_together
def fails_in_one(rank):
    if rank:
        raise OSError("a full disk")


def stopped(folder):
    """Only one process gets the signal; both stop before the first batch."""
    callbacks = [SendsSignal(), kt.Checkpoints(folder)]
    try:
        fit(model_of(), 7, epochs=4, callbacks=callbacks, validation_data=None)
    except SystemExit as stop:
        return stop.code, [path.name for path in folder.glob("epoch-*")]
    return None


def masks(rank):
    """What a seeded and a global generator draw in this process, and afterwards."""
    model = keras.Sequential([keras.layers.Dropout(0.5, seed=1)])
    model.build((1, 64))
    keras.utils.set_random_seed(5)
    ones = np.ones((1, 64), "float32")

    def draw():
        return torch.rand(4).tolist(), model(ones, training=True).tolist()

    with own_masks(model, rank):
        within = draw()
    return within, draw()


def main(folder):
    rank = int(os.environ["RANK"])
    with kt.distribute() as devices:
        found = {"devices": devices, "logs": {}, "equal": {}}
        for name, options in CASES.items():
            found["logs"][name], model = run(folder / name, **options)
            first = [of_first_process(w.ravel().tolist()) for w in model.get_weights()]
            weights = [w.ravel().tolist() for w in model.get_weights()]
            found["equal"][name] = first == weights
            if name == "plain":
                model.save(folder / "model.keras")
                found["ids"] = model.generate([[5, 6, 3]], None, 6).token_ids.tolist()
        found["resumed"], _ = run(folder / "one process", epochs=2)
        found["masks"] = masks(rank)
        found["val_losses"] = val_losses(rank)
        write_presets(folder)
        found["errors"] = {
            "unequal": error(unequal_batches, rank),
            "fails_in_one": error(fails_in_one, rank),
            "devices": error(kt.distribute(3).__enter__),
            "model_parallel": error(kt.distribute(2, 2).__enter__),
            "loss": error(other_loss),
            "weighted_loss": error(other_loss, reduction="mean_with_sample_weight"),
            "classifier": error(classifier),
            "folder": error(run, folder / f"of process {rank}", 2),
        }
        found["stopped"] = stopped(folder / "stopped")
    model.save_to_preset(folder / "after")  # The processes are still connected.
    (folder / f"{rank}.json").write_text(json.dumps(found))


def start():
    with tempfile.TemporaryDirectory() as name:
        print(json.dumps(compare(pathlib.Path(name))))


def compare(folder):
    """Compares runs of two processes with runs of this one."""
    (batches, epoch), _ = run(folder / "whole", epochs=2)
    first, _ = run(folder / "one process")
    run(folder / "of process 1")
    one = {name: run(**options)[0] for name, options in CASES.items()}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    subprocess.run(
        [*launcher, "--nproc-per-node", "2", __file__, str(folder)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    both = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    differences = {
        name: [difference(logs, each["logs"][name]) for each in both]
        for name, logs in one.items()
    }
    (then, then_epoch), _ = run(folder / "plain", epochs=2)
    resumed = [
        difference(
            (batches, epoch), (first[0] + each["resumed"][0], each["resumed"][1])
        )
        for each in both
    ]
    saved = keras.saving.load_model(folder / "model.keras")
    return {
        "differences": differences,
        "equal": [each["equal"] for each in both],
        "resumed by one": difference(
            (batches, epoch), (both[0]["logs"]["plain"][0] + then, then_epoch)
        ),
        "resumed by two": resumed,
        "files": sorted(each.name for each in (folder / "plain").glob("*.npz")),
        "ids": [each["ids"] for each in both]
        + [saved.generate([[5, 6, 3]], None, 6).token_ids.tolist()],
        "masks": [each["masks"] for each in both],
        "val_losses": [each["val_losses"] for each in both],
        "presets": sorted(each.parent.name for each in folder.glob("*/config.json")),
        "errors": [each["errors"] for each in both],
        "stopped": [each["stopped"] for each in both],
        "devices": [each["devices"] for each in both],
    }


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(pathlib.Path(sys.argv[1]))
    else:
        start()
