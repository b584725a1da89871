"""What one scrape saw, as metrics: of gangs and their earlier runs, of hardware, and what was measured earlier."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family

from orchestrator import __version__
from orchestrator.doctor.rules.support.catalogue import UNKNOWN_CAUSE
from orchestrator.gang.history import PastRun
from orchestrator.gang.overview import RouterGlance, degraded_reason
from orchestrator.gang.pace import PHASES
from orchestrator.gang.timeline import CONGESTION, DISCARDS, ERRORS, WORD
from orchestrator.gang.view import GangView, NodeView
from orchestrator.model.gang_state import GangState, NodeState
from orchestrator.model.inventory import GangSpec
from orchestrator.model.notice import said
from orchestrator.monitoring.catalogue import CATALOGUE, Metric
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.gauges import FiguresAnswer, GpuGauges, PortGauges
from orchestrator.protocol.report import Cause, RankState, Report

MILLI, MICRO, MHZ, GIGABIT = 1e-3, 1e-6, 1e6, 1e9 / 8
LIMITS = {
    "idle": 0x1,
    "application_clocks": 0x2,
    "power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "hw_power_brake": 0x80,
    "display_clocks": 0x100,
}
"""Bits of nvmlClocksEventReasons (nvml.h)."""
GUARD = "guard."
"""Before a gang's name: the lock of the guard that watches it (gang/steps/guard)."""
STOPPED = "stopped"
_GANG_STATES = tuple(state.value for state in GangState)
_NODE_STATES = tuple(state.value for state in NodeState if state not in (NodeState.LEFT_OUT, NodeState.SPARE))
_GPU_FIGURES = (
    ("l40s_gpu_temperature_celsius", "temperature_c", 1),
    ("l40s_gpu_power_watts", "power_mw", MILLI),
    ("l40s_gpu_power_limit_watts", "power_limit_mw", MILLI),
    ("l40s_gpu_utilization_ratio", "utilization_percent", 1e-2),
    ("l40s_gpu_memory_used_bytes", "memory_used_bytes", 1),
    ("l40s_gpu_memory_bytes", "memory_total_bytes", 1),
    ("l40s_gpu_sm_clock_hertz", "sm_clock_mhz", MHZ),
    ("l40s_gpu_sm_clock_max_hertz", "sm_clock_max_mhz", MHZ),
)
_PORT_COUNTERS = (
    ("l40s_rail_errors_total", ERRORS),
    ("l40s_rail_discards_total", DISCARDS),
    ("l40s_rail_congestion_marks_total", CONGESTION),
)


NodeAnswer = FiguresAnswer | DeployError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What is known of a gang's earlier runs.

    runs: ids of those that are counted; newest: which of them was the newest when they were asked for, and its cause
    restarts: by why the run before ended; failure: the newest one's cause, and when by our clock (epoch seconds);
    phases: seconds of each phase of the last start
    """

    newest: str | None = None
    runs: frozenset[str] = frozenset()
    restarts: Mapping[str, int] = field(default_factory=dict)
    failure: tuple[Cause, float] | None = None
    phases: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Everything that one scrape saw. views: the gangs in the order of `gangs`

    nodes:     what each node of the gangs answered, or why it did not
    past:      by gang
    looked:    when doctor looked last (our epoch seconds), and its findings as they are kept
    benches, nettests: documents that these verbs keep: the newest of each load, and of each gang
    receivers: of notifications: whether the last one arrived, by what may be shown of each
    seconds:   how long the asking took
    """

    gangs: tuple[GangSpec, ...]
    views: tuple[GangView, ...]
    nodes: Mapping[str, FiguresAnswer | DeployError]
    past: Mapping[str, Past] = field(default_factory=dict)
    router: RouterGlance | None = None
    looked: tuple[float, Sequence[Mapping[str, Any]]] | None = None
    benches: Sequence[Mapping[str, Any]] = ()
    nettests: Sequence[Mapping[str, Any]] = ()
    receivers: Mapping[str, bool] = field(default_factory=dict)
    seconds: float = 0.0


