"""The metrics of a server for Prometheus."""

import os
from collections.abc import Iterable
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

from keras_transformer_runtime.serving.served_model import ServedModel

LATENCY_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


class Metrics:
    """The metrics of a server, the sums of those of its processes.

    With several processes, prometheus_client keeps the values in the folder that the
    environment variable `PROMETHEUS_MULTIPROC_DIR` names.
    """

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = self._counter("requests", "Requests", "model", "status")
        self.texts = self._counter(
            "texts", "Texts of the requests that were computed", "model"
        )
        self.seconds = Histogram(
            "request_seconds",
            "Time from request to response",
            ["model"],
            buckets=LATENCY_BUCKETS,
            namespace="keras_transformer",
            registry=self._registry,
        )
        self._waiting = self._gauge("waiting_texts", "Waiting texts", "livesum")
        self._ready = self._gauge(
            "model_ready", "Processes in which the model is available", "livesum"
        )
        self._compiling = self._gauge(
            "compiling_shapes", "Shapes that are still to be compiled", "livesum"
        )

    def update(self, models: Iterable[ServedModel]) -> None:
        """Sets the values that describe the models."""
        for model in models:
            versions = model.active()
            waiting = sum(version.loaded.batcher.waiting for version in versions)
            self._waiting.labels(model.name).set(waiting)
            self._ready.labels(model.name).set(model.ready)
            self._compiling.labels(model.name).set(model.compiling)

    def text(self) -> bytes:
        """Returns all metrics in the text format of Prometheus."""
        registry = self._registry
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)
        return generate_latest(registry)

    def _counter(self, name: str, description: str, *labels: str) -> Counter:
        return Counter(
            name,
            description,
            labels,
            namespace="keras_transformer",
            registry=self._registry,
        )

    def _gauge(self, name: str, description: str, mode: Literal["livesum"]) -> Gauge:
        return Gauge(
            name,
            description,
            ["model"],
            namespace="keras_transformer",
            registry=self._registry,
            multiprocess_mode=mode,
        )
