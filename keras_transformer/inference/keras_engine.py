"""Generates texts with a Keras model, as an engine of the commands."""

import pathlib
from collections.abc import Iterator, Sequence
from typing import final

from keras_transformer.decoding.generation_options import options_of, search_of
from keras_transformer.inference.file_translation.translation import (
    model_digest,
    model_side,
)
from keras_transformer.inference.protocols import SequenceModel
from keras_transformer_runtime.engines.engine import Engine, Hypothesis, TokenScores
from keras_transformer_runtime.engines.generation_options import GenerationOptions


@final
class KerasEngine(Engine):
    """Generates texts with a Keras model, such as `Seq2Seq` or `CausalLM`.

    Args:
        model: a model with tokenizers.
        path: its file or folder.
        options: the `GenerationOptions` of the model; `None` = those of its default
            search.
    """

    name = "keras"

    def __init__(
        self,
        model: SequenceModel,
        path: pathlib.Path,
        options: GenerationOptions | None = None,
    ):
        self.model = model
        self.path = path
        self.options = options or options_of(model.default_search)
        self.is_language_model = not model.has_cross_attention
        self.max_source_length = model.max_source_length
        self.max_target_length = model.max_target_length

    def measure(self, texts: Sequence[str], side: str, first: int = 1) -> list[int]:
        return [*model_side(self.model, side).measure(texts, side, first)]

    def refusal(self, options: GenerationOptions, prefix: bool = False) -> str | None:
        return None

    def generate(
        self,
        texts: Sequence[str],
        options: GenerationOptions,
        *,
        prefixes: Sequence[str] | None = None,
        include_prompt: bool = False,
        batch_size: int = 64,
    ) -> list[list[Hypothesis]]:
        others: dict[str, bool] = {}
        if self.is_language_model:
            others["include_prompt"] = include_prompt
        found, *arrays = self.model.generate(
            [*texts],
            search_of(options),
            options.max_length,
            batch_size,
            return_scores=True,
            return_truncated=True,
            min_length=options.min_length,
            prefix=None if prefixes is None else [*prefixes],
            seed=options.seed,
            **others,
        )
        shape = len(texts), options.num_hypotheses
        scores, truncated = (array.reshape(shape).tolist() for array in arrays)
        hypotheses = []
        for text, outputs, *rows in zip(texts, found, scores, truncated, strict=True):
            prompt = self._decoded(text) if include_prompt and options.stop else ""
            outputs = [outputs] if isinstance(outputs, str) else outputs
            of_text = []
            for output, score, is_cut in zip(outputs, *rows, strict=True):
                begin = len(prompt) if output.startswith(prompt) else 0
                rest, stopped = options.cut(output[begin:])
                of_text.append(
                    Hypothesis(output[:begin] + rest, score, is_cut and not stopped)
                )
            hypotheses.append(of_text)
        return hypotheses

    def _decoded(self, prompt: str) -> str:
        """Returns a prompt as the tokenizer decodes it."""
        source, target = self.model.source_tokenizer, self.model.target_tokenizer
        assert source is not None and target is not None
        text: bytes = target.detokenize(source.tokenize([prompt])).numpy()[0]
        return text.decode()

    def stream(
        self, text: str, options: GenerationOptions, prefix: str = ""
    ) -> Iterator[str]:
        pieces = self.model.stream(
            text,
            search=search_of(options),
            max_length=options.max_length,
            min_length=options.min_length,
            prefix=prefix or None,
            seed=options.seed,
        )
        return options.cut_pieces(_without(pieces, prefix))

    def score(
        self, sources: Sequence[str], targets: Sequence[str], batch_size: int = 64
    ) -> list[TokenScores]:
        result = self.model.score([*sources], [*targets], batch_size)
        pairs = zip(result.scores.tolist(), result.lengths.tolist(), strict=True)
        return [TokenScores(*pair) for pair in pairs]

    def digest(self) -> str:
        return model_digest(self.model)


def _without(pieces: Iterator[str], prefix: str) -> Iterator[str]:
    """Yields the pieces of a text without its beginning."""
    left = len(prefix)
    for piece in pieces:
        rest = piece[left:]
        left = max(0, left - len(piece))
        if rest:
            yield rest
