"""The Dockerfile and the Kubernetes manifest of the examples: linters, our paths."""

import re
import subprocess
import sysconfig
import tomllib
from pathlib import Path

import pytest
import yaml
from documented import ROOT
from starlette.testclient import TestClient

from keras_transformer_runtime.serving.application import Application
from keras_transformer_runtime.serving.server_options import ServerOptions

pytestmark = [pytest.mark.slow, pytest.mark.once("torch")]

FOLDER = ROOT / "examples" / "serving"
SCRIPTS = Path(sysconfig.get_path("scripts"))
OPEN = ("/health", "/ready")


@pytest.fixture(scope="module")
def manifest():
    """The resources by kind."""
    resources = yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text("utf-8"))
    return {resource["kind"]: resource for resource in resources}


@pytest.fixture(scope="module")
def container(manifest):
    (container,) = manifest["Deployment"]["spec"]["template"]["spec"]["containers"]
    return container


@pytest.mark.parametrize(
    ("command", "file"),
    [
        (["hadolint"], "Dockerfile"),
        (["kubernetes-validate", "--strict"], "kubernetes.yaml"),
    ],
)
def test_the_linters_accept_the_files(command, file):
    name, *options = command
    arguments = [str(SCRIPTS / name), *options, str(FOLDER / file)]
    found = subprocess.run(arguments, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout + found.stderr


def test_the_linters_find_errors(tmp_path):
    wrong = tmp_path / "Dockerfile"
    text = (FOLDER / "Dockerfile").read_text("utf-8")
    wrong.write_text(text.replace("python:3.13-slim", "python"))
    assert subprocess.run([SCRIPTS / "hadolint", wrong], stdout=-3).returncode == 1
    wrong = tmp_path / "kubernetes.yaml"
    text = (FOLDER / "kubernetes.yaml").read_text("utf-8")
    wrong.write_text(text.replace("maxSurge", "maximumSurge"))
    command = [SCRIPTS / "kubernetes-validate", "--strict", wrong]
    assert subprocess.run(command, stdout=-3, stderr=-3).returncode == 1


def test_the_image_has_what_it_copies():
    text = (FOLDER / "Dockerfile").read_text("utf-8")
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.M)
    names = {name for line in copied for name in line.split()}
    model = {name for name in names if "${RUN}" in name}
    assert model == {"${RUN}/ctranslate2"}
    ignored = (FOLDER / "Dockerfile.dockerignore").read_text("utf-8").split()
    for name in names - model:
        assert (ROOT / name).exists() and f"!{name}" in ignored
    assert "!runs/*/ctranslate2" in ignored
    users = re.findall(r"^USER (\S+)$", text, re.M)
    assert users and int(users[-1]) > 0
    (health,) = re.findall(r"http://127.0.0.1:8501(/\w+)", text)
    assert health == "/health"


def test_the_probes_and_the_end(manifest, container):
    options = tomllib.loads(manifest["ConfigMap"]["data"]["serving.toml"])
    assert set(options) - {"models"} <= set(ServerOptions.model_fields)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": options["port"]}
    paths = {
        probe: container[probe]["httpGet"]["path"]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    assert paths == {
        "startupProbe": "/ready",
        "readinessProbe": "/ready",
        "livenessProbe": "/health",
    }
    pod = manifest["Deployment"]["spec"]["template"]["spec"]
    timeout = ServerOptions.model_fields["timeout_seconds"].default
    wait = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] > timeout + wait
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}


def test_the_paths_of_the_probes_need_no_key():
    options = ServerOptions.model_construct(models={}, api_key="secret", host="0.0.0.0")
    client = TestClient(Application({}, options).asgi, "http://10.0.0.7:8501")
    assert client.get("/metrics").status_code == 401
    for path in OPEN:
        assert client.get(path).status_code == 200
