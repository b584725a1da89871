"""The exporter: one scrape of the nodes for each that asks, and /metrics in Prometheus' format."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import TimeoutError as TooLate
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from orchestrator.bench.store import all_benches
from orchestrator.gang.history import past_runs
from orchestrator.gang.overview import RouterGlance
from orchestrator.gang.steps.router.host import router_gang
from orchestrator.gang.steps.status.history import ask_history, reports_of
from orchestrator.gang.steps.status.overview import glance
from orchestrator.gang.steps.status.reports import views_of
from orchestrator.gang.view import GangView
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.deadlines import SCRAPE_CONNECT_S, SCRAPE_NVML_S, SCRAPE_S
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.monitoring.metrics import Past, Scene, last_failure, metrics, phases, restarts
from orchestrator.monitoring.steps.http_server import Page, names_of
from orchestrator.monitoring.steps.http_server import serving as serving_pages
from orchestrator.monitoring.steps.notify import shown
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.gauges import FiguresAnswer, FiguresRequest
from orchestrator.protocol.verbs import ReportAnswer
from orchestrator.records.documents import last_look, last_start, looks_file, read_told, unheard_file
from orchestrator.records.nettests import newest_nettests
from orchestrator.remote.deadline import ahead
from orchestrator.remote.fleet import Fleet, StragglerWait
from orchestrator.remote.node_app import ask
from orchestrator.remote.session import Session


@contextlib.contextmanager
def serving(newest: Callable[[], Inventory], gangs: tuple[str, ...], host: str, port: int) -> Iterator[int]:
    """Answer within, in threads of its own; gives the port (where 0 was asked for). Raises InputError where the port
    is taken, or a gang is unknown.

    newest: another inventory where it has changed since
    """
    with _Newest(newest, gangs) as scrapers:

        def page(accept: str) -> Page:
            encode, kind = choose_encoder(accept)
            return Page(encode(scrapers.now()), kind)

        pages = dict.fromkeys(("/", "/metrics"), page)
        with serving_pages(pages, host, port, names=names_of(host)) as listening:
            yield listening


class _Newest:
    """The scraper of the newest inventory. A context manager."""

    def __init__(self, newest: Callable[[], Inventory], gangs: tuple[str, ...]) -> None:
        self._newest, self._names = newest, gangs
        self._inventory = newest()
        self._scraper = Scraper(self._inventory, chosen_gangs(self._inventory, gangs))
        self._one_at_a_time = threading.Lock()

    def __enter__(self) -> _Newest:
        return self

    def __exit__(self, *_: object) -> None:
        self._scraper.__exit__()

    def now(self) -> Scraper:
        """Its gangs are those that are left of the chosen ones."""
        with self._one_at_a_time:
            if (inventory := self._newest()) is not self._inventory:
                old, self._inventory = self._scraper, inventory
                chosen: tuple[GangSpec, ...] = ()
                with contextlib.suppress(InputError):
                    chosen = chosen_gangs(inventory, self._names)
                self._scraper = Scraper(inventory, chosen)
                old.__exit__()
            return self._scraper


PATIENCE = StragglerWait(least_s=1.0, times=3.0, login_s=0.0)
AGAIN_S = 1.0
"""Two readers within this time see the same scrape."""
MEASURED_EVERY_S = 30.0


class Scraper(Collector):
    """A context manager: it holds a connection to each node."""

    def __init__(self, inventory: Inventory, gangs: tuple[GangSpec, ...]) -> None:
        self._gangs = gangs
        self._router = inventory.router
        self._looks, self._unheard = looks_file(inventory.path), unheard_file(inventory.path)
        self._receivers = [shown(recipient) for recipient in inventory.notify]
        self._nodes = Fleet([node for gang in gangs for node in gang.machines], connect_deadline_s=SCRAPE_CONNECT_S)
        routers = router_gang(inventory.router).nodes if inventory.router else ()
        self._routers = Fleet(routers, connect_deadline_s=SCRAPE_CONNECT_S)
        self._known: dict[str, Past] = {}
        self._documents: tuple[Sequence[Mapping[str, Any]], ...] = ()
        self._documents_at = float("-inf")
        self._last: tuple[float, Scene] | None = None
        self._one_at_a_time = threading.Lock()

    def __enter__(self) -> Scraper:
        return self

    def __exit__(self, *_: object) -> None:
        self._nodes.close()
        self._routers.close()

    def collect(self) -> Iterator[Metric]:
        """As the client library asks for them."""
        return iter(metrics(self.scrape()))

    def scrape(self) -> Scene:
        """The current state of everything. Raises nothing for a node's failure."""
        with self._one_at_a_time:
            if self._last is not None and time.monotonic() - self._last[0] < AGAIN_S:
                return self._last[1]
            scene = self._scrape()
            self._last = (time.monotonic(), scene)
            return scene

    def _scrape(self) -> Scene:
        began = time.monotonic()
        aside = ahead(lambda: glance(self._routers, self._router) if self._router else None)
        answers = self._nodes.on_every(_figures, patience=PATIENCE)
        reports = {
            name: ReportAnswer(now=answer.now, reports=answer.reports, without_files=answer.without_files)
            for name, answer in answers.values.items()
        }
        views = views_of(self._gangs, reports, answers.failures)
        try:
            router = aside.result(max(0.0, SCRAPE_S - (time.monotonic() - began)))
        except TooLate:
            router = RouterGlance(url=self._router.url, node=self._router.node.name) if self._router else None
        unheard = read_told(self._unheard)
        if time.monotonic() - self._documents_at > MEASURED_EVERY_S:
            newest = {
                (record["gang"], record["model"], record["stack"], str(record["load"])): record
                for record in all_benches()
            }
            self._documents = tuple(newest.values()), newest_nettests(self._gangs)
            self._documents_at = time.monotonic()
        benches, nettests = self._documents
        return Scene(
            gangs=self._gangs,
            views=views,
            nodes={**answers.values, **answers.failures},
            past={gang.name: self._past(gang, view) for gang, view in zip(self._gangs, views, strict=True)},
            router=router,
            looked=last_look(self._looks),
            benches=benches,
            nettests=nettests,
            receivers={receiver: receiver not in unheard for receiver in self._receivers},
            seconds=time.monotonic() - began,
        )

    def _past(self, gang: GangSpec, view: GangView) -> Past:
        """The nodes' history is asked for when another run begins or one fails, and not else."""
        known = self._known.get(gang.name, Past())
        newest = f"{view.run_id} {view.cause.text if view.cause else ''}"
        asked = ask_history(self._nodes, gang, patience=PATIENCE).values if known.newest != newest else {}
        if not asked:
            return known
        runs = past_runs(gang.name, {name: reports_of(answer) for name, answer in asked.items()}, {})
        failure, before = last_failure(runs, time.time(), next(iter(asked.values())).now), known.failure
        if before is not None and (failure is None or failure[0] == before[0]):
            failure = before  # one that is known keeps its time: clocks drift, and a series must not move for that
        past = self._known[gang.name] = Past(
            newest=newest,
            runs=known.runs | {run.run_id for run in runs},
            restarts=Counter(known.restarts) + restarts(runs, known.runs),
            failure=failure,
            phases=phases(last_start(view.name, view.model, view.stack)),
        )
        return past


def _figures(session: Session) -> FiguresAnswer:
    request = FiguresRequest(
        state_dir=session.spec.state_dir, fs_root=session.spec.fs_root, nvml_deadline_s=SCRAPE_NVML_S
    )
    return ask(session, "figures", request, FiguresAnswer, deadline_s=SCRAPE_S)
