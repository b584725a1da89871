"""Rails that are lossless for one priority, while NCCL's packets travel in another."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model.finding import Finding, Severity
from orchestrator.model.topology import RAILS, RdmaPort
from orchestrator.rules.support.cluster import Cluster, Node, port_devices
from orchestrator.rules.support.registry import Rule

RULE = Rule(
    id="LOSSLESS-UNMARKED",
    title="a port pauses for a priority that NCCL's packets do not have",
    explain=(
        "Priority flow control (PFC) keeps one priority from being lost; switches know it by the packets' DSCP. NCCL"
        " sends with DSCP 0 where nothing else is set, so that its packets are dropped when a queue is full, as on a"
        " network without PFC. `l40s_ib_tc` sets NCCL_IB_TC: DSCP x 4, and 2 for ECN. Which priority a DSCP has is the"
        " card's and the switch's setting; by mlx5's default it is DSCP / 8, which is assumed here."
    ),
    reads=("IEEE 802.1Qaz settings of network cards, by netlink (RTM_GETDCB)", "`l40s_ib_tc` and `l40s_env`"),
    source="NCCL user guide, NCCL_IB_TC; linux/dcbnl.h, struct ieee_pfc; Linux mlx5 driver, dscp2prio",
    weight=36,
    needs=RAILS,
)
_ENABLED = 1
"""Byte of `struct ieee_pfc` with a bit for each priority that pauses."""
_VARIABLE = "NCCL_IB_TC"


def check(cluster: Cluster) -> Iterator[Finding]:
    """One note a port."""
    for node in cluster.nodes:
        told = node.snapshot.host.get("flow_control")
        for port in node.rail_ports:
            if port.link_layer == "Ethernet" and isinstance(told, dict):
                yield from _judged(node, port, told.get(port.netdev))


def _judged(node: Node, port: RdmaPort, raw: object) -> Iterator[Finding]:
    priorities = _priorities(raw)
    if priorities is None:
        return
    given = _given(node)
    ours = (given or 0) >> 5
    if ours in priorities or (given is None and not priorities):
        return
    pauses = f"priority {', '.join(map(str, priorities))}" if priorities else "no priority"
    wanted = _class(priorities[0]) if priorities else 0
    yield Finding(
        id=RULE.id,
        severity=Severity.NOTE,
        node=node.name,
        devices=port_devices(port),
        title=f"{port.netdev} is lossless for {pauses}, but NCCL's packets have priority {ours}",
        evidence=(
            f"{port.netdev}: PFC on for {pauses} (struct ieee_pfc: {raw})",
            f"{_VARIABLE}: {'not set' if given is None else given} (DSCP {(given or 0) >> 2})",
        ),
        effect="packets are lost when a switch's queue is full, and RoCE sends entire windows again (not measured)",
        fix=f"set l40s_ib_tc: {wanted} in the inventory (DSCP {wanted >> 2}), if the switches map that DSCP to it"
        if priorities
        else "turn PFC on for that priority on this card and its switch port (`dcb pfc`), or remove l40s_ib_tc",
    )


def _priorities(raw: object) -> tuple[int, ...] | None:
    """Those that pause; None where nothing was read."""
    try:
        enabled = bytes.fromhex(str(raw))[_ENABLED]
    except (ValueError, IndexError):
        return None
    return tuple(bit for bit in range(8) if enabled >> bit & 1)


def _given(node: Node) -> int | None:
    """The traffic class that the plan sets; None for NCCL's own, 0."""
    if node.spec.overrides.ib_tc is not None:
        return node.spec.overrides.ib_tc
    value = dict(node.spec.overrides.env).get(_VARIABLE, "")
    return int(value) if value.isdigit() else None


def _class(priority: int) -> int:
    """A traffic class with that priority: DSCP 8 x priority + 2, as NVIDIA's guides take 26 for 3, and ECN."""
    return (8 * priority + 2) << 2 | 2
