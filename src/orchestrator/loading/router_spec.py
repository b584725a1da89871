"""The host that runs the router: which variable means what."""

from __future__ import annotations

from orchestrator.loading.node_spec import node_spec
from orchestrator.loading.variables import Variables
from orchestrator.model.inventory import RouterSpec


def router_spec(variables: Variables, *, group: str) -> RouterSpec:
    """Read the router's host. Raises InputError as node_spec does."""
    node = node_spec(variables, gang=group, node_rank=0)
    usual = RouterSpec(node=node)
    port = variables.number("l40s_router_port", 1, 65535) or usual.port
    metrics = variables.number("l40s_router_metrics_port", 1, 65535) or usual.metrics_port
    if port == metrics:
        raise variables.wrong(
            "l40s_router_port", "a port other than l40s_router_metrics_port", "write `l40s_router_port: 30000`"
        )
    return RouterSpec(node=node, port=port, metrics_port=metrics, venv=variables.path("l40s_router_venv") or usual.venv)
