"""What of the machines decides a speed and changes by itself: clocks, temperatures, counters of errors. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.model.snapshot import Snapshot
from orchestrator.model.topology import Topology
from orchestrator.protocol.gauges import slowed_by
from orchestrator.topology.gpus import nvml_devices
from orchestrator.topology.pci import number
from orchestrator.topology.rdma import port_folder

LOST = (
    *("hw_counters/out_of_sequence", "hw_counters/packet_seq_err", "hw_counters/local_ack_timeout_err"),
    *("hw_counters/rnr_nak_retry_err", "hw_counters/rx_icrc_encapsulated"),
)
LINK_ERRORS = (
    *("counters/symbol_error", "counters/link_error_recovery", "counters/link_downed", "counters/port_rcv_errors"),
    "counters/local_link_integrity_errors",
)
"""Counters of packets that were lost or sent again, and of a port's link, below its folder in sysfs."""
_GPU = {
    "clock_mhz": "sm_clock_mhz",
    "most_mhz": "sm_clock_max_mhz",
    "temperature_c": "temperature_c",
    "power_mw": "power_mw",
    "reasons": "clocks_event_reasons",
}
State = Mapping[str, Any]
"""One node: {"gpus": {index: {clock_mhz, ...}}, "errors": {"mlx5_0:1 counters/symbol_error": count}}."""


def state_of(snapshot: Snapshot, topology: Topology) -> dict[str, Any]:
    """What one node shows; a figure that it does not tell is left out."""
    return {"gpus": dict(_gpus(snapshot)), "errors": dict(_errors(snapshot, topology))}


def _gpus(snapshot: Snapshot) -> Iterator[tuple[str, dict[str, int]]]:
    for device in nvml_devices(snapshot.nvml):
        figures = {ours: device.get(theirs) for ours, theirs in _GPU.items()}
        yield str(device.get("index")), {name: value for name, value in figures.items() if type(value) is int}


def _errors(snapshot: Snapshot, topology: Topology) -> Iterator[tuple[str, int]]:
    for port in topology.rdma:
        folder = port_folder(snapshot, port)
        for name in (*LOST, *LINK_ERRORS):
            text = snapshot.files.get(f"{folder}/{name}")
            if text is not None and (count := number(text.strip())) >= 0:
                yield f"{port.name} {name}", count


def throttled(states: Mapping[str, State]) -> Iterator[str]:
    """Throttled GPUs, as text."""
    for node, state in states.items():
        for index, gpu in state["gpus"].items():
            if why := slowed_by(gpu.get("reasons")):
                has_clocks = {"clock_mhz", "most_mhz"} <= gpu.keys()
                clock = f" at {gpu['clock_mhz']} of {gpu['most_mhz']} MHz" if has_clocks else ""
                heat = f", {gpu['temperature_c']} C" if "temperature_c" in gpu else ""
                yield f"{node}: GPU {index} is throttled{clock}{heat}: {', '.join(why)}"


def grown(before: Mapping[str, State], after: Mapping[str, State]) -> Iterator[str]:
    """Error counters that grew meanwhile, as text."""
    for node, state in after.items():
        first = before.get(node, {"errors": {}})["errors"]
        for name, count in state["errors"].items():
            if (more := count - first.get(name, count)) > 0:
                yield f"{node}: {name} grew by {more} during the run"
