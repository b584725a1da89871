"""PCI configuration space, as far as rules read it. Beyond 64 bytes the kernel shows it to root only.

Offsets are those of the PCI Express Base Specification (7.5.3 capability, 7.9.3 serial number,
7.7.8 ACS, 10.5.1 ATS) and of Linux include/uapi/linux/pci_regs.h.
"""

from __future__ import annotations

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
        return self._control(_ACS) if self.whole else None

    @property
    def ats_enabled(self) -> bool | None:
        """Whether Address Translation Services are on; None without the capability and where not readable."""
        return bool(self._control(_ATS) & 0x8000) if _ATS in self._extended() else None

    @property
    def serial_number_at(self) -> int | None:
        """Where the 8 bytes of the Device Serial Number stand; None without one."""
        at = self._extended().get(_SERIAL_NUMBER, _ALL) + 4
        return at if at + 8 <= _ALL else None

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

    def _control(self, capability: int) -> int:
        """The 16 bits that control an extended capability; 0 where the function has none of it."""
        at = self._extended().get(capability)
        return int.from_bytes(self._padded[at + 6 : at + 8], "little") if at is not None else 0

    def _extended(self) -> dict[int, int]:
        """{id of an extended capability: where the first one stands}; {} where they were not readable."""
        offset, found, seen, data = _FIRST_EXTENDED, dict[int, int](), set[int](), self._padded
        while _FIRST_EXTENDED <= offset <= len(data) - 8 and offset not in seen:
            seen.add(offset)
            header = int.from_bytes(data[offset : offset + 4], "little")
            found.setdefault(header & 0xFFFF, offset)
            offset = header >> 20
        return found


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
