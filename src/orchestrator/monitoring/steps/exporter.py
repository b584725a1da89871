"""The exporter: one scrape of the nodes for each that asks, and /metrics in Prometheus' format."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from orchestrator import __version__
from orchestrator.bench.store import all_benches
from orchestrator.engines.serving import Worker, workers
from orchestrator.gang.history import past_runs
from orchestrator.gang.steps.router.host import router_ask, router_gang
from orchestrator.gang.steps.status.reports import views_of, where
from orchestrator.gang.view import GangView
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.deadlines import ANSWER_S, SCRAPE_CONNECT_S, SCRAPE_NVML_S, SCRAPE_ROUTER_S, SCRAPE_S
from orchestrator.model.inventory import GangSpec, Inventory, RouterSpec
from orchestrator.monitoring.metrics import Past, RouterSeen, Scene, last_failure, metrics, phases, restarts
from orchestrator.monitoring.steps.http_server import Page
from orchestrator.monitoring.steps.http_server import serving as serving_pages
from orchestrator.monitoring.steps.notify import shown
from orchestrator.protocol.gauges import FiguresAnswer, FiguresRequest
from orchestrator.protocol.report import Report
from orchestrator.protocol.verbs import HistoryAnswer, HistoryRequest, ReportAnswer
from orchestrator.records.documents import last_look, last_start, looks_file, read_told, unheard_file
from orchestrator.records.nettests import newest_nettests
from orchestrator.remote.fleet import Fleet, StragglerWait
from orchestrator.remote.node_app import ask
from orchestrator.remote.session import Session


@contextlib.contextmanager
def serving(inventory: Inventory, gangs: tuple[str, ...], host: str, port: int) -> Iterator[int]:
    """Answer within, in threads of its own; gives the port (where 0 was asked for). Raises InputError where the port
    is taken."""
    with Scraper(inventory, chosen_gangs(inventory, gangs)) as scraper:

        def page(accept: str) -> Page:
            encode, kind = choose_encoder(accept)
            return Page(encode(scraper), kind)

        with serving_pages(dict.fromkeys(("/", "/metrics"), page), host, port) as listening:
            yield listening


PATIENCE = StragglerWait(least_s=1.0, times=3.0)
AGAIN_S = 1.0
"""Two readers within this time see the same scrape."""
MEASURED_EVERY_S = 30.0


@dataclass(frozen=True, slots=True)
class _RunCounts:
    """What was counted of a gang's runs. runs: ids of those that count already; newest: the one that runs."""

    newest: str | None = None
    runs: frozenset[str] = frozenset()
    past: Past = field(default_factory=Past)


