"""What a pasted text says that was measured, counted or runs, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.model.per_node import collected
from orchestrator.model.snapshot import part
from orchestrator.topology.stated import mappings, texts
from orchestrator.topology.text_words import spans


def measures(also: Mapping[str, Any]) -> Iterator[str]:
    """Each as it was printed; nothing is concluded."""
    yield from _bandwidths(part(also, "bandwidths"))
    if waived := texts(also.get("waived")):
        yield f"nvbandwidth left out what needs access between GPUs: {spans(waived)}"
    yield from _runs(also.get("perftest"))
    yield from _collectives(also)
    yield from _links(also.get("links_alone"))
    yield from _drawn(also.get("drawn"))
    yield from _ethernet(part(also, "ethtool"))
    yield from _changing(part(also, "link_states"))
    if counters := part(also, "counters"):
        yield "counted: " + ", ".join(f"{name} {count}" for name, count in counters.items())
    for unit, state in part(also, "services").items():
        yield f"{unit}.service is {state}"
    if also.get("wsl") is True:
        yield "Windows Subsystem for Linux (WSL2)"
    if modules := texts(also.get("modules")):
        yield f"loaded: {spans(dict.fromkeys(modules))}"
    if devices := texts(also.get("rdma_devices")):
        yield f"RDMA devices: {spans(devices)}"


def _changing(states: Mapping[str, Any]) -> Iterator[str]:
    """RDMA devices that `rdma link` lists several times."""
    for device, raw in states.items():
        if len({*(own := texts(raw))}) > 1:
            yield f"{device} is in several states in the text, the last of which stands below: {', '.join(own)}"


def _collectives(also: Mapping[str, Any]) -> Iterator[str]:
    """Of nccl-tests."""
    if bus := texts(also.get("bus")):
        yield f"nccl-tests measured a bus bandwidth of {' and '.join(bus)} on average"
    largest = also.get("largest")
    if isinstance(largest, (list, tuple)) and len(largest) == 2 and isinstance(largest[0], int):
        yield f"nccl-tests: a bus bandwidth of {largest[1]} GB/s with {largest[0]} bytes"
    if isinstance(also.get("wrong_values"), int):
        yield f"nccl-tests found {also['wrong_values']} wrong values"


def between(numbers: Sequence[float]) -> str:
    """'9.65 to 10.2', or one number where all are that."""
    least, most = f"{min(numbers):.3g}", f"{max(numbers):.3g}"
    return least if least == most else f"{least} to {most}"


def _bandwidths(measured: Mapping[str, Any]) -> Iterator[str]:
    for way, speeds in measured.items():
        if numbers := [speed for speed in speeds if isinstance(speed, float)]:
            yield f"nvbandwidth, {way}: {between(numbers)} GB/s"


def _runs(raw: Any) -> Iterator[str]:
    for run in mappings(raw):
        device = str(run.get("Device") or "")
        software = ["software RoCE"] if device.startswith("rxe") else []
        how = [words.format(str(run[name]).partition("[")[0]) for name, words in _HOW.items() if run.get(name)]
        at = f" by {device}" if device else ""
        yield f"{run.get('test')}{at}: {', '.join([*software, *how]) or 'without a result in the text'}"


_HOW = {"average": "{} on average", "Mtu": "MTU {}", "Link type": "{}", "GID index": "GID index {}"}


def _links(raw: Any) -> Iterator[str]:
    """PCIe links of which nothing says whose they are."""
    pairs = [texts(pair) for pair in raw] if isinstance(raw, (list, tuple)) else []
    kinds = collected((pair, number) for number, pair in enumerate(pairs) if len(pair) == len(("now", "most")))
    for (now, most), places in kinds.items():
        count = f"{len(places)} PCIe links" if len(places) > 1 else "a PCIe link"
        yield f"{count} of which the text does not say whose: {_link(now, most)}"


def _drawn(raw: Any) -> Iterator[str]:
    """Host bridges of lstopo."""
    for bridge in mappings(raw):
        domain = f" of NUMA domain {bridge['domain']}" if bridge.get("domain") else ""
        yield f"below a host bridge{domain}: {', '.join(texts(bridge.get('devices')))}"


def _link(now: str, most: str) -> str:
    if now.endswith(" x0"):
        return f"x0{f' of {most}' if most else ''}: nothing is connected there"
    slower = most and now != most and now.rpartition(" ")[2] == most.rpartition(" ")[2]
    idle = " (a GPU's speed is lower while it is idle)" if slower else ""
    return f"{now}{f' of {most}' if most else ''}{idle}"


def _ethernet(interfaces: Mapping[str, Any]) -> Iterator[str]:
    """'eth0: Speed 25000Mb/s, Link detected yes', 'pauses of eth0: RX off, TX off'."""
    for name in interfaces:
        fields = part(interfaces, name)
        yield f"{name}: {', '.join(f'{field} {value}' for field, value in fields.items())}"
