"""Whether a gang's traffic takes the planned path, from the NCCL log lines of every node. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.engines.nccl_log import findings
from orchestrator.gang.layout import layout_of
from orchestrator.model.finding import Finding
from orchestrator.protocol.report import Report


def transport(reports: Mapping[str, Report]) -> tuple[Finding, ...]:
    """Findings of all nodes; none for a gang of one node, or if the engine uses no GPUs."""
    if len(reports) < 2:
        return ()
    complete = all(report.nnodes in (0, len(reports)) for report in reports.values())
    layout = layout_of([report.ranks for report in reports.values()]) if complete else None
    return tuple(
        finding
        for name, report in reports.items()
        if report.transport is not None and report.transport.network.logged
        for finding in findings(name, report.transport.network, report.transport.lines, layout, report.model)
    )
