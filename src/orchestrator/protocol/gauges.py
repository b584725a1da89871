"""What moves on a node while it serves: its GPUs' sensors, its RDMA ports' counters, and its gang's figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from orchestrator.protocol.message import Message, schema
from orchestrator.protocol.verbs import GangRequest, LockHolder, OtherAgent

_SLOWING = {0x08: "hardware slowdown", 0x20: "software thermal", 0x40: "hardware thermal", 0x80: "power brake"}


def slowed_by(reasons: int | None) -> list[str]:
    """Bits of nvmlClocksEventReasons that stand for less than the clocks that were asked for, as text."""
    return [word for bit, word in _SLOWING.items() if (reasons or 0) & bit]


@schema(frozen=True, slots=True, kw_only=True)
class GpuGauges(Message):
    """One GPU by NVML's index; None where the driver does not tell. error: why nothing is known of it."""

    index: int
    uuid: str | None = None
    name: str | None = None
    pci_bus_id: str | None = None
    temperature_c: int | None = None
    power_mw: int | None = None
    power_limit_mw: int | None = None
    utilization_percent: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_total_bytes: int | None = None
    sm_clock_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    clocks_event_reasons: int | None = None
    """Bits of nvmlClocksEventReasons: why a clock is below its maximum."""
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    """Since the driver was loaded."""
    error: str = ""


@schema(frozen=True, slots=True, kw_only=True)
class PortGauges(Message):
    """One RDMA port. counters: the kernel's names below counters/ and hw_counters/, each since the driver was loaded.

    state, rate: the kernel's words, as '4: ACTIVE' and '100 Gb/sec (4X EDR)'.
    """

    device: str
    port: int
    state: str = ""
    rate: str = ""
    counters: Mapping[str, int] = field(default_factory=dict)


@schema(frozen=True, slots=True, kw_only=True)
class GaugesAnswer(Message):
    """now: node's epoch seconds when the counters were read; error: why NVML says nothing; unread: paths that could
    not be read, with the reason."""

    now: float
    gpus: tuple[GpuGauges, ...] = ()
    ports: tuple[PortGauges, ...] = ()
    error: str = ""
    unread: Mapping[str, str] = field(default_factory=dict)


@schema(frozen=True, slots=True, kw_only=True)
class XidCount(Message):
    """How often the driver reported one Xid error of one GPU since the last boot."""

    pci_bus_id: str
    xid: int
    count: int


@schema(frozen=True, slots=True, kw_only=True)
class FiguresRequest(GangRequest):
    """gang: '' for all of them. gangs: their reports and locks too."""

    fs_root: str = "/"
    nvml_deadline_s: float = 2.0
    gangs: bool = True


@schema(frozen=True, slots=True, kw_only=True)
class FiguresAnswer(Message):
    """reports: one a gang, each read on its own; locks: who holds what, by gang; without_files: living agents that no
    file tells of.

    kernel_log: why the kernel's log can't be read, '' where it can
    """

    now: float
    reports: tuple[Any, ...] = ()
    locks: Mapping[str, LockHolder] = field(default_factory=dict)
    without_files: tuple[OtherAgent, ...] = ()
    gauges: GaugesAnswer | None = None
    xids: tuple[XidCount, ...] = ()
    kernel_log: str = ""
