"""The bodies of OpenAI's API of completions, for language models.

https://platform.openai.com/docs/api-reference/completions
"""

import dataclasses
import json
import time
import uuid
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from keras_transformer_runtime.engines.engine import Hypothesis
from keras_transformer_runtime.serving.requests import (
    Count,
    RequestError,
    RequestModel,
    SearchFields,
    Stops,
    Texts,
    check_count,
    check_text,
)
from keras_transformer_runtime.serving.server_options import ServerOptions

DONE = "data: [DONE]\n\n"


class StreamOptions(RequestModel):
    """Options of a stream."""

    include_usage: bool = False


class CompletionRequest(SearchFields):
    """The body of `/v1/completions`."""

    model: str
    prompt: str | Texts
    max_tokens: Count | None = None
    n: Count = 1
    stop: str | Stops | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    logprobs: Annotated[int, Field(ge=0)] | None = None
    echo: bool = False
    # Accepted with the values that change nothing.
    best_of: Count | None = None
    frequency_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    presence_penalty: Annotated[float, Field(ge=0, le=0)] | None = None
    logit_bias: dict[str, object] | None = None
    suffix: Literal[""] | None = None
    user: str | None = None

    @property
    def prompts(self) -> list[str]:
        """The prompts."""
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt

    def check(self, limits: ServerOptions) -> None:
        """Checks the prompts, and the values that the server does not support."""
        check_count(len(self.prompts) * self.n, limits)
        for prompt in self.prompts:
            check_text(prompt, "prompt", limits)
        if self.logit_bias:
            raise RequestError(400, "'logit_bias' must be empty: it is not supported")
        if self.best_of not in (None, self.n):
            raise RequestError(
                400,
                f"'best_of' must be 'n', which is {self.n}; received {self.best_of}",
            )
        if (self.stream or self.echo) and self.logprobs is not None:
            raise RequestError(400, "'logprobs' must be null with 'stream' or 'echo'")

    def options(self) -> dict[str, object]:
        """Returns the options of generation by our names."""
        fields = {name: getattr(self, name) for name in SearchFields.model_fields}
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        return {
            **fields,
            "max_length": self.max_tokens,
            "num_hypotheses": self.n if self.n > 1 else None,
            "stop": stop or None,
        }


@dataclasses.dataclass
class Usage:
    """The numbers of tokens of a request."""

    prompt_tokens: int
    completion_tokens: int

    def body(self) -> dict[str, int]:
        """Returns the entry `usage` of a response."""
        total = self.prompt_tokens + self.completion_tokens
        return {**dataclasses.asdict(self), "total_tokens": total}


class Completion:
    """The response to one request, whole or in pieces."""

    def __init__(self, request: CompletionRequest):
        self._head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": request.model,
        }

    def body(
        self, choices: Sequence[dict[str, object]], usage: Usage
    ) -> dict[str, object]:
        """Returns the body of a response."""
        return {**self._head, "choices": choices, "usage": usage.body()}

    def piece(self, index: int, text: str, reason: str | None = None) -> str:
        """Returns the event of a piece of a choice, or of its end."""
        return event({**self._head, "choices": [choice(index, text, reason)]})

    def usage(self, usage: Usage) -> str:
        """Returns the event of the numbers of tokens, the last one."""
        return event({**self._head, "choices": [], "usage": usage.body()})


def choice(
    index: int,
    text: str,
    finish_reason: str | None,
    logprobs: dict[str, object] | None = None,
) -> dict[str, object]:
    """Returns an entry of `choices`."""
    return {
        "index": index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": finish_reason,
    }


def finish_reason(hypothesis: Hypothesis) -> str:
    """Returns why a text ends."""
    return "length" if hypothesis.truncated else "stop"


def logprobs_body(
    tokens: Sequence[str], log_probabilities: Sequence[float], has_ended: bool
) -> dict[str, object]:
    """Returns the entry `logprobs`: those of the tokens of the text.

    The end token has none if the text was cut off.
    """
    count = len(tokens) - (not has_ended)
    return {
        "tokens": tokens[:count],
        "token_logprobs": log_probabilities[:count],
        "top_logprobs": None,
        "text_offset": None,
    }


def event(data: dict[str, object]) -> str:
    """Returns a server-sent event."""
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n"
