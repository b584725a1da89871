"""For a bug report: who and where a machine is, is replaced; what it is and how it is wired stays. Pure.

In snapshots, names of nodes, hosts and users, MAC and IP addresses, GIDs and GUIDs, serial numbers and UUIDs of GPUs,
device serial numbers in PCI configuration space are replaced; the kernel's command line and mounts are cut down.
Topology and findings come out the same. Other texts: scrubbing.py.

One identity has one pseudonym over everything that one key redacts: what was equal stays equal, what shared a network
shares one. The key decides every address, and without it there is no way back.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any

from orchestrator.model.secret_text import LEFT_OUT
from orchestrator.model.snapshot import Snapshot, part
from orchestrator.topology.pci import ConfigSpace

SHORTEST = 5
"""A shorter original is found in any text by chance."""

_FREE_TEXT = re.compile(r"^/proc/net/bonding/|/bonding(?:_slave)?/|^/etc/nccl\.conf$")
"""What may hold IP addresses, and no version."""
_BOOT_WORDS = re.compile(
    r"(?:(?:amd_|intel_)?iommu(?:\.\w+)?|pci|pcie\w*|(?:default_)?hugepages(?:z)?|transparent_hugepage|numa\w*|"
    r"mitigations|isolcpus|nohz\w*|rcu\w*|processor\.\w+|intel_idle\.\w+|intel_pstate|amd_pstate|idle|nosmt|maxcpus|"
    r"nr_cpus|mem|cgroup\w*|systemd\.unified_cgroup_hierarchy|acpi\w*|nvidia\w*\.\w+|mlx5_core\.\w+|nouveau\.\w+|"
    r"vfio\w*(?:\.\w+)?|quiet|ro|rw|splash|nomodeset)(?:=[\w.,:@+-]*)?"
)
"""Words of the kernel's command line that tell of hardware and speed."""
_WORD = re.compile(r"[0-9A-Za-z](?:[0-9A-Za-z._-]*[0-9A-Za-z])?")
_MOUNT_TYPES = re.compile(r"[\w.+-]+")
_MOUNT_OPTIONS = re.compile(
    r"(?:ro|rw|nosuid|nodev|noexec|noatime|relatime|lazytime|vers=[\d.]+|proto=\w+|[rw]size=\d+|nconnect=\d+|"
    r"hard|soft|size=\w+|huge=\w+|pagesize=\w+)"
)
_KNOWN_MOUNTS = re.compile(r"/(?:(?:dev|proc|sys|run|tmp|boot)(?:/[a-z][\w.-]*)*|workspace|opt|var|home|usr|etc|mnt)?")


def redact(snapshots: Iterable[Snapshot], key: bytes) -> tuple[Snapshot, ...]:
    """The snapshots of one cluster under pseudonyms that hold through all of them.

    key: random bytes that nobody keeps. Raises ValueError where an identity would still show, and says which: a
    pseudonym that is another's original is one too, so another key may help.
    """
    return redact_under(snapshots, Pseudonyms(key))


def redact_under(snapshots: Iterable[Snapshot], names: Pseudonyms) -> tuple[Snapshot, ...]:
    """The same, under pseudonyms that other texts get too. names: without any of other texts yet"""
    done = tuple(_redacted(snapshot, names) for snapshot in snapshots)
    hidden = frozenset(original.lower() for original in names.given if len(original) >= SHORTEST)
    for snapshot in done:
        for left in _left(snapshot, hidden):
            raise ValueError(left)
    return done


def _redacted(original: Snapshot, names: Pseudonyms) -> Snapshot:
    snapshot = _at_an_ordinary_place(original)
    return replace(
        snapshot,
        node=names.word("machine", snapshot.node),
        files={names.in_text(path): _file(path, text, names) for path, text in snapshot.files.items()},
        links={names.in_text(path): names.in_text(target) for path, target in snapshot.links.items()},
        errors={names.in_text(path): reason for path, reason in snapshot.errors.items()},
        nvml=_nvml(snapshot.nvml, names),
        host=_host(snapshot.host, names),
    )


