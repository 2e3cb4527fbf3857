"""What all training runs share: options with their help, their file, and resuming."""

import abc
import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Annotated, ClassVar, TypeAlias

from keras_transformer_runtime.runs.option_checks import (
    OPTIMIZERS,
    POSITIONS,
    SCHEDULES,
)

OptionValue: TypeAlias = str | int | float | Sequence[str] | None

# The options that all recipes have; the texts are their help.
Output: TypeAlias = Annotated[str, "Folder of the run. A stopped run in it is resumed."]
Export: TypeAlias = Annotated[bool, "Export the trained model."]
Lowercase: TypeAlias = Annotated[bool, "Ignore letter case."]
HiddenDim: TypeAlias = Annotated[int | None, "Width of the model."]
IntermediateDim: TypeAlias = Annotated[int | None, "Width of the feed-forward layers."]
NumHeads: TypeAlias = Annotated[int | None, "Number of attention heads."]
Positions: TypeAlias = Annotated[
    str | None, f"Position encoding: {', '.join(POSITIONS)}."
]
Dtype: TypeAlias = Annotated[
    str, "Dtype policy of training: float32, mixed_bfloat16 or mixed_float16."
]
Optimizer: TypeAlias = Annotated[str, f"Optimizer: {', '.join(OPTIMIZERS)}."]
LearningRate: TypeAlias = Annotated[
    float | None, "Peak learning rate, reached after warm-up."
]
Schedule: TypeAlias = Annotated[
    str,
    f"Learning rate after warm-up: {', '.join(SCHEDULES)}; cosine and linear fall to "
    "0 at the end of the run.",
]
WarmupSteps: TypeAlias = Annotated[
    int | None, "Number of batches in which the learning rate rises."
]
WeightDecay: TypeAlias = Annotated[
    float | None,
    "Decoupled weight decay of matrices; not of embeddings, biases and "
    "normalizations. 0: none.",
]
ClipNorm: TypeAlias = Annotated[
    float | None, "Maximum norm of the gradient of all weights together."
]
Average: TypeAlias = Annotated[
    int | None, "Number of final epochs whose weights are averaged."
]
Patience: TypeAlias = Annotated[
    int | None, "Stop after this number of epochs without a better --metric."
]
SaveEvery: TypeAlias = Annotated[int | None, "Number of batches between checkpoints."]
Seed: TypeAlias = Annotated[int, "Random seed."]
Verbose: TypeAlias = Annotated[
    int | None,
    "0: silent; 1: progress bar, the default in a terminal; 2: one line per epoch.",
]


class RunOptions(abc.ABC):
    """Base class of the dataclasses of options, such as `Recipe`.

    Attributes:
        changeable: names of the options that may differ when a run is resumed.
        output: str, the folder of the run.
    """

    changeable: ClassVar[frozenset[str]] = frozenset()
    output: str

    @classmethod
    def names(cls) -> list[str]:
        """Returns the names of the options, in their order."""
        return [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]

    def values(self) -> dict[str, OptionValue]:
        """Returns the options by name."""
        return {name: vars(self)[name] for name in self.names()}

    @abc.abstractmethod
    def text_files(self) -> dict[str, list[str]]:
        """Returns the files of the texts that exist, by their option."""

    def to_toml(self) -> str:
        """Writes all options as TOML, which `read_options` reads.

        Returns:
            The content of a file: one line per option. Options that are `None` are
            left out.
        """
        lines = [  # strings, numbers, booleans and lists are the same in JSON and TOML
            f"{name} = {json.dumps(value, ensure_ascii=False)}\n"
            for name, value in self.values().items()
            if value is not None
        ]
        return "".join(lines)

    def check_resumes(self, began: "RunOptions", path: pathlib.Path) -> None:
        """Checks that a run of other options can be resumed with these.

        Args:
            began: the options of the run.
            path: their file, for the error message.

        Raises:
            ValueError: if an option differs on which the weights depend.
        """
        former = began.values()
        for name, value in self.values().items():
            is_part_of_train = any(
                isinstance(each, float)
                for each in (value, former[name])
                if name in ("valid", "test")
            )
            is_free = name in self.changeable and not is_part_of_train
            if value != former[name] and not is_free:
                raise ValueError(
                    f"`{name}` must be that of the run to resume, with "
                    f"`{name}={former[name]!r}` in {path}; received "
                    f"`{name}={value!r}`. Choose another `output` for a new run, or "
                    "edit that file to resume with another value."
                )
