"""Parallel text of an artificial language pair, and the texts of an epoch.

The target is the reversed source, followed by as many "x" as the rest of the division
of its length by 3.
"""

import numpy as np

from keras_transformer.dataset import parallel_dataset
from keras_transformer.text import CharacterTokenizer

SOURCE = CharacterTokenizer.train(lines=["abcdefg"])
TARGET = CharacterTokenizer(["<pad>", "<unk>", "<s>", "</s>", "x", *"gfedcba"])


def make_pairs(count, seed=0):
    """Returns pairs of a random text and its translation."""
    random = np.random.default_rng(seed)
    texts = ["".join(random.choice(list("abcdefg"), random.integers(1, 30)))
             for _ in range(count)]  # fmt: skip
    return [(text, text[::-1] + "x" * (len(text) % 3)) for text in texts]


def make_dataset(*args, **kwargs):
    kwargs = {"source_tokenizer": SOURCE, "target_tokenizer": TARGET} | kwargs
    return parallel_dataset(*args, **kwargs)


def spell(tokenizer, token_ids):
    tokens = tokenizer.get_vocabulary()
    return ["".join(tokens[id] for id in row if id > 3) for row in token_ids.tolist()]


def batch_texts(batch):
    """Returns the texts of a batch. Rows of padding are pairs of empty texts."""
    inputs, target_token_ids, *_ = batch
    sources = spell(SOURCE, inputs["encoder_token_ids"])
    return list(zip(sources, spell(TARGET, target_token_ids), strict=True))


def epoch_arrays(data):
    """Returns the batches of the next epoch."""
    return list(data.dataset.as_numpy_iterator())


def epoch_batches(data):
    """Returns the texts of the next epoch, batch by batch."""
    return [batch_texts(batch) for batch in epoch_arrays(data)]


def epoch_pairs(data):
    """Returns the texts of the next epoch."""
    return [pair for batch in epoch_batches(data) for pair in batch]


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def write_pairs(folder, name, pairs):
    """Writes two parallel files and returns their paths."""
    sources, targets = zip(*pairs, strict=True)
    return write(folder / f"{name}.a", sources), write(folder / f"{name}.b", targets)
