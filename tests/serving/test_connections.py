"""The limits of connections: a server in a thread, with a model that needs no Ray."""

import contextlib
import http.client
import json
import logging
import pathlib
import re
import socket
import threading
import time
import urllib.error
import urllib.request

import pytest

from keras_transformer_runtime.serving import connections, protection
from keras_transformer_runtime.serving.application import Application
from keras_transformer_runtime.serving.batching import Batcher
from keras_transformer_runtime.serving.connections import HTTPConfig, HTTPServer
from keras_transformer_runtime.serving.rest import Signature, TensorSpec
from keras_transformer_runtime.serving.served_model import ModelVersion, ServedModel
from keras_transformer_runtime.serving.server_options import make_server_options

pytestmark = [pytest.mark.slow, pytest.mark.once]

PATIENCE_SECONDS = 20
DOCUMENTATION = pathlib.Path(__file__).parents[2] / "docs" / "serving.md"
TEXT, SCORE = TensorSpec("string", 1), TensorSpec("float32", 1)
PATH = "/v1/models/en-de:predict"
POST = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\n".encode()
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
HEADER_SECONDS = 0.3
TIMEOUT_SECONDS = 0.6


class Replicas:
    """Computes upper case."""

    slots = 1
    signatures = {"serving_default": Signature({"text": TEXT}, {"text": TEXT})}

    async def predict(self, signature, requests):
        texts = [request["text"] for request in requests]
        return [
            {"text": [t.upper() for t in found], "score": [-1.0] * len(found)}
            for found in texts
        ]


class Server:
    """A server that runs in a thread."""

    def __init__(self, folder, options):
        options = make_server_options(
            **{
                "models": {"en-de": {"folder": folder}},
                "header_seconds": PATIENCE_SECONDS,
                "timeout_seconds": PATIENCE_SECONDS,
                "max_body_bytes": 1009,
                **options,
            }
        )
        model = ServedModel("en-de", options.models["en-de"], cluster=None)
        replicas = Replicas()
        model.versions[1] = ModelVersion(1)
        model.versions[1].set_loaded(replicas, Batcher(replicas.predict, 1, 4, 1024))
        application = Application({"en-de": model}, options)
        self.http = HTTPServer(HTTPConfig(application.asgi, options))
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(
            target=self.http.run, kwargs={"sockets": [self.listener]}
        )

    def __enter__(self):
        self.thread.start()
        wait_until(lambda: self.http.started)
        return self

    def __exit__(self, *_):
        self.http.should_exit = True
        self.thread.join()

    def connect(self, data=b""):
        connection = socket.create_connection(
            ("127.0.0.1", self.port), PATIENCE_SECONDS
        )
        connection.sendall(data)
        return connection

    def exchange(self, data):
        """Sends data, and returns what comes back until the server closes."""
        with self.connect(data) as connection:
            return read_all(connection)

    def url(self, path):
        return f"http://127.0.0.1:{self.port}{path}"

    def is_healthy(self):
        with urllib.request.urlopen(self.url("/health")) as response:
            return response.status == 200


@pytest.fixture
def start(tmp_path):
    """Returns a function that starts a server with some options."""
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(Server(tmp_path, options))


def wait_until(condition):
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def read_all(connection):
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while found := connection.recv(65536):
            received += found
    return received


def send_slowly(connection, data, limit=PATIENCE_SECONDS):
    """Sends data repeatedly until the server closes; returns its response."""
    connection.settimeout(0.05)
    received, end = b"", time.monotonic() + limit
    while time.monotonic() < end:
        with contextlib.suppress(TimeoutError):
            found = b""
            with contextlib.suppress(ConnectionError):
                found = connection.recv(65536)
            if not found:
                return received
            received += found
        with contextlib.suppress(ConnectionError):
            connection.sendall(data)
    raise AssertionError(f"still open after {limit} s; received {received!r}")


def error_of(response):
    """Returns the status and the message of a response with an error."""
    head, _, body = response.partition(b"\r\n\r\n")
    assert b"nosniff" in head
    return int(head.split()[1]), json.loads(body)["error"]


# The address


