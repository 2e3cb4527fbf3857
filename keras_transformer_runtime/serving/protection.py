"""Protects the application: keys, other sites in a browser, and endless bodies."""

import asyncio
import contextlib
import hmac
import ipaddress
import re
import zlib
from typing import TypeAlias

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from keras_transformer_runtime.serving.requests import error_body
from keras_transformer_runtime.serving.server_options import ServerOptions

HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:/?#@\s]+)(:[0-9]*)?")
READ_ONLY = ("GET", "HEAD")
# Without a key. `/translate` checks the key itself, which may be in the body.
OPEN_PATHS = ("/", "/health", "/languages", "/openapi.json", "/ready", "/translate")
NO_KEY = "the request must have the header `Authorization: Bearer KEY` with the key"
UNREAD_BODY_SECONDS = 5.0

Refusal: TypeAlias = tuple[int, str]  # status and message


def protect(application: ASGIApp, options: ServerOptions) -> ASGIApp:
    """Returns an application that refuses what other sites send through a browser."""
    if options.allowed_origins:
        application = CORSMiddleware(
            application,
            allow_origins=options.allowed_origins,
            allow_methods=("GET", "POST"),
            allow_headers=("Authorization", "Content-Encoding", "Content-Type"),
            allow_private_network=True,
        )
    return _Protection(application, options)


def is_loopback(host: str) -> bool:
    """Returns whether only the machine itself can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Protection:
    def __init__(self, application: ASGIApp, options: ServerOptions):
        self._application = application
        self._origins = options.allowed_origins
        self._hosts = {host.lower() for host in (options.host, *options.allowed_hosts)}
        self._any_host = not options.allowed_hosts and not is_loopback(options.host)
        self._key = options.api_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        headers = Headers(scope=scope)
        exchange = _Exchange(headers, receive, send)
        refusal = (
            self._refuse_host(headers.getlist("host"))
            or self._refuse_origin(scope["method"], headers)
            or self._refuse_key(scope, headers)
        )
        application = self._application
        if refusal is not None:
            status, message = refusal
            body = error_body(scope["path"], status, message)
            challenge = {"WWW-Authenticate": "Bearer"} if status == 401 else None
            application = JSONResponse(body, status_code=status, headers=challenge)
        await application(scope, exchange.receive, exchange.send)

    def _refuse_host(self, hosts: list[str]) -> Refusal | None:
        """Returns the refusal of a request for another host.

        With DNS rebinding, a page of another site gives its own name the address of
        this server, so that the browser lets it read the responses. The browser sends
        that name as `Host`. A request without `Host` is not from a browser.
        """
        if self._any_host or not hosts:
            return None
        host = ", ".join(hosts)
        found = HOST.fullmatch(host.lower())
        name = found[1].strip("[]") if found else ""
        if name in self._hosts or is_loopback(name):
            return None
        return (
            421,
            f"this server does not serve the host {host!r:.80}. If it should, add the "
            "name to the option `allowed_hosts` of the server",
        )

    def _refuse_origin(self, method: str, headers: Headers) -> Refusal | None:
        """Returns the refusal of a request that a page of another origin sends.

        A browser sends `Origin`, and recent ones also `Sec-Fetch-Site`, which does not
        depend on the name that a reverse proxy sends as `Host`.
        """
        origin = headers.get("origin")
        if method in READ_ONLY or origin is None or origin in self._origins:
            return None
        site = headers.get("sec-fetch-site")
        if site is None:
            host = headers.get("host", "")
            same = origin.partition("://")[2].lower() == host.lower()
        else:
            same = site in ("same-origin", "none")
        if same:
            return None
        return (
            403,
            f"pages of {origin!r:.80} may not use this server. If they should, add the "
            "origin to the option `allowed_origins` of the server",
        )

    def _refuse_key(self, scope: Scope, headers: Headers) -> Refusal | None:
        """Returns the refusal of a request without the key."""
        is_open = scope["path"] in OPEN_PATHS or scope["method"] == "OPTIONS"
        if self._key is None or is_open or is_key(bearer(headers), self._key):
            return None
        return 401, NO_KEY


def bearer(headers: Headers) -> str:
    """Returns the key of the header `Authorization`; empty without one."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def is_key(given: str, key: str) -> bool:
    """Returns whether a client has sent the key."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), key.encode())


class BodyTooLarge(Exception):
    """Raised for a body of more bytes than the limit."""


def unpack_gzip(body: bytes, limit: int) -> bytes:
    """Unpacks a gzip body, at most one byte beyond the limit.

    Raises `BodyTooLarge`, or `ValueError` if it is not one complete stream.
    """
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        unpacked = unpacker.decompress(body, limit + 1)
    except zlib.error:
        raise ValueError("the body must be one complete gzip stream") from None
    if len(unpacked) > limit:
        raise BodyTooLarge
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("the body must be one complete gzip stream")
    return unpacked


class _Exchange:
    """One request and its response.

    If the body of the request has not been read when the response ends, the rest of
    the body is read and dropped for a few seconds, so that the client can read the
    response, and the connection is closed.
    """

    def __init__(self, headers: Headers, receive: Receive, send: Send):
        self._receive = receive
        self._send = send
        length = headers.get("content-length", "0")
        self._unread = length != "0" or "transfer-encoding" in headers

    async def receive(self) -> Message:
        message = await self._receive()
        self._unread = message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if not self._unread:
            await self._send(message)
        elif message["type"] == "http.response.start":
            MutableHeaders(scope=message)["Connection"] = "close"
            await self._send(message)
        elif message.get("more_body", False):
            await self._send(message)
        else:
            await self._send({**message, "more_body": True})
            await self._drop_body()
            await self._send({"type": "http.response.body"})

    async def _drop_body(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(UNREAD_BODY_SECONDS):
                while self._unread:
                    await self.receive()
