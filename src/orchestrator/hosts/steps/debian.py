"""Debian packages with all that they depend on, brought by apt-get into a folder that apt can install from.

They are of the release of the machine that this runs on: for another release, run it on a machine of that one.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from orchestrator.loading.resources import role_defaults
from orchestrator.model.errors import InputError, Unreachable

INDEX = "Packages"
"""The index of a flat repository (wiki.debian.org/DebianRepository/Format)."""


def base_packages() -> tuple[str, ...]:
    """What every node gets in addition to its stack's list: the role system_packages has the list."""
    return tuple(role_defaults("system_packages")["system_packages_base"])


def python_packages(version: str) -> tuple[str, ...]:
    """The interpreter that a virtual environment is made from (playbooks/library/l40s_host.py asks for the same)."""
    return tuple(f"python{version}{part}" for part in ("", "-dev", "-venv"))


def release() -> str:
    """This machine's distribution, release and architecture, in the nodes' form: 'debian bookworm amd64'."""
    facts = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines() if "=" in line)
    words = [facts.get(key, "").strip("\"'") for key in ("ID", "VERSION_CODENAME")]
    return " ".join([*words, _said(["dpkg", "--print-architecture"], 30).strip()])


def download(packages: Sequence[str], folder: Path, *, deadline_s: float) -> None:
    """Put these packages, whatever they depend on, and an index of it all into `folder`.

    A node installs what it lacks of them. Raises InputError with apt's own words, Unreachable where it takes too long.
    """
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise InputError(
            "this machine has no apt-get",
            where="--debian",
            fix="build the bundle on a machine with the nodes' Debian or Ubuntu release",
        )
    with tempfile.TemporaryDirectory(prefix=".l40s-apt-", dir=folder.parent) as scratch:
        apt = _apt(Path(scratch))
        _said([*apt, "update"], deadline_s)
        _said([*apt, "--yes", "--no-install-recommends", "--download-only", "install", *packages], deadline_s)
        for file in sorted(Path(scratch, "archives").glob("*.deb")):
            file.rename(folder / file.name.replace("%3a", "."))  # an epoch's colon, which tar takes for a host's
    (folder / INDEX).write_text("".join(_entry(file) for file in sorted(folder.glob("*.deb"))), "utf-8")


def _apt(folder: Path) -> list[str]:
    """apt-get with this machine's sources and nothing else of it: its lists may be old or away, and with no package
    installed all that one depends on is brought."""
    for name in ("lists", "archives"):
        (folder / name / "partial").mkdir(parents=True)
    options = {
        "Dir::State::status": "/dev/null",
        "Dir::State::lists": str(folder / "lists"),
        "Dir::Cache::archives": str(folder / "archives"),
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "pkgCacheGen::ForceEssential": ",",
        "Debug::NoLocking": "1",
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "root",
    }
    return ["apt-get", "--quiet", *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]


def _entry(file: Path) -> str:
    control = _said(["dpkg-deb", "--field", str(file)], 60).strip()
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return f"{control}\nFilename: ./{file.name}\nSize: {file.stat().st_size}\nSHA256: {digest}\n\n"


def _said(words: Sequence[str], deadline_s: float) -> str:
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=deadline_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unreachable(
            f"did not end within {deadline_s:.0f} s", where=words[0], fix="try again with a longer --timeout"
        ) from None
    except FileNotFoundError:
        raise InputError(
            "is not installed", where=words[0], fix="build the bundle on a Debian or Ubuntu machine"
        ) from None
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.startswith("E:")] or done.stderr.splitlines()[-1:]
        raise InputError(
            " | ".join(errors) or "gave no reason",
            where=words[0],
            fix="name packages that this release has, or fix the apt sources",
        )
    return done.stdout
