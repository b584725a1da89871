"""A finding: one diagnosis in plain words, with its evidence and the fix."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.protocol.severity import Severity


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One diagnosis.

    id:       stable, for example NIC-NOT-UNDER-SWITCH
    node:     where; '' for the whole cluster
    devices:  PCI addresses, RDMA devices, interfaces or GPUs concerned
    evidence: the files and values it rests on, one 'path = value' each
    effect:   what it costs, with numbers where the model gives them
    fix:      what to do, the exact command where one exists
    """

    id: str
    severity: Severity
    node: str
    devices: tuple[str, ...] = ()
    title: str
    evidence: tuple[str, ...] = ()
    effect: str = ""
    fix: str = ""

    def as_json(self) -> dict[str, Any]:
        """As every document of the product has it."""
        return {**asdict(self), "severity": self.severity.value}
