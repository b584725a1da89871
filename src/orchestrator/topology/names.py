"""Names of parts that one meets in such machines, by PCI vendor and device (pci-ids.ucw.cz)."""

from __future__ import annotations

import re

_PARTS = {
    (0x10DE, 0x26B9): "NVIDIA L40S",
    (0x10DE, 0x26B5): "NVIDIA L40",
    (0x10DE, 0x26BA): "NVIDIA L20",
    (0x10DE, 0x27B8): "NVIDIA L4",
    (0x10DE, 0x26B1): "NVIDIA RTX 6000 Ada",
    (0x10DE, 0x2335): "NVIDIA H200",
    (0x10DE, 0x2684): "NVIDIA RTX 4090",
    (0x15B3, 0x1013): "ConnectX-4",
    (0x15B3, 0x1015): "ConnectX-4 Lx",
    (0x15B3, 0x1017): "ConnectX-5",
    (0x15B3, 0x1019): "ConnectX-5 Ex",
    (0x15B3, 0x101B): "ConnectX-6",
    (0x15B3, 0x101D): "ConnectX-6 Dx",
    (0x15B3, 0x101F): "ConnectX-6 Lx",
    (0x15B3, 0x1021): "ConnectX-7",
    (0x15B3, 0x1023): "ConnectX-8",
    (0x15B3, 0xA2D6): "BlueField-2",
    (0x15B3, 0xA2DC): "BlueField-3",
    (0x1000, 0xC010): "PEX88000",
    (0x1000, 0xC030): "PEX89000",
    (0x10B5, 0x8796): "PEX8796",
    (0x10B5, 0x9797): "PEX9797",
    (0x8086, 0x1572): "Intel X710",
    (0x8086, 0x1592): "Intel E810",
    (0x8086, 0x37D2): "Intel X722",
    (0x1BCF, 0x001C): "NEC Vector Engine",
}


def part_name(vendor: int, device: int) -> str:
    """The part's name, else its ids as lspci -n prints them; '' where these were not read."""
    if not vendor or not device:
        return ""
    return _PARTS.get((vendor, device), f"{vendor:04x}:{device:04x}")


def device_called(vendor: int, words: str) -> int:
    """The device id of a part that lspci calls so ('AD102GL [L40S]'); 0 where its name is not listed here."""
    named = re.findall(r"\[(?:GeForce )?([^]]{1,64})\]", words)
    return next(
        (ids[1] for ids, name in _PARTS.items() if ids[0] == vendor and name.removeprefix("NVIDIA ") in named), 0
    )
