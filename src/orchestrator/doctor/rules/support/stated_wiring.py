"""Which GPUs have a card near them, of a node of which a pasted text tells path types, or a bare PCI tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.doctor.rules.support.cluster import Node
from orchestrator.doctor.rules.support.registry import slow, unknown
from orchestrator.model.finding import Finding
from orchestrator.model.topology import PathType
from orchestrator.topology.paths import Sharing, gpu_ends, nic_ends, paths, stated_groups
from orchestrator.topology.pci import card
from orchestrator.topology.speed import Traffic, price

_MELLANOX = 0x15B3
_BOND = "bond"
_Cards = tuple[tuple[str, ...], ...]
"""Each by the names of its ports."""
_Paths = Mapping[tuple[str, str], PathType | None]


@dataclass(frozen=True, slots=True)
class Wiring:
    """What shares a switch.

    lonely: two or more GPUs behind one switch, and no card; served: GPUs that have one
    moved:  cards for RDMA that are near no GPU, and that the lonely ones may lack; sure: another card is there for TCP
    """

    lonely: tuple[Sharing, ...]
    served: tuple[Sharing, ...]
    moved: _Cards
    sure: bool

    @property
    def alone(self) -> str:
        """The lonely ones, in words."""
        return " and of ".join(", ".join(group.gpus) for group in self.lonely)

    def evidence(self) -> Iterator[str]:
        """Of the lonely ones."""
        return (f"no card is nearer than the CPU to {', '.join(group.gpus)}" for group in self.lonely)


def card_missing(node: Node) -> list[Finding] | None:
    """NIC-MISSING by path types."""
    seen = wiring_of(node)
    if seen is None or not (seen.lonely and seen.served and not seen.moved):
        return None if seen is None else []
    title = f"no RDMA card behind the switch of {seen.alone}"
    fix = "check that the card is seated, has power and a driver: `lspci | grep -i mellanox`, `ibv_devices`"
    near = [f"{', '.join(group.nics)}: PIX or PXB to {', '.join(group.gpus)}" for group in seen.served]
    gpus = tuple(gpu for group in seen.lonely for gpu in group.gpus)
    return [slow(title, *near, *seen.evidence(), effect=price(Traffic.CARD_ON_ROOT_PORT), fix=fix, devices=gpus)]


def card_away(node: Node) -> list[Finding] | None:
    """NIC-NOT-UNDER-SWITCH by path types: one finding a node."""
    seen = wiring_of(node)
    if seen is None or not seen.moved:
        return None if seen is None else []
    names = (" and " if seen.sure else " or ").join(", ".join(ports) for ports in seen.moved)
    cost, ports = price(Traffic.CARD_ON_ROOT_PORT), tuple(port for ports in seen.moved for port in ports)
    if seen.sure:
        fix = "power off, and move the card to a slot behind that switch"
        title = f"RDMA card {names} is not behind the switch of {seen.alone}"
        return [slow(title, *seen.evidence(), effect=cost, fix=fix, devices=ports)]
    fix = "run `l40s-deploy doctor` on the node itself, which shows the card that carries TCP"
    title = f"{names} is near no GPU; whether it serves {seen.alone}, or TCP, is not known"
    return [unknown(title, *seen.evidence(), effect=f"if it serves the GPUs: {cost}", fix=fix, devices=ports)]


def wiring_of(node: Node) -> Wiring | None:
    """None where the path of a NIC is not known."""
    pairs = {(pair.one, pair.other): pair.type for pair in paths(node.topology)}
    nics = nic_ends(node.topology)
    if not nics or not _are_known(node, pairs):
        return None
    groups = stated_groups(node.topology)
    rdma = [nic.name for nic in nics if node.topology.rdma or node.devices[nic.key].vendor == _MELLANOX]
    lonely = tuple(group for group in groups if not group.nics and len(group.gpus) > 1)
    served = tuple(group for group in groups if {*rdma} & {*group.nics})
    far, sure = _far(rdma, groups)
    cards = _cards(node, far)
    moved = _moved(cards, lonely, pairs) if lonely else ()
    return Wiring(lonely, served, moved, sure or len(moved) < min(len(cards), len(lonely) + 1))


def _are_known(node: Node, pairs: _Paths) -> bool:
    """Of two that have a place in the tree it is known whether they are near each other."""
    placed = {end.name for end in (*gpu_ends(node.topology), *nic_ends(node.topology)) if end.key in node.devices}
    return bool(pairs) and all(path is not None or {*pair} <= placed for pair, path in pairs.items())


def _far(rdma: Sequence[str], groups: Sequence[Sharing]) -> tuple[list[str], bool]:
    """(what is near no GPU, whether a bond was left out of it): a bond carries TCP, unless bonds are near GPUs too."""
    near = [nic for group in groups for nic in group.nics]
    far = [nic for nic in rdma if nic not in near]
    plain = far if any(_BOND in nic for nic in near) else [nic for nic in far if _BOND not in nic]
    return plain, plain != far


def _moved(cards: _Cards, lonely: Sequence[Sharing], pairs: _Paths) -> _Cards:
    """Of the cards that are near no GPU those that the lonely ones may lack: of their own NUMA domain where there are
    more."""
    gpus = [gpu for group in lonely for gpu in group.gpus]
    own = tuple(one for one in cards if any(pairs[gpu, one[0]] is PathType.PHB for gpu in gpus))
    return own if own and len(cards) > len(lonely) else cards


def _cards(node: Node, nics: list[str]) -> _Cards:
    """Ports that are PIX from each other are taken for those of one card."""
    words = node.topology.stated.words() if node.topology.stated else {}
    keys = {end.name: card(end.key) for end in nic_ends(node.topology)}
    cards: dict[str, list[str]] = {}
    for nic in nics:
        first = next((one for one in cards if words.get((one, nic)) == "PIX" or keys[one] == keys[nic]), nic)
        cards.setdefault(first, []).append(nic)
    return tuple(map(tuple, cards.values()))
