"""Verb `history`: what the kept runs of a gang came to on this node, with the events of one of them."""

from __future__ import annotations

import os
import time
from typing import Any

from orchestrator.node import files
from orchestrator.node.agent.run import EVENTS_LOG
from orchestrator.node.verbs import report
from orchestrator.node.verbs.lock import AUDIT
from orchestrator.protocol.shape import parsed

MOST_EVENTS = 400


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """{"now": epoch, "reports": [...]}, one report a kept run; with `run_id` also {"events": [...]} of that run,
    with `audit` also {"audit": [...]}: who worked on the gang."""
    state = files.state_dir(request)
    gang = files.gang_dir(state, request.get("gang"))
    found = [report.raw_of(f"{gang}/runs/{name}") for name in _kept(gang)]
    told: dict[str, Any] = {"reports": [one for one in found if one]}
    if request.get("run_id"):
        told["events"] = _events(files.run_dir(state, request.get("gang"), request["run_id"]))
    if request.get("audit"):
        told["audit"] = _lines(f"{gang}/{AUDIT}")
    return {**told, "now": time.time()}


def _kept(gang: str) -> list[str]:
    try:
        return sorted(os.listdir(f"{gang}/runs"))
    except FileNotFoundError:
        return []


def _events(folder: str) -> list[dict[str, Any]]:
    return _lines(f"{folder}/{EVENTS_LOG}")


def _lines(path: str) -> list[dict[str, Any]]:
    """The newest lines, oldest first; one that a crash cut short is passed over."""
    found: list[dict[str, Any]] = []
    for line in (files.read_text(path) or "").splitlines()[-MOST_EVENTS:]:
        event = parsed(line)
        if isinstance(event, dict):
            found.append(event)
    return found
