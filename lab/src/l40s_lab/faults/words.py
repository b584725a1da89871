"""Parses the arguments of a fault; invalid ones raise an InputError that names them."""

from __future__ import annotations

import re
import signal

from l40s_lab.faults.registry import Words
from l40s_lab.hardware.edit import gpus
from l40s_lab.hardware.machine import NetworkInterface, NodeMachine
from orchestrator.protocol.errors import InputError


def number(words: Words, place: int, *, what: str, lowest: int, highest: int, default: int | None = None) -> int:
    """A whole number; the default if the argument is missing. Without a default, a missing argument is an error."""
    if place >= len(words) and default is not None:
        return default
    text = words[place] if place < len(words) else ""
    if not text.isascii() or not text.isdigit() or len(text) > 12 or not lowest <= int(text) <= highest:
        found = repr(text) if text else "nothing"
        raise InputError(
            f"found {found}, wanted {what}, {lowest} to {highest}", where="ARG", fix="l40s-deploy lab faults"
        )
    return int(text)


SLOW = "20mbit"
"""The default rate."""


def rate(words: Words, place: int) -> str:
    """Bits per second as tc(8) writes them: 20mbit, 1gbit."""
    text = words[place] if place < len(words) else SLOW
    if not re.fullmatch(r"[1-9]\d{0,5}[kmg]bit", text):
        raise InputError(f"found {text!r}, wanted a rate such as {SLOW}", where="ARG", fix="kbit, mbit or gbit")
    return text


def gpu(node: NodeMachine, words: Words) -> int:
    """The index of one of the node's GPUs, in NVML's numbering."""
    return number(words, 0, what="the index of a GPU", lowest=0, highest=len(gpus(node.machine)) - 1)


def rail_port(node: NodeMachine, words: Words) -> NetworkInterface:
    """An RDMA port by its own name or its interface's; by default the first one on a rail."""
    ports = [one for one in node.interfaces if one.rdma and not one.slaves]
    rails = [one for one in ports if one.rail is not None]
    return _interface(ports, (rails or ports)[:1], words, "an RDMA device or its interface")


def any_port(node: NodeMachine, words: Words) -> NetworkInterface:
    """An interface by its own name or its RDMA device's; by default the one that carries TCP."""
    return _interface(
        node.interfaces, [one for one in node.interfaces if one.primary], words, "an interface or an RDMA device"
    )


def slave(node: NodeMachine, words: Words) -> NetworkInterface:
    """A bond's port; by default the last one of the first bond."""
    slaves = [one for one in node.interfaces if one.bond]
    first = [one for one in slaves if one.bond == slaves[0].bond]
    return _interface(slaves, first[-1:], words, "a port of a bond")


def signal_number(words: Words, place: int) -> int:
    """A signal by name or number; by default SIGKILL."""
    text = words[place].upper().removeprefix("SIG") if place < len(words) else "KILL"
    known = {one.name.removeprefix("SIG"): one.value for one in signal.Signals}
    known |= {str(value): value for value in known.values()}
    if text not in known:
        raise InputError(f"found {words[place]!r}, wanted a signal's name", where="ARG", fix="KILL, ABRT or SEGV")
    return known[text]


def _interface(
    choice: tuple[NetworkInterface, ...] | list[NetworkInterface],
    default: list[NetworkInterface],
    words: Words,
    wanted: str,
) -> NetworkInterface:
    if not choice:
        raise InputError(
            f"this machine has none, wanted {wanted}", where="ARG", fix="start a lab with another --wiring"
        )
    if not words and default:
        return default[0]
    named = [one for one in choice if words and words[0] in (one.name, one.rdma)]
    if named:
        return named[0]
    names = ", ".join(f"{one.name}{f' ({one.rdma})' if one.rdma else ''}" for one in choice)
    found = repr(words[0]) if words else "nothing"
    raise InputError(f"found {found}, wanted {wanted}: {names}", where="ARG", fix="l40s-deploy discover")
