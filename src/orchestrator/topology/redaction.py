"""Snapshots for a bug report: who and where a machine is, is replaced; what it is and how it is wired stays.

Replaced: names of nodes, hosts and users, MAC and IP addresses, GIDs and GUIDs, serial numbers and UUIDs of GPUs,
device serial numbers in PCI configuration space. Cut down: the kernel's command line, mounts. Topology and findings
come out the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from orchestrator.model.snapshot import Snapshot
from orchestrator.topology.config_space import ConfigSpace
from orchestrator.topology.pseudonyms import ANYTHING, Pseudonyms

LEFT_OUT = "..."
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
    names = Pseudonyms(key)
    originals = tuple(snapshots)
    done = tuple(_redacted(snapshot, names) for snapshot in originals)
    hidden = frozenset(original.lower() for original in names.given if len(original) >= SHORTEST)
    for snapshot in done:
        for left in _left(snapshot, hidden):
            raise ValueError(left)
    return done


def _redacted(original: Snapshot, names: Pseudonyms) -> Snapshot:
    snapshot = _at_an_ordinary_place(original)
    host = _host(snapshot.host, names)
    return replace(
        snapshot,
        node=names.word("machine", snapshot.node),
        files={names.in_text(path): _file(path, text, names) for path, text in snapshot.files.items()},
        links={names.in_text(path): names.in_text(target) for path, target in snapshot.links.items()},
        errors={names.in_text(path): reason for path, reason in snapshot.errors.items()},
        nvml=_nvml(snapshot.nvml, names),
        host=host,
    )


def _at_an_ordinary_place(snapshot: Snapshot) -> Snapshot:
    """The stack's environment, and an engine installed from its sources, without their parent folders."""
    stack = snapshot.host.get("stack")
    venv = str(stack.get("venv") or "") if isinstance(stack, Mapping) else ""
    if not isinstance(stack, Mapping) or not venv:
        return snapshot
    inside = f"{snapshot.realpath(venv)}/"
    place = _mover(inside, _sources(snapshot, inside))
    return replace(
        snapshot,
        files=_moved_files(snapshot, inside, place),
        links={path: target for path, target in snapshot.links.items() if path.startswith(_SYSTEM)},
        errors={place(path): reason for path, reason in snapshot.errors.items()},
        host={**snapshot.host, "stack": {**stack, "venv": _VENV}},
    )


def _sources(snapshot: Snapshot, inside: str) -> list[str]:
    """Folders outside the environment that its .pth files add to the path, each with a slash at its end."""
    texts = (text for path, text in snapshot.files.items() if path.startswith(inside) and path.endswith(".pth"))
    lines = (line for text in texts for line in text.splitlines() if line.startswith("/"))
    return sorted({line.strip().rstrip("/") + "/" for line in lines})


def _mover(inside: str, sources: Iterable[str]) -> Callable[[str], str]:
    """What puts a path of the environment or of a source at its ordinary place."""
    moved = {inside: f"{_VENV}/"} | {source: f"/source{number}/" for number, source in enumerate(sources)}

    def place(path: str) -> str:
        old = next((old for old in moved if path.startswith(old)), "")
        return moved[old] + path[len(old) :] if old else path

    return place


def _moved_files(snapshot: Snapshot, inside: str, place: Callable[[str], str]) -> dict[str, str]:
    files = {}
    for path, text in snapshot.files.items():
        own = path.startswith(inside)
        if own and path.endswith("/pyvenv.cfg"):
            continue
        pth = own and path.endswith(".pth")
        files[place(path)] = "\n".join(place(f"{line}/").rstrip("/") for line in text.splitlines()) if pth else text
    return files


_VENV = "/opt/venv"
_SYSTEM = ("/sys/", "/proc/", "/dev/", "/etc/", "/var/run")
"""Links of the machine's own; those of a user's environment are resolved in the files' paths."""


