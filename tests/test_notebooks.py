"""Runs the notebooks from the first cell to the last, as Jupyter does."""

import pathlib
import re
import socket
import sys

import nbformat
import pytest
from documented import ROOT
from nbclient import NotebookClient

NOTEBOOKS = sorted((ROOT / "examples/notebooks").glob("*.ipynb"))
pytestmark = pytest.mark.once


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells)
    assert {*notebook.metadata} == {"kernelspec", "language_info"}
    assert not any(cell.metadata for cell in notebook.cells)


class Notebook(NotebookClient):
    """Keeps every text that an output has shown, also if another replaced it."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.shown = []

    def process_message(self, message, *args):
        data = message["content"].get("data", {})
        self.shown.append(data.get("text/plain", ""))
        return super().process_message(message, *args)


def printed(cell):
    """Returns what a cell shows at its end as text."""
    return "".join(
        output.text if output.output_type == "stream" else output.data["text/plain"]
        for output in cell.outputs
    )


@pytest.mark.slow
def test_first_steps(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(pathlib.Path(sys.executable).parent), prepend=":")
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    notebook = nbformat.read(ROOT / "examples/notebooks/first_steps.ipynb", 4)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    for cell in notebook.cells:
        cell.source = cell.source.replace("8501", port)
    resources = {"metadata": {"path": str(tmp_path)}}
    client = Notebook(notebook, timeout=600, resources=resources)
    client.execute()

    cells = {cell.id: cell for cell in notebook.cells if cell.cell_type == "code"}
    outputs = [output for cell in cells.values() for output in cell.outputs]
    assert {each.name for each in outputs if "name" in each} == {"stdout"}  # no log
    assert any(re.match(r". Epoch 3/10  +\d+ %  .* left", x) for x in client.shown)
    for name, metric in {"fit": "accuracy", "train": "exact match"}.items():
        lines = [
            each.data["text/plain"] for each in cells[name].outputs if "data" in each
        ]
        epochs = [line for line in lines if line.startswith("Epoch ")]
        numbers = [line.partition("  ")[0] for line in epochs]
        assert numbers == [f"Epoch {n}/10" for n in range(1, 11)]
        assert all(f"{metric} " in line for line in epochs)
    accuracies = re.findall(r"accuracy ([\d.]+), valid", printed(cells["fit"]))
    assert float(accuracies[-1]) > 0.9
    dates = ["2031-02-17", "1976-07-04", "2018-11-09"]
    assert re.findall(r"\d{4}-\d\d-\d\d", printed(cells["generate"]))[:3] == dates
    assert "image/png" in cells["attention"].outputs[-1].data
    assert printed(cells["request"]).split() == dates[::2]
    assert printed(cells["stop"]).strip().endswith("exit code 0")
