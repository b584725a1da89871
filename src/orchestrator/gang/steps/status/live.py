"""What `status --watch` and the page show: the gangs now, what they are busy with, and what has happened.

Each source is asked on a thread of its own, at its own pace, over the same connections: a GPU driver that hangs or a
router that is gone makes its own figures old, and delays nothing else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from orchestrator.engines.serving import Serving
from orchestrator.gang.operations import GangOperation
from orchestrator.gang.overview import Overview, RouterGlance, overview_json
from orchestrator.gang.remarks import with_findings
from orchestrator.gang.steps.operation import Operation
from orchestrator.gang.steps.router.client import Router
from orchestrator.gang.steps.status.health import health
from orchestrator.gang.steps.status.overview import glance, with_entries, with_stated
from orchestrator.gang.steps.status.reports import (
    as_it_runs,
    ask_report,
    ask_serving,
    interrupted,
    request_keys,
    views_of,
)
from orchestrator.gang.timeline import NodeEvents, PortRate, TimelineEvent, growth, port_rates, timeline
from orchestrator.gang.view import GangView
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.deadlines import ANSWER_S, WATCH_FIRST_S, WATCH_NVML_S, WATCH_S
from orchestrator.model.finding import Finding
from orchestrator.model.inventory import GangSpec
from orchestrator.model.per_node import PerNode
from orchestrator.protocol.errors import DeployError, Unreachable
from orchestrator.protocol.gauges import FiguresAnswer, FiguresRequest, GaugesAnswer
from orchestrator.protocol.verbs import HistoryAnswer, HistoryRequest, ReportAnswer
from orchestrator.remote.fleet import Fleet, StragglerWait
from orchestrator.remote.node_app import ask
from orchestrator.remote.session import Session

LOOK_S = 0.7
"""Between two questions to a node: a death shows within 2 s, the agent's own look and the drawing included."""
RETRY_S = 2.0
GAUGES_S = 3.0
SERVING_S = 2.0
ROUTER_S = 5.0
EVENTS_S = 0.5
HEALTH_S = 10.0
"""Between two questions whether the doctor's word is a minute old."""
INTERRUPTED_S = 15.0
MOST_EVENTS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Everything at one time. taken_at: our epoch seconds; nodes by name; gangs and events by gang."""

    taken_at: float
    seen: Overview
    nodes: Mapping[str, NodeLoad] = field(default_factory=dict)
    gangs: Mapping[str, GangLoad] = field(default_factory=dict)
    events: Mapping[str, tuple[TimelineEvent, ...]] = field(default_factory=dict)


class Watching:
    """A context that looks at an operation's gangs again and again; `look` gives the newest moment."""

    def __init__(self, operation: Operation, gangs: tuple[str, ...] = ()) -> None:
        self._gangs = chosen_gangs(operation.inventory, gangs)
        self._all = operation.inventory.gangs
        self._router = operation.router
        self._fleet = operation.fleet
        self._nodes_watched = [node.name for gang in self._gangs for node in gang.machines]
        self._over = threading.Event()
        self._began = time.monotonic()
        self._marks: dict[str, str] = {}
        self._answers: dict[str, ReportAnswer | DeployError] = {}
        self._asked: dict[str, float] = {}
        self._glance: RouterGlance | None = None
        self._begun: tuple[GangOperation, ...] = ()
        self._nodes: dict[str, NodeLoad] = {}
        self._loads: dict[str, GangLoad] = {}
        self._events: dict[str, tuple[TimelineEvent, ...]] = {}
        self._health: dict[str, tuple[Finding, ...]] = {}
        self._inventory = operation.inventory.path
        self._defects: list[BaseException] = []

    def __enter__(self) -> Watching:
        for name in self._nodes_watched:
            self._start(partial(self._read_report, name), LOOK_S)
            self._start(partial(self._read_gauges, name), GAUGES_S)
        for gang in self._gangs:
            self._start(partial(self._read_serving, gang), SERVING_S)
            self._start(partial(self._read_events, gang), EVENTS_S)
            self._start(partial(self._read_health, gang), HEALTH_S)
        if self._router is not None:
            self._start(partial(self._read_router, self._router), ROUTER_S)
        end = time.monotonic() + WATCH_FIRST_S
        while len(self._answers) < len(self._nodes_watched) and time.monotonic() < end:
            time.sleep(0.02)
        self._start(self._read_interrupted, INTERRUPTED_S)  # only nodes that answer are asked
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def look(self) -> Moment:
        """The newest of everything, at once. Raises what was our defect in a source."""
        if self._defects:
            raise self._defects[0]
        return Moment(
            taken_at=time.time(),
            seen=with_entries(with_stated(self._overview(), self._all), self._all),
            nodes=dict(self._nodes),
            gangs=dict(self._loads),
            events=dict(self._events),
        )

    def _overview(self) -> Overview:
        return Overview(views=self._views(), router=self._glance, interrupted=self._begun)

    def _views(self) -> tuple[GangView, ...]:
        asked = {name: self._asked.get(name, self._began) for name in self._nodes_watched}
        answers = dict(self._answers)
        values = {name: answer for name, answer in answers.items() if isinstance(answer, ReportAnswer)}
        failures = overdue(asked, values, time.monotonic())
        failures |= {name: answer for name, answer in answers.items() if isinstance(answer, DeployError)}
        views = views_of(self._gangs, values, failures)
        return tuple(with_findings(view, self._health.get(view.name, ()) if view.serves else ()) for view in views)

    def _read_health(self, gang: GangSpec) -> None:
        view = self._view(gang)
        if view.serves:
            with suppress(DeployError):  # what could not be asked stays as it was
                self._health[gang.name] = health(self._inventory, as_it_runs(gang, view))

    def _start(self, job: Callable[[], None], every_s: float) -> None:
        threading.Thread(target=self._again, args=(job, every_s), daemon=True).start()

    def _again(self, job: Callable[[], None], every_s: float) -> None:
        """A source's thread. A node's failure is a value; anything else is our defect, and ends the watching."""
        try:
            while not self._over.is_set():
                job()
                self._over.wait(every_s)
        except BaseException as defect:
            if not self._over.is_set():
                self._defects.append(defect)

    def _read_report(self, name: str) -> None:
        self._asked[name] = time.monotonic()
        answers = self._fleet.on_every(ask_report, only=[name])
        self._asked[name] = time.monotonic()
        self._answers[name] = answers.failures.get(name) or answers.values[name]
        if answers.failures:
            self._over.wait(RETRY_S)

    def _read_gauges(self, name: str) -> None:
        before = self._nodes.get(name)
        self._nodes |= _loads(self._fleet.on_every(read_gauges, only=[name]), before.gauges if before else None)

    def _read_router(self, router: Router) -> None:
        self._glance = glance(router.fleet, router.spec)

    def _read_interrupted(self) -> None:
        answering = [name for name, answer in dict(self._answers).items() if isinstance(answer, ReportAnswer)]
        self._begun = interrupted(self._fleet, self._gangs, only=answering)

    def _read_serving(self, gang: GangSpec) -> None:
        view = self._view(gang)
        load = ask_serving(self._fleet, gang, view.service_url) if view.service_url and view.running else None
        before, now = self._loads.get(gang.name), time.monotonic()
        if load is None:
            self._loads.pop(gang.name, None)
        elif before is None:
            self._loads[gang.name] = GangLoad(now=load, at=now)
        else:
            passed = now - before.at
            self._loads[gang.name] = GangLoad(
                now=load,
                at=now,
                tokens_s=growth(before.now.generation_tokens, load.generation_tokens, passed),
                prompt_tokens_s=growth(before.now.prompt_tokens, load.prompt_tokens, passed),
            )

    def _read_events(self, gang: GangSpec) -> None:
        """Asked for after a change only: an agent writes an event beside its report."""
        view = self._view(gang)
        if view.run_id and self._changed(view):
            self._events[gang.name] = run_events(self._fleet, gang, view.run_id)[-MOST_EVENTS:]

    def _changed(self, view: GangView) -> bool:
        mark = repr((view.run_id, view.state, view.cause, [(node.state, node.phase.name) for node in view.nodes]))
        changed = self._marks.get(view.name) != mark
        self._marks[view.name] = mark
        return changed

    def _view(self, gang: GangSpec) -> GangView:
        return next(view for view in self._views() if view.name == gang.name)


