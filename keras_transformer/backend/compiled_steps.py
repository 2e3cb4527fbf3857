"""Steps of `fit`, `evaluate` and `predict` on PyTorch for `compile(jit_compile=True)`.

Keras gives the whole step to `torch.compile`, which splits it into hundreds of graphs.
"""

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops, tree

from keras_transformer.backend.micro_batches import (
    Batch,
    add_part,
    add_parts,
    processes_share_rows,
    split_batch,
)
from keras_transformer.backend.step_graph import (
    NoGraphError,
    Replayed,
    StepGraph,
    Tree,
    TreeFunction,
)
from keras_transformer.types import Logs, Tensor


def compiled_function(model: keras.Model, name: str) -> TreeFunction | None:
    """Returns the function in which Keras calls a step, or `None` for that of Keras.

    Args:
        model: a compiled `TokenTrainer`.
        name: str, `"train_step"`, `"test_step"` or `"predict_step"`.
    """
    is_compiled = keras.backend.backend() == "torch" and model.jit_compile
    # Keras refuses several steps per execution.
    if not is_compiled or model.steps_per_execution > 1:
        return None
    return _CompiledFunction(model, name)


class _CompiledFunction:
    """Runs a step of a model as a graph, or eagerly if it has none."""

    def __init__(self, model: keras.Model, name: str) -> None:
        self._trainer, self._name = model, name
        self._signature: object = None
        self._step: Callable[[Batch], Tree] | None = None
        self._reasons: set[str] = set()

    def __call__(self, data: Sequence[object]) -> Tree:
        import torch

        batch: Batch = keras.utils.unpack_x_y_sample_weight(data[0])
        batch = tree.map_structure(_as_tensor, batch)
        self._make_step()
        if self._step is not None:
            try:
                return self._step(batch)
            except NoGraphError as error:
                self._warn(self._name, error)
                if not error.is_about_shapes:
                    self._step = None
        with torch.set_grad_enabled(self._name == "train_step"):
            return getattr(self._trainer, self._name)(batch)

    def _make_step(self) -> None:
        """Makes a step without graphs if the model has other variables than before."""
        model = self._trainer
        variables = [*model.variables, *model.metrics_variables]
        signature = [(id(v), v.trainable) for v in variables]
        if signature == self._signature:
            return
        self._signature = signature
        if self._name == "train_step" and model.trainable_weights:
            self._step = _TrainingStep(model, variables, self._warn)
        else:
            step = getattr(model, self._name)
            self._step = Replayed(StepGraph(step, variables))

    def _warn(self, name: str, error: NoGraphError) -> None:
        if str(error) not in self._reasons:
            self._reasons.add(str(error))
            warnings.warn(
                f"`jit_compile=True`: the {name.replace('_', ' ')} runs eagerly, since "
                f"PyTorch makes no graph of it: {error}. Use `jit_compile=False`.",
                stacklevel=3,
            )


def _as_tensor(x: Tree) -> Tensor | None:
    return None if x is None else ops.convert_to_tensor(x)


class _TrainingStep:
    """Gradients and update as two graphs, the second one for all shapes of batches."""

    # Updates of some optimizers depend on values on the host, as with gradient
    # accumulation. They run eagerly after the graph of the gradients.

    def __init__(
        self,
        model: keras.Model,
        variables: list[keras.Variable],
        warn: Callable[[str, NoGraphError], None],
    ) -> None:
        self._trainer, self._warn = model, warn
        self._weights = model.trainable_weights
        optimizer: Any = model.optimizer
        # The scale of the loss may be a variable of the optimizer.
        scalars = [v for v in optimizer.variables if not v.shape]
        state = variables + scalars
        self._gradients = StepGraph(self._compute_gradients, state)
        self._update = StepGraph(
            self._compute_update, [*self._weights, *optimizer.variables]
        )
        self._has_update = True
        self._run = Replayed(self._compute_and_apply)
        # In parts, or with an eager update, the graphs are replayed one by one.
        self._run_gradients = Replayed(self._gradients)
        self._run_update = Replayed(self._update)
        self._add = Replayed(StepGraph(functools.partial(add_part, model), state))

    def __call__(self, batch: Batch) -> Logs:
        model = self._trainer
        logs: Logs
        if model.micro_batches > 1 or processes_share_rows():
            parts = split_batch(batch, model)
            rows = ops.shape(tree.flatten(batch[1])[0])[0]
            apply = functools.partial(self._apply_gradients, self._run_update)
            return add_parts(model, parts, rows, self._add, apply)
        if self._has_update:
            logs = self._run(batch)
        else:
            gradients, logs = self._run_gradients(batch)
            self._apply_gradients(self._run_update, gradients)
        return logs

    def _compute_and_apply(self, batch: Batch) -> Logs:
        logs: Logs
        gradients, logs = self._gradients(batch)
        self._apply_gradients(self._update, gradients)
        return logs

    def _compute_gradients(self, batch: Batch) -> tuple[list[Tensor | None], Logs]:
        import torch

        model = self._trainer
        x, y, sample_weight = batch
        y_pred = model(x, training=True)
        loss = model.compute_loss(x, y, y_pred, sample_weight, training=True)
        tracker, rows = model.metrics[0], ops.shape(tree.flatten(x)[0])[0]
        tracker.update_state(loss.detach(), sample_weight=rows)
        values: list[Tree] = [variable.value for variable in self._weights]
        scaled = model.optimizer.scale_loss(loss)
        gradients = torch.autograd.grad(scaled, values, allow_unused=True)
        return list(gradients), model.compute_metrics(x, y, y_pred, sample_weight)

    def _compute_update(self, gradients: list[Tensor | None]) -> None:
        optimizer: Any = self._trainer.optimizer
        # PyTorch's optimizers of Keras write into the values that they receive.
        state = [ops.copy(variable.value) for variable in optimizer.variables]
        values = [ops.copy(variable.value) for variable in self._weights]
        values, state = optimizer.stateless_apply(state, gradients, values)
        for variables, new in ((self._weights, values), (optimizer.variables, state)):
            for variable, value in zip(variables, new, strict=True):
                variable.assign(value)

    def _apply_gradients(
        self, update: Callable[..., object], gradients: list[Tensor | None]
    ) -> None:
        import torch

        if self._has_update:
            try:
                update(gradients)
                return
            except NoGraphError as error:
                self._warn("update of the optimizer", error)
                self._has_update = False
        with torch.no_grad():
            self._trainer.optimizer.apply(gradients, self._weights)
