"""PCI configuration space, as far as rules read it. Beyond 64 bytes the kernel shows it to root only.

Offsets are those of the PCI Express Base Specification (7.5.3 capability, 7.9.3 serial number,
7.7.8 ACS, 10.5.1 ATS) and of Linux include/uapi/linux/pci_regs.h.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.model.snapshot import Snapshot

_EXPRESS = 0x10
_SERIAL_NUMBER = 0x0003
_ACS = 0x000D
_ATS = 0x000F
_FIRST_EXTENDED = 0x100
_MOST_CAPABILITIES = 48
_ALL = 4096


@dataclass(frozen=True, slots=True)
class ConfigSpace:
    """One function's configuration space, as many bytes as were readable; zeros at its end may be missing."""

    data: bytes

    @property
    def whole(self) -> bool:
        """Whether the extended capabilities were readable."""
        return len(self.data) > _FIRST_EXTENDED + 4

    @property
    def _padded(self) -> bytes:
        """With the zeros that were trimmed off its end."""
        return self.data.ljust(_ALL, b"\0") if self.whole else self.data

    @property
    def secondary_bus(self) -> int:
        """Number of the bus below a bridge, 0 where unknown."""
        return self.data[0x19] if len(self.data) > 0x19 else 0

    @property
    def acs_control(self) -> int | None:
        """The ACS control register; 0 without the capability, None where not readable."""
        return self._extended(_ACS, 6)

    @property
    def ats_enabled(self) -> bool | None:
        """Whether Address Translation Services are on; None without the capability and where not readable."""
        control = self._extended(_ATS, 6)
        return None if control is None or not any(id_ == _ATS for _, id_ in self._chain()) else bool(control & 0x8000)

    @property
    def serial_number_at(self) -> int | None:
        """Where the 8 bytes of the Device Serial Number stand; None without one."""
        found = (offset + 4 for offset, id_ in self._chain() if id_ == _SERIAL_NUMBER)
        return next((at for at in found if at + 8 <= len(self._padded)), None)

    @property
    def max_read_request(self) -> int | None:
        """Bytes that one read may ask for (Device Control, bits 14:12); None where not readable."""
        control = self._device_control()
        return None if control is None else 128 << (control >> 12 & 7)

    @property
    def max_payload(self) -> int | None:
        """Bytes in one packet (Device Control, bits 7:5); None where not readable."""
        control = self._device_control()
        return None if control is None else 128 << (control >> 5 & 7)

    def _device_control(self) -> int | None:
        if len(self.data) < 0x40:
            return None
        offset = self.data[0x34] & 0xFC
        for _ in range(_MOST_CAPABILITIES):
            if offset < 0x40 or offset + 10 > len(self.data):
                return None
            if self.data[offset] == _EXPRESS:
                return int.from_bytes(self.data[offset + 8 : offset + 10], "little")
            offset = self.data[offset + 1] & 0xFC
        return None

    def _extended(self, wanted: int, at: int) -> int | None:
        """16 bits of an extended capability; 0 where the function has none of it."""
        if not self.whole:
            return None
        for offset, found in self._chain():
            if found == wanted:
                return int.from_bytes(self._padded[offset + at : offset + at + 2], "little")
        return 0

    def _chain(self) -> Iterator[tuple[int, int]]:
        offset, seen, data = _FIRST_EXTENDED, set[int](), self._padded
        while _FIRST_EXTENDED <= offset <= len(data) - 8 and offset not in seen:
            seen.add(offset)
            header = int.from_bytes(data[offset : offset + 4], "little")
            yield offset, header & 0xFFFF
            offset = header >> 20


def config_space(snapshot: Snapshot, key: str) -> ConfigSpace:
    """A function's configuration space; empty where it was not collected or is no hexadecimal text."""
    try:
        return ConfigSpace(bytes.fromhex(snapshot.files.get(f"{key}/config", "")))
    except ValueError:
        return ConfigSpace(b"")


def unread(snapshot: Snapshot, key: str) -> str:
    """Why a function's configuration space is incomplete, as text."""
    path = f"{key}/config"
    if path in snapshot.errors:
        return snapshot.errors[path]
    return f"cut off at {len(config_space(snapshot, key).data)} bytes" if path in snapshot.files else "not collected"
