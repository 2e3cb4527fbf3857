"""The task of a `CausalLM`: running text, or prompts and answers, and perplexity."""

import pathlib
from collections.abc import Sequence
from typing import Any

import keras

from keras_transformer.dataset import TextDataset, text_dataset
from keras_transformer.dataset.running_text import text_documents, text_pieces
from keras_transformer.inference.perplexity import score_running_text
from keras_transformer.models import CausalLM
from keras_transformer.recipe.held_out import (
    SMALL_DOCUMENTS,
    TextFiles,
    default_text_fraction,
    hold_out_text,
)
from keras_transformer.recipe.model import new_causal_lm
from keras_transformer.recipe.plan import Plan, choose_batches, choose_language_model
from keras_transformer.recipe.result import (
    SAMPLING,
    LanguageModelFigures,
    TrainingResult,
)
from keras_transformer.recipe.selection import Selection
from keras_transformer.recipe.task import Datasets
from keras_transformer.recipe.text_statistics import RunningTextStatistics
from keras_transformer.recipe.tokenizers import (
    Tokenizers,
    count_tokens,
    make_text_tokenizer,
)
from keras_transformer_runtime.runs.recipe import PlannedRecipe

PROMPT = 20  # characters of a prompt with which an export is checked


class LanguageModelTask:
    """The texts, tokenizer and data of a language model; see `Task`.

    Args:
        plan: the plan, which gets the choices.
        is_new: whether the run is new, not resumed.
    """

    def __init__(self, plan: Plan, is_new: bool) -> None:
        self._plan = plan
        self._is_new = is_new
        plan.choose("documents", "file", "each file is a document")
        self._documents = None if plan["documents"] == "none" else plan["documents"]

    def read_texts(self) -> None:
        self._files = self._text_files()
        self._valid = [*text_documents(self._files.valid, self._documents)]
        test = self._files.test
        self._test = [*text_documents(test, self._documents)] if test else self._valid
        if self._is_new:
            self._statistics = RunningTextStatistics.of(
                self._files.train, self._documents
            )

    def make_tokenizers(self) -> Tokenizers:
        pieces = text_pieces(self._files.train, self._documents)
        lines = (piece for piece in pieces if piece is not None)
        tokenizer = make_text_tokenizer(self._plan, self._statistics, lines)
        return Tokenizers(tokenizer, tokenizer)

    def choose_options(self, tokenizers: Tokenizers) -> None:
        text = self._statistics
        tokens = round(text.scale * count_tokens(tokenizers.target, text.sample))
        choose_language_model(self._plan, tokens)
        choose_batches(self._plan, tokens)

    def make_datasets(self, tokenizers: Tokenizers) -> Datasets:
        self._train_data = self._dataset(self._files.train, tokenizers, shuffle=True)
        valid_data = self._dataset(self._files.valid, tokenizers, shuffle=False)
        return Datasets(self._train_data, valid_data)

    def context(self, recipe: PlannedRecipe) -> int:
        assert recipe.length is not None
        return recipe.length

    def new_model(self, tokenizers: Tokenizers, recipe: PlannedRecipe) -> CausalLM:
        length, data = self.context(recipe), self._train_data
        # Otherwise a window can begin anywhere in a text, and so can a prompt.
        is_short = data.num_tokens <= data.num_documents * length
        add_start_token = recipe.documents == "line" and is_short
        return new_causal_lm(tokenizers, recipe, length, add_start_token)

    def evaluator(
        self, model: CausalLM, recipe: PlannedRecipe
    ) -> "PerplexityEvaluator":
        prompts = short_prompts(model, self._valid[:5])
        context = self.context(recipe)
        return PerplexityEvaluator(self._valid, self._test, context, prompts)

    def _text_files(self) -> TextFiles:
        """Returns the files, after parts are held out from the training text."""
        plan, documents = self._plan, self._documents
        if plan["valid"] is None:
            size = RunningTextStatistics.of(plan["train"], documents).characters
            whole = f"{documents}s of the training text"
            plan.choose(
                "valid",
                default_text_fraction(size),
                whole if documents in SMALL_DOCUMENTS else "end of the training text",
            )
        valid, test = plan["valid"], plan["test"]
        if not (isinstance(valid, float) or isinstance(test, float)):
            return TextFiles(plan["train"], valid, test)
        folder = pathlib.Path(plan["output"], "data")
        return hold_out_text(
            plan["train"], plan["documents"], valid, test, folder, self._is_new
        )

    def _dataset(
        self, files: list[str], tokenizers: Tokenizers, shuffle: bool
    ) -> TextDataset:
        return text_dataset(
            files,
            tokenizer=tokenizers.target,
            length=self._plan["length"],
            tokens_per_batch=self._plan["tokens_per_batch"],
            documents=self._documents,
            separate_documents=self._plan["separate_documents"],
            shuffle=shuffle,
            seed=self._plan["seed"],
        )


class PerplexityEvaluator:
    """Computes the perplexity of the validation and test texts; see `Evaluator`.

    Args:
        valid: list of str, the documents of the validation text.
        test: list of str, those of the test text.
        context: int, length of the windows.
        check_texts: list of str, prompts with which an export is checked.
    """

    # Of all tokens; `val_loss` is a mean over batches, of which the last is padded.
    monitored = "val_perplexity"
    is_lower_better = True

    def __init__(
        self,
        valid: Sequence[str],
        test: Sequence[str],
        context: int,
        check_texts: Sequence[str],
    ) -> None:
        self._valid, self._test, self._context = valid, test, context
        self.check_texts = check_texts
        self.description = (
            f"Computing the perplexity in windows of {context} tokens, stride "
            f"{max(context // 2, 1)}"
        )

    def callbacks(self) -> list[keras.callbacks.Callback]:
        return []

    def score(self, model: Any) -> float:
        """Returns the loss of a token of the validation text.

        The windows do not overlap, as those of training.
        """
        return score_running_text(model, self._valid, stride=self._context).loss

    def result(self, model: Any, selection: Selection) -> TrainingResult:
        """Scores the test text in windows that overlap by half."""
        scores = score_running_text(model, self._test)
        figures = LanguageModelFigures.of(scores, selection)
        return TrainingResult(model, SAMPLING, figures)


def short_prompts(model: CausalLM, texts: Sequence[str]) -> list[str]:
    """Returns the beginnings of texts that are not longer than the context of a model.

    Args:
        model: the model.
        texts: list of str.
    """
    prompts = [text[:PROMPT] for text in texts]
    tokenizer, limit = model.source_tokenizer, model.max_length
    if tokenizer is None or limit is None:
        return prompts
    rows = tokenizer.tokenize(prompts).to_list()
    pairs = zip(prompts, rows, strict=True)
    return [prompt for prompt, row in pairs if len(row) <= limit]
