"""The task of a `Seq2Seq`: parallel text, and figures of translations."""

import itertools
import pathlib
import warnings
from collections.abc import Iterator

import keras
import numpy as np

from keras_transformer import evaluation
from keras_transformer.dataset import ParallelDataset, parallel_dataset, read_pairs
from keras_transformer.dataset.text_pairs import Corpus, Pair, open_corpora
from keras_transformer.decoding import BeamSearch, GreedySearch
from keras_transformer.models import GenerativeModel, Seq2Seq
from keras_transformer.recipe.held_out import (
    ParallelText,
    TextFiles,
    default_fraction,
    hold_out,
)
from keras_transformer.recipe.model import new_seq2seq
from keras_transformer.recipe.plan import (
    Plan,
    choose_batches,
    choose_metric,
    choose_model,
)
from keras_transformer.recipe.result import TrainingResult, evaluate_model
from keras_transformer.recipe.selection import Selection, is_lower_better
from keras_transformer.recipe.task import Datasets
from keras_transformer.recipe.text_statistics import TextStatistics
from keras_transformer.recipe.tokenizers import Tokenizers, make_tokenizers
from keras_transformer.text import SentencePieceTokenizer, Tokenizer
from keras_transformer.training import TranslationQuality
from keras_transformer.training.translation_quality import check_source_lengths
from keras_transformer_runtime.runs.recipe import PlannedRecipe


class ParallelTexts:
    """The parallel texts of a run.

    Args:
        plan: the plan, which gets the fraction that is held out.

    Attributes:
        files: the `TextFiles`.
        corpora: the training text.
        valid: the validation text.
        test: the test text; the validation text if there is none.
    """

    def __init__(self, plan: Plan) -> None:
        self.files = _text_files(plan)
        self._valid_is_held_out = isinstance(plan["valid"], float)
        self._test_is_held_out = isinstance(plan["test"], float)
        self.valid = _read_text(self.files.valid)
        self.test = _read_text(self.files.test) if self.files.test else self.valid
        self.corpora = _open(self.files.train)

    def statistics(self) -> TextStatistics:
        """Reads the training text."""
        return TextStatistics.of(_pairs(self.corpora))

    def datasets(self, tokenizers: Tokenizers, plan: Plan) -> Datasets:
        """Makes the training and the validation data."""
        sampling = plan["subword_sampling"]
        return Datasets(
            _dataset(self.files.train, tokenizers, plan, sampling),
            _dataset(self.files.valid, tokenizers, plan, shuffle=False),
        )

    def evaluated(
        self, model: GenerativeModel, max_length: int
    ) -> tuple[ParallelText, ParallelText]:
        """Returns the validation and the test text.

        The pairs of held-out parts that are too long are left out, as those of the
        training text are. A warning has the number of those of the test text.

        Args:
            model: a model with tokenizers.
            max_length: maximum length of a source and of a target in tokens.
        """
        valid, test = self.valid, self.test
        if self._valid_is_held_out:
            valid = _without_long_pairs(valid, model, max_length)
        if self.files.test is None:
            return valid, valid
        if self._test_is_held_out:
            test = _without_long_pairs(test, model, max_length)
            if dropped := len(self.test.sources) - len(test.sources):
                warnings.warn(
                    f"{dropped:,} test pairs are longer than `max_length={max_length}` "
                    "and are left out.",
                    stacklevel=2,
                )
        return valid, test


class ParallelTask:
    """Base class of the tasks whose texts are parallel; see `Task`.

    Args:
        plan: the plan, which gets the choices.
        is_new: whether the run is new, not resumed.
    """

    def __init__(self, plan: Plan, is_new: bool) -> None:
        self._plan = plan
        self._is_new = is_new

    def read_texts(self) -> None:
        self._texts = ParallelTexts(self._plan)
        if self._is_new:
            self._statistics = self._texts.statistics()


class TranslationTask(ParallelTask):
    """The texts, tokenizers and data of a `Seq2Seq`; see `Task`."""

    def make_tokenizers(self) -> Tokenizers:
        return make_tokenizers(self._plan, self._statistics, self._texts.corpora)

    def choose_options(self, tokenizers: Tokenizers) -> None:
        counts = tokenizers.count_tokens(self._statistics)
        choose_metric(self._plan, self._statistics)
        choose_model(self._plan, self._statistics.pairs, counts[1])
        choose_batches(self._plan, max(counts))

    def make_datasets(self, tokenizers: Tokenizers) -> Datasets:
        return self._texts.datasets(tokenizers, self._plan)

    def context(self, recipe: PlannedRecipe) -> int:
        return recipe.max_length

    def new_model(self, tokenizers: Tokenizers, recipe: PlannedRecipe) -> Seq2Seq:
        return new_seq2seq(tokenizers, recipe)

    def evaluator(
        self, model: GenerativeModel, recipe: PlannedRecipe
    ) -> "TranslationEvaluator":
        valid, test = self._texts.evaluated(model, recipe.max_length)
        check_source_lengths(model, "valid", valid.sources, "max_length")
        check_source_lengths(model, "test", test.sources, "max_length")
        return TranslationEvaluator(recipe, valid, test)