class Families:
    """Gathers samples of the catalogue's metrics; what is None is left out, since Prometheus shows nothing better than
    a false zero."""

    def __init__(self) -> None:
        self._samples: dict[Metric, dict[tuple[str, ...], float]] = {}

    def add(self, labels: Mapping[str, object], /, **values: float | None) -> None:
        """Values by metric. labels: more than some of these have. A second sample with the same labels takes the place
        of the first."""
        for name, value in values.items():
            metric = CATALOGUE[name]
            samples = self._samples.setdefault(metric, {})
            if value is not None:
                samples[tuple(_readable(str(labels[label])) for label in metric.labels)] = float(value)

    def states(self, name: str, now: str, of: Iterable[str], labels: Mapping[str, object]) -> None:
        """A sample for each state, 1 for the one that is: the metric's last label."""
        for state in dict.fromkeys((*of, now)):
            self.add({**labels, CATALOGUE[name].labels[-1]: state}, **{name: state == now})

    def done(self) -> tuple[Family, ...]:
        """As the client library has them, in the order in which they came."""
        families = []
        for metric, samples in self._samples.items():
            kind = CounterMetricFamily if metric.name.endswith("_total") else GaugeMetricFamily
            families.append(family := kind(metric.name, metric.help, labels=metric.labels))
            for labels, value in samples.items():
                family.add_metric(labels, value)
        return tuple(families)


def metrics(scene: Scene) -> tuple[Family, ...]:
    """Every family that has a sample or could have one. A node that did not answer has l40s_node_up 0, and no figure
    of its hardware: an old one would pass for a new one."""
    families = Families()
    families.add({"version": __version__}, l40s_exporter_info=1, l40s_scrape_duration_seconds=scene.seconds)
    for gang, view in zip(scene.gangs, scene.views, strict=True):
        _gang(families, gang, view, scene)
        _lock(families, gang.name, scene.nodes)
        _past(families, gang.name, scene.past.get(gang.name, Past()))
        for node in view.nodes:
            _node(families, {"gang": gang.name, "node": node.name}, node, scene.nodes.get(node.name))
    for receiver, heard in scene.receivers.items():
        families.add({"receiver": receiver}, l40s_notifier_up=heard)
    if scene.router is not None:
        _router(families, scene.router, scene.views)
    for gang in scene.gangs:
        for member in gang.nodes:
            _hardware(families, {"gang": gang.name, "node": member.name}, scene.nodes.get(member.name))
    _measured(families, scene)
    return families.done()


def _readable(text: str) -> str:
    """A label's value, which may come from a node: it drives no terminal that shows the page."""
    return text if text.isprintable() else said(text)


def cause_labels(cause: Cause) -> dict[str, object]:
    """Where and by which entry of the catalogue of causes a gang failed."""
    rank = "" if cause.tp_rank is None else cause.tp_rank
    return {"node": cause.node, "tp_rank": rank, "cause": cause.signature or UNKNOWN_CAUSE}


def _place(view: GangView, router: RouterGlance | None) -> str | None:
    """The gang's place in the router; None where there is no router, or it does not list its workers."""
    return router.place(view.service_url) if router is not None and router.workers is not None else None


def _gang(families: Families, gang: GangSpec, view: GangView, scene: Scene) -> None:
    reason = degraded_reason(view, _place(view, scene.router))
    failed = view.cause if view.state is GangState.FAILED else None
    ready = [node.started_s - node.phase_s for node in view.nodes if node.phase.name == "ready" and node.alive]
    report = _report(scene.nodes.get(gang.leader.name), gang.name) if view.running else None
    probed = report.service_latency_s if report is not None else 0
    about = {name: getattr(view, name) for name in ("model", "stack", "plan_id", "run_id")}
    about |= {"gang": gang.name, "reason": reason, **(cause_labels(failed) if failed else {})}
    families.states("l40s_gang_state", view.state.value, _GANG_STATES, about)
    families.add(
        about,
        l40s_gang_info=1,
        l40s_gang_serving=view.serves,
        l40s_gang_degraded=1 if reason else None,
        l40s_gang_start_late=view.late is not None,
        l40s_gang_failed=1 if failed else None,
        l40s_gang_lease_seconds=gang.leader.lease_s,
        l40s_gang_max_queued=view.request_limit,
        l40s_gang_start_duration_seconds=max(ready, default=None),
        l40s_gang_canary_duration_seconds=probed if probed > 0 else None,
    )


def _lock(families: Families, gang: str, nodes: Mapping[str, FiguresAnswer | DeployError]) -> None:
    """By the first node that has one: a command holds it on all of them."""
    answers = [answer.locks for answer in nodes.values() if isinstance(answer, FiguresAnswer)]
    held, guard = (next((locks[name] for locks in answers if name in locks), None) for name in (gang, GUARD + gang))
    about = {"holder": held.name, "command": (held.command or "").split(" --")[0]} if held else {}
    families.add(
        {"gang": gang, **about},
        l40s_lock_held=1 if held else None,
        l40s_lock_age_seconds=held.age_s if held else None,
        l40s_guard_up=guard is not None and not guard.stale,
    )


