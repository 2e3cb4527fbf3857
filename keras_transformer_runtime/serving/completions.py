"""The endpoint of OpenAI's API of completions, for language models, and its bodies.

https://platform.openai.com/docs/api-reference/completions
"""

import asyncio
import contextlib
import dataclasses
import json
import logging
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Annotated, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from keras_transformer_runtime.engines.engine import Hypothesis
from keras_transformer_runtime.serving.endpoints import Endpoints
from keras_transformer_runtime.serving.requests import (
    Count,
    Generation,
    RequestError,
    RequestModel,
    SearchFields,
    Stops,
    Text,
    Texts,
    check_count,
    check_text,
    generation_options,
    json_object,
    openai_error,
)
from keras_transformer_runtime.serving.served_model import LoadedVersion, ServedModel
from keras_transformer_runtime.serving.server_options import ServerOptions

logger = logging.getLogger(__name__)

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


class Completions(Endpoints):
    """The endpoint of OpenAI's completions."""

    async def complete(self, request: Request) -> Response:
        """Continues prompts, as OpenAI's API does."""
        asked = CompletionRequest.read(json_object(await self.body(request)))
        asked.check(self.options)
        model = self.model(asked.model)
        if not asked.stream:
            return await self.measured(request, model, self._complete(asked, model))
        events = self._events(asked, model)
        first = await self.measured(request, model, _next(events))
        return StreamingResponse(
            _rest(first, events),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    def _continuation(
        self, asked: CompletionRequest, model: ServedModel
    ) -> tuple[LoadedVersion, Generation]:
        """Returns the version of a language model, and how it continues prompts."""
        loaded = model.available().loaded
        engine = loaded.model.generating.engine
        if not engine.is_language_model:
            raise RequestError(
                400,
                f"the model {model.name!r} translates texts. Use `/translate` or "
                f"`/v1/models/{model.name}:predict`",
            )
        options = generation_options(asked.options(), engine, self.options)
        return loaded, Generation(
            options, include_prompt=asked.echo, streams=asked.stream
        )

    async def _complete(self, asked: CompletionRequest, model: ServedModel) -> Response:
        """Returns whole continuations."""
        loaded, generation = self._continuation(asked, model)
        texts = [Text(prompt) for prompt in asked.prompts]
        found = await loaded.generate(texts, generation)
        prompts = [prompt for prompt in asked.prompts for _ in range(asked.n)]
        hypotheses = [each for own in found for each in own]
        self.metrics.texts.labels(model.name).inc(len(asked.prompts))
        usage = await self._usage(asked, loaded, hypotheses)
        logprobs: list[dict[str, object] | None] = [None] * len(hypotheses)
        if asked.logprobs is not None:
            rows = [
                {"source": prompt, "target": each.text}
                for prompt, each in zip(prompts, hypotheses, strict=True)
            ]
            logprobs = [
                logprobs_body(row["tokens"], row["token_scores"], not each.truncated)
                for row, each in zip(
                    await loaded.call("score", rows), hypotheses, strict=True
                )
            ]
        choices = [
            choice(i, each.text, finish_reason(each), own)
            for i, (each, own) in enumerate(zip(hypotheses, logprobs, strict=True))
        ]
        return JSONResponse(Completion(asked).body(choices, usage))

    async def _events(
        self, asked: CompletionRequest, model: ServedModel
    ) -> AsyncGenerator[str]:
        """Yields the events of a stream."""
        loaded, generation = self._continuation(asked, model)
        loop = asyncio.get_running_loop()
        newest: dict[int, str] = {}  # the texts of which a part is not sent
        changed = asyncio.Event()
        sent = [""] * (len(asked.prompts) * asked.n)

        def write(index: int, text: str) -> None:
            newest[index] = text
            changed.set()

        def receiver(place: int) -> Callable[[str], bool]:
            def receive(text: str) -> bool:
                if not generating.done():
                    loop.call_soon_threadsafe(write, place * asked.n, text)
                return generating.done()  # the client has disconnected

            return receive

        texts = [
            Text(prompt, on_text=receiver(place))
            for place, prompt in enumerate(asked.prompts)
        ]
        completion = Completion(asked)
        generating = asyncio.ensure_future(loaded.generate(texts, generation))
        generating.add_done_callback(lambda _: changed.set())
        try:
            while not generating.done():
                await changed.wait()
                changed.clear()
                for index in [*newest]:
                    text = newest.pop(index)
                    if len(text) > len(sent[index]):
                        yield completion.piece(index, text[len(sent[index]) :])
                        sent[index] = text
            hypotheses = [each for own in await generating for each in own]
            self.metrics.texts.labels(model.name).inc(len(asked.prompts))
            usage = await self._usage(asked, loaded, hypotheses)
            for index, each in enumerate(hypotheses):
                rest_of_text = each.text[len(sent[index]) :]
                reason = finish_reason(each)
                yield completion.piece(index, rest_of_text, reason)
            if asked.stream_options is not None and asked.stream_options.include_usage:
                yield completion.usage(usage)
            yield DONE
        finally:
            generating.cancel()

    async def _usage(
        self,
        asked: CompletionRequest,
        loaded: LoadedVersion,
        outputs: Sequence[Hypothesis],
    ) -> Usage:
        """Counts the tokens of a request."""
        prompts = await asyncio.to_thread(
            loaded.model.generating.measure, asked.prompts
        )
        return Usage(sum(prompts), sum(each.length for each in outputs))


def model_object(model: ServedModel) -> dict[str, object]:
    """Returns a model as OpenAI's API does."""
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "keras_transformer",
    }


async def _next(events: AsyncIterator[str]) -> str:
    return await anext(events)


async def _rest(first: str, events: AsyncGenerator[str]) -> AsyncIterator[str]:
    """Yields the events of a stream, the first of which is there already."""
    try:
        async with contextlib.aclosing(events):
            yield first
            async for each in events:
                yield each
    except RequestError as error:
        yield event(openai_error(error.status, error.message))
    except Exception:
        logger.exception("a stream failed")
        yield event(openai_error(500, "the model failed"))
