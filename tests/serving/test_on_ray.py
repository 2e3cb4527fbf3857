"""The server on Ray Serve: two replicas on one node, of which one is killed."""

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest
from ctranslate2_designs import causal_model_of, model_of

from keras_transformer import GreedySearch

pytest.importorskip("ray")
from keras_transformer_runtime.serving.on_ray import (  # noqa: E402
    Arguments,
    application,
)

PATIENCE = 300  # seconds, for a machine under load
TEXTS = ["abc", "deadbeef", "cafe", "feed"]

pytestmark = [pytest.mark.slow, pytest.mark.once("torch")]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """The options of a server of a translator and a language model."""
    folder = tmp_path_factory.mktemp("models")
    search, model = GreedySearch(), model_of(seed=5, max_target_length=17)
    model.export(folder / "letters" / "1", search, format="ctranslate2")
    model = causal_model_of(seed=3, max_length=19)
    model.export(folder / "words" / "1", search, format="ctranslate2")
    config = folder / "serving.toml"
    config.write_text(
        "poll_seconds = 0.2\n"
        '[models.letters]\nfolder = "letters"\nlanguages = ["en", "de"]\n'
        '[models.words]\nfolder = "words"\n'
    )
    return config


class Server:
    def __init__(self, config, folder):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        arguments = {"config": str(config), "num_replicas": 2}
        path = "keras_transformer_runtime.serving.on_ray:application"
        options = folder / "ray.yaml"  # YAML contains JSON
        options.write_text(
            json.dumps(
                {
                    "http_options": {"host": "127.0.0.1", "port": self.port},
                    "applications": [
                        {"name": "texts", "import_path": path, "args": arguments}
                    ],
                }
            )
        )
        self.log = folder / "log"
        code = "from ray.serve.scripts import cli; cli()"
        command = [sys.executable, "-P", "-c", code, "run", "--address", "local"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, str(options)],
                stdout=log,
                stderr=log,
                env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"},
            )

    def ask(self, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, PATIENCE)
        with contextlib.closing(connection):
            data = None if body is None else json.dumps(body)
            headers = {"Content-Type": "application/json"}
            connection.request("POST" if body else "GET", path, data, headers)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def ready(self):
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.ask("/ready")[0] == 200

    def translate(self, text):
        status, answer = self.ask(
            "/translate", {"q": text, "source": "en", "target": "de"}
        )
        assert status == 200, answer
        return json.loads(answer)["translatedText"]

    def replicas(self):
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                if "ray::ServeReplica:texts:Server" in " ".join(child.cmdline()):
                    found.append(child)
        return found

    def wait(self, condition):
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, self.log.read_text()
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.2)


@pytest.fixture(scope="module")
def server(config, tmp_path_factory):
    server = Server(config, tmp_path_factory.mktemp("server"))
    try:
        server.wait(server.ready)
        yield server
        processes = psutil.Process(server.process.pid).children(recursive=True)
        server.process.send_signal(signal.SIGINT)
        server.process.wait(PATIENCE)
        assert not psutil.wait_procs(processes, timeout=PATIENCE)[1]
    finally:
        if server.process.poll() is None:
            for child in psutil.Process(server.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            server.process.kill()
            server.process.wait()


def test_the_routes(server):
    status, answer = server.ask("/v1/models/letters:predict", {"inputs": TEXTS})
    assert status == 200
    assert json.loads(answer)["outputs"]["text"] == [*map(server.translate, TEXTS)]
    assert server.ask("/v1/models/letters:predict", {"inputs": [1]})[0] == 400
    assert server.ask("/nowhere")[0] == 404
    assert "<html" in server.ask("/")[1]


def test_a_stream(server):
    body = {"model": "words", "prompt": "abc", "max_tokens": 7}
    whole = json.loads(server.ask("/v1/completions", body)[1])["choices"][0]["text"]
    status, answer = server.ask("/v1/completions", {**body, "stream": True})
    assert status == 200
    *events, done = answer.removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]"
    pieces = [json.loads(event.removeprefix("data: ")) for event in events]
    assert "".join(piece["choices"][0]["text"] for piece in pieces) == whole


def test_a_large_body_in_several_parts(server):
    """The server reads the body, and the next message, only once each."""
    texts = ["abcdef" * 800] * 100
    status, answer = server.ask("/v1/models/letters:predict", {"inputs": texts})
    assert status == 400 and "max_source_length" in answer


def test_a_killed_replica_is_replaced(server):
    before = {text: server.translate(text) for text in TEXTS}
    server.wait(lambda: len(server.replicas()) == 2)
    killed, other = server.replicas()
    killed.kill()

    def replaced():
        with contextlib.suppress(AssertionError):  # a request of the killed one
            server.translate("cafe")
        numbers = {replica.pid for replica in server.replicas()}
        return len(numbers) == 2 and killed.pid not in numbers

    server.wait(replaced)
    assert other.is_running()
    assert {text: server.translate(text) for text in TEXTS} == before


def test_a_new_version(server, config):
    old, new = (config.parent / "letters" / name for name in ("1", "copying"))
    shutil.copytree(old, new)
    new.rename(old.parent / "2")

    def numbers():
        """Returns the versions that the replicas, chosen at random, have."""
        answers = [server.ask("/v1/models/letters/metadata") for _ in range(12)]
        assert all(status == 200 for status, _ in answers)
        return {json.loads(answer)["model_spec"]["version"] for _, answer in answers}

    server.wait(lambda: numbers() == {"2"})


def test_the_options_are_checked(config, tmp_path):
    with pytest.raises(ValueError, match="config"):
        Arguments(config=tmp_path / "missing.toml")
    with pytest.raises(ValueError, match="replicas"):
        Arguments(config=config, replicas=2)
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(f'[models.a]\nfolder = "{tmp_path}"\n')
    with pytest.raises(ValueError, match="`folder` of the model a must be a run"):
        application(Arguments(config=wrong))
