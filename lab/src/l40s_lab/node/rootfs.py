"""The root file system of systemd nodes: this machine's own release, made once by mmdebstrap and kept by digest.

It is in `<cache>/lab/rootfs/<digest>`, named by the digest of its recipe and release. It is only used as the lowest
layer of a node's root, so nothing writes to it. Those of older recipes and releases are not deleted.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from l40s_lab.engine.environment import built_once, cache_root
from orchestrator.protocol.errors import NodeError

USER = "operator"
"""The login user: not root, but with sudo without a password."""
BUILD_DEADLINE_S = 900.0
"""A build takes half a minute with a nearby package mirror."""
_PACKAGES = (
    "systemd", "systemd-sysv", "dbus", "libpam-systemd", "openssh-server", "python3", "sudo", "iproute2", "procps",
    "kmod", "pciutils", "ethtool", "nftables", "iputils-ping", "curl", "less", "libnuma1", "libgomp1",
)  # fmt: skip
"""What an operator expects on a server, and libraries that the real engine's wheels link to."""
_LEFT_OUT = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*")
_USER_HOOK = f'chroot "$1" useradd --create-home --shell /bin/bash --no-user-group --gid users {USER}'
_DISTRIBUTIONS = ("debian", "ubuntu")


@dataclass(frozen=True, slots=True)
class Release:
    """A distribution's release: ('debian', 'bookworm')."""

    distribution: str
    codename: str


def this_release(text: str | None = None) -> Release | None:
    """The release in the text of an os-release file, by default this machine's; None for distributions other than
    Debian and Ubuntu."""
    if text is None:
        try:
            text = Path("/etc/os-release").read_text(encoding="utf-8")
        except OSError:
            return None
    facts = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    distribution, codename = (facts.get(key, "").strip("\"'") for key in ("ID", "VERSION_CODENAME"))
    return Release(distribution, codename) if distribution in _DISTRIBUTIONS and codename else None


def cached() -> Path | None:
    """The root file system of this release, None if it has not been built yet."""
    release = this_release()
    place = _place(release) if release else None
    return place if place and place.is_dir() else None


def obstacle() -> str:
    """Why none can be built here, '' if there is no known reason (the network is checked when it is used)."""
    if this_release() is None:
        return "this machine is neither Debian nor Ubuntu"
    return "" if shutil.which("mmdebstrap") else "mmdebstrap is missing (apt-get install mmdebstrap)"


def ensure(say: Callable[[str], None]) -> Path:
    """The root file system, built if it does not exist yet. Raises NodeError with mmdebstrap's own message."""
    found = cached()
    if found:
        return found
    release = this_release()
    if trouble := obstacle():
        raise NodeError(trouble, where="the nodes' root file system", fix="use --level 1, which needs none")
    assert release is not None  # else there was an obstacle

    def build(fresh: Path) -> None:
        say(
            f"building the nodes' root file system ({release.distribution} {release.codename}); only once, takes"
            " about half a minute"
        )
        _make(release, fresh)

    return built_once(_place(release), "the nodes' root file system", say, build)


def _place(release: Release) -> Path:
    recipe = json.dumps([asdict(release), platform.machine(), _PACKAGES, _LEFT_OUT, _USER_HOOK])
    return cache_root() / "lab" / "rootfs" / hashlib.sha256(recipe.encode()).hexdigest()[:16]


def _make(release: Release, place: Path) -> None:
    try:
        done = subprocess.run(
            _command(release, place, sources(release, source_files()), proxies()),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=BUILD_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _failed(f"mmdebstrap did not end within {BUILD_DEADLINE_S:.0f} s") from None
    if done.returncode:
        raise _failed(f"mmdebstrap: {_last_errors(done.stderr)}")


def _failed(what: str) -> NodeError:
    fix = "check the connection to the package mirror, or use --level 1"
    return NodeError(what, where="the nodes' root file system", fix=fix)


def _command(release: Release, target: Path, mirrors: list[str], proxies: list[str]) -> list[str]:
    return [
        "mmdebstrap",
        "--variant=minbase",
        "--mode=root",
        f"--include={','.join(_PACKAGES)}",
        '--aptopt=Acquire::Languages "none"',
        *(f"--aptopt={line}" for line in proxies),
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT),
        f"--customize-hook={_USER_HOOK}",
        release.codename,
        str(target),
        *mirrors,
    ]


def sources(release: Release, files: list[str]) -> list[str]:
    """The distribution's own mirrors from the texts of apt's files, as one-line entries; [] lets mmdebstrap choose.

    The nodes don't use this machine's other repositories.
    """
    wanted = {f"{release.codename}{suffix}" for suffix in ("", "-updates", "-security")}
    entries = [entry for text in files for entry in _entries(text)]
    ours = [(uri, suite) for uri, suite, components in entries if suite in wanted and "main" in components.split()]
    if release.codename not in (suite for _, suite in ours):
        return []
    return [f"deb {uri} {suite} main" for uri, suite in dict.fromkeys(ours)]


_ONE_LINE = re.compile(r"\s*deb(?:\s*\[[^]]*\])*\s+(\S+)\s+(\S+)\s+(\S.*)")
_FIELD = re.compile(r"^([^#:\n][^:\n]*):(.*)", re.MULTILINE)


def _entries(text: str) -> Iterator[tuple[str, str, str]]:
    """(URI, suite, components) of every source of binary packages, in either of apt's two forms (sources.list(5))."""
    for line in text.splitlines():
        if found := _ONE_LINE.fullmatch(line.split("#")[0]):
            yield found[1], found[2], found[3]
    for stanza in text.split("\n\n"):
        facts = {key.strip().lower(): value.strip() for key, value in _FIELD.findall(stanza)}
        if "deb" in facts.get("types", "").split() and facts.get("enabled", "yes") != "no":
            for uri, suite in product(facts.get("uris", "").split(), facts.get("suites", "").split()):
                yield uri, suite, facts.get("components", "")


def source_files() -> list[str]:
    """The contents of this machine's apt files."""
    folder = Path("/etc/apt")
    texts = []
    for path in (folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))):
        if path.suffix in (".list", ".sources"):
            with suppress(OSError, UnicodeDecodeError):
                texts.append(path.read_text())
    return texts


def proxies() -> list[str]:
    """The proxy settings of this machine's own apt, whose configuration mmdebstrap's apt does not read."""
    try:
        done = subprocess.run(["apt-config", "dump", "Acquire"], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.rstrip(";") for line in done.stdout.splitlines() if "::proxy" in line.lower() and '""' not in line]


def _last_errors(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("E:", "Err:", "error:"))]
    return " / ".join((errors or lines or ["no word"])[-3:])[:400]
