"""The task of a `CausalLM` on running text, and perplexity."""

import pathlib
from collections.abc import Callable, Sequence

from keras_transformer.dataset import TextDataset, text_dataset
from keras_transformer.dataset.running_text import text_documents, text_pieces
from keras_transformer.decoding import Search
from keras_transformer.inference.perplexity import score_running_text
from keras_transformer.models import CausalLM, GenerativeModel
from keras_transformer.recipe.held_out import (
    SMALL_DOCUMENTS,
    TextFiles,
    are_held_out_whole,
    default_text_fraction,
    describe_weights,
    given_corpora,
    hold_out_text,
    text_files,
)
from keras_transformer.recipe.model import new_causal_lm
from keras_transformer.recipe.plan import (
    Plan,
    choose_batches,
    choose_columns,
    choose_language_model,
)
from keras_transformer.recipe.result import (
    SAMPLING,
    LanguageModelFigures,
    TrainingResult,
)
from keras_transformer.recipe.selection import Selection
from keras_transformer.recipe.task import Datasets, Evaluator, Task
from keras_transformer.recipe.text_statistics import RunningTextStatistics
from keras_transformer.recipe.tokenizers import (
    Tokenizers,
    count_tokens,
    make_text_tokenizer,
)
from keras_transformer.types import Data
from keras_transformer_runtime.runs.corpora import CorpusFiles, weights_of
from keras_transformer_runtime.runs.recipe import PlannedRecipe
from keras_transformer_runtime.text_rows import TextRows
from keras_transformer_runtime.text_scores import TextScores

PROMPT = 20  # characters of a prompt with which an export is checked


class LanguageModelTask(Task):
    """The texts, tokenizer and data of a language model."""

    model_class = CausalLM

    def __init__(self, plan: Plan, is_new: bool) -> None:
        super().__init__(plan, is_new)
        self._column: str | None = (plan["columns"] or [None])[0]
        self._given = given_corpora(plan, "train")
        names = [
            TextRows.of(file, plan["columns"], 1).names
            for corpus in self._given
            for file in corpus.files
        ]
        units = {"row" if each else "file" for each in names}
        each = " and each ".join(sorted(units))
        plan.choose("documents", "file", f"each {each} is a document")
        if is_new:
            choose_columns(plan, names)
        self._documents = None if plan["documents"] == "none" else plan["documents"]

    def read_texts(self) -> None:
        self._files = self._text_files()
        self._valid = self._read(self._files.valid)
        self._test = self._read(self._files.test) if self._files.test else self._valid
        if self._is_new:
            self._statistics = self._count(self._files.train)

    def make_tokenizers(self) -> Tokenizers:
        files = _all_files(self._files.train)
        pieces = text_pieces(files, self._documents, self._column)
        lines = (piece for piece in pieces if piece is not None)
        tokenizer = make_text_tokenizer(self._plan, self._statistics, lines)
        return Tokenizers(tokenizer, tokenizer)

    def _read(self, corpora: list[CorpusFiles]) -> list[str]:
        return [*text_documents(_all_files(corpora), self._documents, self._column)]

    def _count(self, corpora: list[CorpusFiles]) -> RunningTextStatistics:
        files = _all_files(corpora)
        return RunningTextStatistics.of(files, self._documents, self._column)

    def choose_options(self, tokenizers: Tokenizers) -> None:
        text = self._statistics
        tokens = round(text.scale * count_tokens(tokenizers.target, text.sample))
        choose_language_model(self._plan, tokens)
        choose_batches(self._plan, tokens)

    def make_datasets(self, tokenizers: Tokenizers) -> Datasets:
        self._train_data = self._dataset(self._files.train, tokenizers, shuffle=True)
        self._valid_data = self._dataset(self._files.valid, tokenizers, shuffle=False)
        return Datasets(self._train_data, self._valid_data)

    def describe_data(self) -> tuple[str, str]:
        train = _describe(self._train_data) + describe_weights(self._files.train)
        return train, _describe(self._valid_data)

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
        self, model: GenerativeModel, recipe: PlannedRecipe
    ) -> "PerplexityEvaluator":
        valid, test, context = self._valid, self._test, self.context(recipe)
        return PerplexityEvaluator(
            f"Computing the perplexity in windows of {context} tokens, stride "
            f"{max(context // 2, 1)}",
            SAMPLING,
            short_prompts(model, valid[:5]),
            # Windows of the validation text do not overlap, as those of training.
            lambda model: score_running_text(model, valid, stride=context),
            lambda model: score_running_text(model, test),
        )

    def _text_files(self) -> TextFiles:
        """Returns the files, after parts are held out from the training text."""
        plan, documents = self._plan, self._documents
        if plan["valid"] is None:
            unit = f"{documents}s" if documents in SMALL_DOCUMENTS else "rows"
            are_whole = {
                are_held_out_whole(file, plan["documents"], self._column)
                for file in _all_files(self._given)
            }
            held_out = [unit] * (True in are_whole) + ["end"] * (False in are_whole)
            plan.choose(
                "valid",
                default_text_fraction(self._count(self._given).characters),
                f"{' and '.join(held_out)} of the training text",
            )
        folder = pathlib.Path(plan["output"], "data")
        return text_files(
            plan,
            lambda shares, is_kept: hold_out_text(
                self._given,
                self._column,
                plan["documents"],
                shares,
                folder,
                is_kept,
            ),
        )

    def _dataset(
        self, corpora: list[CorpusFiles], tokenizers: Tokenizers, shuffle: bool
    ) -> TextDataset:
        return text_dataset(
            _all_files(corpora),
            column=self._column,
            weights=weights_of(corpora),
            tokenizer=tokenizers.target,
            length=self._plan["length"],
            tokens_per_batch=self._plan["tokens_per_batch"],
            documents=self._documents,
            separate_documents=self._plan["separate_documents"],
            shuffle=shuffle,
            seed=self._plan["seed"],
        )


