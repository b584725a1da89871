"""The host that runs the router: which variable means what."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.loading.node_spec import node_spec
from orchestrator.loading.variables import Variables
from orchestrator.model.inventory import GangSpec, RouterSpec

_FILE = r"~?/[^\x00-\x1f\x7f]*"
_FILE_WORDS = "a file's path on the controller, absolute or from ~/"


def router_spec(variables: Variables, *, group: str, gangs: Sequence[GangSpec] = ()) -> RouterSpec:
    """Read the router's host. Raises InputError as node_spec does."""
    node = node_spec(variables, gang=group, node_rank=0)
    usual = RouterSpec(node=node)
    port = variables.number("l40s_router_port", 1, 65535) or usual.port
    metrics = variables.number("l40s_router_metrics_port", 1, 65535) or usual.metrics_port
    if port == metrics:
        raise variables.wrong(
            "l40s_router_port", "a port other than l40s_router_metrics_port", "write `l40s_router_port: 30000`"
        )
    cert, key = (variables.text(name, _FILE, _FILE_WORDS) for name in ("l40s_router_tls_cert", "l40s_router_tls_key"))
    if (cert is None) != (key is None):
        there, missing = ("cert", "key") if cert else ("key", "cert")
        raise variables.wrong(
            f"l40s_router_tls_{there}", f"l40s_router_tls_{missing} beside it", "name both PEM files, or neither"
        )
    return RouterSpec(
        node=node,
        port=port,
        metrics_port=metrics,
        venv=variables.path("l40s_router_venv") or usual.venv,
        tls_cert=cert,
        tls_key=key,
        gang_key_file=_gang_key_file(variables, gangs) if node.api_key_file else None,
    )


def _gang_key_file(variables: Variables, gangs: Sequence[GangSpec]) -> str | None:
    """What the router sends to the gangs in place of its clients' key: it has one for all of them."""
    files = {gang.leader.api_key_file for gang in gangs if gang.leader.api_key_file}
    if len(files) > 1:
        raise variables.wrong(
            "l40s_api_key_file",
            f"one API key for all gangs behind a router that asks for a key (they have {', '.join(sorted(files))})",
            "use the same l40s_api_key_file for all gangs, or remove the router's",
        )
    return next(iter(files), None)
