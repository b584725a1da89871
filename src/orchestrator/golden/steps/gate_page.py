"""A gate's verdict as one HTML page: both plans side by side, what changed, what was measured, and the cause."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator import __version__
from orchestrator.golden.gate import GateReport
from orchestrator.loading.resources import templates
from orchestrator.planning.plan_file import by_change, side
from orchestrator.rendering import report_page


@dataclass(frozen=True, slots=True)
class ChangedSetting:
    """One setting that differs, on the nodes that are named."""

    nodes: str
    name: str
    old: str
    new: str


def gate_html(page: Mapping[str, Any]) -> str:
    """The page as text. page: of `page_of`"""
    return report_page(page, templates("gate.html.j2"), templates("page.css", "dark.css"))


def page_of(report: GateReport, run_id: str) -> dict[str, Any]:
    """What the template draws. run_id: of the new plan"""
    return {
        "version": __version__,
        "written": time.strftime("%Y-%m-%d %H:%M %Z"),
        "run_id": run_id,
        "report": report,
        "changes": [
            ChangedSetting(nodes, name, side(was), side(will))
            for (name, was, will), nodes in by_change(report.changes).items()
        ],
    }
