"""What a client asks for, the limits of it, and the errors."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, NoReturn, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from keras_transformer_runtime.engines.engine import Engine
from keras_transformer_runtime.engines.generation_options import GenerationOptions
from keras_transformer_runtime.serving.server_options import ServerOptions

# The bounds are those of the int32 and float32 numbers of the engines.
Count = Annotated[int, Field(ge=1, lt=2**31)]
NotNegative = Annotated[int, Field(ge=0, lt=2**31)]
Number = Annotated[float, Field(ge=-1e3, le=1e3)]
Positive = Annotated[float, Field(ge=1e-3, le=1e3)]
# A body of a megabyte may have 300,000 errors; the first one is enough.
Texts = Annotated[list[str], Field(fail_fast=True)]
Stops = Annotated[list[str], Field(fail_fast=True, max_length=16)]
MAX_NAMED = 5  # unknown keys in a message


class RequestError(Exception):
    """Raised for a request that is refused."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status
        self.message = message


def error_body(path: str, status: int, message: str) -> dict[str, object]:
    """Returns the body of the response to a request that fails."""
    if path == "/v1/completions":
        return openai_error(status, message)
    return {"error": message}


def openai_error(status: int, message: str) -> dict[str, object]:
    """Returns an error in OpenAI's form."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


@dataclass(frozen=True)
class Generation:
    """How the texts of a batch are generated."""

    options: GenerationOptions
    include_prompt: bool = False
    has_prefix: bool = False
    streams: bool = False


class Text(NamedTuple):
    """A text from which the engine generates others."""

    text: str
    prefix: str = ""
    # Receives the beginning of the output while it is generated, in another thread. It
    # returns whether the output shall end there.
    on_text: Callable[[str], bool] | None = None


@dataclass(frozen=True)
class SignatureCall:
    """A signature of a SavedModel, and the widths of the inputs that are lists."""

    name: str
    widths: tuple[int, ...] = ()


class RequestModel(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @classmethod
    def read(cls, body: object) -> Self:
        """Checks a body. Each error names the key."""
        unknown = set(body) - set(cls.model_fields) if isinstance(body, dict) else ()
        if unknown:
            named = sorted(unknown)[:MAX_NAMED]
            raise RequestError(
                400, "; ".join(f"there is no key {name!r:.80}" for name in named)
            )
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            messages = [
                validation_message(details["loc"], details["type"], details["msg"])
                for details in error.errors()
            ]
            raise RequestError(400, "; ".join(messages)) from None


class SearchFields(RequestModel):
    """The options of a search that a request may have; `null` = those of the model."""

    min_length: NotNegative | None = None
    num_beams: Count | None = None
    length_penalty: Number | None = None
    repetition_penalty: Positive | None = None
    no_repeat_ngram_size: NotNegative | None = None
    temperature: Positive | Annotated[float, Field(ge=0, le=0)] | None = None
    top_k: Count | None = None
    top_p: Annotated[float, Field(ge=1e-3, le=1)] | None = None
    seed: int | None = None


class OptionFields(SearchFields):
    """All options that texts are generated with."""

    max_length: Count | None = None
    num_hypotheses: Count | None = None
    stop: Stops | None = None


def generation_options(
    given: dict[str, Any], engine: Engine, limits: ServerOptions, prefix: bool = False
) -> GenerationOptions:
    """Returns the options of the model with those of a request.

    Args:
        given: the options of the request by name; `None` = those of the model. A
            `temperature` of 0 selects greedy search.
        engine: the `Engine` of the model.
        limits: the `ServerOptions`.
        prefix: bool, whether the outputs have a given beginning.

    Raises:
        RequestError: if an option is invalid or exceeds a limit, or the engine does not
            support it.
    """
    given = {name: value for name, value in given.items() if value is not None}
    if given.get("temperature") == 0:
        sampling = ("temperature", "top_k", "top_p", "seed")
        given = {name: given[name] for name in given if name not in sampling}
        given.setdefault("num_beams", 1)
    for name, limit in (
        ("num_beams", limits.max_beams),
        ("num_hypotheses", limits.max_beams),
        ("max_length", limits.max_output_tokens),
        ("min_length", limits.max_output_tokens),
    ):
        if given.get(name, 0) > limit:
            raise RequestError(
                400, f"{name!r} must be at most {limit}; received {given[name]}"
            )
    try:
        options = engine.options.with_given(**given)
    except ValueError as error:
        raise RequestError(400, str(error)) from None
    reason = engine.refusal(options, prefix)
    if reason is not None:
        raise RequestError(400, reason)
    return options


def check_text(value: object, name: str, limits: ServerOptions) -> str:
    """Checks a text of a request."""
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


def check_count(count: int, limits: ServerOptions) -> None:
    """Checks the number of texts of a request."""
    if not 1 <= count <= limits.max_texts:
        raise RequestError(
            400, f"a request must have 1 to {limits.max_texts} texts; received {count}"
        )


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


def validation_message(location: tuple[int | str, ...], kind: str, text: str) -> str:
    """Returns the message of an error of pydantic with the name of the key."""
    name = ".".join(map(str, location))
    if kind == "extra_forbidden":
        return f"there is no key {name!r}"
    text = text.removeprefix("Value error, ")
    text = text[0].lower() + text[1:]
    return f"{name!r}: {text}" if name else text
