"""A token for every row of an embedding."""

from keras_transformer.models import Seq2Seq

UNUSED = "<unused {}>"  # the name of a row without a token


def vocabulary(model: Seq2Seq, side: str) -> list[str]:
    """Lists the tokens of the embedding's rows.

    Args:
        model: a `Seq2Seq` with tokenizers.
        side: `"source"` or `"target"`.

    Returns:
        The tokenizer's vocabulary, and a name for each row beyond it.
    """
    tokens = getattr(model, f"{side}_tokenizer").get_vocabulary()
    size = getattr(model, f"{side}_vocabulary_size")
    return tokens + [UNUSED.format(row) for row in range(len(tokens), size)]
