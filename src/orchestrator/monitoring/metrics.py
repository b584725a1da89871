"""What one scrape saw, as metrics: of gangs and their earlier runs, of hardware, and what was measured earlier."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family

from orchestrator.doctor.rules.support.catalogue import UNKNOWN_CAUSE
from orchestrator.engines.serving import Worker
from orchestrator.gang.history import PastRun
from orchestrator.gang.overview import degraded_reason
from orchestrator.gang.pace import PHASES
from orchestrator.gang.rates import CONGESTION, DISCARDS, ERRORS, WORD
from orchestrator.gang.view import GangView, NodeView
from orchestrator.model.errors import DeployError
from orchestrator.model.gang_state import GangState, NodeState
from orchestrator.model.inventory import GangSpec
from orchestrator.monitoring.catalogue import CATALOGUE, Metric
from orchestrator.protocol.gauges import FiguresAnswer, GpuGauges, PortGauges
from orchestrator.protocol.report import Cause, RankState
from orchestrator.protocol.verbs import LockHolder

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


@dataclass(frozen=True, slots=True, kw_only=True)
class GangFailure:
    """The newest failure of a gang. at: our epoch seconds."""

    cause: Cause
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What is known of a gang's earlier runs. restarts: by why the run before ended; phases: seconds of each phase of
    the last start."""

    restarts: Mapping[str, int] = field(default_factory=dict)
    failure: GangFailure | None = None
    phases: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSeen:
    """workers: None where the router did not list them."""

    node: str
    workers: tuple[Worker, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Everything that one scrape saw. views: the gangs in the order of `gangs`; version: ours

    nodes:     what each node of the gangs answered, or why it did not
    past:      by gang
    looked:    when doctor looked last (our epoch seconds), and its findings as they are kept
    benches, nettests: documents that these verbs keep: the newest of each load, and of each gang
    receivers: of notifications: whether the last one arrived, by what may be shown of each
    seconds:   how long the asking took
    """

    version: str
    gangs: tuple[GangSpec, ...]
    views: tuple[GangView, ...]
    nodes: Mapping[str, FiguresAnswer | DeployError]
    past: Mapping[str, Past] = field(default_factory=dict)
    router: RouterSeen | None = None
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

    def add(self, name: str, value: float | None, /, **labels: object) -> None:
        """A second sample with the same labels takes the place of the first."""
        metric = CATALOGUE[name]
        samples = self._samples.setdefault(metric, {})
        if value is not None:
            samples[tuple(str(labels[label]) for label in metric.labels)] = float(value)

    def states(self, name: str, now: str, of: Iterable[str], /, **labels: object) -> None:
        """A sample for each state, 1 for the one that is: the metric's last label."""
        for state in dict.fromkeys((*of, now)):
            self.add(name, state == now, **labels, **{CATALOGUE[name].labels[-1]: state})

    def done(self) -> tuple[Family, ...]:
        """As the client library has them, in the order in which they came."""
        found = []
        for metric, samples in self._samples.items():
            kind = CounterMetricFamily if metric.name.endswith("_total") else GaugeMetricFamily
            found.append(family := kind(metric.name, metric.help, labels=metric.labels))
            for labels, value in samples.items():
                family.add_metric(labels, value)
        return tuple(found)


def metrics(scene: Scene) -> tuple[Family, ...]:
    """Every family that has a sample or could have one. A node that did not answer has l40s_node_up 0, and no figure
    of its hardware: an old one would pass for a new one."""
    families = Families()
    families.add("l40s_exporter_info", 1, version=scene.version)
    families.add("l40s_scrape_duration_seconds", scene.seconds)
    _gangs(families, scene)
    for gang in scene.gangs:
        for node in gang.nodes:
            answer = scene.nodes.get(node.name)
            if isinstance(answer, FiguresAnswer) and answer.gauges is not None:
                _hardware(families, {"gang": gang.name, "node": node.name}, answer)
    _measured(families, scene)
    return families.done()


def _gangs(families: Families, scene: Scene) -> None:
    """Every gang with its nodes and ranks, and the router before them."""
    for gang, view in zip(scene.gangs, scene.views, strict=True):
        _gang(families, gang, view, scene)
        _past(families, gang, view, scene.past.get(gang.name, Past()))
        for node in view.nodes:
            _node_state(families, gang.name, node)
            links = _raw_report(scene.nodes.get(node.name), gang.name).get("links")
            for peer, word in links.items() if isinstance(links, Mapping) else ():
                families.add("l40s_node_peer_heard", word == "heard", gang=gang.name, node=node.name, peer=peer)
    for receiver, heard in scene.receivers.items():
        families.add("l40s_notifier_up", heard, receiver=receiver)
    if scene.router is not None:
        _router(families, scene.router, scene.views)


def cause_labels(cause: Cause) -> dict[str, object]:
    """Where and by which entry of the catalogue of causes a gang failed."""
    rank = "" if cause.tp_rank is None else cause.tp_rank
    return {"node": cause.node, "tp_rank": rank, "cause": cause.signature or UNKNOWN_CAUSE}


def _gang(families: Families, gang: GangSpec, view: GangView, scene: Scene) -> None:
    name = gang.name
    place = _place(scene.router, view) if scene.router is not None else None
    reason = degraded_reason(view, place)
    families.add(
        "l40s_gang_info", 1, gang=name, model=view.model, stack=view.stack, plan_id=view.plan_id, run_id=view.run_id
    )
    families.states("l40s_gang_state", view.state.value, (state.value for state in GangState), gang=name)
    families.add("l40s_gang_serving", view.serves, gang=name)
    families.add("l40s_gang_degraded", 1 if reason else None, gang=name, reason=reason)
    families.add("l40s_gang_start_late", view.late is not None, gang=name)
    failed = view.cause if view.state is GangState.FAILED else None
    families.add("l40s_gang_failed", 1 if failed else None, gang=name, **(cause_labels(failed) if failed else {}))
    families.add("l40s_gang_lease_seconds", gang.leader.lease_s, gang=name)
    _locks(families, name, scene.nodes)
    ready = [node.started_s - node.phase_s for node in view.nodes if node.phase.name == "ready" and node.alive]
    families.add("l40s_gang_start_duration_seconds", max(ready, default=None), gang=name)
    taken = _raw_report(scene.nodes.get(gang.leader.name), name).get("service_latency_s")
    probed = view.running and isinstance(taken, (int, float)) and taken > 0
    families.add("l40s_gang_canary_duration_seconds", taken if probed else None, gang=name)


def _raw_report(answer: FiguresAnswer | DeployError | None, gang: str) -> Mapping[str, Any]:
    reports = answer.reports if isinstance(answer, FiguresAnswer) else ()
    return next((one for one in reports if isinstance(one, Mapping) and one.get("gang") == gang), {})


def _locks(families: Families, gang: str, nodes: Mapping[str, FiguresAnswer | DeployError]) -> None:
    """Of the first node that has one: a command holds the lock on all of them."""
    answers = [answer for answer in nodes.values() if isinstance(answer, FiguresAnswer)]

    def holder(name: str) -> LockHolder | None:
        return next((answer.locks[name] for answer in answers if name in answer.locks), None)

    held, guard = holder(gang), holder(GUARD + gang)
    families.add(
        "l40s_lock_held",
        1 if held else None,
        gang=gang,
        holder=held.name if held else "",
        command=(held.command or "").split(" --")[0] if held else "",
    )
    families.add("l40s_lock_age_seconds", held.age_s if held else None, gang=gang)
    families.add("l40s_guard_up", guard is not None and not guard.stale, gang=gang)


def _past(families: Families, gang: GangSpec, view: GangView, past: Past) -> None:
    for cause, count in past.restarts.items():
        families.add("l40s_gang_restarts_total", count, gang=gang.name, cause=cause)
    if past.failure is not None:
        families.add(
            "l40s_gang_last_failure_timestamp_seconds",
            past.failure.at,
            gang=view.name,
            **cause_labels(past.failure.cause),
        )
    for phase, seconds in past.phases.items():
        families.add("l40s_gang_start_phase_duration_seconds", seconds, gang=gang.name, phase=phase)


def _node_state(families: Families, gang: str, node: NodeView) -> None:
    who = {"gang": gang, "node": node.name}
    families.add("l40s_node_up", node.error is None, **who)
    families.states("l40s_node_state", node.state, _NODE_STATES, **who)
    if node.alive:
        families.states("l40s_node_phase", node.phase.name or "none", PHASES, **who)
        families.add("l40s_node_phase_step", node.phase.step, **who)
        families.add("l40s_node_phase_steps", node.phase.of, **who)
        families.add("l40s_node_phase_age_seconds", node.phase_s, **who)
    families.add("l40s_node_left_behind_processes", len(node.left_behind) if node.error is None else None, **who)
    for rank in node.ranks:
        labels = {**who, "gpu": rank.gpu, "tp_rank": rank.tp_rank}
        families.add("l40s_rank_alive", rank.state in (RankState.ALIVE, RankState.STOPPED), **labels)
        families.add("l40s_rank_gpu_memory_bytes", rank.gpu_memory_bytes, **labels)


def _place(router: RouterSeen, view: GangView) -> str | None:
    if router.workers is None:
        return None
    worker = next((one for one in router.workers if one.url == view.service_url.rstrip("/")), None)
    return "out" if worker is None else "in" if worker.healthy else "unhealthy"


def _router(families: Families, router: RouterSeen, views: tuple[GangView, ...]) -> None:
    families.add("l40s_router_up", router.workers is not None, node=router.node)
    gangs = {view.service_url.rstrip("/"): view.name for view in views if view.service_url}
    for worker in router.workers or ():
        families.add("l40s_router_worker_healthy", worker.healthy, gang=gangs.get(worker.url, ""), url=worker.url)
        families.add("l40s_router_worker_requests", worker.load, gang=gangs.get(worker.url, ""), url=worker.url)


def _hardware(families: Families, who: dict[str, object], answer: FiguresAnswer) -> None:
    assert answer.gauges is not None
    families.add("l40s_node_nvml_up", not answer.gauges.error, **who)
    for gpu in answer.gauges.gpus:
        _gpu(families, {**who, "gpu": gpu.index}, gpu)
    for one in answer.xids:
        families.add("l40s_gpu_xid_errors_total", one.count, **who, pci_bus_id=one.pci_bus_id, xid=one.xid)
    for port in answer.gauges.ports:
        _port(families, {**who, "device": port.device, "port": port.port}, port)


def _gpu(families: Families, who: dict[str, object], gpu: GpuGauges) -> None:
    families.add("l40s_gpu_up", not gpu.error, **who)
    if gpu.error:
        return
    families.add(
        "l40s_gpu_info", 1, **who, uuid=gpu.uuid or "", name=gpu.name or "", pci_bus_id=(gpu.pci_bus_id or "").lower()
    )
    for metric, figure, unit in _GPU_FIGURES:
        families.add(metric, _times(getattr(gpu, figure), unit), **who)
    bits = gpu.clocks_event_reasons
    for reason, bit in LIMITS.items():
        families.add("l40s_gpu_clock_limited", None if bits is None else bool(bits & bit), **who, reason=reason)
    families.add("l40s_gpu_ecc_errors_total", gpu.ecc_corrected, **who, type="corrected")
    families.add("l40s_gpu_ecc_errors_total", gpu.ecc_uncorrected, **who, type="uncorrected")


def _port(families: Families, who: dict[str, object], port: PortGauges) -> None:
    families.add("l40s_rail_up", "ACTIVE" in port.state, **who)
    families.add("l40s_rail_speed_bytes_per_second", _speed(port.rate), **who)
    families.add("l40s_rail_received_bytes_total", _times(port.counters.get("port_rcv_data"), WORD), **who)
    families.add("l40s_rail_transmitted_bytes_total", _times(port.counters.get("port_xmit_data"), WORD), **who)
    for metric, counters in _PORT_COUNTERS:
        for counter in counters:
            families.add(metric, port.counters.get(counter), **who, counter=counter)


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
    for bench in scene.benches:
        if bench["gang"] in gangs:
            _bench(families, bench)
    for nettest in scene.nettests:
        if nettest["gang"] in gangs:
            _nettest(families, nettest)
    at, kept = scene.looked or (None, ())
    found = [(one["id"], one["severity"], one["node"]) for one in kept]
    found += [(finding.id, finding.severity.value, finding.node) for view in scene.views for finding in view.transport]
    for (name, severity, node), count in Counter(found).items():
        families.add("l40s_finding", count, id=name, severity=severity, node=node)
    families.add("l40s_doctor_last_look_timestamp_seconds", at)


def _bench(families: Families, bench: Mapping[str, Any]) -> None:
    load = bench["load"]
    words = f"{load.get('prompts')} x {load.get('input')}+{load.get('output')}, {load.get('concurrency')} at once"
    who = {"gang": bench["gang"], "model": bench["model"], "stack": bench["stack"], "load": words}
    serving = bench["serving"]
    families.add("l40s_bench_timestamp_seconds", bench["at"], **who)
    families.add("l40s_bench_output_tokens_per_second", serving.get("output_tok_s"), **who)
    families.add("l40s_bench_first_token_seconds", _times(serving.get("ttft_median_ms"), MILLI), **who)
    families.add("l40s_bench_inter_token_seconds", _times(serving.get("itl_median_ms"), MILLI), **who)


def _nettest(families: Families, nettest: Mapping[str, Any]) -> None:
    gang = nettest["gang"]
    families.add("l40s_nettest_timestamp_seconds", nettest["at"], gang=gang)
    families.add("l40s_nettest_slow", nettest["verdict"] == "slow", gang=gang)
    if isinstance(verification := nettest.get("verification"), dict):
        families.add("l40s_nettest_corrupt", verification.get("verdict") == "corrupt", gang=gang)
    for test in nettest["tests"]:
        labels = {"gang": gang, "bytes": test["bytes"], "between": test["kind"], "where": test.get("where", "")}
        families.add("l40s_nettest_all_reduce_seconds", _times(test.get("measured_us"), MICRO), **labels)
    for link in nettest["links"]:
        labels = {"gang": gang, "from": link["from"], "to": link["to"], "between": link["kind"]}
        slower = min(link.get("tries_gbps") or [link.get("measured_gbps")])
        families.add("l40s_nettest_link_bytes_per_second", _times(slower, GIGABIT), **labels)


def restarts(runs: Sequence[PastRun], known: Collection[str] = ()) -> Counter[str]:
    """How many runs followed another, by why that one ended. runs: the newest first; known: ids of those that count
    already: nodes forget old runs, and a counter must not go back."""
    return Counter(
        STOPPED if ended.cause is None else ended.cause.signature or UNKNOWN_CAUSE
        for after, ended in itertools.pairwise(runs)
        if after.run_id not in known
    )


def last_failure(runs: Sequence[PastRun], now: float, clock: float) -> GangFailure | None:
    """The newest failed run's. now: our epoch seconds; clock: the node's when the runs were told."""
    failed = next((run for run in runs if run.cause is not None), None)
    if failed is None or failed.cause is None:
        return None
    return GangFailure(cause=failed.cause, at=now - max(0.0, clock - failed.ended) if failed.ended else now)


def phases(began: Mapping[str, float]) -> dict[str, float]:
    """How long each phase took, from when each began; the last one has no end. As records.starts keeps it."""
    order = sorted(began.items(), key=lambda one: one[1])
    return {name: after - at for (name, at), (_, after) in itertools.pairwise(order)}
