"""The limits of connections: a server in a thread, with an engine of upper case."""

import contextlib
import gzip
import http.client
import json
import pathlib
import re
import resource
import socket
import sys
import threading
import time
import urllib.error
import urllib.request

import psutil
import pytest
import uvicorn

from keras_transformer_runtime.engines.engine import Engine, Hypothesis
from keras_transformer_runtime.engines.generation_options import GenerationOptions
from keras_transformer_runtime.serving import connections, protection
from keras_transformer_runtime.serving.application import Application
from keras_transformer_runtime.serving.batching import Batcher
from keras_transformer_runtime.serving.connections import HTTPConfig
from keras_transformer_runtime.serving.loaded_model import GENERATING, GeneratingModel
from keras_transformer_runtime.serving.served_model import (
    LoadedVersion,
    ModelVersion,
    ServedModel,
)
from keras_transformer_runtime.serving.server_options import make_server_options

pytestmark = [pytest.mark.slow, pytest.mark.once("torch")]

PATIENCE_SECONDS = 20
DOCUMENTATION = pathlib.Path(__file__).parents[2] / "docs" / "serving.md"
PATH = "/v1/models/en-de:predict"
POST = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\n".encode()
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
HEADER_SECONDS = 0.3
TIMEOUT_SECONDS = 0.6
MEGABYTE = 1_000_000


class UpperCase(Engine):
    """Generates texts in upper case; a stream repeats the text without end."""

    name = "upper case"
    path = pathlib.Path()
    options = GenerationOptions()
    max_source_length = None
    max_target_length = None

    def __init__(self, is_language_model):
        self.is_language_model = is_language_model
        self.streamed = 0

    def measure(self, texts, side, first=1):
        return [len(text) for text in texts]

    def refusal(self, options, prefix=False):
        return None

    def generate(self, texts, options, *, on_text=None, **_):
        if on_text is not None:
            written = texts[0]
            while not on_text(0, written):
                self.streamed += 1
                written += texts[0]
                time.sleep(0.001)
            return [[Hypothesis(written, -1.0, False)]]
        return [[Hypothesis(text.upper(), -1.0, False)] for text in texts]

    def stream(self, text, options, prefix=""):
        raise NotImplementedError

    def score(self, sources, targets, batch_size=64):
        raise NotImplementedError

    def digest(self):
        raise NotImplementedError


class Loaded(GeneratingModel):
    signatures = {**GENERATING}
    max_texts = 4

    def __init__(self, is_language_model):
        self.engine = UpperCase(is_language_model)

    def metadata(self):
        return {}

    def call(self, name, rows):
        raise NotImplementedError

    def close(self):
        pass


class Server:
    """A server that runs in a thread."""

    def __init__(self, folder, options):
        options = make_server_options(
            **{
                "models": {"en-de": {"folder": folder}, "words": {"folder": folder}},
                "header_seconds": PATIENCE_SECONDS,
                "timeout_seconds": PATIENCE_SECONDS,
                "max_body_bytes": 1009,
                **options,
            }
        )
        models = {}
        for name in options.models:
            models[name] = ServedModel(name, options.models[name], threads=1)
            loaded = Loaded(name == "words")
            batcher = Batcher(loaded.compute, loaded, 8192, 1024)
            models[name].versions[1] = ModelVersion(1)
            models[name].versions[1].set_loaded(LoadedVersion(loaded, batcher))
        self.engine = models["words"].available().loaded.model.engine
        application = Application(models, options)
        self.http = uvicorn.Server(HTTPConfig(lambda: application.asgi, options))
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

    def connect(self, data=b"", source=""):
        connection = socket.create_connection(
            ("127.0.0.1", self.port), PATIENCE_SECONDS, (source, 0)
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

    def open_connections(self):
        return len(self.http.server_state.connections)


@pytest.fixture
def start(tmp_path):
    """Returns a function that starts a server with some options."""
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(Server(tmp_path, options))


@contextlib.contextmanager
def memory_grows_less_than(size):
    process = psutil.Process()
    before = process.memory_info().rss
    yield
    assert process.memory_info().rss - before < size


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


def refusal_of(request):
    """Sends a request; returns the status and the error of the response."""
    with (
        pytest.raises(urllib.error.HTTPError) as found,
        urllib.request.urlopen(request),
    ):
        pass
    with found.value as response:
        return response.code, json.load(response)["error"]


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
    codes = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    [code] = [code for code in codes if "urllib" in code]
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
    assert time.monotonic() - started > 0.9 * HEADER_SECONDS
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
    assert status == 408 and "within 0.6 s" in message


def test_a_client_that_does_not_read(start):
    server = start(timeout_seconds=TIMEOUT_SECONDS)
    page = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    server.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(page * 30)
        wait_until(lambda: server.http.server_state.total_requests)
        wait_until(lambda: not server.open_connections())
    assert server.is_healthy()


STREAM = json.dumps({"model": "words", "prompt": "a" * 499, "stream": True}).encode()
STREAM = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
    + f"{len(STREAM)}\r\n\r\n".encode()
    + STREAM
)


