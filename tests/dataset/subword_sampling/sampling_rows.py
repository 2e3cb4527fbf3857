"""Rows of token ids for the tests of the samplers."""

import numpy as np

from keras_transformer.dataset.token_rows import TokenRows

LINES = [
    "a man rides a red bicycle over the bridge",
    "two dogs run over the grass and over the road",
    "Zwei Hunde laufen über die Straße und über die Brücke",
]


def make_rows(rows):
    token_ids = np.array([id for row in rows for id in row], np.int32)
    return TokenRows(token_ids, np.array([len(row) for row in rows]))


def tokenized(tokenizer, texts):
    return make_rows(tokenizer.tokenize(texts, add_start=True, add_end=True).to_list())


def as_tuples(rows):
    return list(map(tuple, np.split(rows.token_ids, rows.lengths.cumsum())[:-1]))


def spell(model, rows):
    return [" ".join(model.tokens[id] for id in row) for row in as_tuples(rows)]


def texts_of(tokenizer, rows):
    padded = rows.pad(np.arange(len(rows.lengths)), rows.lengths.max(), 0)
    return [text.decode() for text in tokenizer.detokenize(padded).numpy()]
