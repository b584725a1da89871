"""Verb `tune-run`: this node's tuners, one a GPU, in place of the engine, run as the engine would be.

Request: {"state_dir", "gang", "order": TuneRunOrder}. Lines: TuneLine, as the tuners say them; {} twice a second; at
the end {"ended"}. When nobody reads any more, or the deadline has passed, the tuners are ended.
"""

from __future__ import annotations

from typing import Any

from orchestrator.node.in_place.task import Task, carry_out
from orchestrator.node.requests import request_of
from orchestrator.protocol.tuning import TuneRunRequest


def stream(request: dict[str, Any]) -> None:
    """Run the tuners until they have tried all jobs of the order."""
    asked = request_of(TuneRunRequest, request)
    task = Task(
        word="tune-run",
        noun="tuning",
        many=f"{asked.order.tuners.gpus} tuners",
        beside=f"stop it with `l40s-deploy down {asked.gang}`",
        too_long="run the same command again: what is done is kept",
    )
    carry_out(asked, asked.order, asked.order.tuners, task)
