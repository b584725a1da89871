"""Nodes that can't reach each other: dropped by a firewall, refused, no route, or frames too large for the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.reach import Outcome, Trial
from orchestrator.rules.cluster import Cluster
from orchestrator.rules.registry import Rule
from orchestrator.topology.speed import Traffic, price

RULE = Rule(
    id="WAY-BLOCKED",
    title="a node can't be reached from another",
    explain=(
        "Tried with real packets between all nodes: the plan's ports and an ephemeral one over TCP, and datagrams of "
        "the interface's full MTU that must not be fragmented. Silence is told from a refusal."
    ),
    reads=("connections and datagrams between the nodes",),
    source="torch's store and Gloo, NCCL's bootstrap and SGLang's queues use fixed and ephemeral TCP ports",
    weight=7,
)


def check(cluster: Cluster) -> Iterator[Finding]:
    """One finding for each node and port (or rail) that others can't reach, with who tried."""
    failed: dict[tuple[str, str, str, int], list[Trial]] = {}
    for trial in cluster.trials:
        if trial.outcome is not Outcome.OPEN:
            port = trial.port if trial.kind == "tcp" else 0
            failed.setdefault((trial.target, trial.side, trial.kind, port), []).append(trial)
    dead = {(target, side) for target, side, *_ in failed if _all_failed(cluster, target, side)}
    for target, side in sorted(dead):
        trials = [trial for key, group in failed.items() if key[:2] == (target, side) for trial in group]
        yield _unreachable(target, side, trials)
    for (target, side, kind, port), trials in failed.items():
        if (target, side) not in dead:
            yield _too_big(target, side, trials) if kind == "mtu" else _blocked(target, port, trials)


def _all_failed(cluster: Cluster, target: str, side: str) -> bool:
    tried = [trial for trial in cluster.trials if (trial.target, trial.side) == (target, side)]
    return all(trial.outcome not in (Outcome.OPEN, Outcome.TOO_BIG) for trial in tried)


def _who(trials: Sequence[Trial]) -> str:
    return ", ".join(sorted({trial.source for trial in trials}))


def _evidence(trials: Sequence[Trial]) -> tuple[str, ...]:
    return tuple(
        f"{trial.source} -> {trial.address}:{trial.port} ({trial.kind}{f' {trial.size} bytes' if trial.size else ''}): "
        f"{trial.outcome.value}{f' {trial.detail}' if trial.detail else ''}"
        for trial in trials[:6]
    )


def _unreachable(target: str, side: str, trials: Sequence[Trial]) -> Finding:
    rail = side != "tcp"
    words = "drops everything" if all(trial.outcome is Outcome.SILENT for trial in trials) else "lets nothing through"
    return Finding(
        id=RULE.id,
        severity=Severity.SLOW if rail else Severity.STOP,
        node=target,
        devices=(side,) if rail else (),
        title=f"{trials[0].address}{f' (rail of {side})' if rail else ''} can't be reached from {_who(trials)}: "
        f"something on the way {words}",
        evidence=_evidence(trials),
        effect=price(Traffic.TCP) if rail else "the gang can't start: ranks can't meet",
        fix="check the rail's cable, VLAN and address (ping from the peers)"
        if rail
        else "check routes and firewalls between the nodes (iptables -L, nft list ruleset, security groups)",
    )


def _blocked(target: str, port: int, trials: Sequence[Trial]) -> Finding:
    silent = any(trial.outcome is Outcome.SILENT for trial in trials)
    return Finding(
        id=RULE.id,
        severity=Severity.STOP,
        node=target,
        devices=(f"tcp/{port}",),
        title=f"TCP port {port} of {trials[0].address} is "
        f"{'dropped by a firewall' if silent else 'not to be reached'} for {_who(trials)}, other ports are open",
        evidence=_evidence(trials),
        effect="the gang can't start: a rank waits for its peers until its time-out",
        fix=f"open TCP {port} and the ephemeral range (/proc/sys/net/ipv4/ip_local_port_range) between the nodes",
    )


def _too_big(target: str, side: str, trials: Sequence[Trial]) -> Finding:
    size = max(trial.size for trial in trials)
    return Finding(
        id=RULE.id,
        severity=Severity.SLOW,
        node=target,
        devices=(side,),
        title=f"packets of {size} bytes don't reach {trials[0].address} from {_who(trials)}, smaller ones do",
        evidence=_evidence(trials),
        effect="large transfers hang or fall back to small packets (not measured)",
        fix=f"bring the MTU to {size} on every switch port and interface of this network, or lower it everywhere",
    )
