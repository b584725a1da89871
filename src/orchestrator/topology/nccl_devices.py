"""The RDMA devices that NCCL opened, by its own log: `NET/IB : Using` and `Made virtual device`.

From NCCL src/transport/net_ib, as 2.18 to 2.30 write them: 2.20 to 2.22 merge the ports of a card in `Using`, newer
ones in `Made virtual device`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_USING = re.compile(r"^NET/IB\w* : Using (.*)")
_ENTRY = re.compile(r"\[\d{1,4}\](?:=\{([^}]*)\}|([^\s/]{1,64})/)")
_PORT = re.compile(r"(?:^|[\s\]])([^\s/:\]]{1,64}:\d{1,3})")
"""Before the rail and the plane that 2.30 appends."""
_MERGED = re.compile(r"^NET/IB\w* : Made virtual device \[(\d{1,4})\] name=(\S+) .*ndevs=")


def opened(lines: Iterable[str]) -> dict[int, tuple[str, ...]]:
    """The ports, as mlx5_0:1, of each of NCCL's RDMA devices by its number. lines: without what is before NCCL's"""
    entries: dict[int, tuple[str, ...]] = {}
    for line in lines:
        if not entries and (match := _USING.match(line)):
            each = _ENTRY.findall(match[1].partition("; OOB")[0])
            entries = {place: tuple(_PORT.findall(merged or single)) for place, (merged, single) in enumerate(each)}
        elif match := _MERGED.match(line):
            entries.setdefault(int(match[1]), _parts(match[2], entries))
    return entries


def _parts(name: str, entries: Mapping[int, tuple[str, ...]]) -> tuple[str, ...]:
    """The ports of a virtual device: it is named after its cards' devices, mlx5_0+mlx5_1."""
    known = each_once(entries.values())
    return tuple(port for part in name.split("+") for port in known if port.rpartition(":")[0] == part)


def each_once(groups: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """The ports of all groups, each at its first place."""
    return tuple(dict.fromkeys(port for group in groups for port in group))
