"""Generates texts with CTranslate2."""

import abc
import collections
import functools
import hashlib
import math
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, final

import ctranslate2
import numpy as np

from keras_transformer_runtime.arguments import check_unicode
from keras_transformer_runtime.engines.engine import (
    Engine,
    Hypothesis,
    OnText,
    TokenScores,
    without_beginning,
)
from keras_transformer_runtime.engines.generation_options import (
    REPLACEMENT,
    GenerationOptions,
    final_beginning,
)
from keras_transformer_runtime.engines.model_description import ModelDescription
from keras_transformer_runtime.tokenizers import read_tokenizer
from keras_transformer_runtime.tokenizers.text_tokenizer import TextTokenizer

LEAST_GROUP = 16  # texts with one maximum length that are decoded apart from others


class _Batch(NamedTuple):
    """Token ids of texts that have words."""

    rows: list[list[int]]  # of sources with the end token, or of prompts
    prefixes: list[list[int]]
    limits: list[int]  # maximum lengths of the outputs, the end token included

    def part(self, places: Sequence[int]) -> "_Batch":
        return _Batch(
            [self.rows[place] for place in places],
            [self.prefixes[place] for place in places],
            [self.limits[place] for place in places],
        )


class _Output(NamedTuple):
    """A hypothesis of CTranslate2."""

    token_ids: list[int]  # without the end token
    score: float
    ended: bool


# Receives the place of a text in a batch, and a token of its output. It returns whether
# the output ends there.
_OnToken: TypeAlias = Callable[[int, int], bool]

_Callback: TypeAlias = Callable[[ctranslate2.GenerationStepResult], bool]

# Unfinished results of the texts of a batch, in their order.
_Result: TypeAlias = Any
_Results: TypeAlias = list[_Result]


