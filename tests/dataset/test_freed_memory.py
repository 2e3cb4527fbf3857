import platform
import resource

import numpy as np
import pytest

from keras_transformer import WordTokenizer, parallel_dataset

pytestmark = [
    pytest.mark.once("torch"),
    pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's"),
]
BLOCKS, MEGABYTE = 50, 2**20


def faults():
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


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
