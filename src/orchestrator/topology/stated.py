"""What a text states of a machine without a place in its PCI tree."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from orchestrator.model.snapshot import Snapshot, part
from orchestrator.model.topology import PathType, RdmaPort, Stated

WORD = re.compile(r"X|PIX|PXB|PHB|NODE|SYS|SOC|NV[0-9]{1,2}|N/A|DIS|\?")
"""What a cell of `nvidia-smi topo -m` may say; SOC is SYS in drivers before 384."""
_TYPES = {"PIX": PathType.PIX, "PXB": PathType.PXB, "PHB": PathType.PHB, "NODE": PathType.PHB, "SYS": PathType.SYS,
          "SOC": PathType.SYS}  # fmt: skip
PASTED = "pasted"
"""In a snapshot's host facts: what was read out of a text, {"forms": [...], "areas": [...], "stated": {...}}."""
TEXT = "the pasted text"
"""In place of a path, of what such a text does not tell."""
_MOST = 256


def pasted(snapshot: Snapshot) -> Mapping[str, Any]:
    """What of a snapshot comes out of a text that somebody pasted; {} for all others."""
    return part(snapshot.host, PASTED)


def stated_of(snapshot: Snapshot) -> Stated | None:
    """The matrix of a pasted text; of one that was saved by hand as much as is well-formed."""
    raw = part(pasted(snapshot), "stated")
    if not raw:
        return None
    rows = raw.get("rows")
    return Stated(
        heads=_texts(raw.get("heads")),
        names=tuple((str(head), str(name)) for head, name in part(raw, "names").items()),
        columns=_texts(raw.get("columns")),
        rows=tuple(
            (str(row[0]), _texts(row[1]), _texts(row[2]))
            for row in (rows if isinstance(rows, (list, tuple)) else ())
            if isinstance(row, (list, tuple)) and len(row) == 3
        )[:_MOST],
    )


def recognised(snapshot: Snapshot) -> tuple[str, ...]:
    """The forms that a pasted snapshot was read from."""
    return _texts(pasted(snapshot).get("forms"))


def sockets_of(snapshot: Snapshot) -> tuple[str, ...]:
    """Interfaces that NCCL's pasted log says it used TCP over."""
    return _texts(pasted(snapshot).get("sockets"))


def path_of(word: str) -> PathType | None:
    """NCCL's name for a word of nvidia-smi; None for what says nothing."""
    return PathType.NVL if word.startswith("NV") else _TYPES.get(word)


def with_stated(ports: tuple[RdmaPort, ...], stated: Stated | None) -> tuple[RdmaPort, ...]:
    """The ports, and one for each RDMA device that is stated alone: nothing is known of it but how far it is."""
    known = {port.device for port in ports}
    names = [name for name in dict.fromkeys(stated.nics if stated else ()) if name not in known]
    placeless = RdmaPort(device="", port=1, address="", key="", switch="", numa_node=-1, gids_recorded=False)
    return (*ports, *(replace(placeless, device=name) for name in names))


def _texts(raw: Any) -> tuple[str, ...]:
    return tuple(str(one) for one in raw)[:_MOST] if isinstance(raw, (list, tuple)) else ()
