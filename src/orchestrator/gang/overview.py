"""All gangs and their router as `status` saw them: which is degraded, the word that says why, and the JSON document."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.engines.serving import ServedModel, Serving, Worker
from orchestrator.gang.operations import GangOperation
from orchestrator.gang.pace import took
from orchestrator.gang.paths import rail_sentence
from orchestrator.gang.remarks import ROUTER_ENTRY, sentence
from orchestrator.gang.serving import names_of
from orchestrator.gang.view import OUTSIDE, GangView, NodeView
from orchestrator.model.finding import Finding
from orchestrator.model.gang_state import GangState
from orchestrator.protocol.errors import DeployError, Exit, RunsElsewhere, Unreachable, WithoutFiles
from orchestrator.protocol.hang import Hang
from orchestrator.protocol.message import Message
from orchestrator.protocol.report import Cause, RailChange
from orchestrator.protocol.severity import Severity

_OF_TROUBLE = {
    "hung": "hung",
    "stopped": "hung",
    "silent": "silent",
    "no-memory": "nodes",
    "nodes": "nodes",
    "slow": "slow",
}
"""A rank stopped by a signal hangs all others. A node that only the controller can't reach does not count."""
_OFF_THE_RAILS = ("TRANSPORT-NOT-RDMA", "TRANSPORT-DEVICE-UNUSED")
"""Only with severity slow: TCP between pipeline stages costs next to nothing."""
_NOT_ROUTED = ("out", "unhealthy")


def degraded_reason(view: GangView, router: str | None = None, *, half_way: bool = False) -> str:
    """silent, slow, hung, nodes (a rank is missing, or it runs without a node), rails (a port failed, or traffic leaves
    the planned RDMA devices), router (no request is sent there) or interrupted (a command was killed in this gang's
    turn); '' for a gang that is well, does not serve yet, or has failed.

    router: the gang's state there (in, unhealthy, out), None if there is no router or its state is unknown
    """
    if half_way and view.state is not GangState.FAILED:
        return "interrupted"
    if view.state is GangState.DEGRADED and view.trouble in _OF_TROUBLE:
        return _OF_TROUBLE[view.trouble]
    if not view.serves:
        return ""
    if any(node.rails for node in view.nodes):
        return "rails"
    if any(finding.id in _OFF_THE_RAILS and finding.severity is Severity.SLOW for finding in view.transport):
        return "rails"
    return "router" if _is_left_out(view, router) else ""


def _is_left_out(view: GangView, router: str | None) -> bool:
    return router in _NOT_ROUTED and ROUTER_ENTRY not in view.accepted


