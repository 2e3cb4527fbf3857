"""Trains in two processes with two virtual devices each; prints figures as JSON.

`test_processes` runs it. Without arguments it starts the two processes, and prints the
figures of both.
"""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile

import jax
import keras
import numpy as np
from device_runs import build, difference, error, examples, fit

import keras_transformer as kt
from keras_transformer.backend.processes import fail_together

INPUTS = [[5, 6, 3], [7, 3]]


class SendsSignal(keras.callbacks.Callback):
    """Sends SIGTERM to one of the processes in the second epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1 and jax.process_index() == 1:
            os.kill(os.getpid(), signal.SIGTERM)


def decode(model):
    return model.generate(INPUTS, kt.BeamSearch(2), 6)


def run(folder, grid, epochs, **options):
    """Trains on a grid of all devices; returns figures and the ids that it decodes."""
    options = {"rows": 7, "validation_data": None, **options}
    keras.utils.clear_session(free_memory=False)
    with kt.distribute(*grid) if grid else contextlib.nullcontext():
        model = build()
        checkpoints = kt.Checkpoints(folder)
        found = fit(model, epochs=epochs, callbacks=[checkpoints], **options)
        within = decode(model)
    after = decode(model)
    assert within.token_ids.tolist() == after.token_ids.tolist()
    np.testing.assert_array_equal(within.scores, after.scores)
    return found, after.token_ids.tolist(), model


def unequal_batches(rank):
    inputs, targets = examples(7)
    targets[-1] += rank * (targets[-1] > 0)
    with kt.distribute():
        build().fit(inputs, targets, verbose=0)


@fail_together
def fails_in_one(rank):
    if rank:
        raise OSError("a full disk")


def stopped(folder):
    """Only one process gets the signal; both stop before the first batch."""
    with kt.distribute():
        callbacks = [SendsSignal(), kt.Checkpoints(folder)]
        try:
            fit(build(), 7, epochs=4, callbacks=callbacks, validation_data=None)
        except SystemExit as stop:
            return stop.code, [path.name for path in folder.glob("epoch-*")]
    return None


def main(rank, port, folder):
    folder = pathlib.Path(folder)
    jax.config.update("jax_num_cpu_devices", 2)
    keras.distribution.initialize(f"127.0.0.1:{port}", 2, rank)
    assert (jax.process_count(), len(jax.devices())) == (2, 4)
    found = {"runs": {}}
    for grid in ((4, 2), (4, 4)):
        name = f"model_parallel {grid[1]}"
        logs, ids, model = run(folder / name, grid, epochs=1)
        found["runs"][name] = logs, ids
        model.save(folder / f"{name}.keras")
    found["resumed"], *_ = run(folder / "one process", (4, 1), epochs=2)
    found["errors"] = {
        "unequal": error(unequal_batches, rank),
        "fails_in_one": error(fails_in_one, rank),
        "devices": error(kt.distribute(2).__enter__),
        "folder": error(run, folder / f"of process {rank}", (4, 1), 2),
    }
    found["stopped"] = stopped(folder / "stopped")
    print(json.dumps(found))


def start():
    with reserved_port() as port, tempfile.TemporaryDirectory() as name:
        print(json.dumps(compare(pathlib.Path(name), port)))


@contextlib.contextmanager
def reserved_port():
    """A port that only sockets with `SO_REUSEPORT`, as those of gRPC, can use as well.

    This socket does not listen, so that it gets no connection.
    """
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


def compare(folder, port):
    """Compares runs of two processes with runs of this one, on one device."""
    (batches, epoch), *_ = run(folder / "whole", (), epochs=2)
    (first, first_epoch), ids, _ = run(folder / "one process", (), epochs=1)
    run(folder / "of process 1", (), epochs=1)
    command = [sys.executable, __file__]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(port), folder], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    both = [json.loads(output.splitlines()[-1]) for output in outputs]
    compared = {}
    for name, (logs, generated) in both[0]["runs"].items():
        assert both[1]["runs"][name] == [logs, generated]
        files = sorted(each.name for each in (folder / name).glob("*.npz"))
        (then, then_epoch), *_ = run(folder / name, (), epochs=2)
        saved = keras.saving.load_model(folder / f"{name}.keras")
        compared[name] = {
            "losses": difference((first, first_epoch), logs),
            "ids": [ids, generated, decode(saved).token_ids.tolist()],
            "files": files,
            "resumed by one": difference((batches, epoch), (first + then, then_epoch)),
        }
    then, then_epoch = both[0]["resumed"]
    resumed = difference((batches, epoch), (first + then, then_epoch))
    errors = [found["errors"] for found in both]
    stopped = [found["stopped"] for found in both]
    return {
        "compared": compared,
        "resumed by two": resumed,
        "errors": errors,
        "stopped": stopped,
    }


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
    else:
        start()
