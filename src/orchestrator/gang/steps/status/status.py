"""`status`: every gang as its nodes' agents report it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.gang.pace import took
from orchestrator.gang.rails import sentence
from orchestrator.gang.view import OUTSIDE, GangView, NodeView
from orchestrator.model.gang_state import GangState
from orchestrator.protocol.report import Cause


def status_json(views: Sequence[GangView]) -> dict[str, Any]:
    """The document of `status --json`."""
    return {"gangs": [_gang(view) for view in views]}


def _gang(view: GangView) -> dict[str, Any]:
    return {
        "name": view.name,
        "state": view.state.value,
        "trouble": view.trouble,
        "model": view.model,
        "stack": view.stack,
        "plan_id": view.plan_id,
        "run_id": view.run_id,
        "cause": cause_json(view.cause) if view.cause else None,
        "secondary": [cause_json(cause) for cause in view.secondary],
        "service": {"url": view.service_url, "healthy": bool(view.service_healthy)},
        "transport": [
            {"id": one.id, "severity": one.severity.value, "node": one.node, "title": one.title, "effect": one.effect}
            for one in view.transport
        ],
        "rails": [
            {"node": node.name, "port": rail.port, "up": rail.up, "since": rail.at, "text": sentence(rail, view.name)}
            for node in view.nodes
            for rail in node.rails
        ],
        "start": start.as_json() if (start := took(node.began for node in view.nodes)) else None,
        "progress": view.progress,
        "remarks": list(view.remarks),
        "proved": list(view.proved),
        "serving_nodes": view.serving_nodes if view.serves else 0,
        "missing": list(view.missing) if view.state is not GangState.ABSENT else [],
        "spares": [_spare(node) for node in (*view.nodes, *view.spares) if node.spare],
        "nodes": [_node(node) for node in view.nodes],
    }


def cause_json(cause: Cause) -> dict[str, Any]:
    """A cause as in every JSON document."""
    return {
        "node": cause.node,
        "tp_rank": cause.tp_rank,
        "signal": cause.signal,
        "exit_code": cause.exit_code,
        "signature": cause.signature,
        "text": cause.text,
        "fix": cause.fix,
        "lines": list(cause.lines),
        "at": cause.at,
    }


def _spare(node: NodeView) -> dict[str, Any]:
    """A spare: idle, serving (it has a part in the run), unreachable."""
    waits = node.node_rank == OUTSIDE
    state = "serving" if not waits else "idle" if node.error is None else "unreachable"
    return {"name": node.name, "state": state, "error": node.error.as_json() if node.error else None}


def _node(node: NodeView) -> dict[str, Any]:
    failure = node.error
    return {
        "name": node.name,
        "node_rank": node.node_rank if node.node_rank != OUTSIDE else None,
        "state": node.state.value,
        "contact": node.contact.value,
        "phase": node.phase.name,
        "phase_step": node.phase.step,
        "phase_of": node.phase.of,
        "cache": node.cache.as_json() if node.cache else None,
        "error": failure.as_json() if failure else None,
        "left_behind": list(node.left_behind),
        "ranks": [
            {
                "tp_rank": rank.tp_rank,
                "gpu": rank.gpu,
                "state": rank.state,
                "pid": rank.pid,
                "gpu_memory_bytes": rank.gpu_memory_bytes,
            }
            for rank in node.ranks
        ],
    }
