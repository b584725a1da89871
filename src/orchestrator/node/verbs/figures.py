"""Verb `figures`: what a monitoring system, or who watches, wants to know of a node every few seconds.

Agents are not asked: what they wrote down is read.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from orchestrator.node import files
from orchestrator.node.look import gauges
from orchestrator.node.look.kernel_log import Xids
from orchestrator.node.requests import request_of
from orchestrator.node.verbs import lock, report
from orchestrator.protocol.gauges import FiguresAnswer, FiguresRequest

_xids: dict[str, Xids] = {}


def _gangs_asked(asked: FiguresRequest, state: str) -> Sequence[str]:
    """The one that is named, else all, unless gangs are not asked for."""
    if not asked.gangs:
        return ()
    return (asked.gang,) if asked.gang else files.gangs(state)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """One reading."""
    asked = request_of(FiguresRequest, request)
    state = files.state_dir(asked.state_dir)
    names = _gangs_asked(asked, state)
    reports = [report.of_gang(state, name) for name in names]
    held = {name: lock.holder_of(files.gang_dir(state, name)) for name in names}
    xids = _xids.setdefault(asked.fs_root, Xids(asked.fs_root))
    return FiguresAnswer(
        now=time.time(),
        reports=tuple(filter(None, reports)),
        locks={name: holder for name, holder in held.items() if holder is not None},
        without_files=report.told_without_files(state) if asked.gangs else (),
        gauges=gauges.read(asked.fs_root, asked.nvml_deadline_s),
        xids=xids.read(),
        kernel_log=xids.error,
    ).as_json()
