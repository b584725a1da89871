"""Whether a gang is degraded, and the one-word reason that `status` gives to scripts. Pure."""

from __future__ import annotations

from orchestrator.gang.view import GangView
from orchestrator.model.finding import Severity
from orchestrator.model.gang_state import GangState

_OF_TROUBLE = {
    "hung": "hung",
    "stopped": "hung",
    "silent": "silent",
    "no-memory": "nodes",
    "nodes": "nodes",
    "slow": "slow",
}
"""A rank stopped by a signal hangs all others. A node that only the controller can't reach does not count."""
_OFF_THE_RAILS = ("TRANSPORT-NOT-RDMA", "TRANSPORT-DEVICE-UNUSED")
"""Only with severity slow: TCP between pipeline stages costs next to nothing."""
_NOT_ROUTED = ("out", "unhealthy")


def degraded_reason(view: GangView, router: str | None = None, *, half_way: bool = False) -> str:
    """silent, slow, hung, nodes (a rank is missing, or it runs without a node), rails (a port failed, or traffic leaves
    the planned RDMA devices), router (no request is sent there) or interrupted (a command was killed in this gang's
    turn); '' for a gang that is well, does not serve yet, or has failed.

    router: the gang's state there (in, unhealthy, out), None if there is no router or its state is unknown
    """
    if half_way and view.state is not GangState.FAILED:
        return "interrupted"
    if view.state is GangState.DEGRADED and view.trouble in _OF_TROUBLE:
        return _OF_TROUBLE[view.trouble]
    if not view.serves:
        return ""
    if any(node.rails for node in view.nodes):
        return "rails"
    if any(one.id in _OFF_THE_RAILS and one.severity is Severity.SLOW for one in view.transport):
        return "rails"
    return "router" if router in _NOT_ROUTED else ""


def state_words(view: GangView, reason: str = "") -> str:
    """'ready', 'degraded (hung)', 'degraded (3 of 4 nodes)', 'degraded (unreachable)', 'stopped' for one that ran."""
    if view.state is GangState.ABSENT and view.plan_id:
        return "stopped"
    why = view.share if "nodes" in (reason, view.trouble) and view.share else reason or view.trouble
    state = GangState.DEGRADED if reason else view.state
    return f"{state.value} ({why})" if why else state.value
