"""Verb `nettest`: this node's ranks of a network test, in place of the engine, run as the engine would be.

Request: {"state_dir", "gang", "order": NettestOrder}. Lines: NettestLine, as the ranks say them; {} twice a second; at
the end NCCL's own lines and {"ended"}. When nobody reads any more, or the deadline has passed, the ranks are ended.
"""

from __future__ import annotations

from typing import Any

from orchestrator.node.in_place.task import Task, carry_out
from orchestrator.node.requests import request_of
from orchestrator.protocol.nettest import NettestRequest


def stream(request: dict[str, Any]) -> None:
    """Run the ranks once, from the first to the last step."""
    asked = request_of(NettestRequest, request)
    task = Task(
        word="nettest",
        noun="network test",
        many=f"{len(asked.order.ranks.ranks)} ranks",
        beside=f"stop it with `l40s-deploy down {asked.gang}`, or test before its next start: `up --nettest`",
        too_long="run `l40s-deploy doctor`, allow more time with --timeout, or name fewer gangs",
    )
    carry_out(asked, asked.order, asked.order.ranks, task)
