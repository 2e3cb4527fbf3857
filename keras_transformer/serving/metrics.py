"""The metrics of a server for Prometheus."""

import logging
from collections.abc import Collection

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from keras_transformer.serving.served_model import ModelVersion, ServedModel

logger = logging.getLogger(__name__)

LATENCY_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


class Metrics:
    """The metrics of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = self._counter("requests", "Requests", "model", "status")
        self.texts = self._counter("texts", "Decoded texts", "model")
        self.seconds = Histogram(
            "request_seconds",
            "Time from request to response",
            ["model"],
            buckets=LATENCY_BUCKETS,
            namespace="keras_transformer",
            registry=self._registry,
        )
        self._waiting = self._gauge("waiting_texts", "Waiting texts", "model")
        self._ready = self._gauge("model_ready", "1 if the model is available", "model")
        self._replicas = self._gauge("replicas", "Running replicas", "model", "version")

    async def collect(self, models: Collection[ServedModel]) -> bytes:
        """Returns all metrics in the text format of Prometheus."""
        replicas = [
            (model.name, version.number, await _count_replicas(version))
            for model in models
            for version in model.active()
        ]
        # No `await` below: a concurrent request must not see incomplete gauges.
        self._replicas.clear()
        for name, number, count in replicas:
            if count is not None:
                self._replicas.labels(name, number).set(count)
        for model in models:
            versions = model.active()
            waiting = sum(version.loaded.batcher.waiting for version in versions)
            self._waiting.labels(model.name).set(waiting)
            self._ready.labels(model.name).set(model.ready)
        return generate_latest(self._registry)

    def _counter(self, name: str, description: str, *labels: str) -> Counter:
        return Counter(
            name,
            description,
            labels,
            namespace="keras_transformer",
            registry=self._registry,
        )

    def _gauge(self, name: str, description: str, *labels: str) -> Gauge:
        return Gauge(
            name,
            description,
            labels,
            namespace="keras_transformer",
            registry=self._registry,
        )


async def _count_replicas(version: ModelVersion) -> int | None:
    """Returns the number of running replicas; `None` if Ray does not respond."""
    try:
        return await version.loaded.replicas.running()
    except Exception as error:
        logger.warning(
            "version %d: the number of replicas is unknown: %s", version.number, error
        )
        return None