def run_events(fleet: Fleet, gang: GangSpec, run_id: str) -> tuple[TimelineEvent, ...]:
    """What the nodes have written down of one run, by our clock; a node that does not answer is left out."""

    def one(session: Session) -> NodeEvents:
        sent = time.time()
        request = HistoryRequest(**request_keys(session.spec, gang.name), run_id=run_id)
        answer = ask(session, "history", request, HistoryAnswer, deadline_s=ANSWER_S)
        answered = time.time()
        ahead_s = answer.now - (sent + answered) / 2
        return NodeEvents(events=answer.events, ahead_s=ahead_s, doubt_s=(answered - sent) / 2)

    return timeline(fleet.on_every(one, only=[node.name for node in gang.nodes]).values)


def overdue(asked: Mapping[str, float], answered: Collection[str], now: float) -> dict[str, DeployError]:
    """Nodes that owe their answer for longer than WATCH_S, or have not given a first one, as failures.

    asked: when each was last asked or answered, in the seconds of `now`; answered: those whose last answer was one
    """
    return {
        name: Unreachable(
            f"no answer for {now - since:.0f} s", where=name, fix=f"check that it responds: ssh {name} uptime"
        )
        for name, since in asked.items()
        if now - since > WATCH_S or name not in answered
    }


def clock_time(at: float) -> str:
    """HH:MM:SS of epoch seconds, by the time zone of this machine."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def live_json(moment: Moment) -> dict[str, Any]:
    """The document of `status --json`, and what moves beside it."""
    document = loaded_json(moment.seen, moment.nodes)
    for gang in document["gangs"]:
        load = moment.gangs.get(gang["name"])
        gang["serving"] = load.as_json() if load else None
        gang["events"] = [event.as_json() for event in moment.events.get(gang["name"], ())]
    return {"at": moment.taken_at, **document}


def loaded_json(seen: Overview, loads: Mapping[str, NodeLoad]) -> dict[str, Any]:
    """The same, with what moves beside what it says of each node."""
    document = overview_json(seen)
    for gang in document["gangs"]:
        for node in gang["nodes"]:
            node.update(loads.get(node["name"], NodeLoad()).as_json())
    return document


HOT_C = 83
"""From here a GPU is marked: an L40S slows down at 88 °C and stops at 92 (calculated margin of 5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoad:
    """What moves on a node, as it was last read. failure: why the last reading failed."""

    gauges: GaugesAnswer | None = None
    ports: tuple[PortRate, ...] = ()
    failure: DeployError | None = None

    @property
    def error(self) -> str:
        """Why nothing was read of it; '' where something was."""
        if self.failure:
            return str(self.failure.what)
        return self.gauges.error if self.gauges else ""

    def as_json(self) -> dict[str, Any]:
        """gpus[], ports[] and gauges_error of `status --wide --json`."""
        return {
            "gpus": [gpu.as_json() for gpu in self.gauges.gpus] if self.gauges else [],
            "ports": [port.as_json() for port in self.ports],
            "gauges_error": self.error or None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GangLoad:
    """What a gang is busy with; rates are None before the second reading. at: our monotonic seconds"""

    now: Serving
    tokens_s: float | None = None
    prompt_tokens_s: float | None = None
    at: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """gangs[].serving of `status --watch --json`."""
        return {**self.now.as_json(), "tokens_s": self.tokens_s, "prompt_tokens_s": self.prompt_tokens_s}


def read_gauges(session: Session) -> GaugesAnswer:
    """One reading of one node. Raises as `ask` does."""
    spec = session.spec
    request = FiguresRequest(state_dir=spec.state_dir, fs_root=spec.fs_root, nvml_deadline_s=WATCH_NVML_S, gangs=False)
    answer = ask(session, "figures", request, FiguresAnswer, deadline_s=ANSWER_S)
    return answer.gauges or GaugesAnswer(now=answer.now)


def node_loads(fleet: Fleet, views: Iterable[GangView]) -> dict[str, NodeLoad]:
    """Every node of these gangs, read once."""
    names = [node.name for view in views for node in view.nodes]
    return _loads(fleet.on_every(read_gauges, only=names, patience=StragglerWait(least_s=WATCH_NVML_S + 1)), None)


def _loads(answers: PerNode[GaugesAnswer], before: GaugesAnswer | None) -> dict[str, NodeLoad]:
    """before: the last reading of the one node that was asked, None for none"""
    read = {name: NodeLoad(gauges=gauges, ports=port_rates(before, gauges)) for name, gauges in answers.values.items()}
    return read | {name: NodeLoad(failure=failure) for name, failure in answers.failures.items()}
