"""Steps of PyTorch as graphs: one compiled graph for each shape of a batch.

PyTorch runs each operation of a step from Python, which takes longer than the operation
on a GPU. `StepGraph` records the operations of a function once, and `torch.compile`
makes few kernels of them. On a GPU, `Replayed` records the kernels of a step as a CUDA
graph, which one call starts.
"""

import contextlib
import contextvars
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import keras
from keras import tree

# A nested structure of tensors and other values, as `keras.tree` has them.
Tree: TypeAlias = Any
TreeFunction: TypeAlias = Callable[..., Tree]

MAX_SHAPES = 64  # Further shapes of batches run eagerly.
# Of the compiler. With the random generator of eager PyTorch, dropout has equal masks.
OPTIONS: dict[str, str | int | bool | Callable[..., object]] = {"fallback_random": True}

_IS_RECORDING: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "is_recording", default=False
)


class NoGraphError(Exception):
    """A function has no graph, and must run eagerly; no variable has changed.

    Attributes:
        is_about_shapes: bool, whether the function has graphs for other shapes.
    """

    def __init__(self, reason: str, is_about_shapes: bool = False) -> None:
        super().__init__(reason)
        self.is_about_shapes = is_about_shapes


def is_recording() -> bool:
    """Returns whether a `StepGraph` records the operations of this function."""
    return _IS_RECORDING.get()


class StepGraph:
    """A function of tensors that reads and writes variables, compiled for each shape.

    `make_fx` records the function, with the values of the variables as inputs, and
    `torch.compile` compiles the recorded operations. It cannot record Keras itself: it
    splits a step into hundreds of graphs. New values of variables are written into
    their tensors, which stay the same tensors. Seeds and states of random generators
    advance as in an eager step.

    Args:
        function: function of nested tensors. It may call `torch.autograd.grad`.
        variables: all variables that the function reads or writes.
    """

    def __init__(
        self, function: TreeFunction, variables: Sequence[keras.Variable]
    ) -> None:
        self._function, self._state = function, variables
        self._values = [variable.value.detach() for variable in variables]  # type: ignore[attr-defined]
        self._graphs: dict[Tree, TreeFunction] = {}

    def __call__(self, *arguments: Tree) -> Tree:
        """Runs the graph of these shapes.

        Raises:
            NoGraphError: if there is none.
        """
        import torch

        leaves = tree.flatten(arguments)
        key = shapes_of(leaves)
        with torch.no_grad():
            if (graph := self._graphs.get(key)) is not None:
                return graph(self._values, leaves)
            if len(self._graphs) == MAX_SHAPES:
                raise NoGraphError(
                    f"batches have more than {MAX_SHAPES} shapes; pad them to fewer",
                    is_about_shapes=True,
                )
            try:
                graph = compile_graph(self._record(arguments, leaves))
                outputs = graph(self._values, leaves)  # Compiles first.
            except Exception as error:
                raise NoGraphError(_reason(error)) from error
        self._graphs[key] = graph
        return outputs

    def _record(self, arguments: Tree, leaves: list[Tree]) -> TreeFunction:
        import torch
        from torch.fx.experimental.proxy_tensor import make_fx

        def pure(values: list[Tree], leaves: list[Tree]) -> Tree:
            inner = [
                value.detach().requires_grad_(variable.trainable)
                for variable, value in zip(self._state, values, strict=True)
            ]
            mapping = list(zip(self._state, inner, strict=True))
            with (
                torch.enable_grad(),
                keras.StatelessScope(mapping, collect_losses=True) as scope,
            ):
                outputs = self._function(*tree.pack_sequence_as(arguments, leaves))
            for (variable, old), value in zip(mapping, values, strict=True):
                new = scope.get_current_value(variable)
                if new is not old:
                    value.copy_(new)
            return tree.map_structure(lambda x: x if x is None else x.detach(), outputs)

        record = make_fx(pure, tracing_mode="fake", _allow_non_fake_inputs=True)
        # `make_fx` takes two inputs that are the same tensor for one input.
        apart = [x if x is None else x.detach() for x in leaves]
        with _recording():
            graph = record(self._values, apart)
        _place_constants(graph, apart + self._values)
        return graph