class TranslationEvaluator:
    """Scores translations of the validation and test texts; see `Evaluator`.

    Args:
        recipe: the options.
        valid_text: the validation text.
        test_text: the test text.
    """

    description = "Selecting the length penalty, translating the test text"

    def __init__(
        self, recipe: PlannedRecipe, valid_text: ParallelText, test_text: ParallelText
    ) -> None:
        self._recipe = recipe
        self._valid, self._test = valid_text, test_text
        self.monitored = f"val_{recipe.metric}"
        self.is_lower_better = is_lower_better(recipe.metric)
        self.check_texts = valid_text.sources[:20]

    def callbacks(self) -> list[keras.callbacks.Callback]:
        recipe = self._recipe
        shown = (recipe.metric, "bleu", "chrf")
        return [
            TranslationQuality(
                *self._valid,
                search=GreedySearch(),
                every=recipe.metric_every,
                lowercase=recipe.lowercase,
                tokenize=recipe.bleu_tokenize,
                metrics=[name for name in evaluation.METRICS if name in shown],
            )
        ]

    def score(self, model: GenerativeModel) -> float:
        """Returns the metric of the recipe on the validation text, with beam search.

        With `metric="loss"`, it is the mean cross-entropy of a target token.
        """
        text, recipe = self._valid, self._recipe
        if recipe.metric == "loss":
            result = model.score(text.sources, text.references)
            return float(-np.sum(result.scores) / np.sum(result.lengths))
        outputs = model.generate(text.sources, BeamSearch(recipe.num_beams))
        scores = evaluation.text_scores(
            outputs, text.references, recipe.lowercase, recipe.bleu_tokenize
        )
        return scores[recipe.metric].score

    def result(self, model: GenerativeModel, selection: Selection) -> TrainingResult:
        """Selects a length penalty with the validation text."""
        return evaluate_model(model, self._valid, self._test, self._recipe, selection)


def _text_files(plan: Plan) -> TextFiles:
    """Returns the files of the texts, after parts are held out from the training."""
    corpora = _open(plan["train"])
    pairs = sum(corpus.count() for corpus in corpora)  # checks that lines correspond
    plan.choose("valid", default_fraction(pairs), "held out from the training text")
    valid, test = plan["valid"], plan["test"]
    if not (isinstance(valid, float) or isinstance(test, float)):
        return TextFiles(plan["train"], valid, test)
    folder = pathlib.Path(plan["output"], "data")
    return hold_out(_pairs(corpora), valid, test, folder)


def _open(files: list[str]) -> list[Corpus]:
    return open_corpora(files[0], files[1] if len(files) > 1 else None)


def _pairs(corpora: list[Corpus]) -> Iterator[Pair]:
    return itertools.chain.from_iterable(corpora)


def _read_text(files: list[str]) -> ParallelText:
    pairs = read_pairs(files[0], files[1] if len(files) > 1 else None)
    return ParallelText(
        [source for source, _ in pairs], [target for _, target in pairs]
    )


def _without_long_pairs(
    text: ParallelText, model: GenerativeModel, max_length: int
) -> ParallelText:
    """Returns the pairs that are not too long, or all pairs if each one is."""
    tokenizers = model.source_tokenizer, model.target_tokenizer
    is_short = np.ones(len(text.sources), bool)
    for tokenizer, lines in zip(tokenizers, text, strict=True):
        assert tokenizer is not None
        lengths = tokenizer.tokenize(lines, add_end=True).row_lengths()
        is_short &= lengths.numpy() <= max_length
    if not is_short.any():
        return text
    return ParallelText(*(list(itertools.compress(side, is_short)) for side in text))


def _dataset(
    files: list[str],
    tokenizers: Tokenizers,
    plan: Plan,
    subword_sampling: float | None = None,
    shuffle: bool = True,
) -> ParallelDataset:
    return parallel_dataset(
        files[0],
        files[1] if len(files) > 1 else None,
        source_tokenizer=tokenizers.source,
        target_tokenizer=tokenizers.target,
        tokens_per_batch=plan["tokens_per_batch"],
        max_source_length=plan["max_length"],
        max_target_length=plan["max_length"],
        source_sampling=_sampling(tokenizers.source, subword_sampling),
        target_sampling=_sampling(tokenizers.target, subword_sampling),
        shuffle=shuffle,
        seed=plan["seed"],
    )


def _sampling(tokenizer: Tokenizer, rate: float | None) -> float | None:
    """Returns the rate of subword sampling of a side."""
    return rate if isinstance(tokenizer, SentencePieceTokenizer) else None
