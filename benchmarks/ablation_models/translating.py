"""Greedy search with any of the models."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import ops

from ablation_models.tokens import MAX_LENGTH
from keras_transformer import GreedySearch, Seq2Seq, Tokenizer

MARGIN = 50  # maximum difference of the lengths of a translation and its source
STEP = 16  # Lengths are multiples, so that few shapes are compiled. MAX_LENGTH is one.

# (batch, source_length), (batch, target_length) -> the next token at each position
Predict = Callable[[np.ndarray, np.ndarray], np.ndarray]


def translate(
    model: keras.Model, tokenizer: Tokenizer, sources: list[str]
) -> list[str]:
    if isinstance(model, Seq2Seq):
        return model.generate(sources, GreedySearch())
    rows = tokenizer.tokenize(sources, add_end=True).to_list()
    order = np.argsort([len(row) for row in rows], kind="stable")
    predict = predictor(model)
    texts: dict[int, bytes] = {}
    for chosen in np.array_split(order, -(-len(rows) // 64)):
        source = padded([rows[i] for i in chosen], tokenizer.pad_token_id)
        token_ids = greedy(predict, source, tokenizer)
        texts |= zip(chosen, tokenizer.detokenize(token_ids).numpy(), strict=True)
    return [texts[i].decode() for i in range(len(rows))]


def predictor(model: keras.Model) -> Predict:
    """Returns the model followed by argmax, which avoids copies of the logits."""
    inputs = {tensor.name: tensor for tensor in model.inputs}
    best = keras.Model(inputs, ops.argmax(model.outputs[0], axis=-1))

    def predict(source: np.ndarray, target: np.ndarray) -> np.ndarray:
        ids: dict[str, Any] = {"encoder_token_ids": source, "decoder_token_ids": target}
        return best.predict_on_batch(ids)

    return predict


def greedy(predict: Predict, source: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """Decodes greedily with one call of the model on the whole prefix per token."""
    limit = min(source.shape[1] + MARGIN, MAX_LENGTH)
    target = np.full((len(source), MAX_LENGTH + 1), tokenizer.pad_token_id, "int32")
    target[:, 0] = tokenizer.start_token_id
    ended = np.zeros(len(source), bool)
    for index in range(limit):
        tokens = predict(source, target[:, : multiple(index + 1)])[:, index]
        target[:, index + 1] = np.where(ended, tokenizer.pad_token_id, tokens)
        ended |= tokens == tokenizer.end_token_id
        if ended.all():
            break
    return target[:, 1:]


def padded(rows: list[list[int]], pad_token_id: int) -> np.ndarray:
    length = multiple(max(map(len, rows)))
    return np.array([row + [pad_token_id] * (length - len(row)) for row in rows])


def multiple(length: int) -> int:
    return -(-length // STEP) * STEP