def _file(path: str, text: str, names: Pseudonyms) -> str:
    if path == "/proc/cmdline":
        return _boot_words(text)
    if path.endswith("/mounts"):
        return "".join(f"{_mount(line, names)}\n" for line in text.splitlines())
    if path.endswith("/config"):
        return _config_space(text, names)
    return names.in_text(text, ANYTHING) if _FREE_TEXT.search(path) else names.in_text(text)


def _boot_words(text: str) -> str:
    kept = [word if _BOOT_WORDS.fullmatch(word) else LEFT_OUT for word in text.split()]
    return " ".join(kept) + "\n"


def _mount(line: str, names: Pseudonyms) -> str:
    """device, place, type, options; a place that tells more than a system's own ones gets a name by its order."""
    fields = line.split()
    if len(fields) < 4 or not _MOUNT_TYPES.fullmatch(fields[2]):
        return LEFT_OUT
    device, place, kind, options = fields[:4]
    remote = ":" in device or device.startswith("//")
    shown = names.word("server:/share", device) if remote else device if device in (kind, "none") else LEFT_OUT
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


def _nvml(said: Mapping[str, Any], names: Pseudonyms) -> dict[str, Any]:
    devices = said.get("devices")
    kept = {name: value for name, value in said.items() if name != "devices"}
    answer: dict[str, Any] = _every_text(kept, names.in_text)
    if isinstance(devices, list):
        answer["devices"] = [_device(device, names) for device in devices]
    return answer


def _device(device: Any, names: Pseudonyms) -> Any:
    if not isinstance(device, Mapping):
        return None
    serial = device.get("serial")
    rest = _every_text({name: value for name, value in device.items() if name != "serial"}, names.in_text)
    return {**rest, **({"serial": names.number(str(serial)) if serial else serial} if "serial" in device else {})}


def _host(host: Mapping[str, Any], names: Pseudonyms) -> dict[str, Any]:
    user, home = str(host.get("user") or ""), str(host.get("home") or "")
    own = user if user in ("", "root") else names.word("user", user)
    lives = home if home in _NOBODYS_HOMES else names.word("/home/user", home)

    def changed(text: str) -> str:
        if home not in _NOBODYS_HOMES and (text == home or text.startswith(f"{home}/")):
            text = lives + text[len(home) :]
        return names.in_text(text, ANYTHING)

    kept = {name: value for name, value in host.items() if name not in _BY_NAME}
    answer: dict[str, Any] = _every_text(kept, changed)
    named = {
        "hostname": names.word("host", str(host.get("hostname") or "")),
        "user": own,
        "home": lives,
        "fs_root": "/" if host.get("fs_root") == "/" else "/root-of-it",
        "uname": host.get("uname"),  # versions of four numbers are no addresses
        "python": host.get("python"),
    }
    answer |= {name: value for name, value in named.items() if name in host}
    if isinstance(interfaces := host.get("addresses"), Mapping):
        answer["addresses"] = _addresses(interfaces, names)
    if "nccl_conf" in answer:
        answer["nccl_conf"] = {**answer["nccl_conf"], "path": "/home/engine/.nccl.conf"}
    return answer


def _addresses(interfaces: Mapping[str, Any], names: Pseudonyms) -> dict[str, Any]:
    """Of each interface by its name."""

    def address(one: Any) -> Any:
        return {**one, "address": names.ip(str(one.get("address") or ""))} if isinstance(one, Mapping) else None

    return {
        names.in_text(str(name)): [address(one) for one in listed] if isinstance(listed, list) else []
        for name, listed in interfaces.items()
    }


_NOBODYS_HOMES = ("", "/", "/root")
_BY_NAME = ("addresses", "hostname", "user", "home", "uname", "python", "fs_root")


def _every_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(str(name)): _every_text(inner, change) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_every_text(inner, change) for inner in value]
    return value


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
    return frozenset(words | pieces | {found.group().lower() for found in ANYTHING.finditer(text)})
