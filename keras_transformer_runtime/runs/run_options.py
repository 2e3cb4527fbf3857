"""What the options of all training runs share: their file, and resuming."""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import ClassVar, TypeAlias

OptionValue: TypeAlias = str | int | float | Sequence[str] | None


class RunOptions:
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

    def text_files(self) -> dict[str, list[str]]:
        """Returns the files of the texts that exist, by their option."""
        raise NotImplementedError

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
