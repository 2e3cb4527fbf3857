"""The tokenizers of a run: chosen from the training text, and trained on it."""

import contextlib
import pathlib
import re
import warnings
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from keras_transformer.dataset.text_pairs import Corpus
from keras_transformer.models import GenerativeModel
from keras_transformer.recipe.plan import Plan
from keras_transformer.recipe.text_statistics import (
    RunningTextStatistics,
    SideStatistics,
    TextStatistics,
)
from keras_transformer.text import (
    ByteTokenizer,
    CharacterTokenizer,
    SentencePieceTokenizer,
    Tokenizer,
    WordTokenizer,
)
from keras_transformer_runtime.runs.option_checks import SUBWORDS

SIDES = ("source", "target")
VOCABULARY_SIZES = (250, 500, 1000, 2000, 4000, 8000, 16000, 32000)
# Mean number of times that each subword must occur, in a vocabulary of up to 8,000.
OCCURRENCES = 80
# The same if most words of a side are rare: a model must then compose them of parts
# that it knows well, such as the numbers of a date.
OCCURRENCES_OF_PARTS = 300
RARE_WORDS = 0.5
# Number of characters of running text from which it is split into subwords.
SUBWORDS_FROM = 5_000_000
LETTERS, WORDS_PER_LINE = 0.9, 1.5  # of lists of words, which are split into characters
LONGEST_WORDS = 20  # mean characters; longer ones are text without spaces
MOST_CHARACTERS = 300  # of an alphabet
# A closed set of words, such as phonemes or tags.
CLOSED_SET, RARE_IN_CLOSED_SET = 300, 0.001
_LARGEST_SIZE = re.compile(r"set it to a value <= (\d+)")


class Tokenizers(NamedTuple):
    """The tokenizers of source and target; the same object if they are joint."""

    source: Tokenizer
    target: Tokenizer

    def save(self, folder: pathlib.Path) -> None:
        """Saves the tokenizers to the folder of a run."""
        if self.source is self.target:
            self.source.save(folder / "tokenizer.json")
            return
        self.source.save(folder / "source_tokenizer.json")
        self.target.save(folder / "target_tokenizer.json")

    @classmethod
    def load(cls, folder: pathlib.Path) -> "Tokenizers":
        """Loads the tokenizers from the folder of a run."""
        joint = folder / "tokenizer.json"
        if joint.exists():
            tokenizer = Tokenizer.load(joint)
            return cls(tokenizer, tokenizer)
        return cls(
            *(Tokenizer.load(folder / f"{side}_tokenizer.json") for side in SIDES)
        )

    @classmethod
    def of(cls, model: GenerativeModel) -> "Tokenizers":
        """Returns the tokenizers of a model, which must have them."""
        source, target = model.source_tokenizer, model.target_tokenizer
        assert source is not None and target is not None
        return cls(source, target)

    def count_tokens(self, text: TextStatistics) -> tuple[int, int]:
        """Returns the number of tokens of source and target, with end tokens."""
        counts = [
            count_tokens(tokenizer, [pair[side] for pair in text.sample])
            for side, tokenizer in enumerate(self)
        ]
        scale = text.pairs / len(text.sample)
        source, target = (round(scale * count) + text.pairs for count in counts)
        return source, target


