"""Host names of an Ansible inventory: `l40s-[0:3]`, `rack[a:c]-[01:10:2]`, `name:port`, `[IPv6]:port`."""

from __future__ import annotations

import ipaddress
import re
import string
from collections.abc import Sequence

MOST_HOSTS = 4096
"""A pattern that stands for more is taken for a typing error."""

_LETTERS = tuple(string.ascii_letters)
_RANGE = re.compile(r"\[([^\[\]]*)\]")
_BOUNDS = re.compile(r"(?P<begin>[^:]*):(?P<end>[^:]+)(?::(?P<step>[^:]*))?")
_BRACKETED_PORT = re.compile(r"\[(?P<host>[^\[\]]+)\]:(?P<port>[0-9]+)")
_PLAIN_PORT = re.compile(r"(?P<host>(?:[^:\[\]]|\[[^\[\]]*\])+):(?P<port>[0-9]+)")


class BadPattern(ValueError):
    """A host pattern that Ansible would not expand either. The message says what is wrong."""


def expand(pattern: str) -> tuple[tuple[str, ...], int | None]:
    """The names that a pattern stands for, in order, and the port, None where none is given. As with Ansible, an IPv6
    address needs brackets to have a port (`[address]:port`). Raises BadPattern."""
    host, port = _split_port(pattern)
    return _expand_ranges(host), port


def _split_port(pattern: str) -> tuple[str, int | None]:
    if _is_ipv6(pattern):
        return pattern, None
    match = _BRACKETED_PORT.fullmatch(pattern) or _PLAIN_PORT.fullmatch(pattern)
    if match is None:
        return pattern, None
    port = int(match["port"][:8])
    if not 0 < port < 65536:
        raise BadPattern(f"port {match['port']} is not between 1 and 65535")
    return match["host"], port


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def _expand_ranges(pattern: str) -> tuple[str, ...]:
    names = [""]
    at = 0
    for match in _RANGE.finditer(pattern):
        between = pattern[at : match.start()]
        items = _range_items(match[1])
        if len(names) * len(items) > MOST_HOSTS:
            raise BadPattern(f"expands to more than {MOST_HOSTS} hosts")
        names = [f"{name}{between}{item}" for name in names for item in items]
        at = match.end()
    rest = pattern[at:]
    names = [name + rest for name in names]
    if any("[" in name or "]" in name for name in names):
        raise BadPattern("has an unmatched bracket; a range is [0:3], [01:10] or [a:c]")
    if not all(names):
        raise BadPattern("is an empty name")
    return tuple(names)


def _range_items(bounds: str) -> Sequence[str]:
    match = _BOUNDS.fullmatch(bounds)
    if match is None:
        raise BadPattern(f"[{bounds}] is not a range; wanted [begin:end] or [begin:end:step], for example [0:3]")
    begin, end = match["begin"] or "0", match["end"]
    step = 1 if match["step"] is None else _number(match["step"], bounds)
    if step < 1:
        raise BadPattern(f"the step in [{bounds}] is not above 0")
    if begin in _LETTERS and end in _LETTERS:
        items: Sequence[str] = _LETTERS[_LETTERS.index(begin) : _LETTERS.index(end) + 1 : step]
    else:
        items = _numbers(begin, end, step, bounds)
    if not items:
        raise BadPattern(f"[{bounds}] is empty: its begin is after its end")
    return items


def _numbers(begin: str, end: str, step: int, bounds: str) -> list[str]:
    """Leading zeros of `begin` give all of them its width."""
    width = len(begin) if begin.startswith("0") else 1
    if width not in (1, len(end)):
        raise BadPattern(f"begin and end in [{bounds}] must have the same length because of leading zeros")
    first, last = _number(begin, bounds), _number(end, bounds)
    if (last - first) // step >= MOST_HOSTS:
        raise BadPattern(f"[{bounds}] expands to more than {MOST_HOSTS} hosts")
    return [str(number).zfill(width) for number in range(first, last + 1, step)]


def _number(text: str, bounds: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise BadPattern(f"[{bounds}] is neither a range of numbers nor of letters")
    return int(text)