def _report(answer: NodeAnswer, gang: str) -> Report | None:
    reports = answer.reports if isinstance(answer, FiguresAnswer) else ()
    report = Report.read(
        next((listed for listed in reports if isinstance(listed, Mapping) and listed.get("gang") == gang), None)
    )
    return report if isinstance(report, Report) else None


def _past(families: Families, gang: str, past: Past) -> None:
    for cause, count in past.restarts.items():
        families.add({"gang": gang, "cause": cause}, l40s_gang_restarts_total=count)
    if past.failure is not None:
        failed, at = past.failure
        families.add({"gang": gang, **cause_labels(failed)}, l40s_gang_last_failure_timestamp_seconds=at)
    for phase, seconds in past.phases.items():
        families.add({"gang": gang, "phase": phase}, l40s_gang_start_phase_duration_seconds=seconds)


def _node(families: Families, who: dict[str, object], node: NodeView, answer: NodeAnswer) -> None:
    answers = node.error is None
    families.add(who, l40s_node_up=answers, l40s_node_left_behind_processes=len(node.left_behind) if answers else None)
    families.states("l40s_node_state", node.state, _NODE_STATES, who)
    if node.alive:
        phase = node.phase
        families.states("l40s_node_phase", phase.name or "none", PHASES, who)
        families.add(
            who,
            l40s_node_phase_step=phase.step,
            l40s_node_phase_steps=phase.of,
            l40s_node_phase_age_seconds=node.phase_s,
        )
    for rank in node.ranks:
        alive = rank.state in (RankState.ALIVE, RankState.STOPPED)
        labels = {**who, "gpu": rank.gpu, "tp_rank": rank.tp_rank}
        families.add(labels, l40s_rank_alive=alive, l40s_rank_gpu_memory_bytes=rank.gpu_memory_bytes)
    report = _report(answer, str(who["gang"]))
    for peer, word in report.links.items() if report is not None else ():
        families.add({**who, "peer": peer}, l40s_node_peer_heard=word == "heard")


def _router(families: Families, router: RouterGlance, views: tuple[GangView, ...]) -> None:
    families.add(
        {"node": router.node},
        l40s_router_up=router.workers is not None,
        l40s_router_max_requests=router.request_limit,
    )
    gangs = {view.service_url.rstrip("/"): view.name for view in views if view.service_url}
    for worker in router.workers or ():
        families.add(
            {"gang": gangs.get(worker.url, ""), "url": worker.url},
            l40s_router_worker_healthy=worker.healthy,
            l40s_router_worker_requests=worker.load,
        )


def _hardware(families: Families, who: dict[str, object], answer: NodeAnswer) -> None:
    if not isinstance(answer, FiguresAnswer) or answer.gauges is None:
        return
    families.add(who, l40s_node_nvml_up=not answer.gauges.error)
    for gpu in answer.gauges.gpus:
        _gpu(families, {**who, "gpu": gpu.index}, gpu)
    for xid in answer.xids:
        families.add({**who, "pci_bus_id": xid.pci_bus_id, "xid": xid.xid}, l40s_gpu_xid_errors_total=xid.count)
    for port in answer.gauges.ports:
        _port(families, {**who, "device": port.device, "port": port.port}, port)


def _gpu(families: Families, who: dict[str, object], gpu: GpuGauges) -> None:
    families.add(who, l40s_gpu_up=not gpu.error)
    if gpu.error:
        return
    about = {"uuid": gpu.uuid or "", "name": gpu.name or "", "pci_bus_id": (gpu.pci_bus_id or "").lower()}
    figures = {metric: _times(getattr(gpu, figure), unit) for metric, figure, unit in _GPU_FIGURES}
    families.add({**who, **about}, l40s_gpu_info=1, **figures)
    bits = gpu.clocks_event_reasons
    for reason, bit in LIMITS.items():
        families.add({**who, "reason": reason}, l40s_gpu_clock_limited=None if bits is None else bool(bits & bit))
    for kind, count in (("corrected", gpu.ecc_corrected), ("uncorrected", gpu.ecc_uncorrected)):
        families.add({**who, "type": kind}, l40s_gpu_ecc_errors_total=count)