def _usable_cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # which macOS lacks
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class CTranslate2Engine(Engine):
    """Generates texts with a folder that `export(format="ctranslate2")` has written.

    It imports neither TensorFlow nor Keras. Greedy search gives the tokens of
    `generate`, up to equal scores, and beam search with `length_penalty=0` nearly
    always does. With a length penalty, CTranslate2 divides a score by
    `length ** length_penalty` and stops as soon as `num_beams` hypotheses have ended.

    Args:
        path: folder of the model.
        description: content of its file `keras_transformer.json`.
        threads: int, number of threads; `None` = all cores.
        parallel: bool, whether the threads decode different batches. It is faster for
            many texts, and slower for a single one. `generate_batches` then reads some
            batches ahead.

    References:
        - [CTranslate2](https://opennmt.net/CTranslate2/), version 4.8
    """

    name = "ctranslate2"

    def __init__(
        self,
        path: pathlib.Path,
        description: ModelDescription,
        threads: int | None = None,
        parallel: bool = False,
    ):
        self.path = path
        self.options = description.options
        self.is_language_model = description.is_language_model
        self.max_source_length = description.limits.source
        self.max_target_length = description.limits.target
        self.languages = description.languages
        self._description = description
        self._tokenizers = {
            side: read_tokenizer(content, path)
            for side, content in description.tokenizers.items()
        }
        threads = threads or _usable_cores()
        # Batches that are read before the first one of them has ended.
        self._ahead = 2 * threads if parallel else 0
        self._settings = {
            "inter_threads": threads if parallel else 1,
            "intra_threads": 1 if parallel else threads,
        }
        self._source_tokens = self.source_tokenizer.tokens
        self._target_tokens = self.target_tokenizer.tokens
        self._ids = {token: id for id, token in enumerate(self._target_tokens)}
        self._end_id = self.target_tokenizer.end_token_id
        self._end = self._target_tokens[self._end_id]

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        threads: int | None = None,
        parallel: bool = False,
    ) -> "CTranslate2Engine":
        """Loads a folder; the arguments are those of the class.

        Raises:
            ValueError: if the folder lacks `keras_transformer.json`, or it is damaged.

        Example:

        ```python
        model.export("en-de-ct2", format="ctranslate2")
        engine = CTranslate2Engine.load("en-de-ct2")
        print(engine.generate(["A man sleeps."], engine.options)[0][0].text)
        ```
        """
        path = pathlib.Path(path)
        description = ModelDescription.read(path)
        kind = _Generator if description.is_language_model else _Translator
        return kind(path, description, threads, parallel)

    @property
    def source_tokenizer(self) -> TextTokenizer:
        """The tokenizer of the sources or prompts."""
        return self._tokenizers["source"]

    @property
    def target_tokenizer(self) -> TextTokenizer:
        """The tokenizer of the outputs."""
        return self._tokenizers["target"]

    def measure(self, texts: Sequence[str], side: str, first: int = 1) -> list[int]:
        tokenizer = self._tokenizers[side]
        lengths = []
        for number, text in enumerate(texts, start=first):
            if self.is_language_model and side == "source":
                lengths.append(len(self._encode(text, "") or ()))
                continue
            row = tokenizer.encode(text)
            tokenizer.check_language_token(text, row, side, f"line {number}")
            lengths.append(len(row) + 1 if tokenizer.has_words(text, row) else 0)
        return lengths

    def refusal(self, options: GenerationOptions, prefix: bool = False) -> str | None:
        if options.samples and options.seed is not None:
            return (
                "`seed` must not be given with CTranslate2, whose random numbers "
                "depend on the other texts of a batch; received "
                f"`seed={options.seed}`. "
                "Remove it, or use another engine."
            )
        if options.num_beam_groups > 1:
            return (
                "`num_beam_groups` must be 1 with CTranslate2; received "
                f"`num_beam_groups={options.num_beam_groups}`. Remove it, or use "
                "another engine."
            )
        if prefix and self.is_language_model:
            return (
                "`prefix` is for models that translate; received a `prefix` and a "
                "language model. Add it to the prompt."
            )
        return None

    def generate(
        self,
        texts: Sequence[str],
        options: GenerationOptions,
        *,
        prefixes: Sequence[str] | None = None,
        include_prompt: bool = False,
        batch_size: int = 64,
        on_text: OnText | None = None,
    ) -> list[list[Hypothesis]]:
        self.check(options, prefixes is not None)
        places, batch = self._tokenize(texts, options, prefixes)
        order = sorted(range(len(places)), key=lambda i: len(batch.rows[i]))
        outputs = [[Hypothesis("")] * options.num_hypotheses for _ in texts]
        parts = [order[i : i + batch_size] for i in range(0, len(order), batch_size)]
        batches = [batch.part(part) for part in parts]
        if on_text is not None and options.num_beams == options.num_hypotheses == 1:
            writers = [
                self._writer(
                    own, [places[i] for i in part], options, include_prompt, on_text
                )
                for own, part in zip(batches, parts, strict=True)
            ]
            decoded: Iterator[list[list[Hypothesis]]] = (
                self._collect(
                    own, self._submit(own, options, write), options, include_prompt
                )
                for own, write in zip(batches, writers, strict=True)
            )
        else:
            decoded = self._decode(batches, options, include_prompt)
        for part, found in zip(parts, decoded, strict=True):
            for i, hypotheses in zip(part, found, strict=True):
                outputs[places[i]] = hypotheses
        return outputs

    def _writer(
        self,
        batch: _Batch,
        places: Sequence[int],
        options: GenerationOptions,
        include_prompt: bool,
        on_text: OnText,
    ) -> _OnToken:
        """Returns a function that receives tokens, and passes texts to `on_text`."""
        token_ids: list[list[int]] = [[] for _ in batch.rows]
        written = [""] * len(batch.rows)

        def write(row: int, token_id: int) -> bool:
            token_ids[row].append(token_id)
            is_full = len(token_ids[row]) >= batch.limits[row]
            if is_full and not self.is_language_model:
                return True  # The last token is the end token.
            text = self.target_tokenizer.decode(token_ids[row])
            final = final_beginning(text, options.stop)
            if include_prompt and final:
                prompt, cut = batch.rows[row], len(text) - len(final)
                final = self._whole(prompt, token_ids[row], cut)
            if len(final) > len(written[row]) and final.startswith(written[row]):
                written[row] = final
                if on_text(places[row], final):
                    return True
            return is_full or options.cut(text)[1]

        return write

    def generate_batches(
        self,
        batches: Iterable[list[str]],
        options: GenerationOptions,
        prefix: str = "",
    ) -> Iterator[list[list[Hypothesis]]]:
        self.check(options, bool(prefix))
        waiting: collections.deque[tuple[int, list[int]]] = collections.deque()

        def tokenized() -> Iterator[_Batch]:
            for texts in batches:
                prefixes = [prefix] * len(texts) if prefix else None
                places, batch = self._tokenize(texts, options, prefixes)
                waiting.append((len(texts), places))
                yield batch

        for found in self._decode(tokenized(), options):
            count, places = waiting.popleft()
            outputs = [[Hypothesis("")] * options.num_hypotheses for _ in range(count)]
            for place, hypotheses in zip(places, found, strict=True):
                outputs[place] = hypotheses
            yield outputs

    def _decode(
        self,
        batches: Iterable[_Batch],
        options: GenerationOptions,
        include_prompt: bool = False,
    ) -> Iterator[list[list[Hypothesis]]]:
        """Decodes batches in their order, several of them at the same time."""
        running: collections.deque[tuple[_Batch, _Results]] = collections.deque()
        for batch in batches:
            running.append((batch, self._submit(batch, options)))
            if len(running) > self._ahead:
                yield self._collect(*running.popleft(), options, include_prompt)
        while running:
            yield self._collect(*running.popleft(), options, include_prompt)

    def _collect(
        self,
        batch: _Batch,
        results: _Results,
        options: GenerationOptions,
        include_prompt: bool,
    ) -> list[list[Hypothesis]]:
        """Waits for the results of a batch.

        CTranslate2 has one maximum length for a batch. Texts whose outputs are longer
        than their own limit are decoded again, those of one limit together.
        """
        outputs = [self._outputs(result.result()) for result in results]
        over: dict[int, list[int]] = {}
        for place, found in enumerate(outputs):
            limit = batch.limits[place]
            if max(len(each.token_ids) + each.ended for each in found) > limit:
                over.setdefault(limit, []).append(place)
        for places in over.values():
            again = self._submit(batch.part(places), options)
            for place, result in zip(places, again, strict=True):
                outputs[place] = self._outputs(result.result())
        hypotheses = []
        for row, limit, found in zip(batch.rows, batch.limits, outputs, strict=True):
            prompt = row if include_prompt else []
            hypotheses.append(
                [self._hypothesis(each, limit, options, prompt) for each in found]
            )
        return hypotheses

    def _hypothesis(
        self,
        output: _Output,
        limit: int,
        options: GenerationOptions,
        prompt: list[int],
    ) -> Hypothesis:
        token_ids = output.token_ids
        if not output.ended and not self.is_language_model:
            token_ids = token_ids[: limit - 1]  # The last token is the end token.
        decoded = self.target_tokenizer.decode(token_ids)
        text, stopped = options.cut(decoded)
        if prompt:
            text = self._whole(prompt, token_ids, len(decoded) - len(text))
        truncated = not (output.ended or stopped)
        length = min(limit, len(output.token_ids) + output.ended)
        return Hypothesis(text, output.score, truncated, length)

    def _whole(self, prompt: Sequence[int], token_ids: Sequence[int], cut: int) -> str:
        """Returns the text of a prompt and its output without `cut` characters."""
        # The start token of a prompt can be the end token, which ends a text.
        special = self.target_tokenizer.start_token_id, self._end_id
        begin = [token_id for token_id in prompt if token_id not in special]
        whole = self.target_tokenizer.decode([*begin, *token_ids])
        return whole[: len(whole) - cut]

    def _tokenize(
        self,
        texts: Sequence[str],
        options: GenerationOptions,
        prefixes: Sequence[str] | None,
    ) -> tuple[list[int], _Batch]:
        """Returns the places of the texts that have words, and their token ids."""
        places, rows, begun, limits = [], [], [], []
        longest = self.max_source_length or math.inf
        for place, text in enumerate(texts):
            check_unicode(text, "texts", f"row {place}")
            row = self._encode(text, f"row {place}")
            if row is None:
                continue
            if len(row) > longest:
                raise ValueError(
                    "`texts` must have at most `max_source_length="
                    f"{self.max_source_length}` tokens each; received {len(row)} "
                    f"tokens in row {place}. Shorten or split the text."
                )
            places.append(place)
            rows.append(row)
            begun.append(
                []
                if prefixes is None
                else self.target_tokenizer.encode(prefixes[place])
            )
            limits.append(self._description.max_length(len(row), options.max_length))
            if len(begun[-1]) >= limits[-1]:
                raise ValueError(
                    "`prefix` must be shorter than the maximum output length; received "
                    f"{len(begun[-1])} tokens in row {place}, whose output has at most "
                    f"{limits[-1]}."
                )
        return places, _Batch(rows, begun, limits)

    def _search_options(self, options: GenerationOptions) -> dict[str, object]:
        """Returns the arguments of CTranslate2 for a search."""
        return {
            "beam_size": 1 if options.samples else options.num_beams,
            "num_hypotheses": options.num_hypotheses,
            "length_penalty": options.length_penalty,
            **self._step_options(options),
            "return_scores": True,
            "return_end_token": True,
        }

    def _step_options(self, options: GenerationOptions) -> dict[str, object]:
        """Returns the arguments of CTranslate2 for the choice of a token."""
        sampling = {}
        if options.samples:
            sampling = {
                "sampling_topk": options.top_k or 0,  # 0 = all tokens
                "sampling_topp": options.top_p,
                "sampling_temperature": options.temperature,
            }
        pad = self._target_tokens[self.target_tokenizer.pad_token_id]
        return {
            **sampling,
            "repetition_penalty": options.repetition_penalty,
            "no_repeat_ngram_size": options.no_repeat_ngram_size,
            "suppress_sequences": [[pad]],
        }

    def stream(
        self, text: str, options: GenerationOptions, prefix: str = ""
    ) -> Iterator[str]:
        self.check(options, bool(prefix))
        prefixes = [prefix] if prefix else None
        if options.num_beams > 1:
            [[best, *_]] = self.generate([text], options, prefixes=prefixes)
            return without_beginning([best.text], len(prefix))
        _, batch = self._tokenize([text], options, prefixes)
        steps = self._steps(batch, options) if batch.rows else iter(())
        begin = self.target_tokenizer.decode(batch.prefixes[0]) if batch.rows else ""
        return without_beginning(options.cut_pieces(self._pieces(steps)), len(begin))

    def _pieces(self, steps: Iterator[int]) -> Iterator[str]:
        """Yields the text of tokens, each character once it is complete."""
        token_ids: list[int] = []
        yielded = found = ""
        for token_id in steps:
            token_ids.append(token_id)
            found = self.target_tokenizer.decode(token_ids)
            if found.startswith(yielded) and not found.endswith(REPLACEMENT):
                if len(found) > len(yielded):
                    yield found[len(yielded) :]
                yielded = found
        if found.startswith(yielded) and len(found) > len(yielded):
            yield found[len(yielded) :]  # an incomplete character at the end

    def digest(self) -> str:
        digest = hashlib.sha256((self.path / "model.bin").read_bytes())
        return digest.hexdigest()[:16]

    @abc.abstractmethod
    def _encode(self, text: str, where: str) -> list[int] | None:
        """Returns the token ids of a source or prompt; `None` without words."""

    def _submit(
        self,
        batch: _Batch,
        options: GenerationOptions,
        on_token: _OnToken | None = None,
    ) -> _Results:
        """Begins to decode a batch, in groups of texts that suit each other."""
        results: _Results = [None] * len(batch.rows)
        for places in self._groups(batch):
            callback = None if on_token is None else self._callback(places, on_token)
            found = self._begin(batch.part(places), options, callback)
            for place, result in zip(places, found, strict=True):
                results[place] = result
        return results

    def _callback(self, places: Sequence[int], on_token: _OnToken) -> _Callback:
        """Returns the function that CTranslate2 calls for the tokens of some texts."""

        def call(step: ctranslate2.GenerationStepResult) -> bool:
            if step.token == self._end:
                return False
            return on_token(places[step.batch_id], self._id(step.token))

        return call

    @abc.abstractmethod
    def _groups(self, batch: _Batch) -> Iterable[list[int]]:
        """Returns the places of the texts that are decoded together."""

    @abc.abstractmethod
    def _begin(
        self, batch: _Batch, options: GenerationOptions, callback: _Callback | None
    ) -> _Results:
        """Begins to decode a group of texts."""

    @abc.abstractmethod
    def _outputs(self, result: _Result) -> list[_Output]:
        """Converts a result of CTranslate2."""

    @abc.abstractmethod
    def _steps(self, batch: _Batch, options: GenerationOptions) -> Iterator[int]:
        """Yields the tokens of the output of one text, without the end token."""

    def _id(self, token: str) -> int:
        """Returns the id of a token; a row of an embedding can have no token."""
        return self._ids.get(token, self.target_tokenizer.unknown_token_id)

    def _output(self, tokens: Sequence[str], score: float) -> _Output:
        ended = bool(tokens) and tokens[-1] == self._end
        tokens = tokens[:-1] if ended else tokens
        return _Output([self._id(token) for token in tokens], score, ended)


