"""Parallel text of a made-up language pair, and what an epoch of it holds."""

import numpy as np

from keras_transformer.dataset import parallel_dataset
from keras_transformer.text import CharacterTokenizer

SOURCE = CharacterTokenizer.train(lines=["abcdefg"])
TARGET = CharacterTokenizer(["<pad>", "<unk>", "<s>", "</s>", "x", *"gfedcba"])


def make_pairs(count, seed=0):
    """Pairs of a text and its upside-down version, mostly of another length."""
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
    """The texts of a batch; filler rows are pairs of empty texts."""
    inputs, target_token_ids, *_ = batch
    sources = spell(SOURCE, inputs["encoder_token_ids"])
    return list(zip(sources, spell(TARGET, target_token_ids), strict=True))


def epoch_batches(data):
    """The texts of an epoch, batch by batch."""
    return [batch_texts(batch) for batch in data.dataset.as_numpy_iterator()]


def epoch_pairs(data):
    """The texts of an epoch."""
    return [pair for batch in epoch_batches(data) for pair in batch]


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def write_pairs(folder, name, pairs):
    """Writes two files; gives their paths."""
    sources, targets = zip(*pairs, strict=True)
    return write(folder / f"{name}.a", sources), write(folder / f"{name}.b", targets)
