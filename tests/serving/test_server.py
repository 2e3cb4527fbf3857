"""The server as a process: processes, signals, new versions, a busy port, memory."""

import asyncio
import collections
import concurrent.futures
import contextlib
import functools
import gc
import http.client
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
import weakref
from importlib import metadata

import numpy as np
import psutil
import pytest
import sentencepiece
from ctranslate2_designs import model_of
from documented import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from keras_transformer import GreedySearch
from keras_transformer_runtime.serving import server as serving
from keras_transformer_runtime.serving.connections import MAX_CONNECTIONS
from keras_transformer_runtime.serving.requests import Generation, Text
from keras_transformer_runtime.serving.served_model import ServedModel
from keras_transformer_runtime.serving.server_options import (
    ModelOptions,
    make_server_options,
)

ADDRESS = r" INFO http://[\d.]+:(\d+)\n"
PATH = "/v1/models/letters:predict"
PATIENCE = 300  # seconds, for a machine under load
TEXTS = ["abc", "deadbeef", "cafe", "feed", "e"]
# As pip writes the command.
SCRIPT = """import sys
from keras_transformer_runtime.command import main
if __name__ == "__main__":
    sys.exit(main())
"""
FORBIDDEN = ("jax", "keras", "keras_transformer", "ray", "tensorflow", "torch")