@pytest.mark.parametrize("leaves", [False, True])
def test_a_client_that_does_not_read_a_stream(leaves, start):
    """The engine ends the stream, whether the client keeps the connection or not."""
    server = start(timeout_seconds=TIMEOUT_SECONDS)
    server.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with socket.socket() as client, memory_grows_less_than(40 * MEGABYTE):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.sendall(STREAM)
        assert client.recv(100).startswith(b"HTTP/1.1 200 OK")
        if leaves:
            client.close()
        wait_until(lambda: not server.open_connections())
    count = server.engine.streamed
    time.sleep(0.1)
    assert server.engine.streamed <= count + 1
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
    request = urllib.request.Request(start().url(PATH), b"a" * 10_000_000)
    status, message = refusal_of(request)
    assert status == 413 and "`max_body_bytes`" in message


def test_a_large_body_is_not_asked_for(start, monkeypatch):
    monkeypatch.setattr(protection, "UNREAD_BODY_SECONDS", 0.1)
    request = POST + b"Content-Length: 10000\r\nExpect: 100-continue\r\n\r\n"
    assert error_of(start().exchange(request))[0] == 413


# Large requests


def test_a_header_section_of_a_megabyte(start):
    server = start()
    with memory_grows_less_than(20 * MEGABYTE):
        for _ in range(20):
            with server.connect() as connection:
                with contextlib.suppress(ConnectionError):
                    connection.sendall(GET + b"X: " + b"a" * MEGABYTE)
                read_all(connection)
    assert server.is_healthy()


def test_a_gzip_body_of_a_gigabyte(start):
    server = start(max_body_bytes=MEGABYTE)
    body = gzip.compress(b" " * (500 * MEGABYTE), compresslevel=9)
    assert len(body) < MEGABYTE
    headers = {"Content-Encoding": "gzip"}
    request = urllib.request.Request(server.url(PATH), body, headers)
    started = time.monotonic()
    with memory_grows_less_than(20 * MEGABYTE):
        status, message = refusal_of(request)
    assert status == 413 and "also unpacked" in message
    assert time.monotonic() - started < 2


@pytest.mark.parametrize("path", [PATH, "/v1/completions", "/translate"])
@pytest.mark.parametrize("part", ["[", '{"a":'])
def test_a_deep_body(part, path, start):
    url = start(max_body_bytes=MEGABYTE).url(path)
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, (part * 100_000).encode(), headers)
    status, error = refusal_of(request)
    assert status == 400
    message = error["message"] if path == "/v1/completions" else error
    assert message.startswith("the body must be JSON: maximum recursion depth")


@pytest.mark.parametrize(
    "body",
    [
        {"q": [0] * 330_000, "source": "en", "target": "de"},
        {f"{i:x}": 0 for i in range(90_000)},
    ],
)
def test_a_body_of_many_errors(body, start):
    server = start(max_body_bytes=MEGABYTE)
    headers = {"Content-Type": "application/json"}
    data = json.dumps(body, separators=(",", ":")).encode()
    request = urllib.request.Request(server.url("/translate"), data, headers)
    started = time.monotonic()
    assert refusal_of(request)[0] == 400
    assert time.monotonic() - started < 1


def test_many_requests_on_a_connection(start):
    server = start()
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    body = json.dumps({"inputs": ["knight"]})

    def ask(count):
        for _ in range(count):
            connection.request("POST", PATH, body)
            response = json.load(connection.getresponse())
            assert response["outputs"]["text"] == ["KNIGHT"]

    ask(300)
    with memory_grows_less_than(5 * MEGABYTE):
        ask(3000)
    assert server.open_connections() == 1
    connection.close()


# Numbers of connections


def test_connections_per_client(start):
    server = start(max_connections_per_client=3)
    waiting = [server.connect() for _ in range(3)]
    response = server.exchange(b"")
    status, message = error_of(response)
    assert status == 503 and "may have 3 connections" in message
    assert b"\r\nretry-after: 1\r\n" in response
    waiting.pop().close()
    wait_until(lambda: server.open_connections() == 2)
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


@pytest.mark.skipif(sys.platform != "linux", reason="uses the address 127.0.0.2")
@pytest.mark.parametrize("behind_proxy", [False, True])
def test_two_thousand_idle_connections(behind_proxy, start):
    """Other clients are answered meanwhile, and at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 5000:
        pytest.skip("the system allows too few open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 5000), hard))
    server = start(behind_proxy=behind_proxy, max_connections_per_client=200)
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        with memory_grows_less_than(100 * MEGABYTE):
            for _ in range(2000):
                stack.enter_context(server.connect())
            expected = 2000 if behind_proxy else 200
            wait_until(lambda: server.open_connections() == expected)
        for _ in range(20):
            started = time.monotonic()
            request = GET + b"Connection: close\r\n\r\n"
            with server.connect(request, source="127.0.0.2") as other:
                assert read_all(other).startswith(b"HTTP/1.1 200 OK")
            assert time.monotonic() - started < 1
