"""A plan as files of others: compose files, a systemd unit. None contains a secret."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.loading.profiles import load_stack
from orchestrator.loading.resources import template
from orchestrator.model.plan import Plan
from orchestrator.model.secret_text import shown
from orchestrator.node.verbs.arm import PROPERTIES
from orchestrator.protocol.staging import NodePlan
from orchestrator.rendering import compose_file, unit_file


def compose_files(plan: Plan) -> Mapping[str, str]:
    """A compose file for every node, by node name."""
    text = template("compose.yml.j2")
    return {
        node.name: compose_file(node, gang, load_stack(gang.stack), text)
        for gang in shown(plan).gangs
        for node in gang.nodes
    }


def unit(node: NodePlan) -> str:
    """The transient unit that `up` starts on a node with systemd."""
    return unit_file(node, PROPERTIES, template("agent.service.j2"))
