"""A version of a model in memory."""

import abc
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from keras_transformer_runtime.engines.ctranslate2_engine import CTranslate2Engine
from keras_transformer_runtime.engines.engine import Engine, Hypothesis
from keras_transformer_runtime.serving.requests import (
    Generation,
    RequestError,
    SignatureCall,
    Text,
)
from keras_transformer_runtime.serving.rest import Row, Signature, TensorSpec
from keras_transformer_runtime.serving.server_options import ServerOptions

_TEXT = {"text": TensorSpec("string")}
_SCORES = {"score": TensorSpec("float32"), "truncated": TensorSpec("bool")}
# Signatures that `generate` computes, on any engine.
GENERATING: Mapping[str, Signature] = {
    "serving_default": Signature(_TEXT, {**_TEXT, **_SCORES}),
    "nbest": Signature(
        {
            **_TEXT,
            "prefix": TensorSpec("string", optional=True),
            "seed": TensorSpec("int32", optional=True),
        },
        {
            "text": TensorSpec("string", 2),
            "score": TensorSpec("float32", 2),
            "truncated": TensorSpec("bool", 2),
        },
    ),
}


class Progress(NamedTuple):
    """The compilation of a model, which computes requests meanwhile."""

    remaining: int = 0  # shapes that are not compiled
    error: str = ""


class LoadedModel(abc.ABC):
    """A version of a model that computes batches.

    Attributes:
        task: str, what the model computes: `"generate"`, `"classify"`, `"tag"` or
            `"embed"`.
        signatures: `Signature`s by name, those of TensorFlow Serving's API.
        max_texts: int, maximum number of texts of a batch.
        batches: int, number of batches that are computed at the same time.
    """

    task: str
    signatures: dict[str, Signature]
    max_texts: int
    batches = 1

    @property
    def progress(self) -> Progress:
        """The progress of the compilation."""
        return Progress()

    @property
    def generating(self) -> "GeneratingModel":
        """This model, if it generates texts. Otherwise it raises `RequestError`."""
        raise RequestError(
            400,
            f"the model must generate texts; its task is {self.task!r}. Use "
            "`/v1/models/NAME:predict`",
        )

    @abc.abstractmethod
    def facts(self, limits: ServerOptions) -> dict[str, object]:
        """Returns what the page has to know, as values of JSON."""

    @abc.abstractmethod
    def metadata(self) -> dict[str, object]:
        """Returns the signatures as in TensorFlow Serving's REST API."""

    @abc.abstractmethod
    def call(self, name: str, rows: Sequence[Row]) -> Sequence[Row]:
        """Computes a signature for some rows."""

    @abc.abstractmethod
    def close(self) -> None:
        """Stops the compilation."""

    def sizes(self, rows: Sequence[Row]) -> list[int]:
        """Returns for each row of a signature the number of tokens, or more."""
        return [1] * len(rows)

    def compute(
        self, key: Generation | SignatureCall, rows: Sequence[Row | Text]
    ) -> Sequence[object]:
        """Computes the rows of a batch. If one is invalid, only its result is an error.

        Returns:
            For each row, its outputs, a list of `Hypothesis`, or an exception.
        """
        try:
            return self._compute(key, rows)
        except (ValueError, FloatingPointError) as error:
            if len(rows) == 1:
                status = 400 if isinstance(error, ValueError) else 500
                return [RequestError(status, str(error))]
        return [result for row in rows for result in self.compute(key, [row])]

    def _compute(
        self, key: Generation | SignatureCall, rows: Sequence[Row | Text]
    ) -> Sequence[object]:
        assert isinstance(key, SignatureCall)
        return self.call(key.name, [row for row in rows if isinstance(row, dict)])


