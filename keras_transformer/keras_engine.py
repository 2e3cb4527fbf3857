"""Generates texts with a Keras model, as an engine of the commands."""

import pathlib
from collections.abc import Iterator, Sequence
from typing import final

import numpy as np

from keras_transformer.decoding.generation_options import (
    options_from_search,
    search_from_options,
)
from keras_transformer.file_translation.translation import (
    model_digest,
    model_side,
)
from keras_transformer.models import GenerativeModel
from keras_transformer.types import Options
from keras_transformer_runtime.engines.engine import (
    Engine,
    Hypothesis,
    OnText,
    TokenScores,
    without_beginning,
)
from keras_transformer_runtime.engines.generation_options import GenerationOptions


@final
class KerasEngine(Engine):
    """Generates texts with a Keras model, such as `Seq2Seq` or `CausalLM`.

    Args:
        model: a model with tokenizers.
        path: its file or folder.
        options: the `GenerationOptions` of the model; `None` = those of its default
            search.

    Raises:
        ValueError: if the model has no tokenizers.

    Example:

    ```python
    engine = KerasEngine(model, pathlib.Path("en-de.keras"))
    options = engine.options.with_given(num_beams=5)
    print(engine.generate(["A man sleeps."], options)[0][0].text)
    ```
    """

    name = "keras"

    def __init__(
        self,
        model: GenerativeModel,
        path: pathlib.Path,
        options: GenerationOptions | None = None,
    ):
        self.model = model
        self.path = path
        self.options = options or options_from_search(model.default_search)
        self.is_language_model = not model.has_cross_attention
        self.max_source_length = model.max_source_length
        self.max_target_length = model.max_target_length
        self._sides = {side: model_side(model, side) for side in ("source", "target")}

    def measure(self, texts: Sequence[str], side: str, first: int = 1) -> list[int]:
        return [*self._sides[side].measure(texts, side, first)]

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
        on_text: OnText | None = None,
    ) -> list[list[Hypothesis]]:
        # An argument of language models alone.
        others: Options = {"include_prompt": True} if include_prompt else {}
        found, *arrays = self.model.generate(
            [*texts],
            search_from_options(options),
            options.max_length,
            batch_size,
            return_scores=True,
            return_truncated=True,
            min_length=options.min_length,
            prefix=None if prefixes is None else [*prefixes],
            seed=options.seed,
            stop=options.stop,
            **others,
        )
        shape = len(texts), options.num_hypotheses
        scores, truncated = (array.reshape(shape).tolist() for array in arrays)
        outputs = [[text] if isinstance(text, str) else text for text in found]
        return [
            [Hypothesis(*each) for each in zip(*parts, strict=True)]
            for parts in zip(outputs, scores, truncated, strict=True)
        ]

    def stream(
        self, text: str, options: GenerationOptions, prefix: str = ""
    ) -> Iterator[str]:
        pieces = self.model.stream(
            text,
            search=search_from_options(options),
            max_length=options.max_length,
            min_length=options.min_length,
            prefix=prefix or None,
            seed=options.seed,
            stop=options.stop,
        )
        tokenizer = self.model.target_tokenizer
        assert tokenizer is not None
        [begin] = tokenizer.detokenize(tokenizer.tokenize([prefix])).numpy()
        return without_beginning(pieces, len(begin.decode("utf-8", "replace")))

    def score(
        self, sources: Sequence[str], targets: Sequence[str], batch_size: int = 64
    ) -> list[TokenScores]:
        result = self.model.score([*sources], [*targets], batch_size)
        tokenizer = self.model.target_tokenizer
        assert tokenizer is not None
        tokens = tokenizer.get_vocabulary()
        rows = tokenizer.tokenize([*targets], add_end=True).to_list()
        return [
            TokenScores([tokens[id] for id in row], values.tolist())
            for row, values in zip(rows, result.token_scores, strict=True)
        ]

    def _positions(
        self, sources: list[str], targets: list[str], batch_size: int
    ) -> list[np.ndarray]:
        found = self.model.align(sources, targets, batch_size=batch_size)
        return [each.positions[:-1] for each in found]  # without the end token

    def digest(self) -> str:
        return model_digest(self.model)
