"""The server as a process: the command, Ray, killed replicas, new versions."""

import concurrent.futures
import contextlib
import functools
import http.client
import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import psutil
import pytest

SAVED_MODEL = pathlib.Path(__file__).parents[2] / "saved_models" / "pronounce" / "1"
ADDRESS = r" INFO http://127\.0\.0\.1:(\d+)\n"
WORDS = {"knight": "N AY T", "": "", "attention": "AH T EH N SH AH N"}
PATIENCE = 900  # seconds, for a machine under load

pytestmark = [pytest.mark.slow, pytest.mark.once]


def copy_model(folder):
    """Copies the model without warm-up requests, so that little is compiled."""
    shutil.copytree(SAVED_MODEL, folder, ignore=shutil.ignore_patterns("assets.extra"))


class Server:
    def __init__(self, folder):
        self.models = folder / "pronounce"
        copy_model(self.models / "1")
        config = folder / "serving.toml"
        config.write_text(
            f"port = 0\npoll_seconds = 0.2\ntimeout_seconds = {PATIENCE}\n"
            '[models.pronounce]\nfolder = "pronounce"\nbatch_sizes = [4]\n'
        )
        # "-P" as for the command: Python does not import from the working folder.
        arguments = [
            *("-P", "-m", "keras_transformer_runtime"),
            *("serve", "--config", str(config)),
        ]
        self.log, self.run_files = folder / "log", folder / "run"
        working_folder = folder / "files from elsewhere"
        working_folder.mkdir()
        for name in ("tensorflow_text", "tensorflow", "json", "ray", "no_such_module"):
            (working_folder / f"{name}.py").write_text(
                f"open({str(self.run_files)!r}, 'a').write(__file__)\n"
            )
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                stdout=log,
                stderr=log,
                cwd=working_folder,
            )

    @functools.cached_property
    def port(self):
        self.wait(lambda: re.search(ADDRESS, self.said()))
        return int(re.search(ADDRESS, self.said())[1])

    def ask(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.port}{path}"
        try:
            with urllib.request.urlopen(url, data, timeout=PATIENCE) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def pronounce(self, word):
        status, answer = self.ask("/v1/models/pronounce:predict", {"inputs": [word]})
        return answer["outputs"]["text"][0] if status == 200 else status

    @contextlib.contextmanager
    def begun_request(self, body):
        """Opens a connection whose request lacks the body; the server has read it."""
        head = (
            "POST /v1/models/pronounce:predict HTTP/1.1\r\nHost: 127.0.0.1\r\n"
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

    def wait(self, condition):
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, self.said()
            assert self.process.poll() is None, self.said()
            time.sleep(0.1)

    def counts_replicas(self, count):
        """Returns whether the metrics tell that so many replicas run."""
        address = f"http://127.0.0.1:{self.port}/metrics"
        with urllib.request.urlopen(address, timeout=PATIENCE) as response:
            text = response.read().decode()
        return f'replicas{{model="pronounce",version="1"}} {count}.0' in text

    def said(self):
        return self.log.read_text("utf-8")

    def replicas(self, version):
        name = f"ray::ServeReplica:pronounce-{version}"
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                if name in " ".join(child.cmdline()):
                    found.append(child)
        return found


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server"))
    try:
        server.wait(lambda: server.ask("/ready")[0] == 200)
        assert server.pronounce("knight") == WORDS["knight"]
        server.wait(lambda: server.counts_replicas(2))
        yield server
    finally:
        if server.process.poll() is None:
            for child in psutil.Process(server.process.pid).children(recursive=True):
                child.kill()
            server.process.kill()
            server.process.wait()


def many(server, count):
    """Sends requests from eight clients, and checks the responses."""
    asked = [list(WORDS)[i % len(WORDS)] for i in range(count)]
    with concurrent.futures.ThreadPoolExecutor(8) as clients:
        found = list(clients.map(server.pronounce, asked))
    assert found == [WORDS[word] for word in asked]


def test_predict(server):
    many(server, 16)
    status, answer = server.ask("/v1/models/pronounce/metadata")
    assert status == 200 and answer["model_spec"]["version"] == "1"
    status, answer = server.ask(
        "/v1/models/pronounce:predict", {"instances": ["a" * 70]}
    )
    assert status == 400 and "max_source_length=64" in answer["error"]


def test_files_of_the_working_folder_are_not_run(server):
    assert not server.run_files.exists()
    working_folder = str(server.log.parent / "files from elsewhere")
    for process in psutil.Process(server.process.pid).children(recursive=True):
        assert process.cwd() != working_folder


def test_the_log_tells_the_address_and_the_progress(server):
    server.wait(lambda: "compiled all shapes (1)" in server.said())
    lines = [line.split(" INFO ", 1) for line in server.said().splitlines()]
    ray, address, loading, ready, *_ = (line[1] for line in lines if len(line) == 2)
    assert ray == "starting Ray"
    assert address == f"http://127.0.0.1:{server.port}"
    assert loading == "pronounce, version 1: loading"
    assert ready.startswith("pronounce, version 1: ready in ")


def test_a_killed_replica_loses_no_request(server):
    with concurrent.futures.ThreadPoolExecutor(1) as background:
        answered = background.submit(many, server, 60)
        victim, other = server.replicas(1)
        victim.kill()
        answered.result()
    assert other.is_running()
    server.wait(lambda: len(server.replicas(1)) == 2)


def test_a_new_version_takes_over(server):
    copy = server.models / "copying"
    copy_model(copy)
    copy.rename(server.models / "2")
    path = "/v1/models/pronounce/versions/2"

    def taken_over():
        many(server, 4)
        states = server.ask("/v1/models/pronounce")[1]["model_version_status"]
        return [state["state"] for state in states] == ["AVAILABLE", "END"]

    server.wait(taken_over)
    assert server.ask(path + ":predict", {"instances": ["knight"]})[0] == 200
    old = path.replace("2", "1") + ":predict"
    assert server.ask(old, {"instances": ["knight"]})[0] == 404
    server.wait(lambda: not server.replicas(1))


def ends(server, processes):
    assert server.process.wait(PATIENCE) == 0, server.said()
    gone, alive = psutil.wait_procs(processes, timeout=PATIENCE)
    return not alive


def test_sigterm_finishes_requests(server):
    """It ends while one version processes requests and another one is loading."""
    copy = server.models / "copying"
    copy_model(copy)
    copy.rename(server.models / "3")
    server.wait(lambda: server.replicas(3))
    processes = psutil.Process(server.process.pid).children(recursive=True)
    body = json.dumps({"inputs": ["attention"]}).encode()
    with contextlib.ExitStack() as stack:
        begun = [stack.enter_context(server.begun_request(body)) for _ in range(4)]
        server.process.send_signal(signal.SIGTERM)
        server.wait(lambda: not server.listens())
        for connection in begun:
            connection.sendall(body)
        for connection in begun:
            response = http.client.HTTPResponse(connection)
            response.begin()
            answer = json.loads(response.read())
            assert answer["outputs"]["text"] == [WORDS["attention"]]
    assert ends(server, processes)
