"""Verb `history`: what the kept runs of a gang came to on this node, with the events of one of them."""

from __future__ import annotations

import os
import time
from typing import Any

from orchestrator.node import files
from orchestrator.node.files import EVENTS_LOG
from orchestrator.node.requests import request_of
from orchestrator.node.verbs import report
from orchestrator.node.verbs.lock import AUDIT
from orchestrator.protocol.message import parsed
from orchestrator.protocol.verbs import HistoryAnswer, HistoryRequest

MOST_EVENTS = 400


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """One report a kept run, the newest last; with events or audit where they are asked for."""
    asked = request_of(HistoryRequest, request)
    state = files.state_dir(asked.state_dir)
    gang = files.gang_dir(state, asked.gang)
    return HistoryAnswer(
        reports=tuple(filter(None, (report.raw_of(f"{gang}/runs/{name}") for name in _kept(gang)))),
        events=_lines(f"{files.run_dir(state, asked.gang, asked.run_id)}/{EVENTS_LOG}") if asked.run_id else (),
        audit=_lines(f"{gang}/{AUDIT}") if asked.audit else (),
        now=time.time(),
    ).as_json()


def _kept(gang: str) -> list[str]:
    try:
        return sorted(os.listdir(f"{gang}/runs"))
    except FileNotFoundError:
        return []


def _lines(path: str) -> tuple[dict[str, Any], ...]:
    """The newest lines, oldest first; one that a crash cut short is passed over."""
    found: list[dict[str, Any]] = []
    for line in (files.read_text(path) or "").splitlines()[-MOST_EVENTS:]:
        event = parsed(line)
        if isinstance(event, dict):
            found.append(event)
    return tuple(found)
