"""Files that several processes of Ray translate."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import psutil
import pytest

from keras_transformer import Seq2Seq
from keras_transformer.backend.ray_connection import connection
from keras_transformer.text import CharacterTokenizer

pytestmark = [pytest.mark.once("torch"), pytest.mark.slow]

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]


@pytest.fixture(scope="module")
def workers():
    """The module, within a cluster of one core that the workers share."""
    pytest.importorskip("ray")
    from keras_transformer.file_translation import workers

    # Its processes cannot import this module.
    workers.ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with connection(num_cpus=1):
        yield workers


class Toy:
    """A worker without a model, whose batches say what to do."""

    def __init__(self, folder):
        self.folder = folder

    def decode(self, batch):
        pipe, died = self.folder / "pipe", self.folder / "died"
        if batch == ["waits for the next one"] and pipe.exists():
            pipe.read_text()
            pipe.unlink()  # Ray may call it again, after the death of the worker
        elif batch == ["lets it go on"]:
            pipe.write_text("go on")
        elif batch == ["kills its worker once"] and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        elif batch == ["fails"]:
            raise FloatingPointError("the logits are not finite")
        return [*batch, os.getpid()]


def test_results_are_in_order(workers, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    kind = workers.ray.remote(Toy).options(**workers._options(2))
    toys = [kind.remote(tmp_path) for _ in range(2)]
    many = [[str(number)] for number in range(50)]
    batches = [["waits for the next one"], ["lets it go on"]]
    batches += [["kills its worker once"], *many]
    read = []
    results = workers._decode_in_order(toys, (read.append(b) or b for b in batches))
    found = []
    for result in results:
        found.append(result)
        assert len(read) - len(found) <= workers.AHEAD * 2
    assert [batch for *batch, _ in found] == batches
    assert (tmp_path / "died").exists()
    results = workers._decode_in_order(toys, [["a"], ["fails"], ["b"]])
    assert next(results)[0] == "a"
    with pytest.raises(FloatingPointError, match="^the logits are not finite$"):
        next(results)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workers")
    model = Seq2Seq(
        num_layers=1,
        hidden_dim=8,
        intermediate_dim=8,
        num_heads=2,
        normalize_first=True,
        max_source_length=9,
        max_target_length=7,
        source_tokenizer=CharacterTokenizer([*SPECIAL, *"abcdef"]),
        target_tokenizer=CharacterTokenizer([*SPECIAL, *"UVWXYZ\n"]),
    )
    rng = np.random.default_rng(6)  # so that the outputs differ
    model.set_weights([rng.normal(size=weight.shape) for weight in model.weights])
    model.save(folder / "model.keras")
    lines = ["".join(rng.choice([*"abcdef"], length)) for length in [3, 8] * 90]
    for place, line in {5: "", 50: "abc" * 5, 51: "no?", 120: "cab" * 4}.items():
        lines[place] = line
    (folder / "source").write_text("\n".join(lines))
    return folder


def start(*arguments):
    """Runs a process; returns its exit code, and waits for all that it has started."""
    script = pathlib.Path(__file__).with_name("translating_workers.py")
    command = [sys.executable, script, *arguments]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.stdout, found.stderr
    left = []
    for pid in json.loads(found.stdout.splitlines()[-1]):
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if "Agent" in " ".join(process.cmdline()):
                process.kill()  # Agents of Ray end a minute after its death.
            left.append(process)
    _, orphans = psutil.wait_procs(left, timeout=30)
    assert not orphans
    return found.returncode


def test_workers_end_with_a_killed_process():
    assert start() == -signal.SIGKILL


def test_a_translation_of_terminated_workers_is_resumed(folder, monkeypatch):
    """With lines that are blank, too long, and without known characters."""
    monkeypatch.chdir(folder)
    command = ["translate", "model.keras", "source", "target", "--num-beams", "1"]
    command += [
        "--num-hypotheses",
        "1",
        "--batch-size",
        "16",
        "--too-long",
        "empty",
        "--quiet",
    ]
    assert start("0", *command) == 0
    expected = pathlib.Path("target").read_bytes()
    assert len(set(expected.splitlines())) == 180  # the scores differ
    pathlib.Path("target").unlink()

    assert start("4", *command, "--workers", "2") == 128 + signal.SIGTERM
    unfinished = json.loads(pathlib.Path("target.unfinished.json").read_text())
    assert unfinished["lines"] == 160
    assert start("0", *command) == 0
    assert pathlib.Path("target").read_bytes() == expected
