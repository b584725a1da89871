"""Verb `figures`: what a monitoring system, or who watches, wants to know of a node every few seconds.

Agents are not asked: what they wrote down is read.
"""

from __future__ import annotations

import time
from typing import Any

from orchestrator.node import files
from orchestrator.node.look import gauges
from orchestrator.node.look.kernel_log import Xids
from orchestrator.node.requests import request_of
from orchestrator.node.verbs import ask, lock, report
from orchestrator.protocol.gauges import FiguresAnswer, FiguresRequest

_xids: dict[str, Xids] = {}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """One reading."""
    asked = request_of(FiguresRequest, request)
    state = files.state_dir(asked.state_dir)
    known = [asked.gang] if asked.gang else files.gangs(state)
    names = known if asked.gangs else []
    reports = [report.of_gang(state, name) for name in names]
    held = {name: lock.holder_of(files.gang_dir(state, name)) for name in names}
    xids = _xids.setdefault(asked.fs_root, Xids(asked.fs_root))
    return FiguresAnswer(
        now=time.time(),
        reports=tuple(filter(None, reports)),
        locks={name: holder for name, holder in held.items() if holder is not None},
        gauges=gauges.read(asked.fs_root, asked.nvml_deadline_s) if asked.hardware else None,
        xids=xids.read() if asked.hardware else (),
        kernel_log=xids.error,
        answers=ask.answers(asked, asked.asks),
    ).as_json()
