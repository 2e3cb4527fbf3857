"""The task of a `Seq2Seq`: parallel text, and figures of translations."""

import itertools
import pathlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import keras
import numpy as np

from keras_transformer import evaluation
from keras_transformer.dataset import ParallelDataset, parallel_dataset
from keras_transformer.dataset.text_pairs import Corpus, FilePairs, Pair, open_files
from keras_transformer.decoding import GreedySearch
from keras_transformer.decoding.generation_options import search_from_options
from keras_transformer.models import GenerativeModel, Seq2Seq
from keras_transformer.recipe.engines import (
    ValidationEngine,
    choose_validation_engine,
)
from keras_transformer.recipe.held_out import (
    ParallelText,
    TextFiles,
    default_fraction,
    describe_weights,
    given_corpora,
    hold_out,
    text_files,
)
from keras_transformer.recipe.model import new_seq2seq
from keras_transformer.recipe.plan import (
    Plan,
    choose_batches,
    choose_columns,
    choose_metric,
    choose_model,
)
from keras_transformer.recipe.result import Figures, TrainingResult
from keras_transformer.recipe.selection import Selection
from keras_transformer.recipe.task import ChosenSearch, Datasets, Evaluator, Task
from keras_transformer.recipe.text_statistics import TextStatistics
from keras_transformer.recipe.tokenizers import Tokenizers, make_tokenizers
from keras_transformer.text import SentencePieceTokenizer, Tokenizer
from keras_transformer.training import TranslationQuality
from keras_transformer.training.translation_quality import check_source_lengths
from keras_transformer.types import Data
from keras_transformer_runtime.engines.engine import Engine
from keras_transformer_runtime.engines.generation_options import (
    LENGTH_PENALTY,
    GenerationOptions,
)
from keras_transformer_runtime.runs.corpora import CorpusFiles, weights_of
from keras_transformer_runtime.runs.recipe import PlannedRecipe

LENGTH_PENALTIES = (0.0, 0.6, 1.0, 1.4)
# What the engines divide the log-probability of an output by, from its length.
LengthNorm: TypeAlias = Callable[[np.ndarray, float], np.ndarray]
LENGTH_NORMS: dict[str, LengthNorm] = {
    "keras": lambda lengths, penalty: ((5 + lengths) / 6) ** penalty,
    "ctranslate2": lambda lengths, penalty: np.maximum(lengths, 1) ** penalty,
}


