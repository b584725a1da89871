"""Short names for a plan's content and for the facts that it rests on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, fields, replace
from typing import Any

from orchestrator.model.plan import GangPlan, NodePlan, Plan
from orchestrator.planning.redaction import fingerprint, is_secret

_LENGTH = 12
"""Hexadecimal digits: enough to tell one operator's plans apart."""


def facts_digest(facts: Iterable[tuple[str, str, str]]) -> str:
    """The same facts give the same digest, whatever their order."""
    return short_digest(sorted(facts))


def plan_id(plan: Plan) -> str:
    """The same engines on the same nodes give the same id, whatever the words about them; of a secret only so much
    goes into it as tells it from another."""
    return short_digest([_gang(gang) for gang in plan.gangs])


def _gang(gang: GangPlan) -> dict[str, Any]:
    content = asdict(replace(gang, nodes=()))
    for name in ("memory", "engine_version", "device", "nccl_port"):  # the last two are in the flags
        del content[name]
    if gang.layout.attention_data_parallel == 1:  # so that a plan without it keeps the id that earlier releases gave it
        del content["layout"]["attention_data_parallel"]
    content["nodes"] = [_node(node) for node in gang.nodes]
    return content


def _node(node: NodePlan) -> dict[str, Any]:
    # no part of what runs, or in env and argv
    told_apart = {"sources", "network", "graph_batch", "container", "command", "flags", "env_public", "gpu_uuids"}
    content = {field.name: getattr(node, field.name) for field in fields(node) if field.name not in told_apart}
    if node.container is not None:
        content["container"] = asdict(node.container)
    content["argv"] = node.argv
    content["env"] = [(name, fingerprint(value) if is_secret(name, value) else value) for name, value in node.env]
    return content


def short_digest(value: Any) -> str:
    """Of anything that JSON can hold, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, default=dict, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:_LENGTH]