def make_tokenizers(
    plan: Plan, text: TextStatistics, corpora: Sequence[Corpus]
) -> Tokenizers:
    """Chooses tokenizers and vocabularies that are not given, and trains them."""
    for name, side in zip(SIDES, (text.source, text.target), strict=True):
        option = f"{name}_tokenizer"
        if plan["tokenizer"] is not None:
            plan.choose(option, plan["tokenizer"], "given as `tokenizer`")
        plan.choose(option, *suitable_tokenizer(name, side, len(text.sample)))
    kinds = [plan[f"{name}_tokenizer"] for name in SIDES]
    own_sizes = [plan[f"{name}_vocabulary_size"] for name in SIDES]
    are_subwords = kinds[0] == kinds[1] and kinds[0] in SUBWORDS
    if are_subwords and own_sizes == [None, None]:
        plan.choose("vocabularies", "joint", "both sides have subwords")
    plan.choose("vocabularies", "separate", "the sides differ")
    if plan["vocabularies"] == "separate":
        return Tokenizers(
            *(
                _train(plan, f"{name}_vocabulary_size", kind, [side], text, corpora)
                for side, (name, kind) in enumerate(zip(SIDES, kinds, strict=True))
            )
        )
    if kinds[0] != kinds[1] or own_sizes != [None, None]:
        raise ValueError(
            "`vocabularies` must be 'separate' unless source and target have the same "
            "tokenizer and no separate sizes; received `vocabularies='joint'` and "
            f"{' and '.join(kinds)}."
        )
    tokenizer = _train(plan, "vocabulary_size", kinds[0], [0, 1], text, corpora)
    return Tokenizers(tokenizer, tokenizer)


def make_text_tokenizer(
    plan: Plan, text: RunningTextStatistics, lines: Iterable[str]
) -> Tokenizer:
    """Chooses the tokenizer of a language model if none is given, and trains it."""
    kind = "characters" if text.characters < SUBWORDS_FROM else "bpe"
    plan.choose("tokenizer", kind, f"{text.characters:,} characters")
    if plan["tokenizer"] == "words" and any("\n" in line for line in text.sample):
        warnings.warn(
            "`tokenizer='words'` splits texts at spaces and line breaks: the model "
            "writes a space for each. Use another tokenizer to keep the lines.",
            stacklevel=2,
        )
    return train_tokenizer(
        plan, "vocabulary_size", plan["tokenizer"], lines, text.sample, text.scale
    )


def suitable_tokenizer(name: str, side: SideStatistics, lines: int) -> tuple[str, str]:
    """Returns the tokenizer for one side of a text, and the reason."""
    if (
        name == "target"  # in a source, words that are not of the set would be lost
        and side.distinct_words <= CLOSED_SET
        and side.rare_fraction <= RARE_IN_CLOSED_SET
    ):
        return "words", f"{side.distinct_words} different words, all frequent"
    is_list_of_words = (
        side.words < WORDS_PER_LINE * lines and side.letters > LETTERS * side.characters
    )
    if _has_parts(side) and is_list_of_words:
        if side.distinct_characters <= MOST_CHARACTERS:
            return "characters", f"single words, {side.rare_fraction:.0%} of them rare"
        if name == "source":  # The last syllable of a stream of outputs could change.
            syllables = f"{side.distinct_characters:,} syllables"
            return "letters", f"{syllables} of {side.distinct_letters} letters"
    return "bpe", "text of words"


def _has_parts(side: SideStatistics) -> bool:
    """Returns whether most words of a text of letters are rare."""
    return (
        side.rare_fraction > RARE_WORDS
        and side.word_length <= LONGEST_WORDS
        and min(side.distinct_characters, side.distinct_letters) <= MOST_CHARACTERS
    )


def _train(
    plan: Plan,
    option: str,
    kind: str,
    sides: Sequence[int],
    text: TextStatistics,
    corpora: Sequence[Corpus],
) -> Tokenizer:
    """Trains a tokenizer of a kind for sides of a text: 0 the source, 1 the target."""
    # The plan gets the size of the vocabulary as `option`.
    has_parts = any(_has_parts((text.source, text.target)[side]) for side in sides)
    return train_tokenizer(
        plan,
        option,
        kind,
        (pair[side] for side in sides for corpus in corpora for pair in corpus),
        sample=[pair[side] for side in sides for pair in text.sample],
        scale=text.pairs / len(text.sample),
        occurrences=OCCURRENCES_OF_PARTS if has_parts else OCCURRENCES,
    )


