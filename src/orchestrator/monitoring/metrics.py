"""What one scrape saw, as metrics: of hardware, of gangs, and what was measured earlier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from orchestrator.gang.rates import CONGESTION, DISCARDS, ERRORS, WORD
from orchestrator.monitoring import catalogue as names
from orchestrator.monitoring.catalogue import Families, Family
from orchestrator.monitoring.gangs import gang_figures
from orchestrator.monitoring.scene import Scene
from orchestrator.protocol.gauges import FiguresAnswer, GpuGauges, PortGauges


def metrics(scene: Scene) -> tuple[Family, ...]:
    """Every family that has a sample or could have one. A node that did not answer has l40s_node_up 0, and no figure
    of its hardware: an old one would pass for a new one."""
    families = Families()
    families.add(names.EXPORTER_INFO, 1, version=scene.version)
    families.add(names.SCRAPE_SECONDS, scene.seconds)
    gang_figures(families, scene)
    hardware_figures(families, scene)
    measured_figures(families, scene)
    return families.done()


MHZ = 1e6
GIGABIT = 1e9 / 8

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


def hardware_figures(families: Families, scene: Scene) -> None:
    """Every node that answered."""
    for gang in scene.gangs:
        for node in gang.nodes:
            answer = scene.nodes.get(node.name)
            if isinstance(answer, FiguresAnswer) and answer.gauges is not None:
                _node(families, {"gang": gang.name, "node": node.name}, answer)


def _node(families: Families, who: dict[str, object], answer: FiguresAnswer) -> None:
    assert answer.gauges is not None
    families.add(names.NVML_UP, not answer.gauges.error, **who)
    for gpu in answer.gauges.gpus:
        _gpu(families, {**who, "gpu": gpu.index}, gpu)
    for one in answer.xids:
        families.add(names.GPU_XID, one.count, **who, pci_bus_id=one.pci_bus_id, xid=one.xid)
    for port in answer.gauges.ports:
        _port(families, {**who, "device": port.device, "port": port.port}, port)


def _gpu(families: Families, who: dict[str, object], gpu: GpuGauges) -> None:
    families.add(names.GPU_UP, not gpu.error, **who)
    if gpu.error:
        return
    families.add(
        names.GPU_INFO, 1, **who, uuid=gpu.uuid or "", name=gpu.name or "", pci_bus_id=(gpu.pci_bus_id or "").lower()
    )
    families.add(names.GPU_TEMPERATURE, gpu.temperature_c, **who)
    families.add(names.GPU_POWER, _times(gpu.power_mw, 1e-3), **who)
    families.add(names.GPU_POWER_LIMIT, _times(gpu.power_limit_mw, 1e-3), **who)
    families.add(names.GPU_BUSY, _times(gpu.utilization_percent, 1e-2), **who)
    families.add(names.GPU_MEMORY_USED, gpu.memory_used_bytes, **who)
    families.add(names.GPU_MEMORY, gpu.memory_total_bytes, **who)
    families.add(names.GPU_CLOCK, _times(gpu.sm_clock_mhz, MHZ), **who)
    families.add(names.GPU_CLOCK_MAX, _times(gpu.sm_clock_max_mhz, MHZ), **who)
    bits = gpu.clocks_event_reasons
    for reason, bit in LIMITS.items():
        families.add(names.GPU_LIMITED, None if bits is None else bool(bits & bit), **who, reason=reason)
    families.add(names.GPU_ECC, gpu.ecc_corrected, **who, type="corrected")
    families.add(names.GPU_ECC, gpu.ecc_uncorrected, **who, type="uncorrected")


def _port(families: Families, who: dict[str, object], port: PortGauges) -> None:
    families.add(names.RAIL_UP, "ACTIVE" in port.state, **who)
    families.add(names.RAIL_SPEED, _speed(port.rate), **who)
    families.add(names.RAIL_RECEIVED, _times(port.counters.get("port_rcv_data"), WORD), **who)
    families.add(names.RAIL_SENT, _times(port.counters.get("port_xmit_data"), WORD), **who)
    for metric, counters in (
        (names.RAIL_ERRORS, ERRORS),
        (names.RAIL_DISCARDS, DISCARDS),
        (names.RAIL_MARKS, CONGESTION),
    ):
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


MILLI = 1e-3
MICRO = 1e-6


def measured_figures(families: Families, scene: Scene) -> None:
    """The newest of everything, of this inventory's gangs."""
    gangs = {gang.name for gang in scene.gangs}
    for bench in scene.measured.benches:
        if bench["gang"] in gangs:
            _bench(families, bench)
    for nettest in scene.measured.nettests:
        if nettest["gang"] in gangs:
            _nettest(families, nettest)
    _findings(families, scene)


def _findings(families: Families, scene: Scene) -> None:
    """What NCCL's lines show of the running gangs counts as found now."""
    running = [(finding.id, finding.severity.value, finding.node) for view in scene.views for finding in view.transport]
    kept = scene.looked.findings if scene.looked is not None else ()
    for (name, severity, node), count in Counter([*kept, *running]).items():
        families.add(names.FINDING, count, id=name, severity=severity, node=node)
    families.add(names.DOCTOR_AT, scene.looked.at if scene.looked is not None else None)


def _bench(families: Families, bench: Mapping[str, Any]) -> None:
    load = bench["load"]
    words = f"{load.get('prompts')} x {load.get('input')}+{load.get('output')}, {load.get('concurrency')} at once"
    who = {"gang": bench["gang"], "model": bench["model"], "stack": bench["stack"], "load": words}
    serving = bench["serving"]
    families.add(names.BENCH_AT, bench["at"], **who)
    families.add(names.BENCH_TOKENS, serving.get("output_tok_s"), **who)
    families.add(names.BENCH_TTFT, _times(serving.get("ttft_median_ms"), MILLI), **who)
    families.add(names.BENCH_ITL, _times(serving.get("itl_median_ms"), MILLI), **who)


def _nettest(families: Families, nettest: Mapping[str, Any]) -> None:
    gang = nettest["gang"]
    families.add(names.NETTEST_AT, nettest["at"], gang=gang)
    families.add(names.NETTEST_SLOW, nettest["verdict"] == "slow", gang=gang)
    if isinstance(verification := nettest.get("verification"), dict):
        families.add(names.NETTEST_CORRUPT, verification.get("verdict") == "corrupt", gang=gang)
    for test in nettest["tests"]:
        labels = {"gang": gang, "bytes": test["bytes"], "between": test["kind"], "where": test.get("where", "")}
        families.add(names.NETTEST_REDUCE, _times(test.get("measured_us"), MICRO), **labels)
    for link in nettest["links"]:
        labels = {"gang": gang, "from": link["from"], "to": link["to"], "between": link["kind"]}
        slower = min(link.get("tries_gbps") or [link.get("measured_gbps")])
        families.add(names.NETTEST_LINK, _times(slower, GIGABIT), **labels)