@final
class _Translator(CTranslate2Engine):
    """An encoder-decoder Transformer. CTranslate2 adds the end tokens of sources."""

    @functools.cached_property
    def _model(self) -> ctranslate2.Translator:
        return ctranslate2.Translator(str(self.path), **self._settings)

    def _encode(self, text: str, where: str) -> list[int] | None:
        tokenizer = self.source_tokenizer
        row = tokenizer.encode(text)
        tokenizer.check_language_token(text, row, "texts", where)
        return (
            [*row, tokenizer.end_token_id] if tokenizer.has_words(text, row) else None
        )

    def _groups(self, batch: _Batch) -> Iterable[list[int]]:
        """Puts texts of several limits together only if there are few of each."""
        groups: list[list[int]] = []
        for place in sorted(range(len(batch.rows)), key=lambda i: batch.limits[i]):
            last = groups[-1] if groups else []
            is_same = bool(last) and batch.limits[last[-1]] == batch.limits[place]
            if not groups or len(last) >= LEAST_GROUP and not is_same:
                groups.append([])
            groups[-1].append(place)
        return groups

    def _begin(
        self, batch: _Batch, options: GenerationOptions, callback: _Callback | None
    ) -> _Results:
        return self._model.translate_batch(
            self._sources(batch),
            target_prefix=self._prefixes(batch),
            **self._search_options(options),
            **self._limits(batch, options),
            asynchronous=True,
            callback=callback,
        )

    def _sources(self, batch: _Batch) -> list[list[str]]:
        return [[self._source_tokens[i] for i in row[:-1]] for row in batch.rows]

    def _prefixes(self, batch: _Batch) -> list[list[str]] | None:
        if not any(batch.prefixes):
            return None
        return [[self._target_tokens[i] for i in row] for row in batch.prefixes]

    def _limits(self, batch: _Batch, options: GenerationOptions) -> dict[str, int]:
        return {
            "max_input_length": 0,  # any
            "max_decoding_length": max(batch.limits),
            "min_decoding_length": max(0, options.min_length - 1),
        }

    def _outputs(self, result: ctranslate2.TranslationResult) -> list[_Output]:
        pairs = zip(result.hypotheses, result.scores, strict=True)
        return [self._output(*pair) for pair in pairs]

    def _steps(self, batch: _Batch, options: GenerationOptions) -> Iterator[int]:
        [source], prefixes = self._sources(batch), self._prefixes(batch)
        limits = self._limits(batch, options)
        for step in self._model.generate_tokens(
            source,
            None if prefixes is None else prefixes[0],
            **self._step_options(options),
            **limits,
        ):
            # The last token of an output that has not ended is the end token.
            if step.token != self._end and step.step < batch.limits[0] - 1:
                yield self._id(step.token)

    def _positions(
        self, sources: list[str], targets: list[str], batch_size: int
    ) -> list[np.ndarray]:
        rows = [self.source_tokenizer.encode(text) for text in sources]
        others = [self.target_tokenizer.encode(text) for text in targets]
        # Greedy search with a whole target as prefix. Its attention is without the end
        # of the source; `export` chooses the block and the heads.
        results = self._model.translate_batch(
            [[self._source_tokens[i] for i in row] for row in rows],
            target_prefix=[[self._target_tokens[i] for i in row] for row in others],
            beam_size=1,
            return_attention=True,
            max_batch_size=batch_size,
            max_input_length=0,
            max_decoding_length=max(map(len, others)),
        )
        return [
            np.argmax(result.attention[0][: len(row)], axis=1)
            for result, row in zip(results, others, strict=True)
        ]

    def score(
        self, sources: Sequence[str], targets: Sequence[str], batch_size: int = 64
    ) -> list[TokenScores]:
        rows = [self.source_tokenizer.encode(text) for text in sources]
        others = [self.target_tokenizer.encode(text) for text in targets]
        results = self._model.score_batch(
            [[self._source_tokens[i] for i in row] for row in rows],
            [[self._target_tokens[i] for i in row] for row in others],
            max_batch_size=batch_size,
            max_input_length=0,
        )
        end = [self.target_tokenizer.end_token_id]
        return [
            TokenScores([self._target_tokens[i] for i in row + end], result.log_probs)
            for row, result in zip(others, results, strict=True)
        ]


