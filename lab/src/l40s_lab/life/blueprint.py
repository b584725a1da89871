"""A lab's specification: everything that the processes that build it need to know, as one file in its directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from l40s_lab import files
from l40s_lab.life.addressing import CONTROLLER, FIRST_NODE, GATEWAY

FILE = "blueprint.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Show:
    """A directory of this machine that every node shows read-only at `inside`."""

    outside: str
    inside: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """One lab.

    directory: where its keys, state and inventory are on this machine
    prefix:    the first three numbers of its IPv4 addresses, for example 10.77.3
    nodes:     node names, in node-rank order through all gangs
    gangs:     gang -> its nodes; together they are all nodes
    wiring:    the machine description as it was read (hardware.wiring parses it again)
    host_link: name of this machine's own interface into the lab; '' at level 0
    port:      of the nodes' SSH servers
    shows:     bind-mounted into every node
    rootfs:    the lowest layer of the nodes' roots: this machine's own root, or the one made for systemd nodes
    variables: node -> requested variables for the lab's inventory
    recorded:  for each node, the snapshot that it looks like (a file in the lab's directory); () for a wiring
    ranks:     of the real engine on CPU, on each node
    deaths:    how the stand-in's ranks die
    cabling:   IPv4 network of recorded interfaces -> number of the rail that they are cabled to
    mark:      label of this lab's kernel objects
    devices:   for each node, the device files of this machine's own GPUs that it has; () if GPUs are emulated
    fingerprint: digest of the request; the same request again needs no new lab
    """

    name: str
    directory: str
    level: int
    prefix: str
    nodes: tuple[str, ...]
    gangs: Mapping[str, tuple[str, ...]]
    engine: str
    wiring_name: str
    wiring: dict[str, Any]
    fingerprint: str
    host_link: str = ""
    port: int = 22
    shows: tuple[Show, ...] = ()
    rootfs: str = "/"
    variables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    recorded: tuple[str, ...] = ()
    cabling: Mapping[str, int] = field(default_factory=dict)
    mark: str = ""
    devices: tuple[tuple[str, ...], ...] = ()
    deaths: str = "plain"
    ranks: int = 1

    @property
    def path(self) -> Path:
        return Path(self.directory)

    @property
    def controller(self) -> str:
        """Our own address in the lab's network."""
        return f"{self.prefix}.{CONTROLLER}"

    @property
    def gateway(self) -> str:
        """Where the nodes send packets for other networks."""
        return f"{self.prefix}.{GATEWAY}"

    def address(self, index: int) -> str:
        """Address of the node with this index."""
        return f"{self.prefix}.{FIRST_NODE + index}"

    def write(self) -> None:
        """Write it into the lab's directory."""
        files.put(self.path / FILE, json.dumps(asdict(self)))

    @classmethod
    def read(cls, directory: Path) -> Blueprint:
        """The blueprint in a lab's directory; raises OSError, ValueError."""
        raw = json.loads((directory / FILE).read_text())
        shows = tuple(Show(**show) for show in raw.pop("shows"))
        gangs = {name: tuple(nodes) for name, nodes in raw.pop("gangs").items()}
        lists = {name: tuple(raw[name]) for name in ("nodes", "recorded")}
        devices = tuple(map(tuple, raw["devices"]))
        return cls(**{**raw, **lists, "gangs": gangs, "shows": shows, "devices": devices})
