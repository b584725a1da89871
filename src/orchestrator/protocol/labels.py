"""The verb `labels`: a machine's labels and identifiers, for the person who goes to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.protocol.message import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelsRequest(Message):
    """fs_root: where the hardware is read."""

    fs_root: str = "/"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelsAnswer(Message):
    """serials: by file of /sys/class/dmi/id; bmc: lines of `ipmitool lan print` with its addresses; neighbours: what
    `lldpcli -f keyvalue show neighbors` printed; macs: burnt in, by interface, where a bond hides them; unread: why
    something is missing, by its name."""

    serials: Mapping[str, str] = field(default_factory=dict)
    bmc: tuple[str, ...] = ()
    neighbours: str = ""
    macs: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)
