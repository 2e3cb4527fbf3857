"""The bodies of requests and responses of TensorFlow Serving's REST API.

https://www.tensorflow.org/tfx/serving/api_rest
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from keras_transformer_runtime.serving.requests import (
    OptionFields,
    RequestError,
    check_count,
    check_text,
    json_object,
)
from keras_transformer_runtime.serving.server_options import ServerOptions

DEFAULT_SIGNATURE = "serving_default"
KEYS = {"signature_name", "instances", "inputs", "options"}

Row: TypeAlias = dict[str, Any]  # values by the name of an input or output


@dataclass(frozen=True)
class TensorSpec:
    """The dtype and rank of an input or output tensor."""

    dtype: str
    rank: int = 1  # number of axes; the first one is the batch
    optional: bool = False


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a function of a model."""

    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]


@dataclass(frozen=True)
class PredictRequest:
    """A checked `:predict` request."""

    signature: str
    rows: list[Row]  # one for each text
    by_rows: bool  # whether the response is a list of rows, not columns
    options: OptionFields | None = None  # an addition to TensorFlow Serving's API


def parse(
    body: bytes, signatures: Mapping[str, Signature], limits: ServerOptions
) -> PredictRequest:
    """Reads the body of a `:predict` request."""
    request = json_object(body)
    unknown = sorted(set(request) - KEYS)
    if unknown:
        raise RequestError(
            400, f"there is no key {unknown[0]!r}; the keys are {sorted(KEYS)}"
        )
    if ("instances" in request) == ("inputs" in request):
        raise RequestError(
            400, "the body must have either 'instances' (rows) or 'inputs' (columns)"
        )
    name = request.get("signature_name", DEFAULT_SIGNATURE)
    name = DEFAULT_SIGNATURE if name == "" else name  # as in TF Serving
    if not isinstance(name, str) or name not in signatures:
        raise RequestError(
            400,
            f"'signature_name' must be one of {sorted(signatures)}; received {name!r}",
        )
    specs = signatures[name].inputs
    by_rows = "instances" in request
    columns = (
        _columns_of_rows(request["instances"], specs)
        if by_rows
        else _columns(request["inputs"], specs)
    )
    check_count(len(next(iter(columns.values()))), limits)
    inputs = {
        key: [_value(value, specs[key], key, limits) for value in column]
        for key, column in columns.items()
    }
    _check_widths(inputs, specs)
    rows = [
        dict(zip(inputs, row, strict=True))
        for row in zip(*inputs.values(), strict=True)
    ]
    options = request.get("options")
    given = None if options is None else OptionFields.read(options)
    return PredictRequest(name, rows, by_rows, given)


def format_response(rows: list[Row], by_rows: bool) -> dict[str, object]:
    """Returns the body of a response to one row or more."""
    if len(rows[0]) == 1:
        values = [value for row in rows for value in row.values()]
        return {"predictions" if by_rows else "outputs": values}
    if by_rows:
        return {"predictions": rows}
    return {"outputs": {name: [row[name] for row in rows] for name in rows[0]}}


def _columns_of_rows(
    instances: object, specs: dict[str, TensorSpec]
) -> dict[str, list[Any]]:
    if not isinstance(instances, list):
        raise RequestError(400, "'instances' must be a list")
    rows = []
    for instance in instances:
        if not isinstance(instance, dict) or set(instance) == {"b64"}:
            instance = {_only_input(specs, "each of 'instances'"): instance}
        _check_names(instance, specs, "each of 'instances'")
        rows.append(instance)
        if set(instance) != set(rows[0]):
            raise RequestError(400, "each of 'instances' must have the same inputs")
    names = [name for name in specs if not rows or name in rows[0]]
    return {name: [row[name] for row in rows] for name in names}


def _columns(inputs: Any, specs: dict[str, TensorSpec]) -> dict[str, list[Any]]:
    if not isinstance(inputs, dict) or set(inputs) == {"b64"}:
        inputs = {_only_input(specs, "'inputs'"): inputs}
    _check_names(inputs, specs, "'inputs'")
    for name, column in inputs.items():
        if not isinstance(column, list):
            raise RequestError(400, f"{name!r} must be a list")
    lengths = {name: len(column) for name, column in inputs.items()}
    if len(set(lengths.values())) > 1:
        raise RequestError(400, f"inputs must have the same length; received {lengths}")
    return inputs


def _only_input(specs: dict[str, TensorSpec], name: str) -> str:
    required = [key for key, spec in specs.items() if not spec.optional]
    if len(required) > 1:
        raise RequestError(400, f"{name} must be an object with {sorted(specs)}")
    return required[0]


def _check_names(
    inputs: dict[str, object], specs: dict[str, TensorSpec], name: str
) -> None:
    required = {key for key, spec in specs.items() if not spec.optional}
    if not required <= set(inputs) <= set(specs):
        raise RequestError(
            400, f"{name} must have {sorted(specs)}; received {sorted(inputs)}"
        )


def _value(value: object, spec: TensorSpec, name: str, limits: ServerOptions) -> object:
    if spec.rank > 1:
        if not isinstance(value, list):
            raise RequestError(400, f"each of {name!r} must be a list")
        if len(value) > limits.max_characters:
            raise RequestError(
                400,
                f"each of {name!r} must have at most {limits.max_characters} entries; "
                f"received {len(value)}",
            )
        inner = TensorSpec(spec.dtype, spec.rank - 1)
        return [_value(entry, inner, name, limits) for entry in value]
    if spec.dtype == "string":
        if isinstance(value, dict) and set(value) == {"b64"}:
            value = _decoded(value["b64"], name)
        return check_text(value, name, limits)
    if spec.dtype.startswith("int"):
        return _integer(value, name, int(spec.dtype.removeprefix("int")))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(
            400, f"{name!r} must contain numbers; received {value!r:.80}"
        )
    try:
        return float(value)
    except OverflowError:
        raise RequestError(
            400, f"{name!r} must contain numbers that fit a double"
        ) from None


def _decoded(value: Any, name: str) -> str:
    try:
        return base64.b64decode(value, validate=True).decode("utf-8")
    except (TypeError, ValueError, binascii.Error):
        raise RequestError(
            400, f"'b64' in {name!r} must be the base64 of UTF-8"
        ) from None


def _integer(value: object, name: str, bits: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(
            400, f"{name!r} must contain integers; received {value!r:.80}"
        )
    if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise RequestError(
            400, f"{name!r} must fit in {bits} bits; received {str(value)[:80]}"
        )
    return value


def _check_widths(inputs: dict[str, list[Any]], specs: dict[str, TensorSpec]) -> None:
    for name, column in inputs.items():
        if specs[name].rank > 1 and len({len(value) for value in column}) > 1:
            raise RequestError(
                400, f"the lists of {name!r} must have the same length; pad them"
            )
