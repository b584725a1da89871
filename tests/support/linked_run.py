"""A run of two nodes, a and b, whose leader's agent listens on loopback: for agents and links without processes."""

from __future__ import annotations

from typing import Any

from tests.support.ports import free_port

from orchestrator.node.agent.run import Run
from orchestrator.protocol.staging import Endpoint


def linked_run(node: str, folder: str = "/nowhere", **more: Any) -> Run:
    """One node's part; a leads."""
    members = ("a", "b")
    return Run(
        folder=folder,
        run_id="r1",
        gang="g",
        node=node,
        node_rank=members.index(node),
        nnodes=len(members),
        members=members,
        leader=Endpoint(address="127.0.0.1", port=free_port()),
        **more,
    )
