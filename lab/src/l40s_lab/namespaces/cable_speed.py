"""Limits the speed of a lab's cable with the kernel's own queues (tc-htb(8)); unlimited, it is as fast as the
machine."""

from __future__ import annotations

from collections.abc import Iterable

_ALL = "100gbit"
"""Rate for other traffic: a class needs one."""


def slow(interface: str, rate: str, *, senders: Iterable[str] = ()) -> list[str]:
    """tc(8) commands that limit the rate of packets leaving an interface; senders: only those from these addresses."""
    commands = [
        f"qdisc replace dev {interface} root handle 1: htb default {10 if not senders else 20} r2q 1000",
        f"class replace dev {interface} parent 1: classid 1:10 htb rate {rate} burst 32k cburst 32k",
        f"class replace dev {interface} parent 1: classid 1:20 htb rate {_ALL} quantum 60000",
    ]
    commands += [
        f"filter add dev {interface} parent 1: protocol ip prio 1 u32 match ip src {address}/32 flowid 1:10"
        for address in senders
    ]
    return commands


def as_before(interface: str) -> str:
    """Undoes `slow`, even if already undone: a restarted node has new interfaces."""
    return f"qdisc replace dev {interface} root noqueue"
