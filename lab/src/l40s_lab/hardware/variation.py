"""How a wiring differs from its base, or one node from another: changes to a document before it is parsed.

- `gpus`, `nics`: properties of every GPU, of every network card
- `ports`: NETDEV or `*` -> properties of that port, of every port; names are those before `names` applies
- `keep_gpus`: keep this many GPUs, spread as evenly as possible over the bridges
- `cpu`, `system`: properties to add or replace
- `names`: old -> new name of interfaces and RDMA devices, everywhere
- anything else replaces the value of that name in the machine's description
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from orchestrator.protocol.errors import InputError

Document = dict[str, Any]
_NAMED = ("netdev", "rdma", "name", "primary")
"""Keys whose values are names of interfaces or RDMA devices, in ports, bonds and the machine."""


def changed(document: Document, change: Any, where: str) -> Document:
    """A copy with the changes made; raises InputError for a malformed change."""
    if not isinstance(change, dict):
        raise _wrong(where, change, "a mapping of changes")
    fresh = copy.deepcopy(document)
    for key, value in change.items():
        if key != "names":
            _CHANGES.get(key, _replace)(fresh, key, value, f"{where}: {key}")
    if "names" in change:
        _rename(fresh, _mapping(change["names"], f"{where}: names"), f"{where}: names")
    return fresh


def _replace(document: Document, key: str, value: Any, _where: str) -> None:
    document[key] = value


def _merge(document: Document, key: str, value: Any, where: str) -> None:
    document[key] = {**(document.get(key) or {}), **_mapping(value, where)}


def _merge_cards(document: Document, key: str, value: Any, where: str) -> None:
    kind = {"gpus": "gpu", "nics": "nic"}[key]
    for slot in _slots(document):
        card = slot["card"]
        if kind in card:
            card[kind] = {**(card[kind] or {}), **_mapping(value, where)}


def _merge_ports(document: Document, _key: str, value: Any, where: str) -> None:
    ports = _ports(document)
    known = [port.get("netdev") for port in ports]
    for name, properties in _mapping(value, where).items():
        if name != "*" and name not in known:
            raise _wrong(where, name, f"a port's netdev ({', '.join(map(str, known))}), or *")
        for port in ports:
            if name in ("*", port.get("netdev")):
                port.update(_mapping(properties, f"{where}: {name}"))


def _slots_with_gpus(parent: Document) -> list[Document]:
    return [slot for slot in _mappings(parent.get("ports")) if "gpu" in (slot.get("card") or ())]


def _keep_gpus(document: Document, _key: str, value: Any, where: str) -> None:
    by_parent = [_slots_with_gpus(parent) for parent in _parents(document)]
    total = sum(len(slots) for slots in by_parent)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= total:
        raise _wrong(where, value, f"0 to {total}, which the wiring has")
    in_turn = [slot for row in itertools.zip_longest(*by_parent) for slot in row if slot is not None]
    for slot in in_turn[value:]:
        del slot["card"]


_CHANGES: dict[str, Callable[[Document, str, Any, str], None]] = {
    "gpus": _merge_cards,
    "nics": _merge_cards,
    "ports": _merge_ports,
    "keep_gpus": _keep_gpus,
    "cpu": _merge,
    "system": _merge,
}


def _rename_in(place: Document, names: dict[str, Any]) -> None:
    for key in _NAMED:
        if place.get(key) in names:
            place[key] = names[place[key]]


def _rename(document: Document, names: dict[str, Any], where: str) -> None:
    bonds = _mappings(document.get("bonds"))
    places = [document, *bonds, *_ports(document)]
    known = {str(place[key]) for place in places for key in _NAMED if place.get(key)}
    for old, new in names.items():
        if old not in known or not isinstance(new, str):
            raise _wrong(where, old, f"a name of the wiring ({', '.join(sorted(known))}) and its new one")
    for place in places:
        _rename_in(place, names)
    for bond in bonds:
        bond["slaves"] = [names.get(slave, slave) for slave in bond.get("slaves") or ()]


def _parents(document: Document) -> list[Document]:
    """Root complexes and switches."""
    switches = [slot["card"].get("switch") for slot in _slots(document)]
    return [*_mappings(document.get("roots")), *_mappings(switches)]


def _ports(document: Document) -> list[Document]:
    """Every port of every network card."""
    cards = _mappings([slot["card"].get("nic") for slot in _slots(document)])
    return [port for card in cards for port in _mappings(card.get("ports"))]


def _slots(document: Document) -> Iterator[Document]:
    """Every port with a card, of root complexes and of switches."""
    for root in _mappings(document.get("roots")):
        yield from _occupied(root)


def _occupied(parent: Document) -> Iterator[Document]:
    for slot in _mappings(parent.get("ports")):
        if isinstance(slot.get("card"), dict):
            yield slot
            for switch in _mappings([slot["card"].get("switch")]):
                yield from _occupied(switch)


def _mappings(value: Any) -> list[Document]:
    """The parts that can be changed; malformed ones are refused when the machine is parsed."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _wrong(where, value, "a mapping")
    return value


def _wrong(where: str, found: Any, wanted: str) -> InputError:
    return InputError(f"found {found!r}, wanted {wanted}", where=where, fix="see the wirings that ship with the lab")
