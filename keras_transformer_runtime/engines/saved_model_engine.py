"""Generates texts with a SavedModel, with TensorFlow alone."""

import hashlib
import math
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Self

import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401 (registers its operations)

from keras_transformer_runtime.arguments import check_unicode
from keras_transformer_runtime.engines.engine import (
    Engine,
    Hypothesis,
    OnText,
    TokenScores,
    without_beginning,
)
from keras_transformer_runtime.engines.generation_options import (
    GenerationOptions,
    final_beginning,
)
from keras_transformer_runtime.engines.model_description import ModelDescription
from keras_transformer_runtime.engines.signature_call import call_signature


class SavedModelEngine(Engine):
    """Generates texts with a SavedModel that `export` has written.

    It does not import `keras_transformer`. The SavedModel contains its search, so
    an option that differs from those of the export is refused. Each new shape of a
    batch is compiled at its first use.

    Args:
        path: folder of the SavedModel.
        description: content of its file `keras_transformer.json`.
    """

    name = "saved_model"

    def __init__(self, path: pathlib.Path, description: ModelDescription):
        self.path = path
        self.options = description.options
        self.is_language_model = description.is_language_model
        self.max_source_length = description.limits.source
        self.max_target_length = description.limits.target
        self.languages = description.languages
        self._description = description
        self._model = tf.saved_model.load(os.fspath(path))
        self.signatures = self._model.signatures

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Loads a SavedModel.

        Raises:
            ValueError: if the folder lacks `keras_transformer.json`, or it is damaged.

        Example:

        ```python
        model.export("saved_models/en-de/1", num_beams=2)
        engine = SavedModelEngine.load("saved_models/en-de/1")
        print(engine.generate(["A man sleeps."], engine.options)[0][0].text)
        ```
        """
        path = pathlib.Path(path)
        return cls(path, ModelDescription.read(path))

    def measure(self, texts: Sequence[str], side: str, first: int = 1) -> list[int]:
        found = self.call("lengths", source=texts, target=texts)
        lengths: list[int] = found[f"{side}_length"].tolist()
        if 0 in lengths:
            place = lengths.index(0)
            raise ValueError(
                f"`{side}` must have a language token of the vocabulary or none; "
                f"received {texts[place]!r:.80} in line {first + place}."
            )
        # The end token alone: a text without words.
        is_text = not self.is_language_model
        return [0 if is_text and length == 1 else length for length in lengths]

    def refusal(self, options: GenerationOptions, prefix: bool = False) -> str | None:
        if "nbest" not in self.signatures:
            return f"{self.path} must have the signature nbest; it takes no texts."
        wanted, own = options.of_search(), self.options.of_search()
        changed = {x: wanted[x] for x in wanted if x not in own or wanted[x] != own[x]}
        if not changed:
            return None
        if options.samples != self.options.samples:
            kinds = {True: "sampling", False: "beam search or greedy search"}
            must = f"The search must be {kinds[self.options.samples]}"
            received = kinds[options.samples]
            default = GenerationOptions(samples=options.samples).of_search()
            changed = {
                name: value
                for name, value in changed.items()
                if value != default[name] or name in ("num_beams", "temperature")
            }
        else:
            name = next(iter(changed))
            must = f"`{name}` must be {own[name]}"
            received = f"`{name}={changed[name]}`"
        flags = [
            f"--{name.replace('_', '-')} {value}"
            for name, value in changed.items()
            if value is not None
        ]
        return (
            f"{must}, with which {self.path} was exported; received {received}. Export "
            f"it with `{' '.join(flags)}`, or use the engine Keras."
        )

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
        is_plain = not (prefixes or include_prompt)
        if on_text is not None and is_plain and self._has_pieces(options):
            continued = self._continue(texts, options, on_text)
            return [[hypothesis] for hypothesis in continued]
        for place, text in enumerate(texts):
            check_unicode(text, "texts", f"row {place}")
        lengths = self.measure(texts, "source")
        longest = self.max_source_length or math.inf
        for place, length in enumerate(lengths):
            if length > longest:
                raise ValueError(
                    "`texts` must have at most `max_source_length="
                    f"{self.max_source_length}` tokens each; received {length} "
                    f"tokens in row {place}. Shorten or split the text."
                )
        order = sorted(range(len(texts)), key=lambda place: lengths[place])
        outputs: list[list[Hypothesis]] = [[] for _ in texts]
        for start in range(0, len(order), batch_size):
            places = order[start : start + batch_size]
            found = self.call(
                "nbest",
                text=[texts[place] for place in places],
                prefix=["" if prefixes is None else prefixes[i] for i in places],
                seed=self._seeds(len(places), options.seed),
            )
            for row, place in enumerate(places):
                outputs[place] = _hypotheses(found, row, options, include_prompt)
        return outputs

    def stream(
        self, text: str, options: GenerationOptions, prefix: str = ""
    ) -> Iterator[str]:
        self.check(options, bool(prefix))
        if self._has_pieces(options) and not prefix:
            return options.cut_pieces(self._pieces(text))
        prefixes = [prefix] if prefix else None
        [[best, *_]] = self.generate([text], options, prefixes=prefixes)
        return without_beginning([best.text], len(prefix))

    def _has_pieces(self, options: GenerationOptions) -> bool:
        # With a seed, the samples would differ from the output of `generate`.
        is_free = not options.samples or options.seed is None
        is_one = options.num_hypotheses == 1
        return "continue" in self.signatures and is_free and is_one

    def _continue(
        self, texts: Sequence[str], options: GenerationOptions, on_text: OnText
    ) -> list[Hypothesis]:
        """Continues texts together, a few tokens at a time."""
        lengths = self.measure(texts, "source")
        limits = [
            self._description.max_length(length, options.max_length)
            for length in lengths
        ]
        seeds, states = self._seeds(len(texts), None), [""] * len(texts)
        found = [Hypothesis("")] * len(texts)
        unfinished = [*range(len(texts))]
        while unfinished:
            rows, unfinished = unfinished, []
            outputs = self.call(
                "continue",
                text=[texts[row] for row in rows],
                state=[states[row] for row in rows],
                seed=[seeds[row] for row in rows],
            )
            columns = (outputs[name].tolist() for name in ("text", "state", "length"))
            for row, whole, state, length, done in zip(
                rows, *columns, outputs["done"].tolist(), strict=True
            ):
                text, states[row] = whole.decode("utf-8", "replace"), state.decode()
                kept, stopped = options.cut(text)
                is_full = length >= limits[row]
                truncated = is_full and not (done or stopped)
                found[row] = Hypothesis(kept, math.nan, truncated, length)
                if done or stopped or is_full:
                    continue
                if not on_text(row, final_beginning(text, options.stop)):
                    unfinished.append(row)
        return found

    def _pieces(self, text: str) -> Iterator[str]:
        """Yields what a language model writes, a few tokens at a time."""
        check_unicode(text, "text", repr(text))
        state, written, done = "", "", False
        seeds = self._seeds(1, None)
        [length] = self.measure([text], "source")
        limit = self._description.max_length(length, self.options.max_length)
        while not done:
            found = self.call("continue", text=[text], state=[state], seed=seeds)
            whole, state = (found[name][0].decode() for name in ("text", "state"))
            done = bool(found["done"][0]) or found["length"][0] >= limit
            if whole.startswith(written) and (done or not whole.endswith("\ufffd")):
                yield whole[len(written) :]
                written = whole

    def score(
        self, sources: Sequence[str], targets: Sequence[str], batch_size: int = 64
    ) -> list[TokenScores]:
        scores = []
        for start in range(0, len(sources), batch_size):
            rows = slice(start, start + batch_size)
            found = self.call("score", source=sources[rows], target=targets[rows])
            for tokens, values in zip(
                found["tokens"], found["token_scores"], strict=True
            ):
                names = [token.decode("utf-8", "replace") for token in tokens if token]
                scores.append(TokenScores(names, values[: len(names)].tolist()))
        return scores

    def check_aligns(self) -> None:
        super().check_aligns()
        if "align" not in self.signatures:
            raise ValueError(
                f"{self.path} must have the signature align for `align`; it has none. "
                "Export it again, or use the engine Keras."
            )

    def _positions(
        self, sources: list[str], targets: list[str], batch_size: int
    ) -> list[np.ndarray]:
        positions = []
        for start in range(0, len(sources), batch_size):
            rows = slice(start, start + batch_size)
            found = self.call("align", source=sources[rows], target=targets[rows])
            lengths = np.count_nonzero(found["tokens"] != b"", axis=1)
            for row, length in zip(found["positions"], lengths, strict=True):
                positions.append(row[: length - 1])  # without the end token
        return positions

    def digest(self) -> str:
        digest = hashlib.sha256()
        variables = sorted(self.path.glob("variables/*"))
        for path in (self.path / "saved_model.pb", *variables):
            digest.update(path.read_bytes())
        return digest.hexdigest()[:16]

    def _seeds(self, count: int, seed: int | None) -> list[int]:
        """Returns a seed for each text, which does not depend on the others."""
        if seed is not None:
            return [seed] * count
        found: list[int] = np.random.randint(2**31 - 1, size=count).tolist()
        return found

    def call(self, signature: str, **inputs: Sequence[object]) -> dict[str, np.ndarray]:
        """Calls a signature.

        Args:
            signature: str, its name.
            **inputs: list for each input.

        Returns:
            Arrays by the names of the outputs.

        Raises:
            ValueError: if the graph refuses an input.
        """
        return call_signature(self.signatures[signature], inputs)


def _hypotheses(
    found: dict[str, np.ndarray],
    row: int,
    options: GenerationOptions,
    include_prompt: bool,
) -> list[Hypothesis]:
    """Returns the hypotheses of a text; a missing one has a score of `-inf`."""
    hypotheses = []
    wholes = found["full_text" if include_prompt else "text"]
    names = ("score", "truncated", "length")
    columns = (found["text"], wholes, *(found[name] for name in names))
    for text, whole, score, truncated, length in zip(
        *(column[row].tolist() for column in columns), strict=True
    ):
        if math.isnan(score):
            raise FloatingPointError(
                "The model must give finite logits; for one text a score is NaN. Check "
                "that its weights are finite."
            )
        output = text.decode("utf-8", "replace")
        kept, stopped = options.cut(output)
        decoded = whole.decode("utf-8", "replace")
        decoded = decoded[: len(decoded) - (len(output) - len(kept))]
        truncated = truncated and not stopped
        hypotheses.append(Hypothesis(decoded, score, truncated, length))
    return hypotheses
