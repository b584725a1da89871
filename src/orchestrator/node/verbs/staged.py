"""Verb `staged`: what was staged here last, so that the same plan can be started again by anybody."""

from __future__ import annotations

import os
from typing import Any

from orchestrator.node import files
from orchestrator.node.agent import staged_files
from orchestrator.node.agent.run import run_of
from orchestrator.node.files import LAUNCH_FILE, RUN_FILE
from orchestrator.node.requests import request_of
from orchestrator.protocol.verbs import GangRequest, StagedAnswer


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """{"request": the staging request without its key and script, "launch_script": text}.

    Raises Failure if they were changed since, or could have been.
    """
    folder = files.wanted_run(request_of(GangRequest, request))
    staged, script = files.read_json(f"{folder}/{RUN_FILE}"), ""
    if staged and os.path.lexists(f"{folder}/{LAUNCH_FILE}"):
        script = staged_files.script(run_of(staged, folder)).decode("utf-8", "surrogateescape")
    return StagedAnswer(request=staged, launch_script=script).as_json()
