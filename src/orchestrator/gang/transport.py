"""Whether a gang's traffic travels as planned, from what NCCL said on every node. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.engines.nccl_log import findings
from orchestrator.model.finding import Finding
from orchestrator.protocol.report import Report


def transport(reports: Mapping[str, Report]) -> tuple[Finding, ...]:
    """Findings of all nodes; none for one node alone, or where the engine uses no GPUs."""
    if len(reports) < 2:
        return ()
    return tuple(
        finding
        for name, report in reports.items()
        if report.transport is not None and report.transport.planned.get("NCCL_DEBUG")
        for finding in findings(name, report.transport.planned, report.transport.lines)
    )
