"""The definition of aligned words, for models of letters and texts of single spaces."""

import numpy as np
from layer_contract import to_numpy


def aligned_words(model, source, target):
    """Returns the pairs of words; a space is a token of the word that it precedes."""
    inputs = {
        "encoder_token_ids": letters(model.source_tokenizer, source),
        "decoder_token_ids": letters(model.target_tokenizer, target),
    }
    inputs["decoder_token_ids"].insert(0, model.start_token_id)
    inputs = {name: np.array([row]) for name, row in inputs.items()}
    _, scores = model(inputs, training=False, return_attention_scores=True)
    layer = scores["cross"][max(len(scores["cross"]) - 2, 0)]
    attention = to_numpy(layer)[0].mean(axis=0)[: len(target), : len(source)]
    pairs = {
        (target[: place + 1].count(" "), source[: np.argmax(row) + 1].count(" "))
        for place, row in enumerate(attention)
    }
    return [(word, own) for own, word in sorted(pairs)]


def letters(tokenizer, text):
    return tokenizer.tokenize([text], add_end=True).to_list()[0]
