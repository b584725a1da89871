"""Network tests on this machine: one file each, $XDG_STATE_HOME/l40s-deploy/nettest/ID.json."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.model.inventory import GangSpec, NodeSpec
from orchestrator.records.documents import state_folder, write_document

FORMAT = 1
KEPT = 50
"""Of each gang."""


def write_nettest(document: Mapping[str, Any], at: float, *, root: Path | None = None) -> Path:
    """Keep one test; the oldest of its gang go. Raises InputError where it can't be written."""
    folder = root or state_folder("nettest")
    gang = re.sub(r"[^A-Za-z0-9._-]", "-", str(document["gang"]))[:60]
    name = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(at))}-{time.time_ns() % 1_000_000:06d}-{gang}"
    file = folder / f"{name}.json"
    write_document(file, {"format": FORMAT, "id": name, "at": at, **document})
    for old in sorted(folder.glob(f"*-{gang}.json"))[:-KEPT]:
        old.unlink(missing_ok=True)
    return file


def addresses_of(nodes: Iterable[NodeSpec]) -> list[str]:
    """How SSH reaches them: gangs and nodes of two inventories may have the same names."""
    return [f"{node.reach.host}:{node.reach.port or ''}" for node in nodes]


def last_good(gang: GangSpec, stack: str, ranks: int, *, root: Path | None = None) -> dict[str, Any] | None:
    """The newest test of these very nodes and this stack that timed, and found nothing slow; None where there is
    none."""
    return next(
        (one for one in _of(gang, stack, root) if one["verdict"] != "slow" and one["tests"] and one["ranks"] == ranks),
        None,
    )


def newest(gang: GangSpec, stack: str, ranks: int, *, root: Path | None = None) -> dict[str, Any] | None:
    """The newest test of these very nodes and this stack that measured anything, slow or not."""
    return next((found for found in _of(gang, stack, root) if found["tests"] and found["ranks"] == ranks), None)


def slow_before(gang: GangSpec, stack: str, *, root: Path | None = None) -> str:
    """What the newest test of these nodes and this stack that timed found slow, with its id; '' where it found nothing,
    or there is none."""
    last = next((one for one in _of(gang, stack, root) if one["tests"]), None)
    if last is None or last["verdict"] != "slow":
        return ""
    titles = [str(one.get("title")) for one in last.get("findings", [])]
    return f"{titles[0]} ({last.get('id')})" if titles else ""


def newest_nettests(gangs: Iterable[GangSpec], *, root: Path | None = None) -> tuple[dict[str, Any], ...]:
    """The newest test of each of these gangs that can be read, whichever of its nodes had a part in it."""
    waiting, found = {gang.name: set(addresses_of(gang.machines)) for gang in gangs}, []
    for test in _newest_first(root):
        known = waiting.get(test["gang"])
        if known is not None and known.issuperset(test["addresses"]):
            found.append(test)
            del waiting[test["gang"]]
    return tuple(found)


def _of(gang: GangSpec, stack: str, root: Path | None) -> Iterator[dict[str, Any]]:
    """Tests of these nodes, as SSH reaches them, with this stack: newest first."""
    names, addresses = [node.name for node in gang.nodes], addresses_of(gang.nodes)
    for test in _newest_first(root):
        if [test[key] for key in ("gang", "nodes", "stack", "addresses")] == [gang.name, names, stack, addresses]:
            yield test


def _newest_first(root: Path | None) -> Iterator[dict[str, Any]]:
    for file in sorted((root or state_folder("nettest")).glob("*.json"), reverse=True):
        if (test := _read(file)) is not None:
            yield test


def _read(file: Path) -> dict[str, Any] | None:
    """None for what is no record of ours."""
    try:
        found = json.loads(file.read_bytes())
        sound = (
            found["format"] == FORMAT
            and all(isinstance(found[key], str) for key in ("gang", "stack", "verdict"))
            and isinstance(found["nodes"], list)
            and isinstance(found["ranks"], int)
            and isinstance(found["links"], list)
            and isinstance(found["tests"], list)
            and _are_texts(found["addresses"])
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if sound else None


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)
