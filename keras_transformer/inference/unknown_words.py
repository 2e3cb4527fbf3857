"""Puts words in the place of the unknown ones that a model gave."""

from collections.abc import Mapping, Sequence
from typing import Any

from keras_transformer.text import WordTokenizer


def replace_unknowns(
    model: Any,
    sources: Sequence[str],
    outputs: Sequence[str],
    alignments: Sequence[Sequence[int]],
    dictionary: Mapping[str, str] | None = None,
) -> list[str]:
    """Replaces each unknown word of an output by what it is aligned with.

    A model of words writes `<unk>` for a word that its vocabulary lacks. In its place
    comes the dictionary's entry for the source word, or the source word as it stands,
    which is right for most names and numbers.

    Args:
        model: a `Seq2Seq` with a `WordTokenizer` on either side.
        sources: list of str.
        outputs: list of str, what `model.generate(sources)` gave.
        alignments: for each output the number of the source word that each of its
            words comes from: int array or list `(target_length,)`, such as the
            `positions` that `generate` gives with `return_alignments=True`.
        dictionary: translations of source words.

    Returns:
        List of str, the outputs without unknown words.

    Raises:
        ValueError: if a tokenizer is of another kind, there are more sources, outputs
            or alignments, or an unknown word is aligned with nothing.

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
    for side in ("source", "target"):
        _check_tokenizer(side, getattr(model, f"{side}_tokenizer"))
    if not len(sources) == len(outputs) == len(alignments):
        raise ValueError(
            "`sources`, `outputs` and `alignments` must have an entry each for the "
            f"same texts; received {len(sources)}, {len(outputs)} and "
            f"{len(alignments)} entries."
        )
    tokenizer = model.target_tokenizer
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
            "`alignments` must name a source word for each unknown word; received "
            f"`alignments[{number}]={positions!r}`, which names none of the "
            f"{len(source)} source words for word {place} of the output. Take the "
            "alignments of these very texts."
        )
    return source[positions[place]]


def _check_tokenizer(side: str, tokenizer: Any) -> None:
    if not isinstance(tokenizer, WordTokenizer):
        raise ValueError(
            f"`model` must have a `WordTokenizer` as `{side}_tokenizer`, whose unknown "
            f"token stands for a word; received a `{type(tokenizer).__name__}`. "
            "Subwords and characters spell any word, so that there are no unknown "
            "words to replace."
        )


def _words(text: str) -> list[str]:
    """Splits as the tokenizer does: at white space of ASCII alone."""
    return [word.decode() for word in text.encode().split()]