class ParallelTask(Task):
    """Base class of the tasks whose texts are parallel."""

    def read_texts(self) -> None:
        columns = self._plan["columns"]
        given = _open(given_corpora(self._plan, "train"), columns)
        if self._is_new:
            names = [file.names for corpus in given for file in corpus.files]
            choose_columns(self._plan, names)
        self._files = files = _text_files(self._plan, given)
        self._valid = _read_text(files.valid, columns)
        self._test = _read_text(files.test, columns) if files.test else self._valid
        self._corpora = _open(files.train, columns)
        if self._is_new:
            self._statistics = TextStatistics.of(_pairs(self._corpora))

    def training_pairs(self) -> list[Pair]:
        """Returns the pairs of the training text, after parts are held out."""
        return [*_pairs(self._corpora)]

    def text_files(self) -> dict[str, list[str]]:
        """Returns the files of the validation and of the test text by name."""
        found = {"valid": self._files.valid, "test": self._files.test or []}
        return {
            name: [file for corpus in corpora for file in corpus.files]
            for name, corpora in found.items()
        }

    def make_datasets(self, tokenizers: Tokenizers) -> Datasets:
        sampling = self._plan["subword_sampling"]
        self._train_data = self._dataset(self._files.train, tokenizers, sampling)
        self._valid_data = self._dataset(self._files.valid, tokenizers, shuffle=False)
        return Datasets(self._train_data, self._valid_data)

    def _dataset(
        self,
        corpora: list[CorpusFiles],
        tokenizers: Tokenizers,
        subword_sampling: float | None = None,
        shuffle: bool = True,
    ) -> ParallelDataset:
        plan = self._plan
        return parallel_dataset(
            *_sides(corpora),
            columns=plan["columns"],
            weights=weights_of(corpora),
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

    def describe_data(self) -> tuple[str, str]:
        train = _describe(self._train_data) + describe_weights(self._files.train)
        return train, _describe(self._valid_data)

    def _evaluated_texts(
        self, model: GenerativeModel, max_length: int
    ) -> tuple[ParallelText, ParallelText]:
        """Returns the validation and the test text."""
        # The pairs of held-out parts that are too long are left out, as those of the
        # training text are. A warning has the number of those of the test text.
        valid, test = self._valid, self._test
        if isinstance(self._plan["valid"], float):
            valid = _without_long_pairs(valid, model, max_length)
        if self._files.test is None:
            return valid, valid
        if isinstance(self._plan["test"], float):
            test = _without_long_pairs(test, model, max_length)
            if dropped := len(self._test.sources) - len(test.sources):
                warnings.warn(
                    f"{dropped:,} test pairs are longer than `max_length={max_length}` "
                    "and are left out.",
                    stacklevel=2,
                )
        return valid, test


class TranslationTask(ParallelTask):
    """The texts, tokenizers and data of a `Seq2Seq`."""

    model_class = Seq2Seq

    def make_tokenizers(self) -> Tokenizers:
        return make_tokenizers(self._plan, self._statistics, self._corpora)

    def choose_options(self, tokenizers: Tokenizers) -> None:
        counts = tokenizers.count_tokens(self._statistics)
        choose_metric(self._plan, self._statistics)
        choose_model(self._plan, self._statistics.pairs, counts[1])
        choose_batches(self._plan, max(counts))

    def context(self, recipe: PlannedRecipe) -> int:
        return recipe.max_length

    def new_model(self, tokenizers: Tokenizers, recipe: PlannedRecipe) -> Seq2Seq:
        return new_seq2seq(tokenizers, recipe)

    def choose_with_model(self, model: GenerativeModel) -> None:
        choose_validation_engine(self._plan, model)

    def evaluator(
        self, model: GenerativeModel, recipe: PlannedRecipe
    ) -> "TranslationEvaluator":
        valid, test = self._evaluated_texts(model, recipe.max_length)
        check_source_lengths(model, "valid", valid.sources, "max_length")
        check_source_lengths(model, "test", test.sources, "max_length")
        return TranslationEvaluator(recipe, valid, test)


class TranslationEvaluator(Evaluator):
    """Scores translations of the validation and test texts."""

    def __init__(
        self, recipe: PlannedRecipe, valid_text: ParallelText, test_text: ParallelText
    ) -> None:
        self._recipe = recipe
        self._valid, self._test = valid_text, test_text
        self._engine = ValidationEngine(
            recipe.valid_engine or "keras", pathlib.Path(recipe.output)
        )
        self._metric = "bleu" if recipe.metric == "loss" else recipe.metric
        self._penalties = dict.fromkeys(LENGTH_NORMS, LENGTH_PENALTY)
        self.monitored = f"val_{recipe.metric}"
        self.is_lower_better = _is_lower_better(recipe.metric)
        self.check_texts = valid_text.sources[:20]
        self.description = (
            f"Translating the {'test' if recipe.test else 'validation'} text"
        )
        if self._selects_penalty:
            self.description = (
                f"Selecting the length penalty, {self.description.lower()}"
            )

    @property
    def _selects_penalty(self) -> bool:
        return self._recipe.selection and self._recipe.num_beams > 1

    def callbacks(self) -> list[keras.callbacks.Callback]:
        recipe = self._recipe
        if recipe.metric == "loss":
            return []
        shown = (recipe.metric, "bleu", "chrf")
        return [
            TranslationQuality(
                *self._valid,
                search=GreedySearch(),
                every=recipe.metric_every,
                lowercase=recipe.lowercase,
                tokenize=recipe.bleu_tokenize,
                metrics=[name for name in evaluation.METRICS if name in shown],
                translate=self._engine.translate,
            )
        ]

    def score(self, model: GenerativeModel) -> float:
        """Returns the metric of the recipe on the validation text, with beam search.

        With `metric="loss"`, it is the mean cross-entropy of a target token.
        """
        text, recipe = self._valid, self._recipe
        with self._engine.of(model) as engine:
            if recipe.metric == "loss":
                found = engine.score(text.sources, text.references)
                losses = [-x for target in found for x in target.log_probabilities]
                return float(np.mean(losses))
            options = GenerationOptions(num_beams=recipe.num_beams)
            return self._scores_of(engine, options, text)[recipe.metric].score

    def result(self, model: GenerativeModel, selection: Selection) -> TrainingResult:
        """Selects a length penalty with the validation text; scores the test text."""
        recipe, name = self._recipe, self._engine.name
        scores: dict[str, dict[float, float]] = {name: {}}
        with self._engine.of(model) as engine:
            if self._selects_penalty:
                scores = self._penalty_scores(engine, model)
                best = min if _is_lower_better(self._metric) else max
                self._penalties = {
                    each: best(found, key=found.__getitem__)
                    for each, found in scores.items()
                }
            test_scores = self._scores_of(engine, self._options(name), self._test)
        test_values: dict[str, Data] = {
            each: found.score for each, found in test_scores.items()
        }
        figures = Figures(
            sentences=len(self._test.sources),
            length_penalty=self._penalties["keras"],
            bleu_signature=test_scores["bleu"].signature,
            chrf_signature=test_scores["chrf"].signature,
            valid_scores={str(penalty): x for penalty, x in scores[name].items()},
            metric=recipe.metric,
            weights=selection.name,
            candidates=selection.scores,
            valid_engine=name,
            **test_values,
        )
        return TrainingResult(
            model, search_from_options(self._options("keras")), figures
        )

    def search_of(self, engine: Engine) -> ChosenSearch:
        penalty = self._penalties["ctranslate2"]
        options = engine.options.with_given(length_penalty=penalty)
        scores = self._scores_of(engine, options, self._valid)
        score, name = scores[self._metric].score, self._metric.replace("_", " ")
        description = f"length penalty {penalty:g}, {name} {score:.4g} (validation)"
        return ChosenSearch(options, {self._metric: score}, description)

    def _options(self, engine: str) -> GenerationOptions:
        """Returns the options of the search of an engine."""
        penalty = self._penalties[engine]
        return GenerationOptions(
            num_beams=self._recipe.num_beams, length_penalty=penalty
        )

    def _penalty_scores(
        self, engine: Engine, model: GenerativeModel
    ) -> dict[str, dict[float, float]]:
        """Returns the metric on the validation text by engine and length penalty.

        The validation text is decoded once, without a penalty. Each penalty then
        chooses among the hypotheses of a text.
        """
        beams = self._recipe.num_beams
        options = GenerationOptions(
            num_beams=beams, num_hypotheses=beams, length_penalty=0.0
        )
        rows = engine.generate(self._valid.sources, options)
        found = [each for row in rows for each in row]
        log_probabilities = np.array([each.score for each in found])
        tokenizer = Tokenizers.of(model).target
        tokens = tokenizer.tokenize([each.text for each in found], add_end=True)
        lengths = tokens.row_lengths().numpy()
        ends = np.cumsum([len(row) for row in rows])[:-1]

        def score(norm: LengthNorm, penalty: float) -> float:
            ranked = np.split(log_probabilities / norm(lengths, penalty), ends)
            best = [
                row[scores.argmax()] for row, scores in zip(rows, ranked, strict=True)
            ]
            outputs = [each.text for each in best]
            return self._scores(outputs, self._valid)[self._metric].score

        return {
            name: {penalty: score(norm, penalty) for penalty in LENGTH_PENALTIES}
            for name, norm in LENGTH_NORMS.items()
        }

    def _scores_of(
        self, engine: Engine, options: GenerationOptions, text: ParallelText
    ) -> dict[str, evaluation.CorpusScore]:
        """Returns all metrics of the translations of a text, by name."""
        found = engine.generate(text.sources, options)
        return self._scores([row[0].text for row in found], text)

    def _scores(
        self, outputs: Sequence[str], text: ParallelText
    ) -> dict[str, evaluation.CorpusScore]:
        """Returns all metrics of outputs by name."""
        return evaluation.text_scores(
            outputs,
            text.references,
            lowercase=self._recipe.lowercase,
            tokenize=self._recipe.bleu_tokenize,
        )


def _is_lower_better(metric: str) -> bool:
    return metric == "loss" or evaluation.METRICS[metric].is_error


def _text_files(plan: Plan, given: list[FilePairs]) -> TextFiles:
    """Returns the files of the texts, after parts are held out from the training."""
    pairs = sum(corpus.count() for corpus in given)  # checks that lines correspond
    plan.choose("valid", default_fraction(pairs), "held out from the training text")
    folder = pathlib.Path(plan["output"], "data")
    corpora = [*zip(given_corpora(plan, "train"), given, strict=True)]
    return text_files(
        plan,
        lambda shares, is_kept: hold_out(
            corpora, plan["columns"], shares, folder, is_kept
        ),
    )


def _sides(corpora: list[CorpusFiles]) -> tuple[list[str], list[str | None]]:
    """Returns the source files, and their target files or `None`."""
    sides = [(*corpus.files, None)[:2] for corpus in corpora]
    return [source for source, _ in sides if source], [target for _, target in sides]


def _open(corpora: list[CorpusFiles], columns: list[str] | None) -> list[FilePairs]:
    return open_files(*_sides(corpora), columns)


def _pairs(corpora: Sequence[Corpus]) -> Iterator[Pair]:
    return itertools.chain.from_iterable(corpora)


def _read_text(corpora: list[CorpusFiles], columns: list[str] | None) -> ParallelText:
    pairs = [*_pairs(_open(corpora, columns))]
    return ParallelText(
        [source for source, _ in pairs], [target for _, target in pairs]
    )


def _without_long_pairs(
    text: ParallelText, model: GenerativeModel, max_length: int
) -> ParallelText:
    """Returns the pairs that are not too long, or all pairs if each one is."""
    is_short = np.ones(len(text.sources), bool)
    for tokenizer, lines in zip(Tokenizers.of(model), text, strict=True):
        lengths = tokenizer.tokenize(lines, add_end=True).row_lengths()
        is_short &= lengths.numpy() <= max_length
    if not is_short.any():
        return text
    return ParallelText(*(list(itertools.compress(side, is_short)) for side in text))


def _sampling(tokenizer: Tokenizer, rate: float | None) -> float | None:
    """Returns the rate of subword sampling of a side."""
    return rate if isinstance(tokenizer, SentencePieceTokenizer) else None


def _describe(data: ParallelDataset) -> str:
    dropped = {
        "empty": "empty",
        "max_source_length": "too long",
        "max_target_length": "too long",
        "duplicate": "repeated",
        "max_length_ratio": "of unequal length",
    }
    counts: dict[str, int] = {}
    for reason, count in data.dropped.items():
        counts[dropped[reason]] = counts.get(dropped[reason], 0) + count
    parts = [f"{data.pairs_kept:,} pairs in {data.batches_per_epoch:,} batches"]
    parts += [
        f"{count:,} {name} are left out" for name, count in counts.items() if count
    ]
    return ", ".join(parts)