def state_words(view: GangView, reason: str = "") -> str:
    """'ready', 'degraded (hung)', 'degraded (3 of 4 nodes)', 'degraded (unreachable)', 'stopped' for one that ran."""
    if view.state is GangState.ABSENT and view.plan_id:
        return "stopped"
    why = view.share if "nodes" in (reason, view.trouble) and view.share else reason or view.trouble
    state = GangState.DEGRADED if reason else view.state
    return f"{state.value} ({why})" if why else state.value


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterGlance:
    """The router as it was seen. state: of its agent, None where that could not be asked; workers: None where
    the router does not report them; error: why something could not be read; findings: what is wrong beside that.
    request_limit: most requests that it lets in at once, None where nobody limits them."""

    url: str
    node: str
    state: GangState | None = None
    workers: tuple[Worker, ...] | None = None
    error: DeployError | None = None
    findings: tuple[Finding, ...] = ()
    request_limit: int | None = None

    @property
    def remarks(self) -> tuple[str, ...]:
        """The findings as lines."""
        return tuple(map(sentence, self.findings))

    @property
    def condition(self) -> GangState | None:
        """Its state; degraded where it runs and finds none of its workers healthy: every request gets HTTP 503."""
        sick = self.state is GangState.READY and self.workers and not any(worker.healthy for worker in self.workers)
        return GangState.DEGRADED if sick else self.state

    @property
    def healthy(self) -> bool:
        """It runs under its agent, answers, and has a gang to send requests to."""
        return self.state is GangState.READY and any(worker.healthy for worker in self.workers or ())

    def worker(self, url: str) -> Worker | None:
        """The gang that serves there, as the router has it."""
        return next((worker for worker in self.workers or () if url and worker.url == url.rstrip("/")), None)

    def place(self, url: str) -> str | None:
        """in, unhealthy (the router sends nothing there until it is well) or out; None if unknown."""
        if self.workers is None:
            return None if self.error is not None or self.state is GangState.READY else "out"
        worker = self.worker(url)
        if worker is None:
            return "out"
        return "in" if worker.healthy else "unhealthy"

    def gangs_by_url(self, views: Sequence[GangView]) -> dict[str, str]:
        """The names of the gangs that serve, by the URL that the router would have."""
        return {view.service_url.rstrip("/"): view.name for view in views if view.service_url}

    def as_json(self, views: Sequence[GangView]) -> dict[str, Any]:
        """The router of `status --json`, with the gangs' names."""
        names = self.gangs_by_url(views)
        workers = [
            {"url": worker.url, "gang": names.get(worker.url), "healthy": worker.healthy, "load": worker.load}
            for worker in self.workers or ()
        ]
        return {
            "url": self.url,
            "node": self.node,
            "state": self.condition and self.condition.value,
            "healthy": self.healthy,
            "max_requests": self.request_limit,
            "workers": None if self.workers is None else workers,
            "models": None if self.workers is None else self._models(views),
            "error": self.error and self.error.as_json(),
            "remarks": list(self.remarks),
        }

    def _models(self, views: Sequence[GangView]) -> list[dict[str, Any]]:
        """What it sends requests for, by the name that they give: the router's own word, else that of the gang. A model
        has all aliases that any of its gangs has."""
        gangs: dict[str, list[str]] = {}
        aliases: dict[str, set[str]] = {}
        for view in views:
            worker = self.worker(view.service_url)
            if worker is None:
                continue
            for model in worker.models or map(ServedModel, names_of(view)):
                gangs.setdefault(model.name, []).append(view.name)
                aliases.setdefault(model.name, set()).update(model.aliases)
        return [{"name": name, "aliases": sorted(aliases[name]), "gangs": gangs[name]} for name in sorted(gangs)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """All gangs; the router where the inventory has one."""

    views: tuple[GangView, ...]
    router: RouterGlance | None = None
    interrupted: tuple[GangOperation, ...] = ()
    """What was begun on these gangs and no command works on any more."""
    stated: Mapping[str, str] = field(default_factory=dict)
    """Where gangs of the inventory serve by its own word, those too that were not looked at: names by URL."""
    unstated: bool = False
    """A gang of the inventory serves where only its nodes can tell."""
    serving: Mapping[str, Serving] = field(default_factory=dict)
    """What gangs were busy with at one look, by name; without those that did not tell."""

    def begun(self, view: GangView) -> GangOperation | None:
        """What was interrupted on this gang."""
        return next((begun for begun in self.interrupted if begun.gang == view.name), None)

    def reason(self, view: GangView) -> str:
        """Why this gang is degraded, in one word; '' where it is not."""
        begun = self.begun(view)
        place = self.router.place(view.service_url) if self.router else None
        return degraded_reason(view, place, half_way=begun is not None and begun.turning)

    def headline(self, view: GangView) -> str:
        """Its state with the reason, as every screen and the page have it: 'degraded (hung)'."""
        return state_words(view, self.reason(view))

    @property
    def exit_code(self) -> Exit:
        """The worst of all gangs: failed, degraded, a node or the router's host that did not answer; else DONE."""
        if any(view.state is GangState.FAILED for view in self.views):
            return Exit.GANG_FAILED
        if any(self.reason(view) for view in self.views):
            return Exit.FINDINGS
        lost = self.router is not None and isinstance(self.router.error, Unreachable | RunsElsewhere | WithoutFiles)
        return Exit.UNREACHABLE if lost or any(view.unreachable for view in self.views) else Exit.DONE


def overview_json(seen: Overview) -> dict[str, Any]:
    """The document of `status --json`."""
    document = status_json(seen.views)
    for gang, view in zip(document["gangs"], seen.views, strict=True):
        gang["router"] = seen.router.place(view.service_url) if seen.router else None
        gang["headline"] = seen.headline(view)
        gang["degraded_reason"] = seen.reason(view) or None
        busy = seen.serving.get(view.name)
        gang["serving"] = busy.as_json() if busy else None
        begun = seen.begun(view)
        gang["interrupted"] = {**begun.as_json(), "fix": f"l40s-deploy up --gang {view.name}"} if begun else None
    return {**document, "router": seen.router.as_json(seen.views) if seen.router else None}


def status_json(views: Sequence[GangView]) -> dict[str, Any]:
    """The document of `status --json`."""
    return {"gangs": [_gang(view) for view in views]}


def _start(view: GangView) -> dict[str, Any] | None:
    """What its last start took, by phase; None where that is not known."""
    start = took(node.began for node in view.nodes)
    return start.as_json() if start else None


def _spares(view: GangView) -> list[dict[str, Any]]:
    return [_spare(node) for node in (*view.nodes, *view.spares) if node.spare]


def _gang(view: GangView) -> dict[str, Any]:
    return {
        "name": view.name,
        "state": view.state.value,
        **{name: getattr(view, name) for name in ("trouble", "model", "stack", "plan_id", "run_id")},
        "cause": cause_json(view.cause),
        "secondary": [cause_json(cause) for cause in view.secondary],
        "service": {
            "url": view.service_url,
            "healthy": bool(view.service_healthy),
            "max_queued": view.request_limit,
        },
        "transport": [
            {
                "id": finding.id,
                "severity": finding.severity.value,
                "node": finding.node,
                "title": finding.title,
                "effect": finding.effect,
            }
            for finding in view.transport
        ],
        "rails": [_rail(node, rail, view.name) for node in view.nodes for rail in node.rails],
        "start": _start(view),
        "least_free_bytes": view.least_free_bytes if view.serves else None,
        "progress": view.progress,
        "remarks": list(view.remarks),
        "findings": [finding.as_json() for finding in view.findings],
        "proved": list(view.proved),
        "serving_nodes": view.serving_nodes if view.serves else 0,
        "missing": list(view.missing) if view.state is not GangState.ABSENT else [],
        "spares": _spares(view),
        "nodes": [_node(node) for node in view.nodes],
    }


def _rail(node: NodeView, rail: RailChange, gang: str) -> dict[str, Any]:
    return {
        "node": node.name,
        "port": rail.port,
        "up": rail.up,
        "since": rail.at,
        "text": rail_sentence(rail, gang),
    }


_OF_A_CAUSE = ("node", "tp_rank", "signal", "exit_code", "signature", "text", "fix", "lines", "at")
_OF_A_HANG = ("ranks", "counts", "evidence", "moves")
_OF_A_RANK = ("tp_rank", "gpu", "state", "pid", "gpu_memory_bytes")


def cause_json(cause: Cause | None) -> dict[str, Any] | None:
    """A cause as in every JSON document; None for none."""
    if cause is None:
        return None
    return {"id": cause.signature, **_keys(cause, _OF_A_CAUSE), "hang": cause.hang and _hang(cause.hang)}


def _hang(hang: Hang) -> dict[str, Any]:
    """`cause.hang`: which hang it is."""
    document = hang.as_json()
    return {"class": hang.name, **{name: document[name] for name in _OF_A_HANG}}


def _keys(message: Message, names: Collection[str]) -> dict[str, Any]:
    document = message.as_json()
    return {name: document[name] for name in names}


def _spare(node: NodeView) -> dict[str, Any]:
    """A spare: idle, serving (it has a part in the run), unreachable."""
    idle = "idle" if node.error is None else "unreachable"
    state = "serving" if node.node_rank != OUTSIDE else idle
    return {"name": node.name, "state": state, "error": node.error and node.error.as_json()}


def _node(node: NodeView) -> dict[str, Any]:
    return {
        "name": node.name,
        "node_rank": node.node_rank if node.node_rank != OUTSIDE else None,
        "state": node.state.value,
        "contact": node.contact.value,
        "phase": node.phase.name,
        "phase_step": node.phase.step,
        "phase_of": node.phase.of,
        "error": node.error and node.error.as_json(),
        "left_behind": list(node.left_behind),
        "ranks": [_keys(rank, _OF_A_RANK) for rank in node.ranks],
    }
