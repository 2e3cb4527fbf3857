"""A SavedModel in memory, whose functions are compiled for few shapes."""

import bisect
import ctypes
import logging
import pathlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from keras_transformer_runtime.engines.generation_options import GenerationOptions
from keras_transformer_runtime.engines.model_description import (
    FILE,
    LengthLimits,
    ModelDescription,
)
from keras_transformer_runtime.engines.saved_model_engine import SavedModelEngine
from keras_transformer_runtime.engines.warmup_requests import warmup_requests
from keras_transformer_runtime.serving.loaded_model import GeneratingModel, Progress
from keras_transformer_runtime.serving.requests import RequestError
from keras_transformer_runtime.serving.rest import Row
from keras_transformer_runtime.serving.saved_model_signatures import (
    json_row,
    metadata_of,
    set_threads,
    signatures_of,
)

logger = logging.getLogger(__name__)

LONGEST = 256  # greatest length in tokens that is compiled before a request has it
SMALLEST = 16  # as the SavedModel pads its sources

# What XLA compiles for the signatures that take texts.
FUNCTIONS = {
    "serving_default": "search",
    "nbest": "search",
    "continue": "continue",
    "constrained": "constrained",
    "score": "score",
    "attention": "attention",
    "attention_scores": "attention_scores",
}
TEXTS = ("text", "source", "target")  # inputs whose lengths XLA compiles
# The numbers of texts that fill a shape; 1 of other functions. They compute one text
# at a time, and have one shape.
FILLERS = {"attention": 1, "attention_scores": 1, "score": 2}
# The axes after the first that are padded to the longest text of a batch. The padding
# is removed from responses, so that they do not depend on the other texts.
PADDED: dict[str, dict[str, tuple[str | None, ...]]] = {
    "nbest": {"token_ids": (None, "target")},
    "constrained": {"token_ids": (None, "target")},
    "tokens": {"token_ids": (None, "target")},
    "score": {"tokens": ("target",), "token_scores": ("target",)},
    "attention": {
        "source_tokens": ("source",),
        "tokens": ("target",),
        "attention": ("target", "source"),
        "positions": ("target",),
    },
    "attention_scores": {
        "source_tokens": ("source",),
        "tokens": ("target",),
        "attention_scores": (None, None, "target", "source"),
    },
}


class Shape(NamedTuple):
    """The shape of a batch, for which XLA compiles a function."""

    function: str
    size: int  # number of texts
    length: int  # of the longest text in tokens, a length to which sources are padded

    def __str__(self) -> str:
        return f"{self.function}, {self.size} texts of {self.length} tokens"


