"""What the page of `web` draws, as frozen types, out of a moment, and what is kept of the past."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.engines.serving import Worker
from orchestrator.gang.history import FailureVerdict, PastRun
from orchestrator.gang.overview import Overview, RouterGlance
from orchestrator.gang.steps.status.live import HOT_C, GangLoad, Moment, NodeLoad, clock_time
from orchestrator.gang.timeline import PortRate, TimelineEvent, since_ready
from orchestrator.gang.view import GangView, NodeView
from orchestrator.model.gang_state import GangState, NodeState
from orchestrator.monitoring.steps.last_hour import HEIGHT, WIDTH, Curve, Sample, curves
from orchestrator.protocol.gauges import GpuGauges, slowed_by
from orchestrator.protocol.report import Cause, Phase, RankReport, RankState
from orchestrator.topology.picture import OLD, LiveState, Picture, lit

MOST_RUNS = 20
MOST_EVENTS = 12
MOST_DRAWINGS = 16
"""Nodes whose inside is on the page; of the others there is the row of their GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPast:
    """What is kept of before. runs: of all gangs; verdicts: of each gang's newest failed run, by gang; bench: what
    `bench.steps.bench_report.page_of` gives for the newest case, {} for none; hours: each gang's last hour."""

    runs: tuple[PastRun, ...] = ()
    verdicts: Mapping[str, FailureVerdict] | None = None
    bench: Mapping[str, Any] | None = None
    hours: Mapping[str, tuple[Sample, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lights:
    """gpus by NVML's index, in its order; ports by RDMA device and number. old: the node does not answer."""

    gpus: Mapping[int, LiveState]
    ports: Mapping[tuple[str, int], LiveState]
    old: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PageNode:
    """A node of a gang. drawing: of its inside, None before it was examined; gauges_error: why NVML was not read."""

    name: str
    state: NodeState
    phase: Phase
    lights: Lights
    gauges_error: str
    drawing: Picture | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PageGang:
    """A gang. cause, secondary: of what is wrong now, else of its last failure, of which `last` is the verdict. events:
    without those of the start once it serves, which are `started`, and without what is among the remarks."""

    name: str
    state: GangState
    headline: str
    model: str
    stack: str
    service_url: str
    service_healthy: bool
    load: GangLoad | None
    max_queued: int | None
    remarks: tuple[str, ...]
    nodes: tuple[PageNode, ...]
    cause: Cause | None
    secondary: tuple[Cause, ...]
    last: FailureVerdict | None
    events: tuple[TimelineEvent, ...]
    started: tuple[TimelineEvent, ...]
    curves: tuple[Curve, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageWorker:
    """A worker of the router by its gang's name; by its URL where no gang of the inventory serves there. models: with
    their aliases"""

    name: str
    healthy: bool
    load: int
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRouter:
    """The router. condition: of `RouterGlance`; error: why something of it could not be read, with the fix;
    remarks: what is wrong beside that; limit: requests that it lets in at once, None for any number."""

    url: str
    condition: GangState | None
    workers: tuple[PageWorker, ...]
    error: str
    fix: str
    remarks: tuple[str, ...]
    limit: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBar:
    """A run on the line of time. start, served: (where it begins, how long it is) in per cent of the time since the
    oldest began; a start that never came to ready is all start. failed_at: in per cent, None where it did not fail."""

    gang: str
    end: str
    by: str
    when: str
    took_s: int | None
    start: tuple[float, float]
    served: tuple[float, float]
    failed_at: float | None
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LivePage:
    """The whole. examined: the nodes' hardware was read; not_examined: why it could not be, '' where it still may."""

    clock: str
    gangs: tuple[PageGang, ...]
    router: PageRouter | None
    runs: tuple[RunBar, ...]
    examined: bool
    not_examined: str
    bench: Mapping[str, Any] | None

    def names(self) -> dict[str, object]:
        """What templates/live_part.html.j2 calls them."""
        return {"page": self, "time_of": clock_time, "curve_width": WIDTH, "curve_height": HEIGHT}


def live_page(moment: Moment, past: KeptPast, drawings: Mapping[str, Picture] | None, not_examined: str) -> LivePage:
    """drawings: by node, None before the nodes were examined."""
    seen = moment.seen
    nodes = _nodes(moment, drawings or {})
    newest = sorted(past.runs, key=lambda run: run.started, reverse=True)[:MOST_RUNS]
    return LivePage(
        clock=clock_time(moment.taken_at),
        gangs=tuple(_gang(view, moment, nodes, past) for view in seen.views),
        router=_router(seen.router, seen) if seen.router else None,
        runs=_timeline(newest, moment.taken_at),
        examined=drawings is not None,
        not_examined=not_examined,
        bench=past.bench,
    )


def _gang(view: GangView, moment: Moment, nodes: Mapping[tuple[str, str], PageNode], past: KeptPast) -> PageGang:
    last = (past.verdicts or {}).get(view.name)
    events = [event for event in moment.events.get(view.name, ()) if not _is_remark(event, view.remarks)]
    newer = since_ready(events) if view.serves else tuple(events)
    secondary = last.secondary if last and not view.cause else view.secondary
    return PageGang(
        name=view.name,
        state=view.state,
        headline=moment.seen.headline(view),
        model=view.model,
        stack=view.stack,
        service_url=view.service_url,
        service_healthy=bool(view.service_healthy),
        load=moment.gangs.get(view.name),
        max_queued=view.request_limit,
        remarks=view.remarks,
        nodes=tuple(nodes[view.name, node.name] for node in view.nodes),
        cause=last.cause if last and not view.cause else view.cause,
        secondary=secondary,
        last=None if view.cause else last,
        events=newer[-MOST_EVENTS:],
        started=tuple(events[: len(events) - len(newer)])[-MOST_EVENTS:],
        curves=curves(past.hours.get(view.name, ())),
    )


def _is_remark(event: TimelineEvent, remarks: Sequence[str]) -> bool:
    return event.what == "remark" and any(event.words in remark for remark in remarks)


def _nodes(moment: Moment, drawings: Mapping[str, Picture]) -> dict[tuple[str, str], PageNode]:
    """By gang and node."""
    nodes = [(view.name, node) for view in moment.seen.views for node in view.nodes]
    drawn = [node.name for _, node in nodes if node.name in drawings][:MOST_DRAWINGS]
    return {
        (gang, node.name): _node(
            node, moment.nodes.get(node.name) or NodeLoad(), drawings[node.name] if node.name in drawn else None
        )
        for gang, node in nodes
    }


def _node(node: NodeView, load: NodeLoad, drawing: Picture | None) -> PageNode:
    now = lights(node, load)
    return PageNode(
        name=node.name,
        state=node.state,
        phase=node.phase,
        lights=now,
        gauges_error=load.error,
        drawing=lit(drawing, now.gpus, now.ports, old=now.old) if drawing else None,
    )


def _router(router: RouterGlance, seen: Overview) -> PageRouter:
    gangs = router.gangs_by_url(seen.views)
    return PageRouter(
        url=router.url,
        condition=router.condition,
        workers=tuple(_worker(worker, gangs.get(worker.url)) for worker in router.workers or ()),
        error=str(router.error.what) if router.error else "",
        fix=router.error.fix if router.error else "",
        remarks=router.remarks,
        limit=router.request_limit,
    )


def _worker(worker: Worker, gang: str | None) -> PageWorker:
    models = tuple(model.words for model in worker.models)
    return PageWorker(name=gang or worker.url, healthy=worker.healthy, load=worker.load, models=models)


def _timeline(runs: Sequence[PastRun], now: float) -> tuple[RunBar, ...]:
    """A bar a run."""
    first = min((run.started for run in runs), default=now)
    all_s = max(1.0, now - first)

    def share(begin: float, end: float) -> tuple[float, float]:
        return round(100 * (begin - first) / all_s, 2), round(100 * max(0.0, end - begin) / all_s, 2)

    def bar(run: PastRun) -> RunBar:
        end = max(run.started, min(now, run.ended or now))
        ready = min(end, run.started + run.start.seconds) if run.start else end
        return RunBar(
            gang=run.gang,
            end=run.end,
            by=run.by,
            when=time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started)),
            took_s=round(run.start.seconds) if run.start else None,
            start=share(run.started, ready),
            served=share(ready, end),
            failed_at=share(end, end)[0] if run.end == GangState.FAILED.value else None,
            cause=f"{run.cause.node}: {run.cause.text}" if run.cause else "",
        )

    return tuple(bar(run) for run in runs)


def lights(node: NodeView, load: NodeLoad) -> Lights:
    """The lights of a node. If it does not answer, all of them are old."""
    ranks = {rank.gpu: rank for rank in node.ranks}
    gauges_of = {gpu.index: gpu for gpu in load.gauges.gpus} if load.gauges else {}
    old = node.error is not None or node.state is NodeState.SILENT
    return Lights(
        gpus={
            index: _gpu(ranks.get(index), gauges_of.get(index, GpuGauges(index=index)), old=old)
            for index in sorted({*ranks, *gauges_of})
        },
        ports={(port.device, port.port): _port(port, old=old) for port in load.ports},
        old=old,
    )


def _gpu(rank: RankReport | None, gpu: GpuGauges, *, old: bool) -> LiveState:
    slowed = slowed_by(gpu.clocks_event_reasons)
    titles = [
        f"TP rank {rank.tp_rank}, process {rank.pid}: {rank.state.value}" if rank else "no rank",
        f"slowed by {', '.join(slowed)}" if slowed else "",
        gpu.error,
        "its node does not answer: this is out of date" if old else "",
    ]
    process = rank.state if rank else None
    return LiveState(
        state=OLD if old else _state(process, gpu, slowed=bool(slowed)),
        name=f"TP{rank.tp_rank}" if rank else "",
        words="dead" if process is RankState.DEAD and not old else _figures(gpu),
        title="; ".join(filter(None, titles)),
    )


def _figures(gpu: GpuGauges) -> str:
    """'61 °C 310 W', without what the driver does not report."""
    heat = "" if gpu.temperature_c is None else f"{gpu.temperature_c} °C"
    power = "" if gpu.power_mw is None else f"{gpu.power_mw / 1000:.0f} W"
    return f"{heat} {power}".strip()


def _state(process: RankState | None, gpu: GpuGauges, *, slowed: bool) -> str:
    if process is RankState.DEAD or gpu.error:
        return "bad"
    if slowed or process is RankState.STOPPED or (gpu.temperature_c or 0) >= HOT_C:
        return "hot"
    return "up" if process is RankState.ALIVE else ""


def _port(port: PortRate, *, old: bool) -> LiveState:
    if old or port.up is None:
        return LiveState(state=OLD, name=port.device)
    if not port.up:
        return LiveState(state="bad", name=port.device, words="down")
    rates = _rates(port)
    grown = ", ".join(f"{name} +{more}" for name, more in port.grown.items())
    return LiveState(state="hot" if grown else "up", name=port.device, words=grown or rates, title=rates)


def _rates(port: PortRate) -> str:
    if port.received_bytes_s is None or port.sent_bytes_s is None:
        return ""
    return f"{port.received_bytes_s / 1e9:.1f} / {port.sent_bytes_s / 1e9:.1f} GB/s"
