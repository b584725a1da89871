"""One identity, one pseudonym, over all snapshots of a cluster: what was equal stays equal, what shared a network
shares one. Pure; the key decides every address, and without it there is no way back."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address

_HEX = "0-9A-Fa-f"
_OF_HARDWARE = {
    # Of IPoIB: 4 bytes of queue pair, 8 of subnet prefix, 8 of port GUID (RFC 4391, 9.1.1).
    "long_mac": rf"(?<![{_HEX}:])[{_HEX}]{{2}}(?::[{_HEX}]{{2}}){{19}}(?![{_HEX}:])",
    "gid": rf"(?<![{_HEX}:])[{_HEX}]{{4}}(?::[{_HEX}]{{4}}){{7}}(?![{_HEX}:])",
    "guid": rf"(?<![{_HEX}:])[{_HEX}]{{4}}(?::[{_HEX}]{{4}}){{3}}(?![{_HEX}:])",
    "mac": rf"(?<![{_HEX}:])[{_HEX}]{{2}}(?::[{_HEX}]{{2}}){{5}}(?![{_HEX}:])",
    "uuid": rf"(?<![{_HEX}])[{_HEX}]{{8}}(?:-[{_HEX}]{{4}}){{3}}-[{_HEX}]{{12}}(?![{_HEX}-])",
    # systemd.net-naming-scheme: a prefix, x, the MAC address; rdma-core's NAME_GUID: the same with a GUID.
    "name": r"(?<![0-9A-Za-z])(?:en|ib|wl|sl|roce|iw|opa)x(?:[0-9a-f]{16}|[0-9a-f]{12})(?![0-9A-Za-z])",
}
_OF_NETWORKS = {
    "ip6": rf"(?<![0-9A-Za-z:.])(?=[{_HEX}]*:[{_HEX}]*:)[{_HEX}:]{{3,39}}(?:%\w+)?(?![0-9A-Za-z:.])",
    "ip4": r"(?<![0-9A-Za-z.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![0-9A-Za-z]|\.[0-9])",
}


def _any_of(forms: Mapping[str, str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?P<{name}>{form})" for name, form in forms.items()))


HARDWARE = _any_of(_OF_HARDWARE)
"""Identities that no version, bus address or time looks like."""
ANYTHING = _any_of(_OF_HARDWARE | _OF_NETWORKS)
"""These and IP addresses, which a version of four numbers looks like."""

_NO_MACS = ("00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff")
_KEPT_V4 = {
    b"\xc0\x00": 24,  # 192.0.0.0/24, 192.0.2.0/24
    b"\xc6\x33": 24,  # 198.51.100.0/24
    b"\xcb\x00": 24,  # 203.0.113.0/24
    b"\x64": 10,  # 100.64.0.0/10
    b"\xa9": 16,  # 169.254.0.0/16
    b"\xac": 12,  # 172.16.0.0/12
    b"\xc0": 16,  # 192.168.0.0/16
    b"\xc6": 16,  # 198.18.0.0/15
    b"\xcb": 16,
}
"""Beginning -> bits that stay, so that an address of a special kind (IANA's registry) is one of the same kind
afterwards, and no other becomes one."""
_KEPT_V6 = {b"\x20\x01\x00": 32, b"\x20\x01\x01": 32, b"\x20\x01\x0d": 32, b"\x20\x01": 24, b"\xfc": 8, b"\xfd": 8}
_MAPPED = bytes(10) + b"\xff\xff"
_LOOPBACK6 = bytes(15) + b"\x01"


@dataclass
class Pseudonyms:
    """Pseudonyms under one key."""

    key: bytes
    given: dict[str, str] = field(default_factory=dict)
    """Original -> pseudonym, of everything but words."""
    _macs: dict[bytes, bytes] = field(default_factory=dict)
    _halves: dict[bytes, bytes] = field(default_factory=dict)
    _words: dict[tuple[str, str], str] = field(default_factory=dict)

    def word(self, kind: str, original: str) -> str:
        """kind1, kind2, ... in the order in which they are asked for; '' stays ''."""
        if not original:
            return ""
        count = sum(known == kind for known, _ in self._words) + 1
        return self._words.setdefault((kind, original), f"{kind}{count}")

    def number(self, original: str) -> str:
        """A serial number: digits for digits, letters for letters, as long as before."""
        wanted = self._random("serial", original.encode(), len(original))
        alphabets = {"digit": "0123456789", "letter": "ABCDEFGHJKLMNPQRSTUVWXYZ"}
        made = ""
        for char, byte in zip(original, wanted, strict=True):
            kind = "digit" if char.isdigit() else "letter" if char.isalpha() else ""
            made += alphabets[kind][byte % len(alphabets[kind])] if kind else char
        return self._note(original, made)

    def uuid(self, original: str) -> str:
        """A UUID, by itself."""
        digits = self._random("uuid", original.lower().encode(), 16).hex()
        return self._note(original, "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])))

    def mac(self, original: str) -> str:
        """Locally administered, unicast; the addresses that are none stay."""
        if original.lower() in _NO_MACS:
            return original
        raw = bytes.fromhex(original.replace(":", ""))
        return self._note(original, self._mac(raw).hex(":"))

    def long_mac(self, original: str) -> str:
        """The port's GUID within is replaced."""
        raw = bytes.fromhex(original.replace(":", ""))
        return self._note(original, (raw[:12] + self.half(raw[12:])).hex(":"))

    def guid(self, original: str) -> str:
        """Of an RDMA node or port, as sysfs writes it."""
        return self._note(original, _groups(self.half(_ungrouped(original))))

    def gid(self, original: str) -> str:
        """As sysfs writes it: all groups, four digits each."""
        return self._note(original, _groups(self._ipv6(_ungrouped(original))))

    def ip(self, original: str) -> str:
        """IPv4 or IPv6, as it is written in short; what is none stays. A zone (%eth0) stays."""
        text, percent, zone = original.partition("%")
        try:
            made = str(
                IPv6Address(self._ipv6(IPv6Address(text).packed))
                if ":" in text
                else IPv4Address(self._ipv4(IPv4Address(text).packed))
            )
        except ValueError:
            return original
        return self._note(original, f"{made}{percent}{zone}")

    def half(self, raw: bytes) -> bytes:
        """8 bytes that name a port or an interface. What is made of a MAC address is made of its pseudonym."""
        if not any(raw) or raw == bytes(7) + b"\x01":
            return raw
        if raw[3:5] == b"\xff\xfe":
            mac = self._mac(bytes((raw[0] ^ 2,)) + raw[1:3] + raw[5:])
            return bytes((mac[0] ^ 2,)) + mac[1:3] + b"\xff\xfe" + mac[3:]
        if raw not in self._halves:
            self._halves[raw] = self._random("half", raw, 8)
        return self._halves[raw]

    def name(self, original: str) -> str:
        """Of an interface or device that is called by its MAC address or GUID."""
        prefix, _, digits = original.partition("x")
        raw = bytes.fromhex(digits)
        return self._note(original, f"{prefix}x{(self._mac(raw) if len(raw) == 6 else self.half(raw)).hex()}")

    def in_text(self, text: str, forms: re.Pattern[str] = HARDWARE) -> str:
        """Every identity that shows by its form."""
        return forms.sub(self._found, text)

    def _found(self, found: re.Match[str]) -> str:
        by: dict[str, Callable[[str], str]] = {
            "long_mac": self.long_mac,
            "gid": self.gid,
            "guid": self.guid,
            "mac": self.mac,
            "uuid": self.uuid,
            "name": self.name,
            "ip6": self.ip,
            "ip4": self.ip,
        }
        return by[str(found.lastgroup)](found.group())

    def _mac(self, raw: bytes) -> bytes:
        if raw not in self._macs:
            self._macs[raw] = b"\x02" + self._random("mac", raw, 5)
        return self._macs[raw]

    def _ipv4(self, raw: bytes) -> bytes:
        if raw[0] in (0, 127, 255):
            return raw
        return self._same_beginnings(raw, _kept(raw, _KEPT_V4, 8))

    def _ipv6(self, raw: bytes) -> bytes:
        if raw[:12] == _MAPPED:
            return _MAPPED + self._ipv4(raw[12:])
        if raw in (bytes(16), _LOOPBACK6):
            return raw
        linked = raw[0] == 0xFE and raw[1] & 0xC0 == 0x80
        first = raw[:8] if linked else self._same_beginnings(raw[:8], _kept(raw, _KEPT_V6, 16))
        return first + self.half(raw[8:])

    def _same_beginnings(self, raw: bytes, keep: int) -> bytes:
        """Two addresses that begin alike do so afterwards, for as many bits: every bit after the first `keep` is
        turned or not by the bits before it (Xu, Fan, Ammar, Moon: Prefix-preserving IP address anonymization, ICNP
        2002)."""
        bits = f"{int.from_bytes(raw, 'big'):0{len(raw) * 8}b}"
        turned = bits[:keep]
        for place in range(keep, len(bits)):
            flip = self._random(f"bit{len(raw)}", bits[:place].encode(), 1)[0] & 1
            turned += str(int(bits[place]) ^ flip)
        return int(turned, 2).to_bytes(len(raw), "big")

    def _random(self, purpose: str, original: bytes, size: int) -> bytes:
        made = b""
        while len(made) < size:
            label = f"{purpose}/{len(made)}/".encode()
            made += hashlib.blake2b(label + original, key=self.key[:64]).digest()
        return made[:size]

    def _note(self, original: str, made: str) -> str:
        if made != original:
            self.given[original] = made
        return made


def _kept(raw: bytes, table: Mapping[bytes, int], usual: int) -> int:
    return next((bits for beginning, bits in table.items() if raw.startswith(beginning)), usual)


def _ungrouped(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


def _groups(raw: bytes) -> str:
    return raw.hex(":", -2) if len(raw) % 2 == 0 else raw.hex()
