"""Metrics of the service in the format of Prometheus: numbers only, never a word of a prompt.

This module knows neither HTTP nor engine: numbers are passed in, or read when a Prometheus server asks for them.
"""

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)


class ServiceMetrics(Collector):
    """The metrics of one application, in a registry of its own: two servers in one process do not mix.

    now() returns the numbers of waiting requests, of running rows, and of tokens written so far.
    """

    def __init__(self, now: Callable[[], tuple[int, int, int]]) -> None:
        self._now = now
        self._registry = registry = CollectorRegistry()
        self._requests = Counter("chinese_gpt_requests", "Requests answered", ["route", "status"], registry=registry)
        self._rejects = Counter("chinese_gpt_rejects", "Requests refused", ["reason"], registry=registry)
        seconds: dict[str, Any] = {"buckets": _SECONDS, "registry": registry}
        self._latency = Histogram("chinese_gpt_request_seconds", "From request to whole answer", ["route"], **seconds)
        self._first_token = Histogram("chinese_gpt_first_token_seconds", "From request to first token", **seconds)
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield the numbers that are read only now, for the registry."""
        waiting, rows, tokens = self._now()
        yield GaugeMetricFamily("chinese_gpt_waiting", "Requests in the queue", value=waiting)
        yield GaugeMetricFamily("chinese_gpt_rows", "Texts being written", value=rows)
        yield CounterMetricFamily("chinese_gpt_tokens_written", "Tokens written", value=tokens)

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count an answer; `route` is the application's own name of it, never what the client typed."""
        self._requests.labels(route, str(status)).inc()
        self._latency.labels(route).observe(seconds)

    def refused(self, reason: str) -> None:
        """Count a refusal by its code."""
        self._rejects.labels(reason).inc()

    def first_token(self, seconds: float) -> None:
        """Record how long a request waited for its first token; callable in any thread."""
        self._first_token.observe(seconds)

    def text(self) -> tuple[bytes, str]:
        """Return the metrics in the text format of Prometheus, and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4
