"""ACS on the switch ports between GPUs and RDMA cards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise

from orchestrator.rules.support.cluster import Node
from orchestrator.topology.config_space import config_space, unread
from orchestrator.topology.pci import bridges_above, card

_REQUEST_REDIRECT, _COMPLETION_REDIRECT, _EGRESS_CONTROL = 0x04, 0x08, 0x20
_REDIRECTS = _REQUEST_REDIRECT | _COMPLETION_REDIRECT | _EGRESS_CONTROL


def acs(node: Node) -> tuple[list[tuple[str, int]], list[tuple[str, str]]]:
    """([(address, ACS control)] of the ports on the path that redirect, [(address, why)] of those not readable)."""
    redirecting, cut_off = [], []
    for address, key in _ports_on_the_way(node):
        control = config_space(node.snapshot, key).acs_control
        if control is None:
            cut_off.append((address, unread(node.snapshot, key)))
        elif control & _REDIRECTS:
            redirecting.append((address, control))
    return redirecting, cut_off


def _ports_on_the_way(node: Node) -> list[tuple[str, str]]:
    """Downstream ports above a GPU or rail port while another card is behind the same switch or behind one above it:
    (address, key), in order of address."""
    keys = [gpu.key for gpu in node.topology.gpus] + [port.key for port in node.rail_ports]
    talkers = {card(key) for key in keys if key in node.devices}
    behind = Counter(bridge for talker in talkers for bridge in bridges_above(talker))
    switches = {switch.key for switch in node.topology.switches}
    found = {port for talker in talkers for port in _ports_to_others(bridges_above(talker), switches, behind)}
    return sorted((node.devices[port].address, port) for port in found if port in node.devices)


def _ports_to_others(way: Sequence[str], switches: Collection[str], behind: Mapping[str, int]) -> Iterator[str]:
    """The downstream ports between a card and others. way: the bridges above it, nearest first; behind: number of cards
    below each bridge"""
    most = max((behind[bridge] for bridge in way if bridge in switches), default=0)
    return (port for port, above in pairwise(way) if above in switches and behind[port] < most)
