"""The task of a `CausalLM` that answers prompts: pairs, and the loss of the answers."""

from collections.abc import Sequence
from typing import Any

import keras

from keras_transformer.inference.perplexity import TextScores
from keras_transformer.models import CausalLM
from keras_transformer.recipe.held_out import ParallelText
from keras_transformer.recipe.model import new_causal_lm
from keras_transformer.recipe.plan import choose_batches, choose_language_model
from keras_transformer.recipe.result import (
    ANSWERING,
    LanguageModelFigures,
    TrainingResult,
)
from keras_transformer.recipe.selection import Selection
from keras_transformer.recipe.task import Datasets
from keras_transformer.recipe.text_statistics import RunningTextStatistics
from keras_transformer.recipe.tokenizers import Tokenizers, make_text_tokenizer
from keras_transformer.recipe.translation import ParallelTask
from keras_transformer.text import PromptTokenizer, Tokenizer
from keras_transformer_runtime.runs.recipe import PlannedRecipe


class AnsweringTask(ParallelTask):
    """The texts, tokenizer and data of a model that answers prompts; see `Task`."""

    def make_tokenizers(self) -> Tokenizers:
        pairs = self._statistics
        sample = [text for pair in pairs.sample for text in pair]
        scale = pairs.pairs / len(pairs.sample)
        text = RunningTextStatistics(
            characters=round(scale * sum(map(len, sample))),
            documents=pairs.pairs,
            lines=2 * pairs.pairs,
            sample=sample,
        )
        lines = (
            line for corpus in self._texts.corpora for pair in corpus for line in pair
        )
        tokenizer = make_text_tokenizer(self._plan, text, lines)
        return Tokenizers(tokenizer, tokenizer)

    def choose_options(self, tokenizers: Tokenizers) -> None:
        counts = tokenizers.count_tokens(self._statistics)
        choose_language_model(self._plan, sum(counts))
        choose_batches(self._plan, max(counts))

    def make_datasets(self, tokenizers: Tokenizers) -> Datasets:
        prompts = _prompt_tokenizer(tokenizers.source)
        return self._texts.datasets(Tokenizers(prompts, tokenizers.target), self._plan)

    def context(self, recipe: PlannedRecipe) -> int:
        return 2 * recipe.max_length

    def new_model(self, tokenizers: Tokenizers, recipe: PlannedRecipe) -> CausalLM:
        return new_causal_lm(
            tokenizers, recipe, self.context(recipe), add_start_token=True
        )

    def evaluator(self, model: CausalLM, recipe: PlannedRecipe) -> "AnswerEvaluator":
        valid, test = self._texts.evaluated(model, recipe.max_length)
        for name, text in {"valid": valid, "test": test}.items():
            _check_lengths(model, name, text, recipe.max_length)
        return AnswerEvaluator(valid, test)


class AnswerEvaluator:
    """Computes the perplexity of answers to prompts; see `Evaluator`.

    Args:
        valid_text: prompts and answers of the validation text.
        test_text: those of the test text.
    """

    monitored = "val_perplexity"
    is_lower_better = True
    description = "Computing the perplexity of the answers"

    def __init__(self, valid_text: ParallelText, test_text: ParallelText) -> None:
        self._valid, self._test = valid_text, test_text
        self.check_texts = valid_text.sources[:20]

    def callbacks(self) -> list[keras.callbacks.Callback]:
        return []

    def score(self, model: Any) -> float:
        """Returns the loss of a token of the answers of the validation text."""
        return _score(model, self._valid).loss

    def result(self, model: Any, selection: Selection) -> TrainingResult:
        """Scores the answers of the test text."""
        figures = LanguageModelFigures.of(_score(model, self._test), selection)
        return TrainingResult(model, ANSWERING, figures)


def _score(model: Any, text: ParallelText) -> TextScores:
    return TextScores.of(model.score(*text), text.references)


def _prompt_tokenizer(tokenizer: Tokenizer) -> PromptTokenizer:
    """Returns the tokenizer of the prompts, each of which begins a document."""
    if isinstance(tokenizer, PromptTokenizer):
        return tokenizer
    return PromptTokenizer(tokenizer, add_start_token=True)


def _check_lengths(model: Any, name: str, text: ParallelText, limit: int) -> None:
    """Raises `ValueError` if a prompt or an answer is longer than the limit."""
    sides: Sequence[tuple[str, Tokenizer, list[str]]] = (
        ("prompt", model.source_tokenizer, text.sources),
        ("answer", model.target_tokenizer, text.references),
    )
    for side, tokenizer, texts in sides:
        lengths = tokenizer.tokenize(texts, add_end=True).row_lengths().numpy()
        for place in (lengths > limit).nonzero()[0]:
            raise ValueError(
                f"`{name}` must have at most `max_length={limit}` tokens per line; the "
                f"{side} of line {place + 1} has {lengths[place]}. Shorten it, or use "
                "a greater `max_length`."
            )
