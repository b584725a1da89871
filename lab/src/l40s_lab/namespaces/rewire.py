"""The ip(8) commands that turn a running node's network into another machine's. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from l40s_lab.hardware.machine import NetworkInterface


def outside(before: Sequence[NetworkInterface], after: Sequence[NetworkInterface], links: Sequence[str]) -> list[str]:
    """Commands for the lab's own network; links: the cable ends, in the order of the interfaces."""
    return [
        f"link set {link} {'up' if new.carrier else 'down'}"
        for old, new, link in zip(before, after, links, strict=True)
        if old.carrier != new.carrier
    ]


def inside(before: Sequence[NetworkInterface], after: Sequence[NetworkInterface], gateway: str) -> list[str]:
    """Commands for the node's own network. Interfaces are matched by position, since one may change its name."""
    commands = [command for old, new in zip(before, after, strict=True) for command in _changes(old, new)]
    if any(new.primary and not old.enabled and new.enabled for old, new in zip(before, after, strict=True)):
        commands.append(f"route replace default via {gateway}")
    return commands


def _changes(old: NetworkInterface, new: NetworkInterface) -> Iterator[str]:
    if old.name != new.name:
        yield f"link set {old.name} down"
        yield f"link set {old.name} name {new.name}"
        if new.enabled:
            yield f"link set {new.name} up"
    elif old.enabled != new.enabled:
        yield f"link set {new.name} {'up' if new.enabled else 'down'}"
    if old.mtu != new.mtu:
        yield f"link set {new.name} mtu {new.mtu}"
    for kind in ("ipv4", "ipv6"):
        had, has = getattr(old, kind), getattr(new, kind)
        nodad = " nodad" if kind == "ipv6" else ""
        yield from (f"address del {address} dev {new.name}" for address in had if address not in has)
        yield from (f"address add {address} dev {new.name}{nodad}" for address in has if address not in had)