class PaddedSavedModel(SavedModelEngine):
    """Calls a SavedModel in shapes that are compiled.

    A batch that has another shape is padded to a larger one by texts of its length. A
    batch of arrays is padded to the next of `batch_sizes`.

    Args:
        path: folder of the SavedModel.
        description: content of its file `keras_transformer.json`.
        batch_sizes: numbers of texts, in ascending order.
    """

    def __init__(
        self,
        path: pathlib.Path,
        description: ModelDescription,
        batch_sizes: Sequence[int],
    ):
        super().__init__(path, description)
        self.batch_sizes = batch_sizes
        self._fillers: dict[tuple[int, str], str] = {}
        self.compiled: frozenset[Shape] = frozenset()
        self.remaining = self._shapes()

    def call(self, signature: str, **inputs: Sequence[object]) -> dict[str, np.ndarray]:
        count = len(next(iter(inputs.values())))
        if not self._takes_texts(signature):
            missing = max(0, self._size(count) - count)
            columns = {x: [*rows, *[rows[0]] * missing] for x, rows in inputs.items()}
            outputs = super().call(signature, **columns)
            return {name: array[:count] for name, array in outputs.items()}
        function = FUNCTIONS.get(signature)
        if function is None:
            return super().call(signature, **inputs)
        longest = max(
            length
            for name, column in inputs.items()
            if name in TEXTS
            for length in self._lengths([*map(str, column)], _side(name))
        )
        shape = self._shape(function, count, longest)
        if shape is None:
            return super().call(signature, **inputs)
        outputs = super().call(signature, **self._padded(inputs, shape))
        return {name: array[:count] for name, array in outputs.items()}

    def compile_next(self) -> None:
        """Compiles the first shape that remains."""
        shape = self.remaining[0]
        [signature] = [
            name
            for name, function in FUNCTIONS.items()
            if function == shape.function and name != "serving_default"
        ]
        specs = self.signatures[signature].structured_input_signature[1]
        none: dict[str, list[object]] = {name: [] for name in specs}
        super().call(signature, **self._padded(none, shape))
        return_freed_memory()
        # New objects, since requests read the old ones in another thread.
        self.compiled = self.compiled | {shape}
        self.remaining = self.remaining[1:]

    def _takes_texts(self, signature: str) -> bool:
        inputs = self.signatures[signature].structured_input_signature[1]
        return all(
            spec.dtype == tf.string for name, spec in inputs.items() if name != "seed"
        )

    def _lengths(self, texts: list[str], side: str) -> list[int]:
        return [max(1, length) for length in self.measure(texts, side)]

    def _shapes(self) -> list[Shape]:
        """Returns the shapes to compile, the one that all texts fit into first."""
        has_limits = (self.path / FILE).is_file()
        if not has_limits or not {"lengths", "nbest"} <= self.signatures.keys():
            return []
        warm = [
            request.inputs["token_ids"].shape[1]
            for request in warmup_requests(self.path)
            if request.signature == "tokens"
        ]
        largest = max(SMALLEST, min(self.max_source_length or LONGEST, LONGEST))
        lengths = sorted({*map(_padded_length, warm), _padded_length(largest)})
        sizes = [*self.batch_sizes]
        most = max(2, sizes[-1])
        shapes = [Shape("search", most, lengths[-1])]
        shapes += [
            Shape(name, most, lengths[-1])
            for name in ("continue", "constrained")
            if name in self.signatures
        ]
        shapes += [Shape("search", sizes[0], length) for length in lengths]
        shapes += [
            Shape(name, 1 + FILLERS[name], lengths[-1])
            for name in ("attention_scores", "attention", "score")
            if name in self.signatures
        ]
        shapes += [
            Shape("search", size, length)
            for size in reversed(sizes[1:])
            for length in lengths
        ]
        return [*dict.fromkeys(shapes)]

    def _size(self, count: int) -> int:
        """Returns the number of texts to which a batch is padded."""
        return next((size for size in self.batch_sizes if size >= count), count)

    def _shape(self, function: str, count: int, longest: int) -> Shape | None:
        """Returns the smallest compiled shape of a batch; `None` if none is expected.

        A shape that is not its own has room for the texts that fill it.
        """
        length = _padded_length(longest)
        own = Shape(function, self._size(count), length)
        if own in self.compiled:
            return own
        fitting = [
            shape
            for shape in self.compiled
            if shape.function == function
            and shape.size >= count + FILLERS.get(function, 1)
            and shape.length >= length
        ]
        if fitting:
            return min(fitting, key=lambda shape: shape.size * shape.length)
        if any(shape.function == function for shape in self.remaining):
            raise RequestError(
                503, f"the function {function} is still being compiled; try again later"
            )
        return None

    def _padded(
        self, inputs: Mapping[str, Sequence[object]], shape: Shape
    ) -> dict[str, list[object]]:
        """Adds texts to a batch, one of which has the length of the shape.

        A pair has a filler of each side in another row, since a language model limits
        the length of both together.
        """
        padded: dict[str, list[object]] = {}
        texts = [name for name in TEXTS if name in inputs]
        for name, column in inputs.items():
            missing = shape.size - len(column)
            others: list[object] = [0 if name == "seed" else ""] * missing
            place = texts.index(name) if name in texts else missing
            if place < missing:
                others[place] = self._filler(shape.length, _side(name))
            padded[name] = [*column, *others]
        return padded

    def _filler(self, length: int, side: str) -> str:
        """Returns a text whose number of tokens is padded to a length."""
        if (length, side) not in self._fillers:
            word = next(
                (
                    request.inputs["text"][0].decode()
                    for request in warmup_requests(self.path)
                    if "text" in request.inputs
                ),
                "a",
            )
            texts = [" ".join([word] * count) for count in range(1, length + 1)]
            texts = [word[:count] for count in range(1, len(word))] + texts
            counts = self.measure(texts, side)
            limits = {
                "source": self.max_source_length,
                "target": self.max_target_length,
            }
            limit = min(length, limits[side] or length)
            fitting = [
                (count, text)
                for count, text in zip(counts, texts, strict=True)
                if count <= limit
            ]
            self._fillers[length, side] = max(fitting)[1]
        return self._fillers[length, side]


