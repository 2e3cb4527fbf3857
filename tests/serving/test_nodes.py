"""A server whose replicas run on two nodes of a Ray cluster, of which one dies."""

import concurrent.futures
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

pytest.importorskip("ray")
from ray.cluster_utils import Cluster  # noqa: E402

SAVED_MODEL = pathlib.Path(__file__).parents[2] / "saved_models" / "pronounce" / "1"
ADDRESS = r" INFO (http://127\.0\.0\.1:\d+)\n"
PATIENCE = 900  # seconds, for a machine under load

pytestmark = [pytest.mark.slow, pytest.mark.once]


@pytest.fixture
def cluster():
    """A head without room for replicas, and two nodes with room for one each."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
        yield cluster, nodes
    finally:
        cluster.shutdown()


def test_a_dead_node_loses_no_request(cluster, tmp_path):
    cluster, nodes = cluster
    ignored = shutil.ignore_patterns("assets.extra")  # compiles one shape
    shutil.copytree(SAVED_MODEL, tmp_path / "pronounce" / "1", ignore=ignored)
    config = tmp_path / "serving.toml"
    config.write_text(
        f'address = "{cluster.address}"\nport = 0\npoll_seconds = 0.2\n'
        f"timeout_seconds = {PATIENCE}\n"
        '[models.pronounce]\nfolder = "pronounce"\nbatch_sizes = [4]\n'
    )
    log = tmp_path / "log"

    def read(path, body=None):
        address = re.search(ADDRESS, log.read_text())[1]
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(address + path, data, timeout=PATIENCE) as response:
            return response.read().decode()

    def wait(condition):
        end = time.monotonic() + PATIENCE
        while not condition():
            assert server.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.1)

    def replicas_run(count):
        if not re.search(ADDRESS, log.read_text()):
            return False
        metrics = read("/metrics")
        return f'replicas{{model="pronounce",version="1"}} {count}.0' in metrics

    def pronounce(_):
        time.sleep(0.02)
        body = {"instances": ["knight"]}
        return json.loads(read("/v1/models/pronounce:predict", body))["predictions"][0]

    with log.open("w") as file:
        server = subprocess.Popen(
            [sys.executable, "-m", "keras_transformer", "serve", "--config", config],
            stdout=file,
            stderr=file,
        )
    try:
        wait(lambda: replicas_run(2))
        with concurrent.futures.ThreadPoolExecutor(4) as clients:
            answers = clients.map(pronounce, range(200))
            first = next(answers)
            cluster.remove_node(nodes[1], allow_graceful=False)
            texts = {answer["text"] for answer in (first, *answers)}
        assert texts == {"N AY T"}
        wait(lambda: replicas_run(1))
        assert json.loads(read("/ready"))["ready"]
        cluster.add_node(num_cpus=1)
        wait(lambda: replicas_run(2))
        server.send_signal(signal.SIGTERM)
        assert server.wait(PATIENCE) == 0, log.read_text()
    finally:
        server.kill()
        server.wait()
