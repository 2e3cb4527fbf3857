"""Compiles a replica for the shapes of requests, the likeliest first."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # importing them imports TensorFlow
    from keras_transformer.export.saved_model.warmup import WarmupRequest
    from keras_transformer.serving.replica import Replica


class Progress(NamedTuple):
    """The progress of a `WarmUp`."""

    compiled: int
    shapes: int
    current: str = ""
    error: str = ""

    @property
    def complete(self) -> bool:
        """Whether all shapes are compiled."""
        return self.compiled == self.shapes


@dataclass(frozen=True, eq=False)
class _Batch:
    """A batch of equal texts, for whose shape XLA compiles a function."""

    request: "WarmupRequest"
    size: int

    def __str__(self) -> str:
        arrays = self.request.inputs.values()
        lengths = [str(array.shape[1]) for array in arrays if array.ndim > 1]
        return " × length ".join([f"batch {self.size}", *lengths])


class WarmUp:
    """Compiles a replica for the warm-up requests of its SavedModel.

    The order of the batch sizes is: the smallest, the largest, the others. The replica
    uses the smallest size from the beginning, and each other size when all requests are
    compiled for it. A SavedModel without warm-up requests is compiled for a short text.
    """

    def __init__(self, replica: "Replica"):
        self._replica = replica
        self._remaining = _batches(replica)
        self.progress = Progress(0, len(self._remaining))
        replica.compiled_sizes = replica.batch_sizes[:1]

    def compile_first(self) -> None:
        """Compiles the first shape. The replica can then process requests."""
        self._compile(self._remaining[0])

    def compile_others(self) -> None:
        """Compiles all other shapes. `progress` has the error if one fails."""
        try:
            while self._remaining:
                self._compile(self._remaining[0])
        except Exception as error:
            self.progress = self.progress._replace(error=str(error) or repr(error))

    def _compile(self, batch: _Batch) -> None:
        self.progress = self.progress._replace(current=str(batch))
        signature, inputs = batch.request
        texts = {name: [*rows[:1]] * batch.size for name, rows in inputs.items()}
        self._replica.call(signature, texts)
        self._remaining.remove(batch)
        first, *others = self._replica.batch_sizes
        missing = {batch.size for batch in self._remaining}
        compiled = (size for size in others if size not in missing)
        self._replica.compiled_sizes = (first, *compiled)
        self.progress = Progress(self.progress.compiled + 1, self.progress.shapes)


def _batches(replica: "Replica") -> list[_Batch]:
    """Returns one batch of each shape in the order of compilation."""
    first, *others = replica.batch_sizes
    sizes = [first, *others[-1:], *others[:-1]]
    requests = replica.warmup_requests()
    return [_Batch(request, size) for size in sizes for request in requests]
