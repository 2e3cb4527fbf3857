"""What Prometheus reads."""

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


class Metrics:
    """The figures of one server.

    Attributes:
        registry: of prometheus_client.
        requests: counter of answered requests, by model and status.
        texts: counter of decoded texts, by model.
        seconds: histogram of the time from request to answer, by model.
        waiting: gauge of texts that wait, by model.
        ready: gauge, 1 where a model has a version that answers.
        replicas: gauge of replicas that are there and warm, by model and version.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        prefix: Any = {"namespace": "keras_transformer", "registry": self.registry}
        self.requests = Counter(
            "requests", "Answered requests", ["model", "status"], **prefix
        )
        self.texts = Counter("texts", "Decoded texts", ["model"], **prefix)
        self.seconds = Histogram(
            "request_seconds",
            "From request to answer",
            ["model"],
            buckets=SECONDS,
            **prefix,
        )
        self.waiting = Gauge("waiting_texts", "Texts that wait", ["model"], **prefix)
        self.ready = Gauge("model_ready", "1 = it answers", ["model"], **prefix)
        self.replicas = Gauge(
            "replicas", "Warm replicas", ["model", "version"], **prefix
        )
