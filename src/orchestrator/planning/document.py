"""A plan as one JSON document. Keys may be added to it, never changed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from orchestrator.model.plan import GangPlan, NodePlan, Plan
from orchestrator.planning.redaction import shown


def plan_json(plan: Plan) -> dict[str, Any]:
    """The document of `plan --json`, without secrets. `layout` and `memory` at the top are the first gang's."""
    plan = shown(plan)
    first = plan.gangs[0] if plan.gangs else None
    return {
        "plan_id": plan.plan_id,
        "facts_digest": plan.facts_digest,
        "layout": asdict(first.layout) if first else None,
        "memory": asdict(first.memory) if first else None,
        "gangs": [_gang(gang) for gang in plan.gangs],
        "nodes": [_node(node) for gang in plan.gangs for node in gang.nodes],
        "findings": [{**asdict(finding), "severity": finding.severity.value} for finding in plan.findings],
        "facts": [{"node": node, "name": name, "value": value} for node, name, value in plan.facts],
    }


def _gang(gang: GangPlan) -> dict[str, Any]:
    document = asdict(gang)
    document["nodes"] = [node.name for node in gang.nodes]
    return document


def _node(node: NodePlan) -> dict[str, Any]:
    return {
        "gang": node.gang,
        "name": node.name,
        "node_rank": node.node_rank,
        "address": node.address,
        "argv": list(node.argv),
        "env": dict(node.env),
        "sources": dict(node.sources),
        "gpus": list(node.gpus),
        "tp_ranks": list(node.tp_ranks),
        "working_dir": node.working_dir,
        "model_path": node.model_path,
        "http_url": node.http_url,
        "network": node.network.as_json(),
        **({"container": asdict(node.container)} if node.container else {}),
    }
