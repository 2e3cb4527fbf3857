import os
import platform
import resource
import subprocess
import sys

import numpy as np
import pytest

from keras_transformer import WordTokenizer, parallel_dataset

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="glibc's memory"
)
BLOCKS, MEGABYTE = 50, 2**20

# A thread allocates blocks that exceed 64 MiB, the size of its own arena.
COMMAND = """
import resource, threading

from keras_transformer_runtime.commands.startup import import_keras_quietly

import_keras_quietly()
from keras_transformer.backend.freed_memory import keep_freed_memory

keep_freed_memory()

def allocate():
    bytearray(SIZE)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        bytearray(SIZE)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

threading.Thread(target=allocate).start()
"""


def faults():
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


@pytest.mark.once("torch")
def test_an_epoch_leaves_freed_memory_to_be_used_again(tmp_path):
    """TensorFlow's generators have each block of 128 KiB mapped anew, for good."""
    (tmp_path / "text").write_text("a b\n" * 3)
    tokenizer = WordTokenizer.train(tmp_path / "text")
    data = parallel_dataset(
        tmp_path / "text",
        tmp_path / "text",
        source_tokenizer=tokenizer,
        target_tokenizer=tokenizer,
        tokens_per_batch=16,
    )
    assert list(data.dataset)
    np.ones(MEGABYTE, "int8")
    before = faults()
    for _ in range(BLOCKS):
        np.ones(MEGABYTE, "int8")
    pages = BLOCKS * MEGABYTE / resource.getpagesize()
    assert faults() - before < pages / 4


@pytest.mark.once("jax")
@pytest.mark.skipif(
    tuple(map(int, platform.libc_ver()[1].split("."))) < (2, 35),
    reason="the threshold is at most 32 MiB",
)
def test_commands_on_jax_use_freed_memory_of_other_threads_again():
    size = 100 * MEGABYTE
    found = subprocess.run(
        [sys.executable, "-c", COMMAND.replace("SIZE", str(size))],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(found.stdout) < size / resource.getpagesize()