def _all_files(corpora: list[CorpusFiles]) -> list[str]:
    return [file for corpus in corpora for file in corpus.files]


def _describe(data: TextDataset) -> str:
    documents = "document" if data.num_documents == 1 else "documents"
    return (
        f"{data.num_tokens:,} tokens of {data.num_documents:,} {documents} in "
        f"{data.batches_per_epoch:,} batches"
    )


class PerplexityEvaluator(Evaluator):
    """Computes the perplexity of the validation and test texts.

    `score_valid` and `score_test` score the texts with a `CausalLM`.
    """

    # Of all tokens; `val_loss` is a mean over batches, of which the last is padded.
    monitored = "val_perplexity"
    is_lower_better = True

    def __init__(
        self,
        description: str,
        search: Search,
        check_texts: Sequence[str],
        score_valid: Callable[[Data], TextScores],
        score_test: Callable[[Data], TextScores],
    ) -> None:
        self.description = description
        self.check_texts = check_texts
        self._search = search
        self._score_valid, self._score_test = score_valid, score_test

    def score(self, model: GenerativeModel) -> float:
        return self._score_valid(model).loss

    def result(self, model: GenerativeModel, selection: Selection) -> TrainingResult:
        scores = self._score_test(model)
        figures = LanguageModelFigures(scores, "loss", selection.name, selection.scores)
        return TrainingResult(model, self._search, figures)


def short_prompts(model: GenerativeModel, texts: Sequence[str]) -> list[str]:
    """Returns the beginnings of texts that are not longer than a model's context."""
    prompts = [text[:PROMPT] for text in texts]
    tokenizer, limit = model.source_tokenizer, model.max_source_length
    if tokenizer is None or limit is None:
        return prompts
    rows = tokenizer.tokenize(prompts).to_list()
    pairs = zip(prompts, rows, strict=True)
    return [prompt for prompt, row in pairs if len(row) <= limit]
