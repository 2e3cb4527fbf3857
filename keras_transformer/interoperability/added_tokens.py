"""Tokens that a `Seq2Seq` needs and models of other toolkits lack, such as padding."""

from collections.abc import Sequence

import numpy as np

from keras_transformer.export.protocols import UNUSED_TOKEN

# Logit of tokens that the stored model does not have. Their probability is 0 in
# float32. A much smaller logit would dominate a loss with label smoothing, which
# includes the logits of all tokens.
LOGIT_OF_ADDED_TOKENS = -100.0


def with_padding(tokens: Sequence[str], pad_token_id: int) -> list[str]:
    """Adds `<pad>` to a vocabulary.

    Args:
        tokens: the vocabulary. A token of the name `<pad>` is renamed.
        pad_token_id: the id of `<pad>`, at least the size of the vocabulary. Smaller
            ids without a token get the token `"<unused id>"`.

    Returns:
        The tokens in the order of their ids.
    """
    renamed = ["<own pad>" if token == "<pad>" else token for token in tokens]
    unused = map(UNUSED_TOKEN.format, range(len(tokens), pad_token_id))
    return [*renamed, *unused, "<pad>"]


def padded_rows(weight: np.ndarray, count: int) -> np.ndarray:
    """Returns a matrix with rows of zeros for the tokens that it does not have."""
    return np.pad(weight, ((0, count - len(weight)), (0, 0)))