def compile_graph(graph: TreeFunction) -> TreeFunction:
    """Returns the recorded graph for `torch.compile`, which compiles it when called."""
    import torch

    return torch.compile(graph, fullgraph=True, dynamic=False, options=OPTIONS)


def _place_constants(graph: Tree, tensors: list[Tree]) -> None:
    """Makes numbers of a graph on the device of its tensors."""
    # They are recorded as tensors on the CPU, which a CUDA graph cannot copy.
    import torch

    device = next(x.device for x in tensors if x is not None)
    for node in graph.graph.find_nodes(op="get_attr"):
        value = getattr(graph, node.target)
        if not value.shape:
            with graph.graph.inserting_before(node):
                options = {"dtype": value.dtype, "device": device}
                number = graph.graph.call_function(
                    torch.scalar_tensor, (value.item(),), options
                )
            node.replace_all_uses_with(number)
            graph.graph.erase_node(node)
        elif value.device != device:
            setattr(graph, node.target, value.to(device))
    graph.recompile()


@contextlib.contextmanager
def _recording() -> Iterator[None]:
    token = _IS_RECORDING.set(True)
    try:
        yield
    finally:
        _IS_RECORDING.reset(token)


def shapes_of(leaves: Sequence[Tree]) -> tuple[Tree, ...]:
    """Returns a key of the shapes, dtypes and devices of tensors and `None`."""
    return tuple(x if x is None else (x.shape, x.dtype, x.device) for x in leaves)


def _reason(error: BaseException) -> str:
    name = type(error).__name__
    if "DataDependent" in name:
        return "a number of Python depends on the value of a tensor"
    # Keras writes where an error occurred before its message, which is bold.
    text = str(error).partition("\x1b[1m")[2].partition("\x1b[0m")[0] or str(error)
    first, *_ = text.strip().splitlines() or [""]
    return f"{name}: {first.rstrip('.')}"


class Replayed:
    """A step whose kernels a GPU starts by itself; elsewhere the step as it is.

    The first step of each shape runs from Python, the second one is captured as a CUDA
    graph, which is then replayed. All tensors that the step uses, except its arguments,
    must stay the same tensors.

    Args:
        step: function of nested tensors that returns nested tensors.
    """

    def __init__(self, step: TreeFunction) -> None:
        self._step = step
        # Of each combination of shapes: the step, and after its second call its graph.
        self._steps: dict[Tree, TreeFunction] = {}
        self._pool: Tree = None

    def __call__(self, *arguments: Tree) -> Tree:
        leaves = tree.flatten(arguments)
        if not any(x is not None and x.is_cuda for x in leaves):
            return self._step(*arguments)
        key = shapes_of(leaves)
        if key not in self._steps:
            outputs = self._step(*arguments)
            self._steps[key] = self._capture_and_replay
            return outputs
        return self._steps[key](*arguments)

    def _capture_and_replay(self, *arguments: Tree) -> Tree:
        key = shapes_of(tree.flatten(arguments))
        try:
            self._steps[key] = self._capture(arguments)
        except RuntimeError as error:
            self._steps[key] = self._step
            warnings.warn(
                f"The GPU runs each kernel of a step from Python: {_reason(error)}",
                stacklevel=2,
            )
        return self._steps[key](*arguments)

    def _capture(self, arguments: Tree) -> TreeFunction:
        import torch

        inputs = tree.map_structure(_cloned, arguments)
        held = [x for x in tree.flatten(inputs) if x is not None]
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        # Other threads, which prepare batches, may use the GPU meanwhile.
        mode: dict[str, Tree] = {"capture_error_mode": "thread_local"}
        with torch.cuda.graph(graph, pool=self._pool, **mode):
            outputs = self._step(*inputs)

        def replay(*arguments: Tree) -> Tree:
            new = [x for x in tree.flatten(arguments) if x is not None]
            for tensor, value in zip(held, new, strict=True):
                tensor.copy_(value)
            graph.replay()
            # The next replay writes to the same tensors.
            return tree.map_structure(_cloned, outputs)

        return replay


def _cloned(x: Tree) -> Tree:
    return x if x is None else x.clone()
