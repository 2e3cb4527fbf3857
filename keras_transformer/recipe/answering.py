"""The task of a `CausalLM` that answers prompts: pairs, and the loss of the answers."""

from keras_transformer.inference.perplexity import add_scores
from keras_transformer.models import CausalLM, GenerativeModel
from keras_transformer.recipe.held_out import ParallelText
from keras_transformer.recipe.language_modeling import PerplexityEvaluator
from keras_transformer.recipe.model import new_causal_lm
from keras_transformer.recipe.plan import choose_batches, choose_language_model
from keras_transformer.recipe.result import ANSWERING
from keras_transformer.recipe.task import Datasets
from keras_transformer.recipe.text_statistics import RunningTextStatistics
from keras_transformer.recipe.tokenizers import Tokenizers, make_text_tokenizer
from keras_transformer.recipe.translation import ParallelTask
from keras_transformer.text import PromptTokenizer, Tokenizer
from keras_transformer_runtime.runs.recipe import PlannedRecipe
from keras_transformer_runtime.text_scores import TextScores


class AnsweringTask(ParallelTask):
    """The texts, tokenizer and data of a model that answers prompts."""

    model_class = CausalLM

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
        lines = (line for corpus in self._corpora for pair in corpus for line in pair)
        tokenizer = make_text_tokenizer(self._plan, text, lines)
        return Tokenizers(tokenizer, tokenizer)

    def choose_options(self, tokenizers: Tokenizers) -> None:
        counts = tokenizers.count_tokens(self._statistics)
        choose_language_model(self._plan, sum(counts))
        choose_batches(self._plan, max(counts))

    def make_datasets(self, tokenizers: Tokenizers) -> Datasets:
        prompts = tokenizers.source
        if not isinstance(prompts, PromptTokenizer):
            prompts = PromptTokenizer(prompts, add_start_token=True)
        return super().make_datasets(Tokenizers(prompts, tokenizers.target))

    def context(self, recipe: PlannedRecipe) -> int:
        return 2 * recipe.max_length

    def new_model(self, tokenizers: Tokenizers, recipe: PlannedRecipe) -> CausalLM:
        return new_causal_lm(
            tokenizers, recipe, self.context(recipe), add_start_token=True
        )

    def evaluator(
        self, model: GenerativeModel, recipe: PlannedRecipe
    ) -> PerplexityEvaluator:
        valid, test = self._evaluated_texts(model, recipe.max_length)
        for name, text in {"valid": valid, "test": test}.items():
            sides = zip(("prompt", "answer"), Tokenizers.of(model), text, strict=True)
            for side, tokenizer, lines in sides:
                _check_lengths(name, side, tokenizer, lines, recipe.max_length)
        return PerplexityEvaluator(
            "Computing the perplexity of the answers",
            ANSWERING,
            valid.sources[:20],
            score_valid=lambda model: _score(model, valid),
            score_test=lambda model: _score(model, test),
        )


def _score(model: GenerativeModel, text: ParallelText) -> TextScores:
    return add_scores(model.score(*text), text.references)


def _check_lengths(
    name: str, side: str, tokenizer: Tokenizer, texts: list[str], limit: int
) -> None:
    """Raises `ValueError` if a prompt or an answer is longer than the limit."""
    lengths = tokenizer.tokenize(texts, add_end=True).row_lengths().numpy()
    for place in (lengths > limit).nonzero()[0]:
        raise ValueError(
            f"`{name}` must have at most `max_length={limit}` tokens per line; the "
            f"{side} of line {place + 1} has {lengths[place]}. Shorten it, or use a "
            "greater `max_length`."
        )
