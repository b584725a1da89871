"""The exporter's HTTP side: /metrics in Prometheus' format, one scrape of the nodes for each."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from prometheus_client import make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.inventory import Inventory
from orchestrator.monitoring.catalogue import Family, MetricKind
from orchestrator.monitoring.metrics import metrics
from orchestrator.monitoring.steps.http_server import listen
from orchestrator.monitoring.steps.scraper import Scraper


@contextlib.contextmanager
def serving(inventory: Inventory, gangs: tuple[str, ...], host: str, port: int) -> Iterator[int]:
    """Answer within, in threads of its own; gives the port (where 0 was asked for). Raises InputError where the port
    is taken."""
    with Scraper(inventory, chosen_gangs(inventory, gangs)) as scraper:
        registry = CollectorRegistry()
        registry.register(_SceneCollector(scraper))
        server = listen(make_wsgi_app(registry), host, port)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join(1.0)


def client_metric(family: Family) -> Metric:
    """A family as the client library has it."""
    metric = family.metric
    kind = CounterMetricFamily if metric.kind is MetricKind.COUNTER else GaugeMetricFamily
    made = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in family.samples:
        made.add_metric(labels, value)
    return made


class _SceneCollector(Collector):
    def __init__(self, scraper: Scraper) -> None:
        self._scraper = scraper

    def describe(self) -> list[Metric]:
        """Nothing: a registry must not ask the nodes when it is made."""
        return []

    def collect(self) -> Iterator[Metric]:
        return map(client_metric, metrics(self._scraper.scrape()))