def test_the_address_is_logged_when_the_server_responds(start, caplog):
    found, logged = [], threading.Event()

    class Connects(logging.Handler):
        def emit(self, record):
            port = int(record.getMessage().rpartition(":")[2])
            with socket.socket() as client:
                found.append(
                    (record.getMessage(), client.connect_ex(("127.0.0.1", port)))
                )
            logged.set()

    handler = Connects()
    caplog.set_level("INFO")
    connections.logger.addHandler(handler)
    try:
        server = start()
        assert logged.wait(timeout=30)  # the server may respond before it logs
    finally:
        connections.logger.removeHandler(handler)
    assert found == [(f"http://127.0.0.1:{server.port}", 0)]
    assert server.is_healthy()


@pytest.mark.parametrize(
    ("options", "warned"),
    [
        ({"host": "0.0.0.0"}, True),
        ({"host": "::"}, True),
        ({"host": "0.0.0.0", "behind_proxy": True}, False),
        ({"host": "127.0.0.1"}, False),
    ],
)
def test_a_warning_without_a_proxy(options, warned, start, caplog):
    server = start(**options)  # its socket is bound to 127.0.0.1 all the same
    messages = [record.getMessage() for record in caplog.records]
    assert any("no authentication" in message for message in messages) == warned
    assert server.is_healthy()


# Responses


@pytest.mark.parametrize("path", ["/", "/health", "/nowhere", PATH])
def test_every_response_has_the_header_nosniff(path, start):
    connection = http.client.HTTPConnection("127.0.0.1", start().port)
    connection.request("GET", path)
    assert connection.getresponse().headers["X-Content-Type-Options"] == "nosniff"
    connection.close()


TWO_LENGTHS = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
LONG = b"a" * 32_769


@pytest.mark.parametrize(
    "request_",
    [
        b"GARBAGE\r\n\r\n",
        b"\x16\x03\x01\r\n",
        b"GET /" + LONG,
        GET + b"X: " + LONG,
        GET + b"X: a\r\n" * 7000,
        POST + TWO_LENGTHS + b"0\r\n\r\n",  # request smuggling
        POST + CHUNKED + b"x",
    ],
    ids=range(7),
)
def test_an_invalid_request(request_, start):
    status, message = error_of(start().exchange(request_))
    assert status == 400
    assert "with a header section of at most 32768 bytes" in message


@pytest.mark.parametrize("begin", [b"1;", b"1\r\n \r\n0\r\nX: "])
def test_a_chunk_extension_or_trailer_without_end(begin, start):
    with start().connect(POST + CHUNKED + begin) as connection:
        status, message = error_of(send_slowly(connection, b"a" * 10_000))
    assert status == 400 and "at most 32768 bytes" in message


def test_an_upgrade_is_ignored(start):
    request = GET + b"Connection: close, upgrade\r\nUpgrade: websocket\r\n\r\n"
    assert start().exchange(request).startswith(b"HTTP/1.1 200 OK")


