"""Verb `staged`: what was staged here last, so that the same plan can be started again by anybody."""

from __future__ import annotations

from typing import Any

from orchestrator.node import files
from orchestrator.node.agent.run import LAUNCH_FILE, RUN_FILE


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """{"request": the staging request without its key and script, "launch_script": text}."""
    folder = files.wanted_run(request)
    return {
        "request": files.read_json(f"{folder}/{RUN_FILE}"),
        "launch_script": files.read_text(f"{folder}/{LAUNCH_FILE}") or "",
    }
