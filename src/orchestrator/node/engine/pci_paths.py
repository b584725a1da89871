"""Whether PCIe diverts what GPUs send each other: ACS of the switch ports above them, IOMMU groups that translate.

The same facts that `doctor` judges by (doctor/rules/pcie.py), read for a hung gang's GPUs alone.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence

from orchestrator.node import files

_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")
_ACS = 0x000D
_REDIRECTS = 0x04 | 0x08 | 0x20
"""P2P Request Redirect, Completion Redirect, Egress Control (PCI Express Base Specification, ACS Control Register)."""
_DOWNSTREAM = 6
"""Device type of a switch's downstream port (PCI Express Capabilities Register, bits 7:4)."""
_TRANSLATES = ("DMA", "DMA-FQ")
"""Linux ABI, sysfs-kernel-iommu_groups: type."""


def diverted(gpus: Sequence[str], root: str = "/sys") -> bool | None:
    """gpus: their PCI addresses. None where nothing of it may be read."""
    paths = [_of_gpu(_plain(gpu), root) for gpu in gpus]
    known = [path for path in paths if path is not None]
    return any(known) if known else None


def _plain(address: str) -> str:
    """NVML writes domains with eight digits, sysfs with four."""
    domain, _, rest = address.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _of_gpu(address: str, root: str) -> bool | None:
    folder = os.path.realpath(f"{root}/bus/pci/devices/{address}")
    kind = (files.read_text(f"{folder}/iommu_group/type") or "").strip()
    if kind in _TRANSLATES:
        return True
    above = [part for part in folder.split("/")[:-1] if _ADDRESS.fullmatch(part)]
    ports = [_redirects(f"{root}/bus/pci/devices/{bridge}/config") for bridge in above]
    known = [port for port in ports if port is not None]
    if known:
        return any(known)
    return False if kind else None


def _redirects(path: str) -> bool | None:
    """Whether this bridge is a switch's downstream port whose ACS redirects; None where it can't be read whole."""
    data = b""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        data = file.read(4096)
    if len(data) < 4096:
        return None
    if _device_type(data) != _DOWNSTREAM:
        return False
    at = 0x100
    for _ in range(64):
        header = int.from_bytes(data[at : at + 4], "little")
        if header & 0xFFFF == _ACS:
            return bool(int.from_bytes(data[at + 6 : at + 8], "little") & _REDIRECTS)
        at = header >> 20
        if at < 0x100:
            break
    return False


def _device_type(data: bytes) -> int:
    """-1 without a PCI Express capability."""
    at = data[0x34] & 0xFC
    for _ in range(48):
        if at < 0x40:
            return -1
        if data[at] == 0x10:
            return int.from_bytes(data[at + 2 : at + 4], "little") >> 4 & 0xF
        at = data[at + 1] & 0xFC
    return -1
