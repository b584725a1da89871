"""Xid errors of broken hardware that end a rank, with the id that each has as a cause.

Source: NVIDIA, Xid Errors, Xid Catalog. 13, 31, 43 and 45 are left out: they may follow from a process's own end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_RESET = "reset the GPU (`nvidia-smi --gpu-reset`) or reboot the node; if it happens again, replace the card"
_DRIVER = "reboot the node; if it happens again, update the driver"
_POWER = "power-cycle the node; if it happens again, reseat the card and check its power"


@dataclass(frozen=True, slots=True)
class Xid:
    """id: of the catalogue; what: of a GPU, 'fell off the bus'; meaning: NVIDIA's description in a sentence."""

    id: str
    what: str
    fix: str
    meaning: str


XIDS: Mapping[int, Xid] = {
    48: Xid("XID-48", "has an uncorrectable memory error", _RESET,
            "Double Bit ECC Error: the GPU's memory returned data that its ECC could not correct."),
    62: Xid("XID-62", "stopped in its own firmware", _RESET,
            "Internal micro-controller halt: the firmware of the GPU's power management unit stopped."),
    64: Xid("XID-64", "can't remap a faulty memory row", _RESET,
            "Row remapper failure: the GPU has no spare row left for a faulty one, or could not record the remapping."),
    74: Xid("XID-74", "has an NVLink error", _RESET,
            "NVLink Error: a link to another GPU or to a switch failed."),
    79: Xid("XID-79", "fell off the bus", _POWER,
            "GPU has fallen off the bus: the driver can't reach the card over PCIe. Power, heat, the riser or the card "
            "is at fault."),
    95: Xid("XID-95", "has an uncontained memory error", _RESET,
            "Uncontained ECC error: an uncorrectable memory error that may have reached every process on the GPU."),
    119: Xid("XID-119", "does not respond to its driver", _DRIVER,
             "GSP RPC timeout: the GPU System Processor did not answer a request of the driver in time."),
    120: Xid("XID-120", "has an error in its system processor", _DRIVER,
             "GSP error: the firmware of the GPU System Processor failed."),
    140: Xid("XID-140", "has an unrecovered ECC error", _RESET,
             "Unrecovered ECC Error: the GPU's memory returned data that was not corrected, and it must be reset."),
}  # fmt: skip