def test_the_python_example_of_the_documentation(start, capsys):
    text = DOCUMENTATION.read_text("utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    server = start()
    assert code.count("http://127.0.0.1:8501/") == 1
    namespace = {}
    exec(code.replace(":8501/", f":{server.port}/"), namespace)
    assert capsys.readouterr().out == "['A MAN SLEEPS.']\n"
    with pytest.raises(ValueError, match="a request must have 1 to 256 texts"):
        namespace["translate"]([])


# Time limits


@pytest.mark.parametrize(
    ("begin", "drop", "status"),
    [
        (b"", b"", None),
        (b"", b"\r\n", 408),
        (b"GET /", b"a", 408),
        (GET + b"X: ", b"a", 408),
        (GET + b"\r\n" + GET, b"a", 408),
        (GET + b"\r\n", b"\r\n", 408),
    ],
)
def test_a_slow_header(begin, drop, status, start):
    server = start(header_seconds=HEADER_SECONDS)
    started = time.monotonic()
    with server.connect(begin) as connection:
        response = send_slowly(connection, drop)
    assert time.monotonic() - started >= HEADER_SECONDS
    if status is None:
        assert response == b""
    else:
        found, message = error_of(response[response.index(b"HTTP/1.1 408") :])
        assert found == status and "within 0.3 s" in message


@pytest.mark.parametrize(
    ("length", "drop"),
    [
        (b"Content-Length: 500", b" "),
        (b"Transfer-Encoding: chunked", b"1\r\n \r\n"),
        (b"Transfer-Encoding: chunked", b"1;a"),
    ],
)
def test_a_slow_body(length, drop, start, monkeypatch):
    monkeypatch.setattr(protection, "UNREAD_BODY_SECONDS", 0.1)
    server = start(timeout_seconds=TIMEOUT_SECONDS)
    with server.connect(POST + length + b"\r\n\r\n") as connection:
        status, message = error_of(send_slowly(connection, drop))
    assert status == 504 and "within 0.6 s" in message


def test_a_client_that_does_not_read(start):
    server = start(timeout_seconds=TIMEOUT_SECONDS)
    page = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    server.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(page * 30)
        wait_until(lambda: server.http.server_state.total_requests)
        wait_until(lambda: not server.http.server_state.connections)
    assert server.is_healthy()


def test_pipelined_requests(start):
    """As many as are allowed are answered in order; more close the connection."""
    server = start()
    last = GET + b"Connection: close\r\n\r\n"
    response = server.exchange((GET + b"\r\n") * connections.MAX_PIPELINED + last)
    assert response.count(b"HTTP/1.1 200 OK") == connections.MAX_PIPELINED + 1
    response = server.exchange((GET + b"\r\n") * 1000 + last)
    assert response.count(b"HTTP/1.1 200 OK") < 1000
    assert server.is_healthy()


# Bodies that are not read


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST /health HTTP/1.1\r\nHost: localhost\r\n", 405),
        (b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\n", 404),
        (b"POST /health HTTP/1.1\r\nHost: evil.example\r\n", 421),
        (POST + b"Origin: http://evil.example\r\n", 403),
        (POST + b"Content-Encoding: br\r\n", 415),
        (POST, 413),
    ],
)
def test_an_endless_body(head, status, start, monkeypatch):
    monkeypatch.setattr(protection, "UNREAD_BODY_SECONDS", 0.1)
    with start().connect(head + b"Transfer-Encoding: chunked\r\n\r\n") as connection:
        response = send_slowly(connection, b"400\r\n" + b"a" * 1024 + b"\r\n")
    assert error_of(response)[0] == status
    assert b"connection: close" in response.lower()


def test_a_client_reads_why_its_large_body_is_refused(start):
    with pytest.raises(urllib.error.HTTPError) as found:
        urllib.request.urlopen(start().url(PATH), b"a" * 10_000_000)
    assert found.value.code == 413
    assert "`max_body_bytes`" in json.load(found.value)["error"]


def test_a_large_body_is_not_asked_for(start, monkeypatch):
    monkeypatch.setattr(protection, "UNREAD_BODY_SECONDS", 0.1)
    request = POST + b"Content-Length: 10000\r\nExpect: 100-continue\r\n\r\n"
    assert error_of(start().exchange(request))[0] == 413


# Numbers of connections


def test_connections_per_client(start):
    server = start(max_connections_per_client=3)
    waiting = [server.connect() for _ in range(3)]
    response = server.exchange(b"")
    status, message = error_of(response)
    assert status == 503 and "may have 3 connections" in message
    assert b"\r\nretry-after: 1\r\n" in response
    waiting.pop().close()
    wait_until(lambda: len(server.http.server_state.connections) == 2)
    assert server.is_healthy()
    for connection in waiting:
        connection.close()


def test_all_connections(start, monkeypatch):
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 3)
    server = start(
        max_connections_per_client=1, behind_proxy=True, header_seconds=HEADER_SECONDS
    )
    waiting = [server.connect() for _ in range(3)]
    status, message = error_of(server.exchange(b""))
    assert status == 503 and "too many connections" in message
    for connection in waiting:
        assert read_all(connection) == b""  # closed after `header_seconds`
        connection.close()
    assert server.is_healthy()
