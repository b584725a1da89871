"""Where a node's facts come from, and what can be done about a fact that is not in them."""

from __future__ import annotations

import re
from enum import Enum

from orchestrator.doctor.rules.support.cluster import Node
from orchestrator.model.snapshot import NOT_RECORDED
from orchestrator.topology.stated import pasted


class Input(Enum):
    """live: the node itself. snapshot: what `discover --save` wrote. recording: a copy of /sys. xml: NCCL's.
    pasted: what tools printed."""

    LIVE = "live"
    SNAPSHOT = "snapshot"
    RECORDING = "recording"
    XML = "xml"
    PASTED = "pasted"


def input_of(node: Node) -> Input:
    """What this node's facts were read from."""
    if pasted(node.snapshot):
        return Input.PASTED
    if node.snapshot.nvml.get("error") == NOT_RECORDED:
        return Input.RECORDING if node.snapshot.files else Input.XML
    return Input.SNAPSHOT if node.saved else Input.LIVE


_HYPERVISOR = re.compile(r"^flags\s*:.*\bhypervisor\b", re.MULTILINE)


def is_guest(node: Node) -> bool:
    """Whether the node is a virtual machine, as its processor says (x86 only)."""
    return bool(_HYPERVISOR.search(node.snapshot.text("/proc/cpuinfo")))


_AS_ROOT = {
    Input.LIVE: "set `ansible_become: true` in the inventory; only root can read it",
    Input.SNAPSHOT: "save the snapshot again with ansible_become: true: `l40s-deploy discover --save DIR`",
    Input.RECORDING: "record the machine again as root: `sudo hwloc-gather-topology DIR`, or `l40s-deploy discover "
    "--save DIR` with ansible_become: true",
    Input.XML: "NCCL's file has no such data: run `l40s-deploy doctor` on the node itself, with ansible_become: true",
    Input.PASTED: "run `l40s-deploy doctor` on the node itself, with ansible_become: true",
}
_AGAIN = {
    Input.LIVE: "read it yourself on the node; `l40s-deploy discover --save DIR` shows what was readable",
    Input.SNAPSHOT: "save the snapshot again: `l40s-deploy discover --save DIR`",
    Input.RECORDING: "`l40s-deploy discover --save DIR` on the running machine records it",
    Input.XML: "NCCL's file has no such data: run `l40s-deploy doctor` on the node itself",
    Input.PASTED: "run `l40s-deploy doctor` on the node itself; `l40s-deploy init NODE` makes the inventory for it",
}


def as_root(node: Node) -> str:
    """The fix where something is readable by root only."""
    return _AS_ROOT[input_of(node)]


def record_again(node: Node) -> str:
    """The fix where something was not recorded."""
    return _AGAIN[input_of(node)]