def _port(families: Families, who: dict[str, object], port: PortGauges) -> None:
    families.add(
        who,
        l40s_rail_up="ACTIVE" in port.state,
        l40s_rail_speed_bytes_per_second=_speed(port.rate),
        l40s_rail_received_bytes_total=_times(port.counters.get("port_rcv_data"), WORD),
        l40s_rail_transmitted_bytes_total=_times(port.counters.get("port_xmit_data"), WORD),
    )
    for metric, counters in _PORT_COUNTERS:
        for counter in counters:
            families.add({**who, "counter": counter}, **{metric: port.counters.get(counter)})


def _speed(rate: str) -> float | None:
    """Bytes a second out of '100 Gb/sec (4X EDR)'."""
    number, _, unit = rate.partition(" ")
    try:
        return float(number) * GIGABIT if unit.startswith("Gb/sec") else None
    except ValueError:
        return None


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _measured(families: Families, scene: Scene) -> None:
    """The newest of everything, of this inventory's gangs. What NCCL's lines show of the running ones is found now."""
    gangs = {gang.name for gang in scene.gangs}
    for kept, show in ((scene.benches, _bench), (scene.nettests, _nettest)):
        for record in kept:
            if record["gang"] in gangs:
                show(families, record)
    at, findings = scene.looked or (None, ())
    problems = [(kept_finding["id"], kept_finding["severity"], kept_finding["node"]) for kept_finding in findings]
    problems += [
        (finding.id, finding.severity.value, finding.node) for view in scene.views for finding in view.transport
    ]
    for (name, severity, node), count in Counter(problems).items():
        families.add({"id": name, "severity": severity, "node": node}, l40s_finding=count)
    families.add({}, l40s_doctor_last_look_timestamp_seconds=at)


def _bench(families: Families, bench: Mapping[str, Any]) -> None:
    load, serving = bench["load"], bench["serving"]
    words = f"{load.get('prompts')} x {load.get('input')}+{load.get('output')}, {load.get('concurrency')} at once"
    families.add(
        {**bench, "load": words},
        l40s_bench_timestamp_seconds=bench["at"],
        l40s_bench_output_tokens_per_second=serving.get("output_tok_s"),
        l40s_bench_first_token_seconds=_times(serving.get("ttft_median_ms"), MILLI),
        l40s_bench_inter_token_seconds=_times(serving.get("itl_median_ms"), MILLI),
        l40s_bench_accept_length=serving.get("accept_length"),
    )


def _nettest(families: Families, nettest: Mapping[str, Any]) -> None:
    verified = nettest.get("verification")
    families.add(
        nettest,
        l40s_nettest_timestamp_seconds=nettest["at"],
        l40s_nettest_slow=nettest["verdict"] == "slow",
        l40s_nettest_corrupt=verified.get("verdict") == "corrupt" if isinstance(verified, dict) else None,
    )
    for test in nettest["tests"]:
        labels = {"gang": nettest["gang"], "bytes": test["bytes"], "between": test["kind"]}
        seconds = _times(test.get("measured_us"), MICRO)
        families.add({**labels, "where": test.get("where", "")}, l40s_nettest_all_reduce_seconds=seconds)
    for link in nettest["links"]:
        labels = {"gang": nettest["gang"], "from": link["from"], "to": link["to"], "between": link["kind"]}
        slower = min(link.get("tries_gbps") or [link.get("measured_gbps")])
        families.add(labels, l40s_nettest_link_bytes_per_second=_times(slower, GIGABIT))


def restarts(runs: Sequence[PastRun], known: Collection[str] = ()) -> Counter[str]:
    """How many runs followed another, by why that one ended. runs: the newest first; known: ids of those that count
    already: nodes forget old runs, and a counter must not go back."""
    return Counter(
        STOPPED if ended.cause is None else ended.cause.signature or UNKNOWN_CAUSE
        for after, ended in itertools.pairwise(runs)
        if after.run_id not in known
    )


def last_failure(runs: Sequence[PastRun], now: float, clock: float) -> tuple[Cause, float] | None:
    """The newest failed run's cause, and when it was. now: our epoch seconds; clock: the node's when the runs were
    told."""
    failed = ((run.cause, run.ended) for run in runs if run.cause is not None)
    return next(((cause, now - max(0.0, clock - ended) if ended else now) for cause, ended in failed), None)


def phases(began: Mapping[str, float]) -> dict[str, float]:
    """How long each phase took, from when each began; the last one has no end. As records.starts keeps it."""
    order = sorted(began.items(), key=lambda phase: phase[1])
    return {name: after - at for (name, at), (_, after) in itertools.pairwise(order)}
