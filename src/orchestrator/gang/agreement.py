"""What nodes say of each other and of where a gang serves, held against the inventory, this controller's own record and
what most of them say. One node's word moves no other machine: where it differs, that is a remark about the node. Pure.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import SplitResult, urlsplit

from orchestrator.model.inventory import GangSpec, NodeSpec
from orchestrator.protocol.report import Report

DISAGREES = "NODE-DISAGREES"

V = TypeVar("V")


def most_say(values: Iterable[V], usual: V) -> V:
    """What most say; `usual` where nobody says anything, and the first of several that as many say."""
    common = Counter(values).most_common(1)
    return common[0][0] if common else usual


def current_run(reports: Mapping[str, Report]) -> dict[str, Report]:
    """The reports of the run that most living agents are in, else of the one staged last: a guess, since each node
    dates it by its own clock. By node, in the order of `reports`."""
    living = Counter(report.run_id for report in reports.values() if report.alive)
    newest = max(
        reports.values(),
        key=lambda report: (report.alive, report.alive and living[report.run_id], report.started_at),
        default=None,
    )
    return {node: report for node, report in reports.items() if newest is not None and report.run_id == newest.run_id}


def outvoted(current: Mapping[str, Report], reports: Mapping[str, Report]) -> bool:
    """Whether no more nodes live in the current run than in others: then nobody knows which of them leads the gang."""
    apart = sum(report.alive for node, report in reports.items() if node not in current)
    return apart > 0 and apart >= sum(report.alive for report in current.values())


def agreed_members(current: Mapping[str, Report]) -> tuple[str, ...]:
    """The run's nodes in node-rank order, as most of its reports have them; () where an older release wrote them.

    Where as many say one thing as another, those are believed who leave out nobody that is in the run, then those whose
    order is that of the inventory's nodes.
    """
    counts = Counter(report.members for report in current.values() if report.members)
    place = {node: number for number, node in enumerate(current)}

    def rank(members: tuple[str, ...]) -> tuple[int, bool, bool]:
        order = [place[name] for name in members if name in place]
        return counts[members], place.keys() <= {*members}, order == sorted(order)

    return max(counts, key=rank, default=())


def leader_report(current: Mapping[str, Report], members: Sequence[str]) -> Report | None:
    """Of the node that serves the gang: whom most members name first, else who has the first node rank."""
    if members:
        report = current.get(members[0])
        return report if report is not None and report.service_url else None
    return next((report for report in current.values() if report.node_rank == 0 and report.service_url), None)


def others_remarks(current: Mapping[str, Report], members: Sequence[str]) -> list[str]:
    """A sentence for each node that names other members than most do, or serves while another one leads."""
    remarks = []
    for name, report in current.items():
        if report.members and report.members != tuple(members):
            remarks.append(
                f"{DISAGREES}: {name} says that the run's nodes are {', '.join(report.members)}; most of them say"
                f" {', '.join(members)}"
            )
        elif members and report.service_url and name != members[0]:
            remarks.append(f"{DISAGREES}: {name} says that it serves the gang, which {members[0]} leads")
    return remarks


@dataclass(frozen=True, slots=True, kw_only=True)
class BelievedService:
    """Where a gang serves, '' where that is not known; remark: what a node says otherwise, '' for nothing."""

    url: str
    remark: str = ""


def service_of(
    gang: GangSpec, leader: str, claim: str, *, recorded: str = "", witnesses: Iterable[str] = ()
) -> BelievedService:
    """leader, claim: the node's name, and where it says that it serves; recorded: where this controller's plan has it,
    which counts alone, '' for none; witnesses: ADDRESS:PORT of the service as the other members' plans have it."""
    node = next((machine for machine in gang.machines if machine.name == leader), None)
    if not claim or node is None:
        return BelievedService(url="")
    believed = recorded or gang.url or node.stated_url
    if claim == believed or (not recorded and _is_plausible(gang, node, claim, tuple(filter(None, witnesses)))):
        return BelievedService(url=claim)
    instead = f"the inventory and the plan have {believed}" if believed else "nobody else knows that address"
    return BelievedService(
        url=believed,
        remark=f"{DISAGREES}: {leader} says that it serves at {claim}; {instead}, and no request is sent there",
    )


def _address(claim: str) -> SplitResult | None:
    """Of 'http://HOST:PORT' and nothing else."""
    at = _split(claim)
    return at if at is not None and at.geturl() == f"http://{at.netloc}" and "@" not in at.netloc else None


def _parsed(witnesses: Sequence[str]) -> list[SplitResult]:
    return [address for address in (_split(f"//{text}") for text in witnesses) if address is not None]


def _is_plausible(gang: GangSpec, node: NodeSpec, claim: str, witnesses: Sequence[str]) -> bool:
    """Whether it is the leader's own address and port, by the inventory and by every other member."""
    at = _address(claim)
    if gang.url or at is None or at.hostname is None:
        return False
    theirs = _parsed(witnesses)
    ports = {address.port for address in theirs}
    if at.port != node.ports.http and ports != {at.port}:
        return False
    stated = _split(node.stated_url)
    if stated is not None:
        return at.hostname == stated.hostname
    return all(address.hostname == at.hostname for address in theirs) and _may_be_its(gang, node, at.hostname)


def _may_be_its(gang: GangSpec, node: NodeSpec, host: str) -> bool:
    """Whether an address that its inventory does not state can be this node's: other machines may reach it, and it is
    none of its fellows'."""
    fellows = [machine for machine in gang.machines if machine is not node]
    if any(host in (machine.reach.host, machine.address) for machine in fellows):
        return False
    return host == node.reach.host or _is_between_hosts(host)


def _split(url: str) -> SplitResult | None:
    """None for what is no URL, or has no port."""
    with contextlib.suppress(ValueError):
        at = urlsplit(url)
        if at.port is not None:
            return at
    return None


def _is_between_hosts(host: str) -> bool:
    """Whether other machines may reach this address."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified or address.is_link_local or address.is_multicast)
