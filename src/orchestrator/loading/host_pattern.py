"""Host names of an Ansible inventory: `l40s-[0:3]`, `rack[a:c]-[01:10:2]`, `name:port`, `[IPv6]:port`."""

from __future__ import annotations

import ipaddress
import re
import string

MOST_HOSTS = 4096
"""More names than this from one pattern is taken for a slip of the keyboard."""

_RANGE = re.compile(r"\[([^\[\]]*)\]")
_BRACKETED_PORT = re.compile(r"\[(?P<host>[^\[\]]+)\]:(?P<port>[0-9]+)")
_PLAIN_PORT = re.compile(r"(?P<host>(?:[^:\[\]]|\[[^\[\]]*\])+):(?P<port>[0-9]+)")


class BadPattern(ValueError):
    """A host pattern that Ansible would not expand either; the message says what is wanted."""


def expand(pattern: str) -> tuple[tuple[str, ...], int | None]:
    """The names that a pattern stands for, in order, and the port where one is given (as Ansible has it:
    a bare IPv6 address has no port, `[address]:port` has one). Raises BadPattern."""
    host, port = _split_port(pattern)
    names = _expand_ranges(host)
    return names, port


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


def _range_items(bounds: str) -> list[str]:
    parts = bounds.split(":")
    if len(parts) not in (2, 3) or not parts[1]:
        raise BadPattern(f"[{bounds}] is not a range; wanted [begin:end] or [begin:end:step], for example [0:3]")
    begin, end = parts[0] or "0", parts[1]
    step = _number(parts[2], bounds) if len(parts) == 3 else 1
    if step < 1:
        raise BadPattern(f"the step in [{bounds}] is not above 0")
    if begin[0] == "0" and len(begin) > 1 and len(begin) != len(end):
        raise BadPattern(f"begin and end in [{bounds}] must have the same length because of leading zeros")
    letters = string.ascii_letters
    if len(begin) == len(end) == 1 and begin in letters and end in letters:
        items = list(letters[letters.index(begin) : letters.index(end) + 1 : step])
    else:
        first, last = _number(begin, bounds), _number(end, bounds)
        if (last - first) // step >= MOST_HOSTS:
            raise BadPattern(f"[{bounds}] expands to more than {MOST_HOSTS} hosts")
        width = len(begin) if begin[0] == "0" else 0
        items = [str(number).zfill(width) for number in range(first, last + 1, step)]
    if not items:
        raise BadPattern(f"[{bounds}] is empty: its begin is after its end")
    return items


def _number(text: str, bounds: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise BadPattern(f"[{bounds}] is neither a range of numbers nor of letters")
    return int(text)
