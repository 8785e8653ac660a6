"""Prometheus metrics of the API server, and the driver's counters beside them."""

import re
from collections.abc import Iterable, Mapping
from itertools import groupby

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gllm.entrypoints.generation import Generation
from gllm.entrypoints.router_load import RouterLoad
from gllm.runtime.messages import Stats

PREFIX = "rserve"
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120, 300, 600)
TOKEN_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
TOKENS = (16, 64, 256, 1024, 4096, 16384, 65536)
ROUTER_HELP = {
    "requests_with_images": "requests with images inside the engine",
    "images_fetching": "images being fetched or decoded",
    "pixel_bytes": "decoded pixels that wait for an encoder, in bytes",
    "pixel_requests_waiting": "requests that wait for room for their pixels",
    "encoder_queue_batches": "encoder batches whose pixels are there and that no encoder has",
    "encoder_outstanding_tokens": "embeddings that encoders are working on",
    "embedding_rows": "embeddings that fit into the embedding memory",
    "embedding_rows_reserved": "embeddings for which memory is reserved",
    "encoders_alive": "encoder ranks that work",
    "encoder_losses": "encoder ranks that were killed, stalled or failed",
    "encode_batch_tokens": "embeddings of an encoder batch",
}


class DriverCollector(Collector):
    """The newest `Stats`: gauge `name` is rserve_driver_name, counter `name_total` rserve_driver_name_total.

    What the driver calls `name:process` has the process as a label.
    """

    def __init__(self) -> None:
        self.stats: Stats | None = None

    def collect(self) -> Iterable[Metric]:
        if self.stats is None:
            return
        yield from _families(self.stats.gauges, GaugeMetricFamily)
        yield from _families(self.stats.counters, CounterMetricFamily)


class RouterCollector(Collector):
    """What the item router counts: rserve_NAME, counters as rserve_NAME_total."""

    def __init__(self) -> None:
        self.load = RouterLoad()

    def collect(self) -> Iterable[Metric]:
        for name, value in self.load.gauges.items():
            yield GaugeMetricFamily(f"{PREFIX}_{name}", ROUTER_HELP[name], value=value)
        for name, value in self.load.counters.items():
            yield CounterMetricFamily(f"{PREFIX}_{name}", ROUTER_HELP[name], value=value)
        for name, found in self.load.distributions.items():
            metric = HistogramMetricFamily(f"{PREFIX}_{name}", ROUTER_HELP[name])
            metric.add_metric([], found.cumulative(), found.total)
            yield metric


class Metrics:
    """All metrics of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.driver = DriverCollector()
        self.router = RouterCollector()
        self.registry.register(self.driver)
        self.registry.register(self.router)
        ProcessCollector(registry=self.registry)
        self._ttft = self._histogram("time_to_first_token_seconds", "request read to first token", SECONDS)
        self._tpot = self._histogram(
            "time_per_output_token_seconds", "mean time between output tokens after the first", TOKEN_SECONDS
        )
        self._e2e = self._histogram("e2e_request_latency_seconds", "request read to last token", SECONDS)
        self._prompt = self._histogram("request_prompt_tokens", "prompt tokens, images included", TOKENS)
        self._prompt_tokens = self._counter("prompt_tokens", "prompt tokens of finished requests")
        self._image_tokens = self._counter("image_tokens", "image tokens of finished requests")
        self._images = self._counter("images", "images of finished requests")
        self._output_tokens = self._counter("generation_tokens", "tokens produced")
        self._finished = self._counter("choices_finished", "answers, by how they ended", ("reason",))
        self._responses = self._counter("http_responses", "responses", ("path", "status"))
        self._cancelled = self._counter("requests_cancelled", "requests whose client went away")
        self._active = Gauge(
            f"{PREFIX}_requests_active", "requests waiting or running in the engine", registry=self.registry
        )

    def on_generation(self, generation: Generation) -> None:
        """A generation is over: record its times and counts."""
        self._output_tokens.inc(generation.num_output_tokens)
        self._prompt_tokens.inc(generation.num_prompt_tokens)
        self._image_tokens.inc(generation.num_image_tokens)
        self._images.inc(generation.num_images)
        self._prompt.observe(generation.num_prompt_tokens)
        for reason in generation.finish_reasons:
            self._finished.labels(reason).inc()
        first, last = generation.first_token, generation.last_token
        if first is None or last is None:
            return
        self._ttft.observe(first - generation.started)
        self._e2e.observe(last - generation.started)
        per_choice = generation.num_output_tokens / generation.num_choices
        if per_choice > 1:
            self._tpot.observe((last - first) / (per_choice - 1))

    def on_response(self, path: str, status: int) -> None:
        """An HTTP response was sent; path is the route's."""
        self._responses.labels(path, str(status)).inc()

    def on_cancel(self) -> None:
        self._cancelled.inc()

    def render(self, num_active: int, stats: Stats | None, load: RouterLoad | None = None) -> bytes:
        """The exposition text. stats None keeps the driver's last figures, load None the item router's."""
        self._active.set(num_active)
        self.router.load = load or self.router.load
        self.driver.stats = stats or self.driver.stats
        return generate_latest(self.registry)

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"{PREFIX}_{name}", help, buckets=buckets, registry=self.registry)

    def _counter(self, name: str, help: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"{PREFIX}_{name}", help, labels, registry=self.registry)


def _families(
    values: Mapping[str, float], family: type[GaugeMetricFamily] | type[CounterMetricFamily]
) -> Iterable[Metric]:
    """One family per name, with a sample per process where there are several."""
    for name, entries in groupby(sorted(values), key=lambda key: key.partition(":")[0]):
        keys = list(entries)
        labels = ["process"] if ":" in keys[0] else []
        clean = re.sub(r"[^a-zA-Z0-9_]", "_", name)
        metric = family(f"{PREFIX}_driver_{clean}", f"driver: {name}", labels=labels)
        for key in keys:
            metric.add_metric([key.partition(":")[2]] if labels else [], values[key])
        yield metric
