"""Reference implementation of the paper in float64 NumPy, independent of the library.

Weights are lists of arrays in the order of the layers' `get_weights()`. Masks are
boolean, `True` = attend. Sections and equations are those of Vaswani et al. (2017).
"""

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np


def positional_encoding(
    positions: Sequence[int],
    hidden_dim: int,
    max_wavelength: float = 10000.0,
    interleaved: bool = True,
) -> np.ndarray:
    """Section 3.5, for one list of positions: `(length, hidden_dim)`.

    If they are not interleaved, all sines come before all cosines.
    """
    table = np.zeros((len(positions), hidden_dim))
    for row, position in enumerate(positions):
        for column in range(hidden_dim):
            pair = column // 2
            angle = position / max_wavelength ** (2 * pair / hidden_dim)
            table[row, column] = math.cos(angle) if column % 2 else math.sin(angle)
    if not interleaved:
        columns = [*range(0, hidden_dim, 2), *range(1, hidden_dim, 2)]
        return table[:, columns]
    return table


def scaled_dot_product_attention(query, key, value, mask=None, bias=None):
    """Equation 1: the output, and the scores `(batch, num_heads, query, key)`.

    A query with nothing to attend to has scores and an output of zero. Where
    keys and values have fewer heads, each serves as many consecutive heads of the
    queries as it takes (Ainslie et al., 2023). The bias is added to the logits.
    """
    query, key, value = (np.asarray(x, "float64") for x in (query, key, value))
    batch, query_length, num_heads, key_dim = query.shape
    group = num_heads // key.shape[2]
    scores = np.zeros((batch, num_heads, query_length, key.shape[1]))
    if mask is None:
        mask = True
    elif np.ndim(mask) == 3:
        mask = np.expand_dims(mask, 1)
    mask = np.broadcast_to(mask, scores.shape)
    bias = np.broadcast_to(0.0 if bias is None else bias, scores.shape)
    for b, h, q in np.ndindex(batch, num_heads, query_length):
        seen = np.flatnonzero(mask[b, h, q])
        if seen.size:
            logits = key[b, seen, h // group] @ query[b, q, h] / math.sqrt(key_dim)
            logits += bias[b, h, q, seen]
            exponentials = np.exp(logits - logits.max())
            scores[b, h, q, seen] = exponentials / exponentials.sum()
    values = [value[:, :, h // group] for h in range(num_heads)]
    return np.einsum("bhqk,hbkd->bqhd", scores, values), scores


def multi_head_attention(weights, query, value, mask=None, key=None):
    """Section 3.2.2, with biases: the output and the scores."""
    query_kernel, query_bias, key_kernel, key_bias = _float64(weights[:4])
    value_kernel, value_bias, output_kernel, output_bias = _float64(weights[4:8])
    key = value if key is None else key
    attended, scores = scaled_dot_product_attention(
        np.einsum("btd,dhk->bthk", query, query_kernel) + query_bias,
        np.einsum("btd,dhk->bthk", key, key_kernel) + key_bias,
        np.einsum("btd,dhk->bthk", value, value_kernel) + value_bias,
        mask,
    )
    return np.einsum("bthk,hkd->btd", attended, output_kernel) + output_bias, scores


def feed_forward(weights, inputs):
    """Equation 2."""
    kernel_1, bias_1, kernel_2, bias_2 = _float64(weights)
    return np.maximum(inputs @ kernel_1 + bias_1, 0.0) @ kernel_2 + bias_2


def layer_norm(weights, inputs, epsilon: float = 1e-5):
    """Ba et al. (2016), over the last axis."""
    scale, offset = _float64(weights)
    centred = inputs - inputs.mean(axis=-1, keepdims=True)
    variance = (centred**2).mean(axis=-1, keepdims=True)
    return centred / np.sqrt(variance + epsilon) * scale + offset


def residual(norm_weights, inputs, sublayer: Callable, normalize_first: bool):
    """Section 3.1, around a sub-layer that returns its output and its scores."""
    if normalize_first:
        outputs, scores = sublayer(layer_norm(norm_weights, inputs))
        return inputs + outputs, scores
    outputs, scores = sublayer(inputs)
    return layer_norm(norm_weights, inputs + outputs), scores


def encoder_block(weights, inputs, mask=None, normalize_first: bool = False):
    """Section 3.1, the encoder's layer: the output and the scores."""
    attention, norm_1, norm_2, feed = _split(weights, 8, 2, 2, 4)
    x, scores = residual(
        norm_1,
        np.asarray(inputs, "float64"),
        lambda x: multi_head_attention(attention, x, x, mask),
        normalize_first,
    )
    x, _ = residual(norm_2, x, lambda x: (feed_forward(feed, x), None), normalize_first)
    return x, scores


def decoder_block(
    weights,
    inputs,
    encoded,
    self_mask=None,
    cross_mask=None,
    normalize_first: bool = False,
):
    """Section 3.1, the decoder's layer: the output, its self- and cross-scores.

    Without `encoded` there is no cross-attention. The causal mask is part of
    `self_mask`.
    """
    cross_sizes = (8, 2) if encoded is not None else (0, 0)
    attention, norm_1, cross, norm_2, feed, norm_3 = _split(
        weights, 8, 2, *cross_sizes, 4, 2
    )
    x, self_scores = residual(
        norm_1,
        np.asarray(inputs, "float64"),
        lambda x: multi_head_attention(attention, x, x, self_mask),
        normalize_first,
    )
    cross_scores = None
    if encoded is not None:
        x, cross_scores = residual(
            norm_2,
            x,
            lambda x: multi_head_attention(cross, x, encoded, cross_mask),
            normalize_first,
        )
    x, _ = residual(norm_3, x, lambda x: (feed_forward(feed, x), None), normalize_first)
    return x, self_scores, cross_scores


def causal_mask(query_length: int, key_length: int, offset: int = 0) -> np.ndarray:
    """`(1, query_length, key_length)`: keys up to the query's own position."""
    return np.tri(query_length, key_length, offset, dtype=bool)[None]


def exhaustive_search(
    step_log_probs: Callable[[tuple[int, ...]], Sequence[float]],
    end_token_id: int,
    max_length: int,
    penalty: Callable[[int], float] = lambda length: 1.0,
    pad_token_id: int = 0,
) -> list[tuple[tuple[int, ...], float]]:
    """Scores every sequence that ends with the end token, best first.

    Args:
        step_log_probs: from the tokens so far (the start token left out) to the
            log-probability `(vocabulary_size,)` of each next token.
        end_token_id: the token that ends a sequence and counts in its length.
        max_length: the longest length; its last position is the end token.
        penalty: from a length to what the sum of log-probabilities is divided by.
        pad_token_id: a token that no sequence holds.

    Returns:
        Pairs of a sequence (end token included) and its score.
    """

    def extend(prefix: tuple[int, ...], total: float) -> Iterator:
        for token, log_prob in enumerate(step_log_probs(prefix)):
            sequence, score = (*prefix, token), total + float(log_prob)
            if token == end_token_id:
                yield sequence, score / penalty(len(sequence))
            elif token != pad_token_id and len(sequence) < max_length:
                yield from extend(sequence, score)

    return sorted(extend((), 0.0), key=lambda hypothesis: -hypothesis[1])


def _split(weights, *sizes: int):
    assert len(weights) == sum(sizes), (len(weights), sizes)
    ends = np.cumsum(sizes)
    return [weights[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _float64(weights):
    return [np.asarray(weight, "float64") for weight in weights]
