"""A second opinion: path types by NCCL's steps, written from its sources and without the product's code.

src/graph/xml.cc (ncclTopoGetXmlFromSys): from a device, drop one path component at a time. If the remaining last
component is no bus address, the device is attached to the CPU, with the numa_node of the node before; the second one
that is an address is the switch above. src/graph/topo.cc (ncclTopoFlattenBcmSwitches) joins parts of Broadcom's
switches; src/graph/paths.cc (ncclTopoSetPaths) takes the worst link of the shortest path.
"""

from __future__ import annotations

import posixpath
import re
from collections import deque
from collections.abc import Mapping

_BDF = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
PIX, PXB, PHB, SYS = 4, 5, 8, 9
NAMES = {0: "LOC", PIX: "PIX", PXB: "PXB", PHB: "PHB", SYS: "SYS"}


class Walk:
    """The graph of some devices, given by the paths that their links resolve to."""

    def __init__(self, files: Mapping[str, str], gpus: list[str], nics: list[str]) -> None:
        self.files = files
        self.up: dict[str, str] = {}
        self.switches: list[str] = []
        for path in gpus:
            self._add(path, path)
        for path in nics:
            self._add(_card(path), path)
        self._flatten()

    def _number(self, path: str, name: str, base: int) -> int:
        try:
            return int(self.files[f"{path}/{name}"].strip(), base)
        except (KeyError, ValueError):
            return -1 if base == 10 else 0

    def _add(self, node: str, path: str) -> None:
        """path: where to read; node: its name. Ends at the CPU."""
        while node not in self.up:
            numa = self._number(path, "numa_node", 10)
            steps = 0
            above = path
            while True:
                above = posixpath.dirname(above)
                steps += 1
                if not _BDF.fullmatch(posixpath.basename(above)):
                    self.up[node] = f"cpu{numa}"
                    return
                if steps == 2:
                    break
            self.up[node] = above
            if above not in self.switches:
                self.switches.append(above)
            node = path = above

    def _ids(self, path: str) -> int:
        value = 0
        for name in ("vendor", "device", "subsystem_vendor", "subsystem_device"):
            value = value << 16 | self._number(path, name, 16)
        return value

    def _flatten(self) -> None:
        """0xffff in the last 16 bits keeps a switch that absorbed others from being absorbed itself."""
        ids = {switch: self._ids(switch) for switch in self.switches}

        def generation(switch: str, level: int) -> int:
            masked = ids[switch] & ~0xFFF
            if masked == 0x1000C0101000A000:
                return 4
            return 5 if masked == 0x1000C03010000000 | level * 0x1000 else 0

        for switch in sorted(self.switches, key=lambda path: path.count("/")):
            own = generation(switch, 0) if switch in ids else 0
            if not own:
                continue
            subs = [one for one in list(ids) if self.up.get(one) == switch and generation(one, 1) == own]
            for sub in subs:
                for node, above in list(self.up.items()):
                    if above == sub:
                        self.up[node] = switch
                del self.up[sub], ids[sub]
            ids[switch] |= 0xFFFF
        self.switches = list(ids)

    def type(self, one: str, other: str, *, nics: frozenset[str]) -> str:
        """NCCL's path type between two of the devices."""
        start, goal = (_card(path) if path in nics else path for path in (one, other))
        if start == goal:
            return NAMES[0]
        links: dict[str, list[tuple[str, int]]] = {}

        def link(a: str, b: str, kind: int) -> None:
            links.setdefault(a, []).append((b, kind))
            links.setdefault(b, []).append((a, kind))

        cpus = {node for node in self.up.values() if node.startswith("cpu")}
        for node, above in self.up.items():
            between = node in self.switches and above in self.switches
            link(node, above, PHB if above in cpus else PXB if between else PIX)
        for cpu in cpus:
            for another in cpus:
                if cpu < another:
                    link(cpu, another, SYS)
        worst, queue = {start: 0}, deque([start])
        while queue:
            node = queue.popleft()
            for neighbour, kind in links.get(node, ()):
                if neighbour not in worst:
                    worst[neighbour] = max(worst[node], kind)
                    queue.append(neighbour)
        return NAMES[worst[goal]]


def _card(path: str) -> str:
    return path.rpartition(".")[0]