@final
class _Generator(CTranslate2Engine):
    """A decoder-only Transformer, which continues prompts."""

    @functools.cached_property
    def _model(self) -> ctranslate2.Generator:
        return ctranslate2.Generator(str(self.path), **self._settings)

    def _encode(self, text: str, where: str) -> list[int]:
        tokenizer = self.source_tokenizer
        row = tokenizer.encode(text)
        begins = self._description.add_start_token or not row
        return [tokenizer.start_token_id, *row] if begins else row

    def _groups(self, batch: _Batch) -> Iterable[list[int]]:
        # CTranslate2 loses hypotheses that end before the longest prompt of a batch.
        groups: dict[int, list[int]] = {}
        for place, row in enumerate(batch.rows):
            groups.setdefault(len(row), []).append(place)
        return groups.values()

    def _begin(
        self, batch: _Batch, options: GenerationOptions, callback: _Callback | None
    ) -> _Results:
        return self._model.generate_batch(
            [self._prompt(row) for row in batch.rows],
            **self._search_options(options),
            **self._limits(batch.limits, options),
            include_prompt_in_result=False,
            asynchronous=True,
            callback=callback,
        )

    def _prompt(self, row: list[int]) -> list[str]:
        return [self._source_tokens[i] for i in row]

    def _limits(
        self, limits: Sequence[int], options: GenerationOptions
    ) -> dict[str, int]:
        return {
            "max_length": max(limits),
            "min_length": max(0, options.min_length - 1),
        }

    def _outputs(self, result: ctranslate2.GenerationResult) -> list[_Output]:
        pairs = zip(result.sequences, result.scores, strict=True)
        return [self._output(*pair) for pair in pairs]

    def _steps(self, batch: _Batch, options: GenerationOptions) -> Iterator[int]:
        for step in self._model.generate_tokens(
            self._prompt(batch.rows[0]),
            **self._step_options(options),
            **self._limits(batch.limits, options),
        ):
            if step.token != self._end:
                yield self._id(step.token)

    def score(
        self, sources: Sequence[str], targets: Sequence[str], batch_size: int = 64
    ) -> list[TokenScores]:
        end = self.target_tokenizer.end_token_id
        prompts = [self._encode(text, "") for text in sources]
        answers = [[*self.target_tokenizer.encode(text), end] for text in targets]
        results = self._model.score_batch(
            [
                self._prompt([*prompt, *answer])
                for prompt, answer in zip(prompts, answers, strict=True)
            ],
            max_batch_size=batch_size,
            max_input_length=0,
        )
        return [
            TokenScores(self._prompt(answer), result.log_probs[-len(answer) :])
            for result, answer in zip(results, answers, strict=True)
        ]