def train_tokenizer(
    plan: Plan,
    option: str,
    kind: str,
    lines: Iterable[str],
    sample: Sequence[str],
    scale: float,
    occurrences: int = OCCURRENCES,
) -> Tokenizer:
    """Trains a tokenizer of a kind; the plan gets the vocabulary size as `option`.

    The text has `scale` times the lines of the sample. Each subword must occur
    `occurrences` times on average.
    """
    size = plan[option] or plan["vocabulary_size"]
    lowercase = plan["lowercase"]
    if kind == "bytes":
        plan.choose(option, ByteTokenizer().vocabulary_size, "the bytes")
        return ByteTokenizer(lowercase)
    if kind in ("characters", "letters", "words"):
        size = size or VOCABULARY_SIZES[-1]
        tokenizer = (
            WordTokenizer.train(None, size, lines=lines, lowercase=lowercase)
            if kind == "words"
            else CharacterTokenizer.train(
                None,
                size,
                lines=lines,
                lowercase=lowercase,
                decompose=kind == "letters",
            )
        )
        plan.choose(option, tokenizer.vocabulary_size, f"the {kind} of the text")
        return tokenizer
    if size is not None:
        plan.choose(option, size, "given as `vocabulary_size`")
        return _train_subwords(plan, kind, size, lines)
    tokenizer, reason = _find_subwords(plan, kind, sample, scale, occurrences)
    plan.choose(option, tokenizer.vocabulary_size, reason)
    if scale == 1:
        return tokenizer
    return _train_subwords(plan, kind, tokenizer.vocabulary_size, lines)


def _find_subwords(
    plan: Plan, kind: str, sample: Sequence[str], scale: float, occurrences: int
) -> tuple[SentencePieceTokenizer, str]:
    """Trains the largest vocabulary of frequent subwords; returns the reason too."""
    found: tuple[SentencePieceTokenizer, str] | None = None
    characters = scale * sum(map(len, sample))
    for size in reversed(VOCABULARY_SIZES):
        needed = size * occurrences * max(1.0, size / 8000) ** 2
        if characters < needed and size > VOCABULARY_SIZES[0]:
            continue
        try:
            tokenizer = _train_subwords(plan, kind, size, sample)
        except ValueError as error:
            largest = _LARGEST_SIZE.search(str(error))
            if largest is None:  # the size is below the number of characters
                break
            if size > VOCABULARY_SIZES[0]:
                continue
            tokenizer = _train_subwords(plan, kind, int(largest[1]), sample)
        tokens = scale * count_tokens(tokenizer, sample)
        each = round(tokens / tokenizer.vocabulary_size)
        found = tokenizer, f"each subword occurs {each:,} times on average"
        if tokens >= needed:
            break
    if found is None:  # text of many characters
        for size in VOCABULARY_SIZES[1:-1]:
            with contextlib.suppress(ValueError):
                tokenizer = _train_subwords(plan, kind, size, sample)
                return tokenizer, "room for all characters of the text"
        tokenizer = _train_subwords(plan, kind, VOCABULARY_SIZES[-1], sample)
        found = tokenizer, "room for all characters of the text"
    return found


def _train_subwords(
    plan: Plan, kind: str, size: int, lines: Iterable[str]
) -> SentencePieceTokenizer:
    return SentencePieceTokenizer.train(
        lines=lines,
        vocabulary_size=size,
        model_type=kind,
        lowercase=plan["lowercase"],
        normalization=plan["normalization"],
        character_coverage=plan["character_coverage"],
        byte_fallback=plan["byte_fallback"],
        user_defined_symbols=plan["user_defined_symbols"],
        keep_whitespace=plan["model"] == "causal",
    )


def count_tokens(tokenizer: Tokenizer, texts: Sequence[str]) -> int:
    """Returns the number of tokens of texts, without end tokens."""
    batches = (texts[i : i + 4096] for i in range(0, len(texts), 4096))
    return sum(int(tokenizer.tokenize(b).flat_values.shape[0]) for b in batches)
