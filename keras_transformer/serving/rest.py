"""The bodies of requests and responses of TensorFlow Serving's REST API.

https://www.tensorflow.org/tfx/serving/api_rest
"""

import base64
import binascii
import json
import zlib
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from keras_transformer.serving.server_options import ServerOptions

DEFAULT_SIGNATURE = "serving_default"
KEYS = {"signature_name", "instances", "inputs"}

Columns: TypeAlias = dict[str, list[Any]]  # values by the name of an input or output
# Outputs, the reason why the model rejects the request, or a failure of the model.
Result: TypeAlias = "Columns | str | Failure"


class RequestError(Exception):
    """Raised for a request that is refused."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True)
class Failure:
    """The result of a request whose outputs the model cannot compute."""

    message: str


@dataclass(frozen=True)
class TensorSpec:
    """The dtype and rank of an input or output tensor."""

    dtype: str
    rank: int  # number of axes; the first one is the batch


@dataclass(frozen=True)
class Signature:
    """The inputs and outputs of a function of a SavedModel."""

    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]


@dataclass(frozen=True)
class PredictRequest:
    """A checked `:predict` request."""

    signature: str
    inputs: Columns  # one entry per text
    by_rows: bool  # whether the response is a list of rows, not columns

    @property
    def rows(self) -> int:
        """The number of texts."""
        return len(next(iter(self.inputs.values())))


def body_too_large(limit: int) -> RequestError:
    """Returns the error of a body of more than `limit` bytes."""
    return RequestError(
        413,
        f"the body must have at most {limit} bytes, also unpacked. Send fewer texts, "
        "or raise the option `max_body_bytes` of the server",
    )


def unpack_gzip(body: bytes, limit: int) -> bytes:
    """Unpacks a gzip body, at most one byte beyond the limit."""
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        unpacked = unpacker.decompress(body, limit + 1)
    except zlib.error:
        raise _damaged_gzip() from None
    if len(unpacked) > limit:
        raise body_too_large(limit)
    if not unpacker.eof or unpacker.unused_data:
        raise _damaged_gzip()
    return unpacked


def _damaged_gzip() -> RequestError:
    return RequestError(400, "the body must be one complete gzip stream")


def parse(
    body: bytes, signatures: dict[str, Signature], limits: ServerOptions
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
    _check_sizes(columns, limits)
    inputs = {
        key: [_value(value, specs[key], key, limits) for value in column]
        for key, column in columns.items()
    }
    _check_widths(inputs, specs)
    return PredictRequest(name, inputs, by_rows)


def format_response(outputs: Columns, by_rows: bool) -> dict[str, object]:
    """Returns the body of a response."""
    if len(outputs) == 1:
        (column,) = outputs.values()
        return {"predictions" if by_rows else "outputs": column}
    if not by_rows:
        return {"outputs": outputs}
    rows = zip(*outputs.values(), strict=True)
    return {"predictions": [dict(zip(outputs, row, strict=True)) for row in rows]}


def json_object(body: bytes) -> dict[str, Any]:
    """Parses a body."""
    try:
        request = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise RequestError(400, f"the body must be UTF-8: {error}") from None
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the body must be JSON: {error}") from None
    if not isinstance(request, dict):
        raise RequestError(400, "the body must be a JSON object")
    return request


def _refuse_constant(name: str) -> NoReturn:
    """Refuses NaN and Infinity, which Python's JSON parser accepts."""
    raise ValueError(f"{name} is not JSON")


def _columns_of_rows(instances: object, specs: dict[str, TensorSpec]) -> Columns:
    if not isinstance(instances, list):
        raise RequestError(400, "'instances' must be a list")
    rows = []
    for instance in instances:
        if not isinstance(instance, dict) or set(instance) == {"b64"}:
            if len(specs) > 1:
                raise RequestError(
                    400,
                    f"each of 'instances' must be an object with {sorted(specs)}",
                )
            instance = {next(iter(specs)): instance}
        _check_names(instance, specs, "each of 'instances'")
        rows.append(instance)
    return {name: [row[name] for row in rows] for name in specs}


def _columns(inputs: Any, specs: dict[str, TensorSpec]) -> Columns:
    if not isinstance(inputs, dict) or set(inputs) == {"b64"}:
        if len(specs) > 1:
            raise RequestError(400, f"'inputs' must be an object with {sorted(specs)}")
        inputs = {next(iter(specs)): inputs}
    _check_names(inputs, specs, "'inputs'")
    for name, column in inputs.items():
        if not isinstance(column, list):
            raise RequestError(400, f"{name!r} must be a list")
    lengths = {name: len(column) for name, column in inputs.items()}
    if len(set(lengths.values())) > 1:
        raise RequestError(400, f"inputs must have the same length; received {lengths}")
    return inputs


def _check_names(
    inputs: dict[str, object], specs: dict[str, TensorSpec], name: str
) -> None:
    if set(inputs) != set(specs):
        raise RequestError(
            400, f"{name} must have {sorted(specs)}; received {sorted(inputs)}"
        )


def _check_sizes(columns: Columns, limits: ServerOptions) -> None:
    rows = len(next(iter(columns.values())))
    if not 1 <= rows <= limits.max_texts:
        raise RequestError(
            400, f"a request must have 1 to {limits.max_texts} texts; received {rows}"
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
        return text_value(value, name, limits)
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


def text_value(value: object, name: str, limits: ServerOptions) -> str:
    """Checks a text of a request."""
    if isinstance(value, dict) and set(value) == {"b64"}:
        value = _decoded(value["b64"], name)
    if not isinstance(value, str):
        raise RequestError(
            400, f"{name!r} must contain strings; received {value!r:.80}"
        )
    if len(value) > limits.max_characters:
        raise RequestError(
            400,
            f"each of {name!r} must have at most {limits.max_characters} characters; "
            f"received {len(value)}",
        )
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise RequestError(
            400, f"{name!r} must be Unicode; received an unpaired surrogate"
        ) from None
    return value


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


def _check_widths(inputs: Columns, specs: dict[str, TensorSpec]) -> None:
    for name, column in inputs.items():
        if specs[name].rank > 1 and len({len(value) for value in column}) > 1:
            raise RequestError(
                400, f"the lists of {name!r} must have the same length; pad them"
            )
