"""What NCCL logs of its transport: the lines of a start, and RDMA ports that it has left behind since.

With NCCL_IB_RESILIENCY_PORT_FAILOVER a connection continues over the other port of the same card, and stays there until
the engine is started anew. NCCL names no port (its device number counts within a card, on either side of a broken
path), so the ports of the plan are asked for their state.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from orchestrator.node import files
from orchestrator.node.agent.staged_run import Run
from orchestrator.node.bounded_log import predecessor
from orchestrator.node.files import ENGINE_LOG
from orchestrator.protocol.planned import NodeNetwork, takes
from orchestrator.protocol.report import RailChange, TransportLines

_FAILED = re.compile(r"NET/IB.{0,96}\bDevice \d{1,4} marked as failed\b")
"""NCCL src/transport/net_ib/p2p_resiliency.cc, ncclIbResiliencyHandleDeviceFailure: once a connection and side."""
_ROOT = "/sys/class/infiniband"


@dataclass
class Rails:
    """Feed the engine's lines, look from time to time; `gone` is what the report says."""

    network: NodeNetwork
    root: str = _ROOT
    moved: int = 0
    """Connections that NCCL has moved to another port."""
    gone: tuple[RailChange, ...] = ()
    _planned: tuple[str, ...] = field(init=False)
    _first: dict[str, RailChange] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._planned = self._ports() if self.network.notice_s else ()

    def feed(self, line: str) -> None:
        """Take one line of the engine's log."""
        if _FAILED.search(line):
            self.moved += 1

    def look(self, now: float) -> bool:
        """Ask the plan's ports; True where something has changed. A port that was down stays listed when it is back:
        NCCL does not return to it."""
        for port in self._planned:
            up = self._is_up(port)
            if not up:
                self._first.setdefault(port, RailChange(port=port, at=now))
            if port in self._first:
                self._first[port] = replace(self._first[port], up=up)
        before, self.gone = self.gone, tuple(self._first.values()) if self.moved else ()
        return self.gone != before

    def _ports(self) -> tuple[str, ...]:
        """Those that the plan names; where it names some by their beginning, or others by `^`, those of them that are
        up before the engine starts: NCCL takes no others."""
        if self.network.ports:
            return self.network.ports
        return tuple(
            f"{device}:{port}"
            for device in _listed(self.root)
            for port in _listed(f"{self.root}/{device}/ports")
            if port.isdecimal() and takes(self.network.hca, device, int(port)) and self._is_up(f"{device}:{port}")
        )

    def _is_up(self, port: str) -> bool:
        device, _, number = port.partition(":")
        try:
            with open(f"{self.root}/{device}/ports/{number or 1}/state", encoding="ascii") as file:
                return "ACTIVE" in file.read()
        except OSError:
            return not os.path.isdir(self.root)  # a card that is gone has no file; a machine without any shows none


def _listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


MOST_LINES = 300

_SAYS = re.compile(
    rb"NCCL INFO (NET/\w+ : (?:Using|GPU Direct|Made virtual)|Using network|comm 0x\w+ rank \d+ nRanks|"
    rb"\d+ coll channels|Channel \d+/\d+ : .{0,128} via NET/|NCCL version|NET/\w+ : No device)"
)
_WHO = re.compile(rb"^.*NCCL INFO ")
_COMM = re.compile(rb"comm 0x\w+ rank \d+")
_CHANNEL = re.compile(rb"Channel \d+/\d+ : .{0,128} via NET/")


def note(run: Run) -> None:
    """Extract the lines from the engine's log and save them. Reads the log once."""
    lines: dict[str, None] = {}
    for name in (predecessor(ENGINE_LOG), ENGINE_LOG):
        with contextlib.suppress(OSError), open(run.path(name), "rb") as file:
            _pick(file, lines)
    with contextlib.suppress(OSError):
        answer = TransportLines(network=run.network, lines=tuple(lines))
        files.write_json(run.path(files.TRANSPORT_FILE), answer.as_json())


def _pick(lines: Iterable[bytes], picked: dict[str, None]) -> None:
    for line in lines:
        if len(picked) >= MOST_LINES:
            return
        if _SAYS.search(line):
            words = _COMM.sub(b"comm", _WHO.sub(b"", line.rstrip()))
            words = _CHANNEL.sub(b"Channel 00/0 : any via NET/", words)
            picked.setdefault(words.decode("utf-8", "replace")[:500])
