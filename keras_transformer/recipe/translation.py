"""The task of a `Seq2Seq`: parallel text, and figures of translations."""

import itertools
import pathlib
import warnings
from collections.abc import Iterator, Mapping, Sequence

import keras
import numpy as np

from keras_transformer import evaluation
from keras_transformer.dataset import ParallelDataset, parallel_dataset
from keras_transformer.dataset.text_pairs import Corpus, FilePairs, Pair, open_files
from keras_transformer.decoding import GreedySearch, Search
from keras_transformer.decoding.generation_options import search_of
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
from keras_transformer_runtime.engines.engine import Engine
from keras_transformer_runtime.engines.generation_options import (
    LENGTH_PENALTY,
    GenerationOptions,
)
from keras_transformer_runtime.runs.corpora import CorpusFiles, weights_of
from keras_transformer_runtime.runs.recipe import PlannedRecipe

LENGTH_PENALTIES = (0.0, 0.6, 1.0, 1.4)


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

    def padded_tokens(self) -> float:
        return sum(
            shape.batches * shape.rows * (shape.source_length + shape.target_length)
            for shape in self._train_data.shapes
        )

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

    def padded_tokens(self) -> float:
        return super().padded_tokens() / 2  # each weight is used for one side

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

    description = "Selecting the length penalty, translating the test text"

    def __init__(
        self, recipe: PlannedRecipe, valid_text: ParallelText, test_text: ParallelText
    ) -> None:
        self._recipe = recipe
        self._valid, self._test = valid_text, test_text
        self._engine = ValidationEngine(recipe.valid_engine or "keras")
        self.monitored = f"val_{recipe.metric}"
        self.is_lower_better = _is_lower_better(recipe.metric)
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
                translate=self._engine.translate,
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
        search = _search(recipe.num_beams)
        outputs, _ = self._engine.translate(model, text.sources, search)
        return self._scores(outputs, text)[recipe.metric].score

    def result(self, model: GenerativeModel, selection: Selection) -> TrainingResult:
        """Selects a length penalty with the validation text; scores the test text."""
        recipe = self._recipe
        metric = "bleu" if recipe.metric == "loss" else recipe.metric
        valid_scores = {}
        for penalty in LENGTH_PENALTIES:
            search = _search(recipe.num_beams, penalty)
            outputs = model.generate(self._valid.sources, search)
            scores = self._scores(outputs, self._valid)
            valid_scores[penalty] = scores[metric].score
        length_penalty = _best_penalty(valid_scores, metric)
        search = _search(recipe.num_beams, length_penalty)
        outputs = model.generate(self._test.sources, search)
        test_scores = self._scores(outputs, self._test)
        figures = Figures(
            sentences=len(self._test.sources),
            length_penalty=length_penalty,
            bleu_signature=test_scores["bleu"].signature,
            chrf_signature=test_scores["chrf"].signature,
            valid_scores={str(penalty): x for penalty, x in valid_scores.items()},
            metric=recipe.metric,
            weights=selection.name,
            candidates=selection.scores,
            valid_engine=self._engine.name,
            **{name: found.score for name, found in test_scores.items()},
        )
        return TrainingResult(model, search, figures)

    def search_of(self, engine: Engine) -> ChosenSearch:
        recipe = self._recipe
        metric = "bleu" if recipe.metric == "loss" else recipe.metric
        scores = {}
        for penalty in LENGTH_PENALTIES:
            options = engine.options.with_given(length_penalty=penalty)
            found = engine.generate(self._valid.sources, options)
            outputs = [hypotheses[0].text for hypotheses in found]
            scores[penalty] = self._scores(outputs, self._valid)[metric].score
        best = _best_penalty(scores, metric)
        options = engine.options.with_given(length_penalty=best)
        name = metric.replace("_", " ")
        description = f"length penalty {best:g}, {name} {scores[best]:.4g} (validation)"
        return ChosenSearch(options, {metric: scores[best]}, description)

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


def _best_penalty(scores: Mapping[float, float], metric: str) -> float:
    best = min if _is_lower_better(metric) else max
    return best(scores, key=lambda penalty: scores[penalty])


def _is_lower_better(metric: str) -> bool:
    return metric == "loss" or evaluation.METRICS[metric].is_error


def _text_files(plan: Plan, given: list[FilePairs]) -> TextFiles:
    """Returns the files of the texts, after parts are held out from the training."""
    pairs = sum(corpus.count() for corpus in given)  # checks that lines correspond
    plan.choose("valid", default_fraction(pairs), "held out from the training text")
    folder = pathlib.Path(plan["output"], "data")
    corpora = [*zip(given_corpora(plan, "train"), given, strict=True)]
    return text_files(
        plan, lambda shares: hold_out(corpora, plan["columns"], shares, folder)
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


def _search(num_beams: int, length_penalty: float = LENGTH_PENALTY) -> Search:
    """Returns a beam search, or a greedy one of one beam, as the commands do."""
    return search_of(
        GenerationOptions(num_beams=num_beams, length_penalty=length_penalty)
    )


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
