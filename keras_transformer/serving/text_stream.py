"""Streams of text: a prompt in, pieces of its continuation out."""

import json
import random
from collections.abc import AsyncIterator
from typing import NamedTuple

from keras_transformer.serving.batching import Batcher
from keras_transformer.serving.rest import (
    Columns,
    RequestError,
    json_object,
    text_value,
)
from keras_transformer.serving.server_options import ServerOptions

SIGNATURE = "continue"
KEYS = {"prompt", "max_length", "seed"}
DEFAULT_MAX_LENGTH = 256


class StreamRequest(NamedTuple):
    """A request for a continuation."""

    prompt: str
    max_length: int
    seed: int


def parse(body: bytes, limits: ServerOptions) -> StreamRequest:
    """Parses the body of a `:stream` request."""
    request = json_object(body)
    unknown = sorted(set(request) - KEYS)
    if unknown or "prompt" not in request:
        raise RequestError(
            400,
            f"the body must have 'prompt', and may have 'max_length' and 'seed'; "
            f"received {sorted(request)!s:.200}",
        )
    numbers = {
        "max_length": request.get("max_length", DEFAULT_MAX_LENGTH),
        "seed": request.get("seed", random.randrange(2**31)),
    }
    for name, number in numbers.items():
        least = 1 if name == "max_length" else -(2**31)
        if type(number) is not int or not least <= number < 2**31:
            raise RequestError(
                400,
                f"{name!r} must be an integer from {least} to {2**31 - 1}; received "
                f"{str(number)[:80]}",
            )
    return StreamRequest(text_value(request["prompt"], "prompt", limits), **numbers)


async def pieces(batcher: Batcher, request: StreamRequest) -> AsyncIterator[str]:
    """Yields the pieces of a continuation as they are computed.

    Each piece is one call of the signature `continue`, which receives the text of the
    previous calls. Any replica can therefore compute it, together with pieces of other
    streams.
    """
    state, written, length, done = "", "", 0, False
    while not done and length < request.max_length:
        columns: Columns = {
            "text": [request.prompt],
            "state": [state],
            "seed": [request.seed],
        }
        outputs = await batcher.predict(SIGNATURE, columns)
        state, length = outputs["state"][0], outputs["length"][0]
        done = bool(outputs["done"][0])
        text = outputs["text"][0]
        if not done:  # Later tokens can complete the last character.
            text = text.rstrip("\ufffd")
        if text.startswith(written) and len(text) > len(written):
            yield text[len(written) :]
            written = text


def event(data: dict[str, str], name: str | None = None) -> str:
    """Returns a server-sent event."""
    line = f"event: {name}\n" if name else ""
    return f"{line}data: {json.dumps(data, ensure_ascii=False)}\n\n"
