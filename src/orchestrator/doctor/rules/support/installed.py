"""What the probe read of the stack's virtual environment, taken from a snapshot. Not a rule."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from orchestrator.doctor.rules.support.cluster import Node
from orchestrator.engines.tuned_files import Lookup, moe_root
from orchestrator.model.snapshot import Snapshot
from orchestrator.protocol.looks import Holdings

_RELEASE = re.compile(r"v?(\d+(?:\.\d+)*)")


@dataclass(frozen=True, slots=True)
class Installed:
    """venv: what was looked at; there: its python3 exists, or that could not be read; versions: by normalised package;
    root: where the package sglang is, or ''"""

    venv: str
    there: bool
    versions: Mapping[str, str]
    root: str


def installed(node: Node) -> Installed | None:
    """None where nobody asked: the inventory names neither a stack nor an environment, or an older look."""
    asked = node.snapshot.host.get("stack")
    if not isinstance(asked, Mapping):
        return None
    venv = asked.get("venv")
    if not isinstance(venv, str) or not venv:
        return None
    snapshot = node.snapshot
    sites = [f"{venv}/lib/{name}/site-packages" for name in snapshot.names(f"{venv}/lib") if name.startswith("python3")]
    versions = {package: version for site in sites for package, version in _versions(snapshot, site)}
    roots = [root for site in sites for root in (site, *_named_by_pth(snapshot, site))]
    root = next((root for root in roots if snapshot.exists(f"{root}/sglang/__init__.py")), "")
    there = asked.get("python") is not False or bool(versions)
    return Installed(venv, there, versions, root)


def _versions(snapshot: Snapshot, site: str) -> Iterator[tuple[str, str]]:
    for name in snapshot.names(site):
        if name.endswith(".dist-info"):
            package, _, version = name.removesuffix(".dist-info").partition("-")
            yield re.sub(r"[-_.]+", "-", package).lower(), version


def _named_by_pth(snapshot: Snapshot, site: str) -> Iterator[str]:
    for name in snapshot.names(site):
        if name.endswith(".pth"):
            yield from (line.strip() for line in snapshot.text(f"{site}/{name}").splitlines() if line.startswith("/"))


def release(version: str) -> tuple[int, ...]:
    """(0, 5, 23) of 0.5.23.post1 and 0.5.23+cu130: what PEP 440 calls the release, without trailing zeros."""
    match = _RELEASE.match(version)
    numbers = [int(number) for number in match[1].split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def held(node: Node, found: Installed, rules: Lookup, moe_directory: str) -> Holdings:
    """The tuned configs of a snapshot, as `tuning status` reads them from a node."""
    snapshot, folders = node.snapshot, dict[str, dict[str, str]]()
    root = moe_root(rules, moe_directory)
    for folder in (rules.linear, root, *(_below(snapshot, found.root, root) if rules.by_triton else ())):
        at = posixpath.join(found.root, folder)
        texts = {
            name: text
            for name in snapshot.names(at)
            if name.endswith(".json") and (text := snapshot.files.get(f"{snapshot.realpath(at)}/{name}")) is not None
        }
        if texts:
            folders[folder] = texts
    return Holdings(root=found.root, versions=found.versions, folders=folders)


def _below(snapshot: Snapshot, engine: str, root: str) -> list[str]:
    return [f"{root}/{name}" for name in snapshot.names(posixpath.join(engine, root)) if name.startswith("triton_")]
