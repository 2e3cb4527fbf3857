"""Replacement of the unknown words in the outputs of a model."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from keras_transformer.inference.sequence_model import SequenceModel
from keras_transformer.text import WordTokenizer

if TYPE_CHECKING:
    from keras_transformer.text import Tokenizer


def replace_unknowns(
    model: SequenceModel,
    sources: Sequence[str],
    outputs: Sequence[str],
    alignments: Sequence[Sequence[int]],
    dictionary: Mapping[str, str] | None = None,
) -> list[str]:
    """Replaces each unknown word of an output with the source word aligned with it.

    A model of words outputs `<unk>` for a word that is not in its vocabulary. The
    function replaces it with the dictionary's entry for the source word, or with the
    source word, which is correct for most names and numbers.

    Args:
        model: a model with a `WordTokenizer` on both sides.
        sources: list of str.
        outputs: list of str, the outputs of `model.generate(sources)`.
        alignments: for each output the number of the source word that each of its
            words is aligned with: int array or list `(target_length,)`, such as the
            `positions` that `generate` returns with `return_alignments=True`.
        dictionary: translations of source words.

    Returns:
        List of str, the outputs without unknown words.

    Raises:
        ValueError: if a tokenizer is not a `WordTokenizer`, the numbers of sources,
            outputs and alignments differ, or an unknown word is not aligned.

    Example:

    ```python
    outputs, found = word_model.generate(sources, return_alignments=True)
    alignments = [alignment.positions for alignment in found]
    dictionary = {"Straße": "street"}
    texts = replace_unknowns(word_model, sources, outputs, alignments, dictionary)
    print("<unk>" in " ".join(texts))  # False
    ```

    References:
        - [Luong et al., 2015](https://arxiv.org/abs/1410.8206)
        - [Jean et al., 2015](https://arxiv.org/abs/1412.2007)
    """
    _check_tokenizer("source", model.source_tokenizer)
    tokenizer = _check_tokenizer("target", model.target_tokenizer)
    if not len(sources) == len(outputs) == len(alignments):
        raise ValueError(
            "`sources`, `outputs` and `alignments` must have one entry for each text; "
            f"received {len(sources)}, {len(outputs)} and {len(alignments)} entries."
        )
    unknown = tokenizer.id_to_token(tokenizer.unknown_token_id)
    texts = []
    for number, output in enumerate(outputs):
        source, words = _words(sources[number]), _words(output)
        for place, word in enumerate(words):
            if word == unknown:
                aligned = _aligned_word(source, alignments[number], place, number)
                words[place] = (dictionary or {}).get(aligned, aligned)
        texts.append(" ".join(words))
    return texts


def _aligned_word(
    source: list[str], positions: Sequence[int], place: int, number: int
) -> str:
    if place >= len(positions) or not 0 <= positions[place] < len(source):
        raise ValueError(
            "`alignments` must have the number of a source word for each unknown word; "
            f"received `alignments[{number}]={positions!r}`, which has none of the "
            f"{len(source)} source words for word {place} of the output. Pass the "
            "alignments of the same texts."
        )
    return source[positions[place]]


def _check_tokenizer(side: str, tokenizer: "Tokenizer | None") -> WordTokenizer:
    if not isinstance(tokenizer, WordTokenizer):
        raise ValueError(
            f"`model` must have a `WordTokenizer` as `{side}_tokenizer`; received a "
            f"`{type(tokenizer).__name__}`. Subwords and characters spell any word, so "
            "their outputs have no unknown words to replace."
        )
    return tokenizer


def _words(text: str) -> list[str]:
    """Splits a text at ASCII white space, as the tokenizer does."""
    return [word.decode() for word in text.encode().split()]
