"""Measures the server beside CTranslate2's own loop over the same texts.

- `load`: texts per second of one client that sends a text at a time, divided by those
  of `translate_batch` with one text; and of one asynchronous client with 64
  connections, divided by those of `translate_batch` with 64 texts. The peer has token
  ids and no HTTP. Both are measured alternately, in the search of the model.
- `start`: seconds from the start of the command until the model is ready, and until all
  shapes are compiled; resident memory of all processes after 1,000 requests.

    python benchmarks/serving.py load runs/en-de --texts test.en
    python benchmarks/serving.py start runs/en-de --texts test.en --engine saved_model

Server, client and peer share the cores of one machine.
"""

import argparse
import asyncio
import contextlib
import json
import pathlib
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import aiohttp
import ctranslate2
import psutil
from measuring import environment, median_ratio, print_header, print_row

from keras_transformer_runtime.engines.ctranslate2_engine import CTranslate2Engine

CONNECTIONS = 64


def main() -> None:
    """Prints the table of a measurement."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("load", "start"))
    parser.add_argument("model", type=pathlib.Path, help="a run, or an exported model")
    parser.add_argument("--texts", type=pathlib.Path, required=True, metavar="FILE")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(f"{environment()}\n")
    texts = options.texts.read_text("utf-8").split("\n")[:1000]
    measure = {"load": load, "start": start}[options.what]
    measure(options.model, options.engine, texts, options.rounds)


@contextlib.contextmanager
def server(model: pathlib.Path, engine: str) -> Iterator[tuple[str, psutil.Process]]:
    """Starts the command; yields its address and process."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    arguments = ["serve", str(model), "--engine", engine, "--port", str(port)]
    command = [sys.executable, "-m", "keras_transformer_runtime", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}", psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(60)


def state(address: str) -> dict[str, Any] | None:
    """Returns the response of `/ready`, if the model is ready."""
    url = address + "/ready"
    with contextlib.suppress(OSError), urllib.request.urlopen(url) as response:
        return json.load(response)
    return None


def seconds_until(is_reached: Callable[[], bool], began: float) -> float:
    while not is_reached():
        time.sleep(0.02)
    return time.monotonic() - began


def is_compiled(address: str) -> bool:
    found = state(address)
    return found is not None and not any(found["compiling"].values())


def start(model: pathlib.Path, engine: str, texts: Sequence[str], rounds: int) -> None:
    """Prints the medians of several starts."""
    found = []
    for _ in range(rounds):
        began = time.monotonic()
        with server(model, engine) as (address, process):
            ready = seconds_until(lambda: state(address) is not None, began)
            compiled = seconds_until(lambda: is_compiled(address), began)
            asyncio.run(drive(address, texts, CONNECTIONS))
            processes = [process, *process.children(recursive=True)]
            memory = sum(each.memory_info().rss for each in processes) / 2**20
            found.append((ready, compiled, memory, len(processes)))
    print_header("ready, s", "all shapes compiled, s", "memory, MB", "processes")
    medians = [statistics.median(column) for column in zip(*found, strict=True)]
    print_row(*(f"{median:.2f}" for median in medians))


def load(model: pathlib.Path, engine: str, texts: Sequence[str], rounds: int) -> None:
    """Prints a row for one client, and for 64 connections."""
    folder = model / "ctranslate2" if (model / "ctranslate2").is_dir() else model
    ours = CTranslate2Engine.load(folder)
    tokenizer = ours.source_tokenizer
    tokens = [[tokenizer.tokens[id] for id in tokenizer.encode(text)] for text in texts]
    translator = ctranslate2.Translator(str(folder))
    search = {
        "beam_size": ours.options.num_beams,
        "length_penalty": ours.options.length_penalty,
        "max_decoding_length": 64,
    }

    def peer(size: int) -> float:
        """Returns texts per second."""
        began = time.perf_counter()
        for start in range(0, counts[size], size):
            translator.translate_batch(tokens[start : start + size], **search)
        return counts[size] / (time.perf_counter() - began)

    counts = {1: 200, CONNECTIONS: 960}
    with server(model, engine) as (address, _):
        seconds_until(lambda: is_compiled(address), time.monotonic())
        print_header(
            "connections", "ratio", "server, texts/s", "peer, texts/s", "p95, ms"
        )
        for size, count in counts.items():
            rates: list[float] = []
            peers: list[float] = []
            slow: list[float] = []
            peer(size)
            asyncio.run(drive(address, texts[:count], size))
            for _ in range(rounds):
                rate, percentile = asyncio.run(drive(address, texts[:count], size))
                rates.append(rate)
                slow.append(percentile)
                peers.append(peer(size))
            print_row(
                size,
                f"{median_ratio(rates, peers):.2f}",
                f"{statistics.median(rates):.0f}",
                f"{statistics.median(peers):.0f}",
                f"{statistics.median(slow):.0f}",
            )


async def drive(
    address: str, texts: Sequence[str], connections: int
) -> tuple[float, float]:
    """Sends each text once; returns texts per second, and the 95th percentile in ms."""
    taken: list[float] = []
    supply = iter(texts)

    async def client(session: aiohttp.ClientSession, url: str) -> None:
        for text in supply:
            asked = time.perf_counter()
            async with session.post(url, json={"instances": [text]}) as response:
                answer = await response.read()
                if response.status != 200:
                    raise RuntimeError(answer.decode())
            taken.append(time.perf_counter() - asked)

    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections),
        timeout=aiohttp.ClientTimeout(total=300),
    ) as session:
        async with session.get(address + "/v1/models") as response:
            [model] = (await response.json())["models"]
        url = f"{address}/v1/models/{model['name']}:predict"
        began = time.perf_counter()
        await asyncio.gather(*(client(session, url) for _ in range(connections)))
        seconds = time.perf_counter() - began
    percentile = statistics.quantiles(taken, n=20, method="inclusive")[-1]
    return len(texts) / seconds, 1e3 * percentile


if __name__ == "__main__":
    main()