class Scraper(Collector):
    """A context manager: it holds a connection to each node."""

    def __init__(self, inventory: Inventory, gangs: tuple[GangSpec, ...]) -> None:
        self._gangs = gangs
        self._router = inventory.router
        self._looks, self._unheard = looks_file(inventory.path), unheard_file(inventory.path)
        self._receivers = [shown(one) for one in inventory.notify]
        self._nodes = Fleet([node for gang in gangs for node in gang.machines], connect_deadline_s=SCRAPE_CONNECT_S)
        routers = router_gang(inventory.router).nodes if inventory.router else ()
        self._routers = Fleet(routers, connect_deadline_s=SCRAPE_CONNECT_S)
        self._known: dict[str, _RunCounts] = {}
        self._documents: tuple[Sequence[Mapping[str, Any]], ...] = ()
        self._documents_at = float("-inf")
        self._last: tuple[float, Scene] | None = None
        self._one_at_a_time = threading.Lock()

    def __enter__(self) -> Scraper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        router: list[RouterSeen] = []
        aside = threading.Thread(target=lambda: router.extend(self._ask_router()), daemon=True)
        aside.start()
        answers = self._nodes.on_every(_figures, patience=PATIENCE)
        reports = {name: ReportAnswer(now=one.now, reports=one.reports) for name, one in answers.values.items()}
        views = views_of(self._gangs, reports, answers.failures)
        aside.join(max(0.0, SCRAPE_S - (time.monotonic() - began)))
        if self._router is not None and not router:
            router.append(RouterSeen(node=self._router.node.name, workers=None))
        unheard = read_told(self._unheard)
        if time.monotonic() - self._documents_at > MEASURED_EVERY_S:
            newest = {(one["gang"], one["model"], one["stack"], str(one["load"])): one for one in all_benches()}
            self._documents = tuple(newest.values()), newest_nettests(self._gangs)
            self._documents_at = time.monotonic()
        benches, nettests = self._documents
        return Scene(
            version=__version__,
            gangs=self._gangs,
            views=views,
            nodes={**answers.values, **answers.failures},
            past={gang.name: self._past(gang, view) for gang, view in zip(self._gangs, views, strict=True)},
            router=router[0] if router else None,
            looked=last_look(self._looks),
            benches=benches,
            nettests=nettests,
            receivers={one: one not in unheard for one in self._receivers},
            seconds=time.monotonic() - began,
        )

    def _ask_router(self) -> tuple[RouterSeen, ...]:
        if self._router is None:
            return ()
        answers = self._routers.on_every(partial(_router_figures, self._router))
        answer = next(iter(answers.values.values()), None)
        return (RouterSeen(node=self._router.node.name, workers=_workers(answer)),)

    def _past(self, gang: GangSpec, view: GangView) -> Past:
        """The nodes' history is asked for when another run begins or one fails, and not else."""
        known = self._known.get(gang.name, _RunCounts())
        mark = f"{view.run_id} {view.cause.text if view.cause else ''}"
        if known.newest == mark:
            return known.past
        asked = self._nodes.on_every(
            partial(_history, gang), only=[node.name for node in gang.nodes], patience=PATIENCE
        ).values
        if not asked:
            return known.past
        reports = {
            name: [report for report in map(Report.read, answer.reports) if isinstance(report, Report)]
            for name, answer in asked.items()
        }
        runs = past_runs(gang.name, reports, {})
        failure, before = last_failure(runs, time.time(), next(iter(asked.values())).now), known.past.failure
        if before is not None and (failure is None or failure.cause == before.cause):
            failure = before  # one that is known keeps its time: clocks drift, and a series must not move for that
        past = Past(
            restarts=Counter(known.past.restarts) + restarts(runs, known.runs),
            failure=failure,
            phases=phases(last_start(view.name, view.model, view.stack)),
        )
        self._known[gang.name] = _RunCounts(mark, known.runs | {run.run_id for run in runs}, past)
        return past


def _figures(session: Session) -> FiguresAnswer:
    request = FiguresRequest(
        state_dir=session.spec.state_dir, fs_root=session.spec.fs_root, nvml_deadline_s=SCRAPE_NVML_S
    )
    return ask(session, "figures", request, FiguresAnswer, deadline_s=SCRAPE_S)


def _router_figures(spec: RouterSpec, session: Session) -> FiguresAnswer:
    request = FiguresRequest(
        **where(session.spec), hardware=False, asks=(router_ask(spec, "GET", "/workers", timeout_s=SCRAPE_ROUTER_S),)
    )
    return ask(session, "figures", request, FiguresAnswer, deadline_s=SCRAPE_S)


def _workers(answer: FiguresAnswer | None) -> tuple[Worker, ...] | None:
    """None where its agent does not run it, or it does not list them."""
    reports = [Report.read(one) for one in answer.reports] if answer is not None else []
    runs = any(isinstance(report, Report) and report.alive for report in reports)
    listed = answer.answers[0] if answer is not None and answer.answers else None
    try:
        return workers(listed.body) if runs and listed is not None and listed.ok else None
    except ValueError:
        return None


def _history(gang: GangSpec, session: Session) -> HistoryAnswer:
    request = HistoryRequest(**where(session.spec, gang.name))
    return ask(session, "history", request, HistoryAnswer, deadline_s=ANSWER_S)
