"""What is asked of a node every few seconds, by a monitoring system or by who watches, in one answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.protocol.gauges import GaugesAnswer, XidCount
from orchestrator.protocol.message import Message
from orchestrator.protocol.verbs import GangRequest, HttpAnswer, HttpRequest, LockHolder


@dataclass(frozen=True, slots=True, kw_only=True)
class FiguresRequest(GangRequest):
    """gang: '' for all of them. gangs: their reports and locks; hardware: GPUs, RDMA ports and the kernel's log; asks:
    made from the node."""

    fs_root: str = "/"
    nvml_deadline_s: float = 2.0
    gangs: bool = True
    hardware: bool = True
    asks: tuple[HttpRequest, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FiguresAnswer(Message):
    """reports: one a gang, each read on its own; locks: who holds what, by gang.

    kernel_log: why the kernel's log can't be read, '' where it can; answers: in the order of `asks`
    """

    now: float
    reports: tuple[Any, ...] = ()
    locks: Mapping[str, LockHolder] = field(default_factory=dict)
    gauges: GaugesAnswer | None = None
    xids: tuple[XidCount, ...] = ()
    kernel_log: str = ""
    answers: tuple[HttpAnswer, ...] = ()
