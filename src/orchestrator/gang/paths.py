"""The paths between the nodes of a gang: why a node is not heard, and whether the traffic takes the planned one. Pure.

There are two paths to a node: SSH from the controller, and the leader link from the other nodes. It takes both to tell
whether the machine, the link between the nodes, the agent or only SSH has failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum

from orchestrator.engines.nccl_log import findings
from orchestrator.model.finding import Finding
from orchestrator.protocol.errors import DeployError, Unreachable
from orchestrator.protocol.planned import FAILOVER_HANGS, Layout, Transport
from orchestrator.protocol.report import RailChange, RankReport, Report
from orchestrator.topology.speed import Traffic, price


class Contact(str, Enum):
    """FINE; SSH: only SSH to it is broken; NODE: neither path answers; LINK: SSH answers, but other agents do not hear
    it; AGENT: the machine answers but its agent is stuck; UNKNOWN: SSH is broken, and no other node reports."""

    FINE = ""
    SSH = "ssh"
    NODE = "node"
    LINK = "link"
    AGENT = "agent"
    UNKNOWN = "unknown"


def contact(name: str, error: DeployError | None, current: Mapping[str, Report], *, stuck: bool) -> Contact:
    """Which path to a node is broken. error: why SSH failed; stuck: its agent is alive but has long written nothing."""
    if error is None and stuck:
        return Contact.AGENT
    if error is None:
        return Contact.LINK if "silent" in fellows(name, current).values() else Contact.FINE
    if not isinstance(error, Unreachable):
        return Contact.FINE  # it answers by SSH, though with an unusable answer
    heard = _heard(name, current)
    if "heard" in heard.values():
        return Contact.SSH
    return Contact.NODE if set(heard.values()) - {"ended"} else Contact.UNKNOWN


def fellows(name: str, current: Mapping[str, Report]) -> dict[str, str]:
    """What the live agents of other nodes report about their link with this one: heard, silent, lost, ended."""
    links = {other: report.links.get(name) for other, report in current.items() if report.alive and other != name}
    return {other: word for other, word in links.items() if word is not None}


def contact_sentence(name: str, contact: Contact, error: DeployError | None, current: Mapping[str, Report]) -> str:
    """For the operator; '' if nothing is wrong."""
    what = error.what if error is not None else ""
    fellow = [other for other, word in _heard(name, current).items() if word != "ended"]
    others, many = ", ".join(fellow), len(fellow) > 1
    hear, still = ("do not hear", "still hear") if many else ("does not hear", "still hears")
    return {
        Contact.FINE: "",
        Contact.SSH: f"{name} can't be reached by SSH ({what}), but {others} {still} its agent: only SSH has"
        " failed, the gang is intact",
        Contact.NODE: f"{name} can't be reached by SSH ({what}), and {others} {hear} its agent either: the"
        " machine is down or disconnected",
        Contact.UNKNOWN: f"{name} can't be reached: {what}",
        Contact.LINK: f"{name} answers by SSH, but {others} {hear} its agent: the link between them is broken",
        Contact.AGENT: f"{name} answers by SSH, but its agent has not written a report for a long time: it hangs or"
        " is stopped",
    }[contact]


def _heard(name: str, current: Mapping[str, Report]) -> dict[str, str]:
    """Of its fellows; where none lives, of agents that no longer heard the node when their own part ended."""
    links = {other: report.links.get(name) for other, report in current.items() if other != name}
    return fellows(name, current) or {other: word for other, word in links.items() if word in ("silent", "lost")}


def rail_remarks(node: str, report: Report) -> Iterator[str]:
    """One rail_sentence per port; only NCCL's report if no port of this node is down: the other end's may be."""
    for rail in report.rails:
        yield f"{node}: {rail_sentence(rail, report.gang)}"
    if report.moved and not report.rails:
        yield (
            f"{node}: NCCL moved connections to the other port of a card, and this node's own ports are up:"
            " another node's port may have failed"
        )


def failover_remark(gang: str, reports: Iterable[Report]) -> Iterator[str]:
    """That NCCL fails over between ports in this run, and what is known of that."""
    networks = [report.transport.network for report in reports if report.transport is not None]
    if any(network.notice_s for network in networks):
        yield (
            f"NCCL's port failover is on: {FAILOVER_HANGS}; it is off after `{restart_of(gang)}` where neither"
            " l40s_port_failover nor l40s_env asks for it"
        )


def rail_sentence(rail: RailChange, gang: str) -> str:
    """Without the node: 'RDMA port mlx5_1:1 is down, ...'."""
    if rail.up:
        return (
            f"RDMA port {rail.port} is back, but NCCL uses it only after a restart: run `{restart_of(gang)}` when it"
            " suits you, with --rolling where other gangs serve behind the router"
        )
    return (
        f"RDMA port {rail.port} is down; NCCL continues over the other port of its card (not measured on this"
        f" hardware). {price(Traffic.HALF_THE_PORTS)}"
    )


def restart_of(gang: str) -> str:
    """The command that makes NCCL use a port again. Not --maintenance, which waits for a reboot: the nodes need no
    work."""
    return f"l40s-deploy restart {gang}"


def planned_tcp(reports: Mapping[str, Report]) -> str:
    """Says that traffic between the nodes travels over TCP because the plan wants it; '' where it does not."""
    planned = [report.transport.network for report in reports.values() if report.transport is not None]
    if len(reports) < 2 or not any(network.transport is Transport.TCP for network in planned):
        return ""
    over = ", ".join(dict.fromkeys(name for network in planned for name in network.sockets or (network.interface,)))
    return f"traffic between the nodes travels over TCP{f' ({over})' if over else ''}, as the plan says"


def transport(reports: Mapping[str, Report]) -> tuple[Finding, ...]:
    """Findings of all nodes; none for a gang of one node, or if the engine uses no GPUs."""
    if len(reports) < 2:
        return ()
    complete = all(report.nnodes in (0, len(reports)) for report in reports.values())
    layout = layout_of([report.ranks for report in reports.values()]) if complete else None
    return tuple(
        finding
        for name, report in reports.items()
        if report.transport is not None and report.transport.network.logged
        for finding in findings(name, report.transport.network, report.transport.lines, layout, report.model)
    )


def layout_of(nodes: Sequence[Sequence[RankReport]]) -> Layout | None:
    """nodes: the ranks of each. TP ranks restart at 0 in every pipeline stage. Degrees that don't divide ranks among
    processes (experts, attention) can't be seen. None if a node reports no ranks: it may hold any."""
    if not nodes or not all(nodes):
        return None
    tensor = 1 + max(rank.tp_rank for ranks in nodes for rank in ranks)
    return Layout(
        tensor_parallel=tensor,
        pipeline_parallel=max(1, sum(map(len, nodes)) // tensor),
        nnodes=len(nodes),
        gpus_per_node=max(map(len, nodes)),
    )
