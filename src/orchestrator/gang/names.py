"""What agents call their gang and their node, held against what the inventory calls them now. Pure.

An agent keeps the names that it was staged with. What runs on a node is compared with the inventory by the node: one
that was renamed serves on, and no verb takes its gang for one that does not run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from orchestrator.model.chosen import replicas_of
from orchestrator.model.inventory import ROUTER_GANG, GangSpec, NodeSpec, is_gang_name
from orchestrator.protocol.report import Cause, Report
from orchestrator.protocol.verbs import OtherAgent


def former_gang(gang: GangSpec, node: NodeSpec, agents: Iterable[Report | OtherAgent]) -> str:
    """What a living agent of this node calls its gang, where the inventory calls it otherwise; '' for nothing.

    agents: by their reports, or by what those without files show.

    A router's host may be a gang's node too; a gang and its replicas are the same one.
    """
    if gang.name == ROUTER_GANG:
        return ""
    same = {gang.name, gang.replica_of, ROUTER_GANG, *(replica.name for replica in replicas_of(gang))}
    living = (agent for agent in agents if isinstance(agent, OtherAgent) or agent.alive)
    mine = (agent.gang for agent in living if agent.node == node.name)
    return next((name for name in mine if name not in same and is_gang_name(name)), "")


def former_nodes(gang: GangSpec, reports: Mapping[str, Report]) -> dict[str, str]:
    """The name of a node now, by the one that its living agent has; without those that have the same.

    reports: of the gang, by the name of the node that was asked. A name that another node of the gang has now counts
    where that node's agent has another one too: names, or addresses, were exchanged.
    """
    names = {node.name for node in gang.machines}
    now = {report.node: name for name, report in reports.items() if report.alive and report.node != name}
    while doubtful := [former for former in now if former in names and former not in now.values()]:
        now = {former: name for former, name in now.items() if former not in doubtful}
    return now


def as_called_now(report: Report, now: Mapping[str, str]) -> Report:
    """The report with the nodes' names of the inventory. now: as of `former_nodes`."""
    if not now:
        return report
    return replace(
        report,
        node=now.get(report.node, report.node),
        members=tuple(now.get(name, name) for name in report.members),
        silent=tuple(now.get(name, name) for name in report.silent),
        links={now.get(name, name): word for name, word in report.links.items()},
        cause=_cause(report.cause, now),
        verdict=_cause(report.verdict, now),
        trouble=_cause(report.trouble, now),
    )


def _cause(cause: Cause | None, now: Mapping[str, str]) -> Cause | None:
    return None if cause is None else replace(cause, node=now.get(cause.node, cause.node))


def renamed_words(now: Mapping[str, str]) -> list[str]:
    """A sentence for each node that was renamed while its gang runs."""
    return [
        f"{name} was called {former} when this run was started: a start that its inventory has now needs a new plan"
        for former, name in now.items()
    ]