class ServedSavedModel(GeneratingModel):
    """A SavedModel that `export` has written.

    The largest shape is compiled first. Then batches are computed in it until their own
    shapes are compiled, in another thread. A SavedModel whose sources are arrays, or
    whose search has no options in the commands, has no description: its shapes are
    compiled when they occur.

    Args:
        folder: folder of the SavedModel.
        batch_sizes: numbers of texts, in ascending order.
        threads: int, number of threads of an operation.
    """

    engine: PaddedSavedModel
    has_own_nbest = True

    def __init__(self, folder: pathlib.Path, batch_sizes: Sequence[int], threads: int):
        set_threads(threads)
        self._folder = folder
        self._stops = False
        self._error = ""
        description = (
            ModelDescription.read(folder)
            if (folder / FILE).is_file()
            else ModelDescription(
                is_language_model=False,
                options=GenerationOptions(),
                limits=LengthLimits(None, None, 1.0),
            )
        )
        self.engine = PaddedSavedModel(folder, description, batch_sizes)
        self.signatures = {
            name: signature
            for name, signature in signatures_of(self.engine.signatures).items()
            if name not in ("lengths", "check_constraints")
        }
        if self.engine.remaining:
            self.engine.compile_next()
            threading.Thread(target=self._compile_others, daemon=True).start()

    @property
    def max_texts(self) -> int:  # type: ignore[override]
        """The maximum number of texts of a batch."""
        size = self.engine.batch_sizes[-1]
        return max(1, size - 1) if self.engine.remaining else size

    @property
    def progress(self) -> Progress:
        return Progress(len(self.engine.remaining), self._error)

    def close(self) -> None:
        self._stops = True

    def _compile_others(self) -> None:
        try:
            while self.engine.remaining and not self._stops:
                logger.info("%s: compiling %s", self._folder, self.engine.remaining[0])
                self.engine.compile_next()
        except Exception:
            logger.exception("%s cannot be compiled", self._folder)
            self._error = "a shape cannot be compiled; see the log of the server"
            self.engine.remaining = []

    def metadata(self) -> dict[str, object]:
        return metadata_of(self._folder, self.signatures)

    def call(self, name: str, rows: Sequence[Row]) -> Sequence[Row]:
        columns = {key: [row[key] for row in rows] for key in rows[0]}
        if name in FILLERS and len(rows) > 1:
            return [self.call(name, [row])[0] for row in rows]
        outputs = self.engine.call(name, **columns)
        return [*_result_rows(name, outputs, len(rows))]


def return_freed_memory() -> None:
    """Returns to the system what XLA has freed after a compilation, with glibc."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _side(name: str) -> str:
    return "target" if name == "target" else "source"


def _padded_length(length: int) -> int:
    """Returns the length to which the SavedModel pads texts: 16, 24, 32, 48, ….

    It is a power of two, or the mean of two powers.
    """
    powers = [SMALLEST << exponent for exponent in range(24)]
    steps = sorted([*powers, *(power + power // 2 for power in powers)])
    return steps[bisect.bisect_left(steps, length)]


def _result_rows(
    signature: str, outputs: dict[str, np.ndarray], count: int
) -> Iterator[Row]:
    """Yields the outputs of each text, without padding, as values of JSON."""
    for row in range(count):
        cells = {name: _cell(name, row, outputs, signature) for name in sorted(outputs)}
        yield json_row(cells)


def _cell(
    name: str, row: int, outputs: dict[str, np.ndarray], signature: str
) -> np.ndarray:
    """Returns one output of one text without padding."""
    axes = PADDED.get(signature, {}).get(name, ())
    own = tuple(
        slice(None if side is None else _width(side, row, outputs)) for side in axes
    )
    return np.asarray(outputs[name][(row, *own)])


def _width(side: str, row: int, outputs: dict[str, np.ndarray]) -> int:
    """Returns the number of tokens of a text or of its longest hypothesis."""
    if side == "target" and "length" in outputs:
        return int(outputs["length"][row].max())
    tokens = outputs["tokens" if side == "target" else "source_tokens"][row]
    used = np.flatnonzero(tokens != b"")
    return int(used[-1]) + 1 if used.size else 0
