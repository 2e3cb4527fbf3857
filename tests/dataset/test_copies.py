"""Copies of datasets: they yield the same batches, before and after a use."""

import copy
import pickle

import keras
import numpy as np
import pytest

from keras_transformer import CharacterTokenizer, parallel_dataset, text_dataset

pytestmark = pytest.mark.once("torch")
TOKENIZER = CharacterTokenizer.train(lines=["abc\n"])
LINES = ["abc", "ba", "c", "cab", "bb", "aacb", "ab"]


def parallel(tmp_path, **options):
    for name, lines in {"source": LINES, "target": LINES[::-1]}.items():
        (tmp_path / name).write_text("\n".join([*lines, ""]))
    return parallel_dataset(
        tmp_path / "source",
        tmp_path / "target",
        source_tokenizer=TOKENIZER,
        target_tokenizer=TOKENIZER,
        tokens_per_batch=8,
        **options,
    )


MAKERS = {
    "memory": parallel,
    "stream": lambda folder: parallel(
        folder,
        window=3,
        batches_per_epoch=4,
        max_source_length=5,
        max_target_length=5,
    ),
    "text": lambda _: text_dataset(
        texts=LINES, tokenizer=TOKENIZER, length=3, tokens_per_batch=6
    ),
}


def epoch_of(data):
    return [keras.tree.map_structure(np.asarray, batch) for batch in data.dataset]


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(
    "how", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_copy_yields_the_same_batches(tmp_path, name, how):
    data = MAKERS[name](tmp_path)
    copies = [how(data)]
    first, second = epoch_of(data), epoch_of(data)
    copies.append(how(data))
    copies[1].start_epoch(0)
    for each in copies:
        assert each.checksums == data.checksums
        keras.tree.map_structure(np.testing.assert_array_equal, epoch_of(each), first)
        keras.tree.map_structure(np.testing.assert_array_equal, epoch_of(each), second)