def _at_an_ordinary_place(snapshot: Snapshot) -> Snapshot:
    """The stack's environment, and the folders that its .pth files add to the path (an engine installed from its
    sources), without their parent folders."""
    stack = part(snapshot.host, "stack")
    venv = stack.get("venv")
    if not venv:
        return snapshot
    inside = f"{snapshot.realpath(str(venv))}/"
    own = {path: text for path, text in snapshot.files.items() if path.startswith(inside)}
    pths = {path: text.splitlines() for path, text in own.items() if path.endswith(".pth")}
    place = _mover(inside, pths.values())
    texts = {path: "\n".join(place(f"{line}/").rstrip("/") for line in lines) for path, lines in pths.items()}
    return replace(
        snapshot,
        files={place(path): text for path, text in (_without_config(snapshot, inside) | texts).items()},
        links={path: target for path, target in snapshot.links.items() if path.startswith(_SYSTEM)},
        errors={place(path): reason for path, reason in snapshot.errors.items()},
        host={**snapshot.host, "stack": {**stack, "venv": _VENV}},
    )


def _without_config(snapshot: Snapshot, inside: str) -> dict[str, str]:
    """The files, without the environment's pyvenv.cfg: it names the Python that made it."""
    config = {path for path in snapshot.files if path.startswith(inside) and path.endswith("/pyvenv.cfg")}
    return {path: text for path, text in snapshot.files.items() if path not in config}


def _mover(inside: str, pths: Iterable[Sequence[str]]) -> Callable[[str], str]:
    """What puts a path of the environment, or of a folder that .pth files name, at its ordinary place."""
    sources = {f"{line.strip().rstrip('/')}/" for lines in pths for line in lines if line.startswith("/")}
    moved = {inside: f"{_VENV}/"} | {source: f"/source{number}/" for number, source in enumerate(sorted(sources))}

    def place(path: str) -> str:
        old = next((old for old in moved if path.startswith(old)), "")
        return moved.get(old, "") + path[len(old) :]

    return place


_VENV = "/opt/venv"
_SYSTEM = ("/sys/", "/proc/", "/dev/", "/etc/", "/var/run")
"""Links of the machine's own; those of a user's environment are resolved in the files' paths."""


def _file(path: str, text: str, names: Pseudonyms) -> str:
    if path == "/proc/cmdline":
        return " ".join(word if _BOOT_WORDS.fullmatch(word) else LEFT_OUT for word in text.split()) + "\n"
    if path.endswith("/mounts"):
        return "".join(f"{_mount(line, names)}\n" for line in text.splitlines())
    if path.endswith("/config"):
        return _config_space(text, names)
    return names.in_text(text, ANYTHING) if _FREE_TEXT.search(path) else names.in_text(text)


def _mount(line: str, names: Pseudonyms) -> str:
    """device, place, type, options; a place that tells more than a system's own ones gets a name by its order."""
    fields = line.split()
    if len(fields) < 4 or not _MOUNT_TYPES.fullmatch(fields[2]):
        return LEFT_OUT
    device, place, kind, options = fields[:4]
    remote = ":" in device or device.startswith("//")
    if remote:
        shown = names.word("server:/share", device)
    else:
        shown = device if device in (kind, "none") else LEFT_OUT
    where = place if _KNOWN_MOUNTS.fullmatch(place) else names.word("/place", place)
    kept = [word for word in options.split(",") if _MOUNT_OPTIONS.fullmatch(word)]
    return f"{shown} {where} {kind} {','.join(kept) or LEFT_OUT} 0 0"


def _config_space(text: str, names: Pseudonyms) -> str:
    """The Device Serial Number, which network cards make of their MAC address."""
    try:
        data = bytearray.fromhex(text.strip())
    except ValueError:
        return ""
    place = ConfigSpace(bytes(data)).serial_number_at
    if place is not None:
        data += bytes(max(0, place + 8 - len(data)))  # zeros at the end may have been trimmed
        data[place : place + 8] = names.half(bytes(data[place : place + 8]))
    return data.hex()


def _nvml(nvml: Mapping[str, Any], names: Pseudonyms) -> Any:
    by_name = {"serial": lambda number: names.number(str(number)) if number else number}

    def devices(listed: Any) -> Any:
        if not isinstance(listed, list):
            return None
        return [_texts(device, names.in_text, by_name) if isinstance(device, Mapping) else None for device in listed]

    return _texts(nvml, names.in_text, {"devices": devices})