pytestmark = [pytest.mark.slow, pytest.mark.once("torch")]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a version for CTranslate2."""
    model = model_of(seed=5, max_target_length=17, tie_embeddings="none")
    model.logits_bias.assign(np.array([-100, 0, 0, 2] + [0] * 7, "float32"))
    folder = tmp_path_factory.mktemp("model") / "1"
    model.export(folder, GreedySearch(), format="ctranslate2", check_texts=TEXTS)
    return folder


def environment():
    """The environment of a server: a proxy that does not exist."""
    names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy")
    return os.environ | dict.fromkeys(names, "http://127.0.0.1:9")


class Server:
    def __init__(self, folder, model, *arguments, processes=1):
        self.models = folder / "letters"
        shutil.copytree(model, self.models / "1")
        config = folder / "serving.toml"
        config.write_text(
            f"port = 0\npoll_seconds = 0.2\nprocesses = {processes}\n"
            'threads = 1\n[models.letters]\nfolder = "letters"\n'
        )
        script = folder / "keras-transformer"
        script.write_text(SCRIPT)
        self.log, self.run_files = folder / "log", folder / "run"
        working_folder = folder / "files from elsewhere"
        working_folder.mkdir()
        names = ("ctranslate2", "json", "multiprocessing", "pickle", "socket")
        for name in (*names, "tensorflow", "uvicorn"):
            (working_folder / f"{name}.py").write_text(
                f"open({str(self.run_files)!r}, 'a').write(__file__)\n"
            )
        command = [sys.executable, str(script), "serve", "--config", str(config)]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, *arguments],
                stdout=log,
                stderr=log,
                cwd=working_folder,
                env=environment(),
                start_new_session=True,
            )

    @functools.cached_property
    def port(self):
        self.wait(lambda: re.search(ADDRESS, self.said()))
        return int(re.search(ADDRESS, self.said())[1])

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def ask(self, path, body=None, connection=None):
        """Returns the status and the body of a response."""
        with contextlib.ExitStack() as stack:
            if connection is None:
                connection = stack.enter_context(contextlib.closing(self.connect()))
            data = None if body is None else json.dumps(body)
            connection.request("GET" if body is None else "POST", path, data)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def translate(self, text, connection=None):
        status, answer = self.ask(PATH, {"inputs": [text]}, connection)
        assert status == 200, answer
        return json.loads(answer)["outputs"]["text"][0]

    def metric(self, name):
        """Returns the value of a metric."""
        status, text = self.ask("/metrics")
        assert status == 200
        found = re.search(rf"^keras_transformer_{name}\{{.*\}} (.*)$", text, re.M)
        return 0 if found is None else float(found[1])

    def ready(self):
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.ask("/ready")[0] == 200

    def workers(self):
        """Returns the processes that serve requests."""
        children = psutil.Process(self.process.pid).children()
        workers = []
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                if "spawn_main" in " ".join(child.cmdline()):
                    workers.append(child)
        return workers

    def owner(self, connection):
        """Returns the number of the process that has accepted a connection."""
        own = connection.sock.getsockname()[1]
        for worker in self.workers():
            for found in worker.net_connections("tcp"):
                if found.raddr and found.raddr.port == own:
                    return worker.pid
        return None

    @contextlib.contextmanager
    def connection_of_each(self, count):
        """Opens connections until so many processes have accepted one."""
        with contextlib.ExitStack() as stack:
            found = {}

            def connect():
                connection = stack.enter_context(contextlib.closing(self.connect()))
                self.ask("/health", connection=connection)
                found.setdefault(self.owner(connection), connection)
                return len(found) == count

            self.wait(connect)
            yield found

    @contextlib.contextmanager
    def begun_request(self, body):
        """Opens a connection whose request lacks the body; the server has read it."""
        head = (
            f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n"
        )
        address = ("127.0.0.1", self.port)
        with socket.create_connection(address, PATIENCE) as connection:
            connection.sendall(head.encode())
            assert connection.recv(1024) == b"HTTP/1.1 100 Continue\r\n\r\n"
            yield connection

    def listens(self):
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", self.port)) == 0

    def add_version(self, model, number):
        copy = self.models / "copying"
        shutil.copytree(model, copy)
        copy.rename(self.models / str(number))

    def wait(self, condition):
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, self.said()
            assert self.process.poll() is None, self.said()
            time.sleep(0.05)

    def said(self):
        return self.log.read_text("utf-8")

    def end(self, number, to_group=False):
        """Sends a signal, and checks that all processes end, without an error."""
        processes = psutil.Process(self.process.pid).children(recursive=True)
        send = os.killpg if to_group else os.kill
        send(self.process.pid, number)
        assert self.process.wait(PATIENCE) == 0, self.said()
        assert not psutil.wait_procs(processes, timeout=PATIENCE)[1]
        assert "Traceback" not in self.said()


@pytest.fixture
def start(model, tmp_path):
    """Returns a function that starts a server that is ready."""
    servers = []

    def start(*arguments, **options):
        folder = tmp_path / str(len(servers))
        folder.mkdir()
        servers.append(Server(folder, model, *arguments, **options))
        count = options.get("processes", 1)
        servers[-1].wait(servers[-1].ready)
        servers[-1].wait(lambda: servers[-1].metric("model_ready") == count)
        return servers[-1]

    yield start
    for each in servers:
        if each.process.poll() is None:
            for child in psutil.Process(each.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            each.process.kill()
            each.process.wait()


class Load:
    """Clients that send requests one after the other, each on one connection."""

    def __init__(self, server, expected, count=4):
        self._server, self._expected, self._stops = server, expected, False
        self.answered = 0
        self._pool = concurrent.futures.ThreadPoolExecutor(count)
        self._clients = [self._pool.submit(self._run) for _ in range(count)]
        server.wait(lambda: self.answered > 20)

    def _run(self):
        """Returns when the server closes the connection, as a response tells."""
        with contextlib.closing(self._server.connect()) as connection:
            while not self._stops:
                for text in TEXTS:
                    body = json.dumps({"inputs": [text]})
                    connection.request("POST", PATH, body)
                    response = connection.getresponse()
                    found = json.loads(response.read())
                    assert response.status == 200, found
                    assert found["outputs"]["text"] == [self._expected[text]]
                    self.answered += 1
                    if response.getheader("Connection") == "close":
                        return

    def stop(self):
        self._stops = True
        self.result()

    def result(self):
        """Raises the error of a client."""
        for client in self._clients:
            client.result()
        self._pool.shutdown()


def expected_of(server):
    return {text: server.translate(text) for text in TEXTS}


# One process, and several


@pytest.mark.parametrize("processes", [1, 3])
def test_all_processes_respond(processes, start):
    server = start(processes=processes)
    expected = expected_of(server)
    if processes > 1:
        assert len(server.workers()) == processes
        with server.connection_of_each(processes) as connections:
            for connection in connections.values():
                for text, output in expected.items():
                    assert server.translate(text, connection) == output
    count = len(TEXTS) * (1 if processes == 1 else 1 + processes)
    for name in ("texts_total", "requests_total", "request_seconds_count"):
        assert server.metric(name) == count, name
    assert server.metric("waiting_texts") == 0
    address = re.findall(ADDRESS, server.said())
    assert address == [str(server.port)]
    assert not server.run_files.exists()  # of the working folder
    server.end(signal.SIGTERM)


def test_a_killed_process_is_replaced(start):
    server = start(processes=2)
    expected = expected_of(server)
    with server.connection_of_each(2) as connections:
        (killed, lost), (other, connection) = connections.items()
        assert server.translate("cafe", lost) == expected["cafe"]
        psutil.Process(killed).kill()
        for text, output in expected.items():
            assert server.translate(text, connection) == output
    counted = 2 * len(TEXTS) + 1
    server.wait(lambda: f"process {killed} has ended" in server.said())
    server.wait(lambda: len(server.workers()) == 2)
    server.wait(lambda: server.metric("model_ready") == 2)
    numbers = {worker.pid for worker in server.workers()}
    assert other in numbers and killed not in numbers
    with server.connection_of_each(2) as connections:
        for each in connections.values():
            assert server.translate("feed", each) == expected["feed"]
    assert server.metric("requests_total") == counted + 2
    assert server.metric("model_ready") == 2


@pytest.mark.parametrize("processes", [1, 2])
def test_a_new_version_loses_no_request(processes, model, start):
    server = start(processes=processes)
    load = Load(server, expected_of(server))
    for number in range(2, 7):
        server.add_version(model, number)
        path = f"/v1/models/letters/versions/{number}"

        def state(path, connection=None):
            status, answer = server.ask(path, connection=connection)
            states = json.loads(answer).get("model_version_status", [{"state": None}])
            return states[0]["state"]

        if processes == 1:
            server.wait(lambda path=path: state(path) == "AVAILABLE")
            old = path.replace(str(number), str(number - 1))
            server.wait(lambda old=old: state(old) == "END")
        else:
            with server.connection_of_each(processes) as connections:
                for each in connections.values():
                    server.wait(
                        lambda each=each, path=path: state(path, each) == "AVAILABLE"
                    )
    load.stop()
    assert server.said().count("unloaded") >= processes * 4
    server.end(signal.SIGTERM)


def test_a_version_that_is_unloaded_computes_its_last_requests(model):
    """A request may have chosen the version before, and reach its engine after."""

    async def main():
        options = ModelOptions(folder=model)
        served = ServedModel("letters", options, threads=1)
        await served.refresh()
        loaded = served.available().loaded
        freed = weakref.ref(loaded.model)
        generation = Generation(loaded.model.engine.options)
        before = await loaded.generate([Text("cafe")], generation)
        await served.unload_all()
        assert not served.ready
        assert await loaded.generate([Text("cafe")], generation) == before
        return freed

    freed = asyncio.run(main())
    gc.collect()
    assert freed() is None


@pytest.mark.parametrize("processes", [1, 2])
def test_sigterm_loses_no_request(processes, start):
    server = start(processes=processes)
    expected = expected_of(server)
    load = Load(server, expected)
    body = json.dumps({"inputs": ["deadbeef"]}).encode()
    with contextlib.ExitStack() as stack:
        begun = [stack.enter_context(server.begun_request(body)) for _ in range(4)]
        # A client that sends its next request when the server ends already.
        idle = stack.enter_context(contextlib.closing(server.connect()))
        server.translate("cafe", idle)
        server.process.send_signal(signal.SIGTERM)
        server.wait(lambda: not server.listens())
        assert server.translate("cafe", idle) == expected["cafe"]
        for connection in begun:
            connection.sendall(body)
        for connection in begun:
            response = http.client.HTTPResponse(connection)
            response.begin()
            answer = json.loads(response.read())
            assert answer["outputs"]["text"] == [expected["deadbeef"]]
    load.result()
    assert server.process.wait(PATIENCE) == 0, server.said()
    assert "Traceback" not in server.said()


@pytest.mark.parametrize("processes", [1, 2])
def test_interruption_by_the_keyboard(processes, start):
    start(processes=processes).end(signal.SIGINT, to_group=True)


def test_the_processes_end_with_the_first_one(start):
    server = start(processes=2)
    workers = server.workers()
    server.process.kill()
    server.process.wait()
    assert not psutil.wait_procs(workers, timeout=PATIENCE)[1]
    assert not server.listens()


# The start


def run(*arguments, **options):
    command = [sys.executable, "-P", "-m", "keras_transformer_runtime", "serve"]
    return subprocess.run(
        [*command, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment(),
        **options,
    )


@pytest.mark.parametrize("processes", [1, 2])
def test_a_busy_port(processes, model):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        found = run(model, "--port", port, "--processes", processes)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert found.returncode == 1
    (line,) = found.stderr.splitlines()
    assert line.startswith("error: `--port` must be free")
    assert f"127.0.0.1:{port}" in line and not found.stdout
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert used < 1, f"{used} s"


@pytest.mark.parametrize("processes", [1, 2])
def test_a_wrong_dictionary_ends_the_server(processes, model, tmp_path):
    terms = tmp_path / "terms.tsv"
    terms.write_text("no tab\n")
    options = ("--port", 0, "--processes", processes, "--dictionary", terms)
    found = run(model, *options)
    assert found.returncode == 1
    assert found.stderr.startswith("error: ") and "Traceback" not in found.stderr


@pytest.mark.parametrize(
    ("arguments", "warned"),
    [
        (("--host", "0.0.0.0"), True),
        (("--host", "0.0.0.0", "--api-key", "secret"), False),
        ((), False),
    ],
)
def test_a_warning_without_a_key(arguments, warned, model, tmp_path):
    server = Server(tmp_path, model, *arguments)
    try:
        server.wait(server.ready)
        assert (" WARNING everyone who can reach" in server.said()) == warned
        server.end(signal.SIGTERM)
    finally:
        server.process.kill()
        server.process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="psutil reads the limit on Linux")
def test_the_limit_of_open_files(start):
    """The connections that the server allows exceed the usual limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        server = start(processes=2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for worker in server.workers():
        limit = worker.rlimit(psutil.RLIMIT_NOFILE)[0]
        assert limit >= min(MAX_CONNECTIONS + 256, hard)


@pytest.mark.parametrize(
    ("limit", "processes", "threads"),
    [
        (None, 1, 8),
        ("max 100000", 2, 4),
        ("300000 100000", 1, 3),
        ("150000 100000", 1, 2),
        ("300000 100000", 5, 1),
        ("1600000 100000", 1, 8),
    ],
)
def test_the_threads_of_an_engine(
    limit, processes, threads, model, tmp_path, monkeypatch
):
    file = tmp_path / "cpu.max"
    if limit is not None:
        file.write_text(f"{limit}\n")
    found = []
    monkeypatch.setattr(serving, "CONTAINER_LIMIT", file)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(serving, "ServedModel", lambda *given: found.append(given[2]))
    options = {"models": {"letters": {"folder": model}}, "processes": processes}
    serving.create_application(make_server_options(**options))
    assert found == [threads]


REPORTER = """
import http.client, json, os, signal, socket, sys, threading, time

def report():
    while True:
        time.sleep(0.1)
        try:
            connection = http.client.HTTPConnection("127.0.0.1", {port})
            connection.request("POST", {path!r}, '{{"inputs": ["Abc. Fed."]}}')
            if connection.getresponse().status == 200:
                break
        except OSError:
            pass
    print(sorted({{name.partition(".")[0] for name in sys.modules}} & {names!r}))
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=report, daemon=True).start()
from keras_transformer_runtime.command import main
main()
"""


def test_a_server_imports_no_backend(model, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    path = PATH.replace("letters", model.parent.name)
    code = REPORTER.format(port=port, path=path, names={*FORBIDDEN, "ctranslate2"})
    options = ("--port", str(port), "--split-sentences", "en")
    found = subprocess.run(
        [sys.executable, "-P", "-c", code, "serve", str(model), *options],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert found.stdout == "['ctranslate2']\n", found.stderr
    assert found.returncode == 0, found.stderr


def requirements(name, extras, found):
    """Adds the names of the distributions that a distribution requires to a set."""
    for line in metadata.requires(name) or ():
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": x}) for x in ("", *extras)):
            other = canonicalize_name(requirement.name)
            if other not in found:
                found.add(other)
                requirements(other, requirement.extras, found)


def test_the_server_imports_what_its_extra_installs(tmp_path):
    """Also with SentencePiece, which does not require what it imports."""
    (tmp_path / "texts").write_text("the cat sat\non the mat\n" * 20)
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "texts"),
        model_prefix=str(tmp_path / "pieces"),
        vocab_size=13,
        minloglevel=2,
    )
    code = (
        "import pathlib, sys\n"
        "import keras_transformer_runtime.command\n"
        "import keras_transformer_runtime.serving.server\n"
        "import keras_transformer_runtime.serving.sentences\n"
        "import keras_transformer_runtime.tokenizers.keras_hub_tokenizers\n"
        "from keras_transformer_runtime.tokenizers.piece_model import PieceModel\n"
        f"PieceModel(pathlib.Path({str(tmp_path)!r}, 'pieces.model').read_bytes())\n"
        "print(*sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    allowed = set()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for line in (*project["dependencies"], *project["optional-dependencies"]["serve"]):
        requirement = Requirement(line)
        allowed.add(canonicalize_name(requirement.name))
        requirements(requirement.name, requirement.extras, allowed)
    modules = found.stdout.split()
    distributions = metadata.packages_distributions()
    del distributions["google"]  # of several distributions
    imported = {
        canonicalize_name(name)
        for module in {module.partition(".")[0] for module in modules}
        for name in distributions.get(module, [])
    }
    if "google.protobuf" in modules:
        imported.add("protobuf")
    assert {"ctranslate2", "protobuf", "sentencepiece", "uvicorn"} <= imported
    own = {canonicalize_name(project["name"])}
    if_installed = {"setuptools", "sniffio", "watchfiles"}
    assert imported <= allowed | own | if_installed


# Clients


def test_clients_that_leave(start):
    server = start()
    expected = expected_of(server)
    body = json.dumps({"inputs": TEXTS * 20})
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
    for _ in range(100):
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(f"{head}\r\n\r\n{body}".encode())
    assert expected_of(server) == expected
    server.wait(lambda: server.metric("waiting_texts") == 0)
    server.end(signal.SIGTERM)


def test_memory_does_not_grow(start):
    server = start()
    process = psutil.Process(server.process.pid)
    sizes = collections.deque(maxlen=2)
    lock = threading.Lock()
    counts = iter(range(10_000))

    def ask(connection, count):
        for _ in range(count):
            with lock:
                text = TEXTS[next(counts) % len(TEXTS)]
            server.translate(text, connection)

    with contextlib.ExitStack() as stack:
        connections = [
            stack.enter_context(contextlib.closing(server.connect())) for _ in range(4)
        ]
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(4))
        for count in (250, 1000):
            list(pool.map(ask, connections, [count] * 4))
            sizes.append(process.memory_info().rss)
    before, after = sizes
    assert after - before < 10_000_000
