"""Options as a TOML file, one line per option."""

import json
import pathlib
import tomllib
from collections.abc import Mapping
from typing import Any

from keras_transformer_runtime.files import read_file


def to_toml(options: Mapping[str, object]) -> str:
    """Writes options as TOML.

    Args:
        options: values by name. Options that are `None` are left out.

    Returns:
        The content of a file: one line per option.
    """
    lines = [  # strings, numbers, booleans and lists are the same in JSON and TOML
        f"{name} = {json.dumps(value, ensure_ascii=False)}\n"
        for name, value in options.items()
        if value is not None
    ]
    return "".join(lines)


def read_toml(path: pathlib.Path) -> dict[str, Any]:
    """Reads options from a TOML file.

    Args:
        path: the file, with a line `name = value` for each option.

    Returns:
        The values by name.

    Raises:
        ValueError: if the file is not TOML, has a section, or gives a file that is not
            in a list.
    """
    content = read_file(path)
    try:
        options = tomllib.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be a TOML file: {error}.") from error
    for name, value in options.items():
        if isinstance(value, dict):
            raise ValueError(
                f"{path} must have its options outside of sections; received the "
                f"section `[{name}]`. Remove that line."
            )
        if name in ("train", "valid", "test") and isinstance(value, str):
            raise ValueError(
                f"`{name}` must be a list of one or two files in {path}; received "
                f"`{name} = {value!r}`. Write `{name} = [{json.dumps(value)}]`."
            )
    return options