def _host(host: Mapping[str, Any], names: Pseudonyms) -> Any:
    user, home = str(host.get("user") or ""), str(host.get("home") or "")
    lives = home if home in _NOBODYS_HOMES else names.word("/home/user", home)

    def changed(text: str) -> str:
        if home not in _NOBODYS_HOMES and (text == home or text.startswith(f"{home}/")):
            text = lives + text[len(home) :]
        return names.in_text(text, ANYTHING)

    by_name: Mapping[str, Callable[[Any], Any]] = {
        "hostname": lambda name: names.word("host", str(name or "")),
        "user": lambda _: user if user in ("", "root") else names.word("user", user),
        "home": lambda _: lives,
        "fs_root": lambda root: "/" if root == "/" else "/root-of-it",
        "uname": lambda uname: uname,  # versions of four numbers are no addresses
        "python": lambda python: python,
        "addresses": lambda interfaces: _addresses(interfaces, names),
        "nccl_conf": lambda conf: {**_texts(conf, changed), "path": "/home/engine/.nccl.conf"} if conf else conf,
    }
    return _texts(host, changed, by_name)


_NOBODYS_HOMES = ("", "/", "/root")


def _addresses(interfaces: Any, names: Pseudonyms) -> Any:
    """Of each interface by its name."""

    def address(entry: Any) -> Any:
        return {**entry, "address": names.ip(str(entry.get("address") or ""))} if isinstance(entry, Mapping) else None

    listed = interfaces.items() if isinstance(interfaces, Mapping) else ()
    return {names.in_text(str(name)): list(map(address, own if isinstance(own, list) else ())) for name, own in listed}


def _texts(value: Any, change: Callable[[str], str], by_name: Mapping[str, Callable[[Any], Any]] | None = None) -> Any:
    """Every text of a JSON value changed, names too. by_name: what makes a value of that name instead"""
    special = by_name or {}
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {
            change(str(name)): special[name](inner) if name in special else _texts(inner, change)
            for name, inner in value.items()
        }
    return [_texts(inner, change) for inner in value] if isinstance(value, (list, tuple)) else value


def _left(snapshot: Snapshot, originals: frozenset[str]) -> Iterator[str]:
    """Originals that still show, and where."""
    texts = [("a path", path) for path in (*snapshot.files, *snapshot.links, *snapshot.errors)]
    texts += [(path, text) for path, text in snapshot.files.items() if not path.endswith("/config")]
    texts += [(path, target) for path, target in snapshot.links.items()]
    texts += [("nvml", str(snapshot.nvml)), ("host", str(snapshot.host))]
    for place, text in texts:
        for word in originals & _candidates(text):
            yield f"{word!r} in {place}"


@lru_cache(maxsize=1 << 14)
def _candidates(text: str) -> frozenset[str]:
    """What can be an identity, in small letters: forms, and words in all their pieces. Remembered: most values of a
    node's files are those of other files, and of other nodes."""
    words = {word.lower() for word in _WORD.findall(text)}
    pieces = {piece for word in words for piece in re.split(r"[._-]", word)}
    return frozenset(words | pieces | {match.group().lower() for match in ANYTHING.finditer(text)})


