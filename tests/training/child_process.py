"""Runs a script of this folder as a process of its own."""

import json
import os
import pathlib
import subprocess
import sys

import keras_transformer as kt

FOLDER = pathlib.Path(__file__).parent
ROOT = pathlib.Path(kt.__file__).parents[1]


def figures_of(script):
    """Returns the JSON value in the last line that a script prints."""
    path = os.pathsep.join([str(ROOT), str(FOLDER.parent)])
    found = subprocess.run(
        [sys.executable, FOLDER / script],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr[-4000:]
    return json.loads(found.stdout.splitlines()[-1])