class GeneratingModel(LoadedModel):
    """A model that generates texts.

    Attributes:
        engine: the `Engine`.
        has_own_nbest: bool, whether the model has the signature `nbest` itself.
    """

    task = "generate"
    engine: Engine
    has_own_nbest = False

    @property
    def generating(self) -> "GeneratingModel":
        return self

    def facts(self, limits: ServerOptions) -> dict[str, object]:
        return {
            "engine": self.engine.name,
            "is_language_model": self.engine.is_language_model,
            "num_beams": min(self.engine.options.num_beams, limits.max_beams),
        }

    def measure(self, texts: Sequence[str]) -> list[int]:
        """Counts the tokens of texts.

        Raises `RequestError` if a text is too long for the model.
        """
        try:
            lengths = self.engine.measure(texts, "source")
        except ValueError as error:
            raise RequestError(400, str(error)) from None
        limit = self.engine.max_source_length or math.inf
        longest = max(lengths, default=0)
        if longest > limit:
            raise RequestError(
                400,
                f"each text must have at most max_source_length={limit} tokens; "
                f"received {longest} tokens",
            )
        return lengths

    def _compute(
        self, key: Generation | SignatureCall, rows: Sequence[Row | Text]
    ) -> Sequence[object]:
        if isinstance(key, SignatureCall):
            return super()._compute(key, rows)
        texts = [row for row in rows if isinstance(row, Text)]

        def on_text(place: int, text: str) -> bool:
            receive = texts[place].on_text
            return receive is not None and receive(text)

        return self.engine.generate(
            [row.text for row in texts],
            key.options,
            prefixes=[row.prefix for row in texts] if key.has_prefix else None,
            include_prompt=key.include_prompt,
            batch_size=len(texts),
            on_text=on_text if key.streams else None,
        )


class CTranslate2Model(GeneratingModel):
    """A folder for CTranslate2, which compiles nothing."""

    max_texts = 64

    def __init__(self, folder: pathlib.Path, threads: int):
        # A thread for each batch: several threads of one batch wait for each other.
        self.engine = CTranslate2Engine.load(folder, threads, parallel=True)
        self.batches = threads
        pair = {"source": TensorSpec("string"), "target": TensorSpec("string")}
        self.signatures = {
            **GENERATING,
            "score": Signature(
                pair,
                {
                    "score": TensorSpec("float32"),
                    "tokens": TensorSpec("string", 2),
                    "token_scores": TensorSpec("float32", 2),
                },
            ),
        }
        # Loads the weights.
        self.engine.generate(["a"], self.engine.options.with_given(max_length=2))

    def metadata(self) -> dict[str, object]:
        definitions = {
            name: {
                "inputs": _tensor_infos(signature.inputs),
                "outputs": _tensor_infos(signature.outputs),
                "method_name": "tensorflow/serving/predict",
            }
            for name, signature in sorted(self.signatures.items())
        }
        return {"signature_def": {"signature_def": definitions}}

    def close(self) -> None:
        pass

    def call(self, name: str, rows: Sequence[Row]) -> Sequence[Row]:
        sources = [row["source"] for row in rows]
        found = self.engine.score(sources, [row["target"] for row in rows], len(rows))
        return [
            {
                "score": scores.log_probability,
                "tokens": scores.tokens,
                "token_scores": scores.log_probabilities,
            }
            for scores in found
        ]


def _tensor_infos(specs: Mapping[str, TensorSpec]) -> dict[str, object]:
    """Returns the description of tensors of unknown sizes, as of a SavedModel."""
    return {
        name: {
            "dtype": {
                "bool": "DT_BOOL",
                "float32": "DT_FLOAT",
                "int32": "DT_INT32",
            }.get(spec.dtype, "DT_STRING"),
            "tensor_shape": {
                "dim": [{"size": "-1", "name": ""}] * spec.rank,
                "unknown_rank": False,
            },
            "name": name,
        }
        for name, spec in specs.items()
    }


def generated_row(hypotheses: Sequence[Hypothesis], name: str) -> Row:
    """Returns the outputs of a signature of `GENERATING`."""
    columns: dict[str, Sequence[object]] = {
        "score": [_finite(each.score) for each in hypotheses],
        "text": [each.text for each in hypotheses],
        "truncated": [each.truncated for each in hypotheses],
    }
    if name == "nbest":
        return dict(columns)
    return {key: values[0] for key, values in columns.items()}


def _finite(number: float) -> float | None:
    """Returns a number, or `None` if JSON cannot express it."""
    return number if math.isfinite(number) else None