_HEX = "0-9A-Fa-f"
_OF_HARDWARE = {
    # Of IPoIB: 4 bytes of queue pair, 8 of subnet prefix, 8 of port GUID (RFC 4391, 9.1.1).
    "long_mac": rf"(?<![{_HEX}:])[{_HEX}]{{2}}(?::[{_HEX}]{{2}}){{19}}(?![{_HEX}:])",
    "gid": rf"(?<![{_HEX}:])[{_HEX}]{{4}}(?::[{_HEX}]{{4}}){{7}}(?![{_HEX}:])",
    "guid": rf"(?<![{_HEX}:])[{_HEX}]{{4}}(?::[{_HEX}]{{4}}){{3}}(?![{_HEX}:])",
    "mac": rf"(?<![{_HEX}:])[{_HEX}]{{2}}(?::[{_HEX}]{{2}}){{5}}(?![{_HEX}:])"
    # With dashes (IEEE 802) and as switches write it; of digits alone it may be a time or a version.
    rf"|(?=[{_HEX}]{{2}}[-_])(?<![0-9A-Za-z_-])(?=[0-9_-]*[A-Fa-f])[{_HEX}]{{2}}(?:-[{_HEX}]{{2}}){{5}}(?![0-9A-Za-z]|-[{_HEX}])"
    rf"|(?=[{_HEX}]{{2}}_)(?<![0-9A-Za-z_-])(?=[0-9_]*[A-Fa-f])[{_HEX}]{{2}}(?:_[{_HEX}]{{2}}){{5}}(?![0-9A-Za-z_])"
    rf"|(?=[{_HEX}]{{4}}[.:-])(?<![0-9A-Za-z.:-])(?=[0-9.:-]*[A-Fa-f])[{_HEX}]{{4}}(?P<sign>[.:-])[{_HEX}]{{4}}(?P=sign)[{_HEX}]{{4}}"
    r"(?![0-9A-Za-z]|[.:-][0-9A-Za-z])",
    # Of PCI Express: lspci's Device Serial Number, an EUI-64.
    "eui": rf"(?=[{_HEX}]{{2}}-)(?<![0-9A-Za-z-])"
    rf"(?=[0-9-]*[A-Fa-f])[{_HEX}]{{2}}(?:-[{_HEX}]{{2}}){{7}}(?![0-9A-Za-z]|-[{_HEX}])",
    "uuid": rf"(?<![{_HEX}])[{_HEX}]{{8}}(?:-[{_HEX}]{{4}}){{3}}-[{_HEX}]{{12}}(?![{_HEX}-])",
    # systemd.net-naming-scheme: a prefix, x, the MAC address; rdma-core's NAME_GUID: the same with a GUID.
    "name": r"(?<![0-9A-Za-z])(?:en|ib|wl|sl|roce|iw|opa)x(?:[0-9a-f]{16}|[0-9a-f]{12})(?![0-9A-Za-z])",
}
_OF_NETWORKS = {
    "ip": rf"(?<![0-9A-Za-z:.])(?=[{_HEX}]*:[{_HEX}]*:)[{_HEX}:]{{3,39}}(?:%\w+)?(?![0-9A-Za-z:.])"  # IPv6
    r"|(?<![0-9A-Za-z.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?![0-9A-Za-z]|\.[0-9])",
    # As clouds call hosts: ip-10-20-30-40.
    "host": r"(?=[a-zA-Z0-9]+[-_][0-9])(?<![0-9A-Za-z])(?i:ip|ec2|host|node|compute|vm|srv|server|worker|instance|addr)"
    r"(?:-(?:[0-9]{1,3}-){3}[0-9]{1,3}|_(?:[0-9]{1,3}_){3}[0-9]{1,3})(?![0-9A-Za-z])",
}
"""Each is called as the method of Pseudonyms for it."""


def _any_of(forms: Mapping[str, str]) -> re.Pattern[str]:
    each = "|".join(f"(?P<{name}>{form})" for name, form in forms.items())
    return re.compile(rf"(?<![{_HEX}])(?:{each})")  # every form asks for that: asked once, it saves half of the time


HARDWARE = _any_of(_OF_HARDWARE)
"""Identities that no version, bus address or time looks like."""
ANYTHING = _any_of(_OF_HARDWARE | _OF_NETWORKS)
"""These and IP addresses, which a version of four numbers looks like."""

_NO_MACS = (bytes(6), b"\xff" * 6)
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


def _alphabet(char: str) -> str:
    """What may stand for a character of a serial number: its own kind, or itself."""
    if char.isdigit():
        return "0123456789"
    return "ABCDEFGHJKLMNPQRSTUVWXYZ" if char.isalpha() else char


