"""The HTTP connections of a server and their limits.

uvicorn has timeouts for idle connections and for the end of the server. `Connection`
has those limits that uvicorn 0.54 lacks: of the header section (size and time), of the
time that a client takes to read a response, of pipelined requests, and of connections,
which uvicorn's `limit_concurrency` refuses only when they send a request.
"""

import asyncio
import http
import json
import math
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from keras_transformer_runtime.serving.server_options import ServerOptions

MAX_CONNECTIONS = 2048
MAX_HEADER_BYTES = 32_768
MAX_PIPELINED = 32  # requests that wait for the response to an earlier one
HEALTH_SECONDS = 60  # within which a process must respond to the first one
# An idle connection is kept for this time when the server ends, for a request that is
# on its way.
ENDING_SECONDS = 0.5


class HTTPConfig(uvicorn.Config):
    """The configuration of uvicorn for a server.

    Args:
        create: function that returns the application, in each process.
        options: `ServerOptions`.
    """

    def __init__(self, create: Callable[[], ASGIApp], options: ServerOptions):
        super().__init__(
            create,
            factory=True,
            workers=options.processes,
            http=Connection,
            ws="none",
            # Configuring logging would close the handlers of others, such as absl's.
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            headers=[("X-Content-Type-Options", "nosniff")],
            timeout_keep_alive=math.ceil(options.keep_alive_seconds),
            timeout_graceful_shutdown=math.ceil(options.timeout_seconds),
            timeout_worker_healthcheck=HEALTH_SECONDS,
        )
        self.options = options


class Connection(HttpToolsProtocol):
    """A connection, which is closed if its client exceeds a limit."""

    def __init__(
        self,
        config: HTTPConfig,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
    ):
        super().__init__(config, server_state, app_state, _loop)
        self._options = config.options
        self._in_header = False
        self._incomplete_bytes = 0  # received since the parser last found a part
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._is_ending = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            self._refuse(503, "the server has too many connections; try again later")
        elif self._client_has_too_many():
            limit = self._options.max_connections_per_client
            self._refuse(
                503,
                f"a client may have {limit} connections at a time. Close some, or "
                "raise the option `max_connections_per_client` of the server",
            )
        else:
            self._await_header()

    def data_received(self, data: bytes) -> None:
        self._incomplete_bytes += len(data)
        super().data_received(data)
        if self._incomplete_bytes > MAX_HEADER_BYTES:
            self.send_400_response("")
        self._await_header()

    def on_message_begin(self) -> None:
        """Notes the beginning of a header section."""
        if len(self.pipeline) == MAX_PIPELINED:
            # The parser stops at an exception, and uvicorn calls `send_400_response`.
            raise ValueError("too many pipelined requests")
        self._in_header = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Notes the end of a header section."""
        self._in_header, self._incomplete_bytes = False, 0
        super().on_headers_complete()
        if self._is_ending:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Notes a part of a body."""
        self._incomplete_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Notes the end of a request."""
        self._incomplete_bytes = 0
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._header_timer, self._write_timer):
            if timer is not None:
                timer.cancel()

    def pause_writing(self) -> None:
        """Starts to wait for the client to read the response."""
        super().pause_writing()
        seconds = self._options.timeout_seconds
        self._write_timer = self.loop.call_later(seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()

    def shutdown(self) -> None:
        """Ends the connection after the request in progress or on its way."""
        if self._responds:
            super().shutdown()
        elif not self._is_ending:
            self._is_ending = True
            self.loop.call_later(ENDING_SECONDS, self.shutdown)
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Responds to a request that is not HTTP."""
        self._refuse(
            400,
            "the request must be valid HTTP/1.1 with a header section of at most "
            f"{MAX_HEADER_BYTES} bytes, after at most {MAX_PIPELINED} requests that "
            "wait for a response",
        )

    def _client_has_too_many(self) -> bool:
        if self._options.behind_proxy or self.client is None:
            return False
        count = sum(
            isinstance(other, Connection)
            and other.client is not None
            and other.client[0] == self.client[0]
            for other in self.connections
        )
        return count > self._options.max_connections_per_client

    @property
    def _responds(self) -> bool:
        """Whether a request is in progress."""
        return self.cycle is not None and not self.cycle.response_complete

    def _await_header(self) -> None:
        """Limits the time until the header section of the next request is complete."""
        waits = self._in_header or not self._responds
        if waits and self._header_timer is None and not self.transport.is_closing():
            seconds = self._options.header_seconds
            self._header_timer = self.loop.call_later(seconds, self._end_waiting)
        elif not waits and self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _end_waiting(self) -> None:
        self._header_timer = None
        if self._responds:  # the client has sent a part of the next request
            self._await_header()
        elif self._incomplete_bytes:
            self._refuse(
                408,
                "the header section of a request must be complete within "
                f"{self._options.header_seconds:g} s",
            )
        else:
            self.transport.close()

    def _refuse(self, status: int, message: str) -> None:
        """Responds with an error, unless a response has begun, and closes."""
        if self.transport.is_closing():
            return
        if not (self._responds and self.cycle.response_started):
            body = json.dumps({"error": message}).encode()
            headers = [
                *self.server_state.default_headers,
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"connection", b"close"),
            ]
            if status == 503:
                headers.append((b"retry-after", b"1"))
            phrase = http.HTTPStatus(status).phrase
            lines = [f"HTTP/1.1 {status} {phrase}".encode()]
            lines += [name + b": " + value for name, value in headers]
            self.transport.write(b"\r\n".join([*lines, b"", body]))
        self.transport.close()
