"""Nodes that can't reach each other: dropped by a firewall, refused, no route, or frames too large for the path."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.reach import Outcome, Trial
from orchestrator.rules.support.blame import Way, blamed
from orchestrator.rules.support.cluster import Cluster
from orchestrator.rules.support.registry import Rule
from orchestrator.topology.speed import Traffic, price

RULE = Rule(
    id="PORT-BLOCKED",
    title="a node can't be reached from another node",
    explain=(
        "Tested with real packets between all nodes: the plan's ports and an ephemeral one over TCP, and datagrams of"
        " the interface's full MTU that must not be fragmented. Dropped and refused connections are reported"
        " separately. The findings name the fewest nodes that explain all failures. A node whose table of neighbours is"
        " full drops packets by itself: its paths are unknown."
    ),
    reads=("connections and datagrams between the nodes",),
    source="torch's store and Gloo, NCCL's bootstrap and SGLang's queues use fixed and ephemeral TCP ports",
    weight=7,
)
_TCP = "tcp"
_PASSED = (Outcome.OPEN, Outcome.TOO_BIG)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding for each node that nothing reaches on a side; otherwise one for each port or size that is blocked."""
    fixed = _fixed_ports(cluster)
    full = {trial.source for trial in cluster.trials if trial.outcome is Outcome.UNTRIED}
    yield from (_untried(node, cluster.trials) for node in sorted(full))
    for side, ways in _sides(_told(cluster.trials, full)).items():
        alive = [way for way, trials in ways.items() if any(trial.outcome in _PASSED for trial in trials)]
        for node, explained in blamed(ways.keys() - alive):
            yield _unreachable(node, side, [trial for way in explained for trial in ways[way]])
        failed = [trial for way in alive for trial in ways[way] if trial.outcome is not Outcome.OPEN]
        yield from _partly(side, failed, fixed)


def _told(trials: Sequence[Trial], full: Collection[str]) -> list[Trial]:
    """Trials without those that did not pass from or to a node whose table of neighbours is full."""
    return [trial for trial in trials if trial.outcome is Outcome.OPEN or not {trial.source, trial.target} & {*full}]


def _untried(node: str, trials: Sequence[Trial]) -> Finding:
    mine = [trial for trial in trials if trial.source == node]
    lost = [trial for trial in mine if trial.outcome is Outcome.UNTRIED]
    return Finding(
        id=RULE.id,
        severity=Severity.UNKNOWN,
        node=node,
        title=f"{len(lost)} of {len(mine)} paths could not be tried: the kernel's table of neighbours is full",
        evidence=_evidence(lost),
        effect="packets to other nodes are dropped as long as it is full; which paths are open is not known",
        fix="run `sudo sysctl -w net.ipv4.neigh.default.gc_thresh1=4096 net.ipv4.neigh.default.gc_thresh2=16384"
        " net.ipv4.neigh.default.gc_thresh3=32768` there",
    )


def _sides(trials: Sequence[Trial]) -> dict[str, dict[Way, list[Trial]]]:
    """Trials by side and way. RAILS-ISOLATED judges those from one rail to another."""
    sides: dict[str, dict[Way, list[Trial]]] = {}
    for trial in trials:
        if not trial.far:
            sides.setdefault(trial.side, {}).setdefault(_way(trial), []).append(trial)
    return sides


def _way(trial: Trial) -> Way:
    return trial.source, trial.target


def _fixed_ports(cluster: Cluster) -> frozenset[int]:
    ports = (spec.ports for spec in cluster.specs.values())
    return frozenset(port for each in ports for port in (each.dist_init, each.agent, each.nccl) if port)


def _partly(side: str, failed: Sequence[Trial], fixed: frozenset[int]) -> Iterator[Finding]:
    """Where some trials of a way pass and one port or one size does not. Ephemeral ports count as one, number 0."""
    kinds: dict[tuple[str, int], list[Trial]] = {}
    for trial in failed:
        port = trial.port if trial.kind == _TCP and trial.port in fixed else 0
        kinds.setdefault((trial.kind, port), []).append(trial)
    for (kind, port), trials in kinds.items():
        for node, explained in blamed({_way(trial) for trial in trials}):
            mine = [trial for trial in trials if _way(trial) in explained]
            yield _blocked(node, port, mine) if kind == _TCP else _too_big(node, side, mine)


def _way_words(node: str, trials: Sequence[Trial]) -> str:
    """'from node1, node2', 'to node3' or both, as seen from the node."""
    sources = sorted({trial.source for trial in trials} - {node})
    targets = sorted({trial.target for trial in trials} - {node})
    parts = [f"from {', '.join(sources)}"] if sources else []
    if targets and targets != sources:
        parts.append(f"to {', '.join(targets)}")
    return " or ".join(parts)


def _evidence(trials: Sequence[Trial]) -> tuple[str, ...]:
    return tuple(
        f"{trial.source} -> {trial.target} {trial.address}:{trial.port} "
        f"({trial.kind}{f' {trial.size} bytes' if trial.size else ''}): "
        f"{trial.outcome.value}{f' {trial.detail}' if trial.detail else ''}"
        f"{f' in {trial.tries} tries' if trial.tries > 1 else ''}"
        for trial in trials[:6]
    )


def _unreachable(node: str, side: str, trials: Sequence[Trial]) -> Finding:
    rail = side != _TCP
    silent = all(trial.outcome is Outcome.SILENT for trial in trials)
    return Finding(
        id=RULE.id,
        severity=Severity.SLOW if rail else Severity.STOP,
        node=node,
        devices=(side,) if rail else (),
        title=f"no connection {'on the rail of ' + side + ' ' if rail else ''}{_way_words(node, trials)}: "
        + ("packets are dropped" if silent else "the path is blocked"),
        evidence=_evidence(trials),
        effect=price(Traffic.HALF_THE_PORTS) if rail else "the gang can't start: its ranks can't connect",
        fix="check the rail's cable, VLAN and address (`ping` from the peers)"
        if rail
        else "check routes and firewalls between the nodes (`iptables -L`, `nft list ruleset`, security groups)",
    )


def _blocked(node: str, port: int, trials: Sequence[Trial]) -> Finding:
    silent = any(trial.outcome is Outcome.SILENT for trial in trials)
    return Finding(
        id=RULE.id,
        severity=Severity.STOP,
        node=node,
        devices=(f"tcp/{port or 'ephemeral'}",),
        title=f"TCP port {port or trials[0].port}{'' if port else ' (any ephemeral one)'} is"
        f" {'dropped by a firewall' if silent else 'not to be reached'} {_way_words(node, trials)}; other ports"
        " are open",
        evidence=_evidence(trials),
        effect="the gang can't start: a rank waits for its peers until it times out",
        fix=f"open {f'TCP {port} and ' if port else ''}the ephemeral range "
        "(/proc/sys/net/ipv4/ip_local_port_range) between the nodes",
    )


def _too_big(node: str, side: str, trials: Sequence[Trial]) -> Finding:
    size = max(trial.size for trial in trials)
    where = f"on the rail of {side}" if side != _TCP else "on the TCP side"
    return Finding(
        id=RULE.id,
        severity=Severity.SLOW,
        node=node,
        devices=(side,),
        title=f"packets of {size} bytes don't pass {where} {_way_words(node, trials)}, smaller ones do",
        evidence=_evidence(trials),
        effect="large transfers hang or fall back to small packets (not measured)",
        fix=f"set the MTU to {size} on every switch port and interface of this network, or lower it everywhere",
    )