@dataclass
class Pseudonyms:
    """Pseudonyms under one key."""

    key: bytes
    given: dict[str, str] = field(default_factory=dict)
    """Original -> pseudonym, of everything but words."""
    numbers: dict[str, str] = field(default_factory=dict)
    """The serial numbers of these."""
    _words: dict[tuple[str, str], str] = field(default_factory=dict)

    def word(self, kind: str, original: str) -> str:
        """kind1, kind2, ... in the order in which they are asked for; '' stays ''."""
        if not original:
            return ""
        if (kind, original) not in self._words:
            self._words[kind, original] = f"{kind}{sum(known == kind for known, _ in self._words) + 1}"
        return self._words[kind, original]

    def in_text(self, text: str, forms: re.Pattern[str] = HARDWARE) -> str:
        """Every identity that shows by its form."""
        return forms.sub(lambda match: str(getattr(self, str(match.lastgroup))(match.group())), text)

    def number(self, original: str) -> str:
        """A serial number: digits for digits, letters for letters, as long as before."""
        alphabets = [_alphabet(char) for char in original]
        chosen = zip(alphabets, self._random("serial", original.encode(), len(original)), strict=True)
        self.numbers[original] = "".join(alphabet[byte % len(alphabet)] for alphabet, byte in chosen)
        return self._note(original, self.numbers[original])

    def uuid(self, original: str) -> str:
        """A UUID, by itself."""
        digits = self._random("uuid", original.lower().encode(), 16).hex()
        return self._note(original, "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])))

    def mac(self, original: str) -> str:
        """Locally administered, unicast; the addresses that are none stay."""
        raw = _raw(original)
        return original if raw in _NO_MACS else self._note(original, _written_as(original, self._mac(raw)))

    def eui(self, original: str) -> str:
        """What numbers a device, with dashes."""
        return self._note(original, self.half(_raw(original)).hex("-"))

    def host(self, original: str) -> str:
        """The address in the name that a cloud has made of it."""
        prefix, sign, *octets = re.split("([-_])", original, maxsplit=1)
        address = "".join(octets).replace(sign, ".")
        return f"{prefix}{sign}{self.ip(address).replace('.', sign)}"

    def bare(self, digits: str) -> str:
        """A MAC address of 12 or a GUID of 16 digits, without signs between them."""
        raw = bytes.fromhex(digits)
        return self._note(digits, (self._mac(raw) if len(raw) == 6 else self.half(raw)).hex())

    def long_mac(self, original: str) -> str:
        """The port's GUID within is replaced."""
        raw = _raw(original)
        return self._note(original, (raw[:12] + self.half(raw[12:])).hex(":"))

    def guid(self, original: str) -> str:
        """Of an RDMA node or port, as sysfs writes it."""
        return self._note(original, self.half(_raw(original)).hex(":", -2))

    def gid(self, original: str) -> str:
        """As sysfs writes it: all groups, four digits each."""
        return self._note(original, self._ipv6(_raw(original)).hex(":", -2))

    def name(self, original: str) -> str:
        """Of an interface or device that is called by its MAC address or GUID."""
        prefix, _, digits = original.partition("x")
        raw = bytes.fromhex(digits)
        return self._note(original, f"{prefix}x{(self._mac(raw) if len(raw) == 6 else self.half(raw)).hex()}")

    def ip(self, original: str) -> str:
        """IPv4 or IPv6, as it is written in short; what is none stays. A zone (%eth0) stays."""
        text, percent, zone = original.partition("%")
        try:
            raw = (IPv6Address if ":" in text else IPv4Address)(text).packed
        except ValueError:
            return original
        made = ip_address(self._ipv6(raw) if ":" in text else self._ipv4(raw))
        return self._note(original, f"{made}{percent}{zone}")

    def half(self, raw: bytes) -> bytes:
        """8 bytes that name a port or an interface. What is made of a MAC address is made of its pseudonym."""
        if not any(raw) or raw == bytes(7) + b"\x01":
            return raw
        if raw[3:5] != b"\xff\xfe":
            return self._random("half", raw, 8)
        mac = self._mac(bytes((raw[0] ^ 2,)) + raw[1:3] + raw[5:])
        return bytes((mac[0] ^ 2,)) + mac[1:3] + b"\xff\xfe" + mac[3:]

    def _mac(self, raw: bytes) -> bytes:
        return b"\x02" + self._random("mac", raw, 5)

    def _ipv4(self, raw: bytes) -> bytes:
        return raw if raw[0] in (0, 127, 255) else self._same_beginnings(raw, _KEPT_V4, 8)

    def _ipv6(self, raw: bytes) -> bytes:
        if raw[:12] == _MAPPED:
            return _MAPPED + self._ipv4(raw[12:])
        if raw in (bytes(16), _LOOPBACK6):
            return raw
        linked = raw[0] == 0xFE and raw[1] & 0xC0 == 0x80
        first = raw[:8] if linked else self._same_beginnings(raw[:8], _KEPT_V6, 16)
        return first + self.half(raw[8:])

    def _same_beginnings(self, raw: bytes, kept: Mapping[bytes, int], usual: int) -> bytes:
        """Two addresses that begin alike do so afterwards, for as many bits: every bit after the first ones, which are
        kept, is turned or not by the bits before it (Xu, Fan, Ammar, Moon: Prefix-preserving IP address anonymization,
        ICNP 2002)."""
        keep = next((bits for beginning, bits in kept.items() if raw.startswith(beginning)), usual)
        bits = f"{int.from_bytes(raw, 'big'):0{len(raw) * 8}b}"
        flips = (self._random(f"bit{len(raw)}", bits[:place].encode(), 1)[0] & 1 for place in range(keep, len(bits)))
        turned = "".join(str(int(bit) ^ flip) for bit, flip in zip(bits[keep:], flips, strict=True))
        return int(bits[:keep] + turned, 2).to_bytes(len(raw), "big")

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


def _raw(text: str) -> bytes:
    return bytes.fromhex(re.sub("[:._-]", "", text))


def _written_as(form: str, raw: bytes) -> str:
    """Hexadecimal digits with the signs of another text between them."""
    digits = iter(raw.hex())
    return "".join(next(digits) if char.isalnum() else char for char in form)
