"""Network tests on this machine: one file each, $XDG_STATE_HOME/l40s-deploy/nettest/ID.json."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.model.inventory import GangSpec, NodeSpec
from orchestrator.records.documents import read_document, state_folder, write_document

FORMAT = 1
KEPT = 50
"""Of each gang."""


def write_nettest(document: Mapping[str, Any], at: float) -> Path:
    """Keep one test; the oldest of its gang go. Raises InputError where it can't be written."""
    folder = state_folder("nettest")
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


def last_good(gang: GangSpec, stack: str, ranks: int) -> dict[str, Any] | None:
    """The newest test of these very nodes and this stack that timed, and found nothing slow; None where there is
    none."""
    return next(
        (test for test in _of(gang, stack) if test["verdict"] != "slow" and test["tests"] and test["ranks"] == ranks),
        None,
    )


def newest(gang: GangSpec, stack: str, ranks: int) -> dict[str, Any] | None:
    """The newest test of these very nodes and this stack that measured anything, slow or not."""
    return next((test for test in _of(gang, stack) if test["tests"] and test["ranks"] == ranks), None)


def slow_before(gang: GangSpec, stack: str) -> str:
    """What the newest test of these nodes and this stack that timed found slow, with its id; '' where it found nothing,
    or there is none."""
    last = next((test for test in _of(gang, stack) if test["tests"]), None)
    if last is None or last["verdict"] != "slow":
        return ""
    titles = [str(finding.get("title")) for finding in last.get("findings", [])]
    return f"{titles[0]} ({last.get('id')})" if titles else ""


def newest_nettests(gangs: Iterable[GangSpec]) -> tuple[dict[str, Any], ...]:
    """The newest test of each of these gangs that can be read, whichever of its nodes had a part in it."""
    waiting, tests = {gang.name: set(addresses_of(gang.machines)) for gang in gangs}, []
    for test in _newest_first():
        known = waiting.get(test["gang"])
        if known is not None and known.issuperset(test["addresses"]):
            tests.append(test)
            del waiting[test["gang"]]
    return tuple(tests)


def _of(gang: GangSpec, stack: str) -> Iterator[dict[str, Any]]:
    """Tests of these nodes, as SSH reaches them, with this stack: newest first."""
    names, addresses = [node.name for node in gang.nodes], addresses_of(gang.nodes)
    for test in _newest_first():
        if [test[key] for key in ("gang", "nodes", "stack", "addresses")] == [gang.name, names, stack, addresses]:
            yield test


def _newest_first() -> Iterator[dict[str, Any]]:
    for file in sorted(state_folder("nettest").glob("*.json"), reverse=True):
        if (test := read_document(file, _record)) is not None:
            yield test


def _record(document: Any) -> dict[str, Any] | None:
    """None for what is no record of ours."""
    texts = (*(document[key] for key in ("gang", "stack", "verdict")), *document["addresses"])
    lists = (document[key] for key in ("nodes", "links", "tests", "addresses"))
    sound = (
        document["format"] == FORMAT
        and isinstance(document["ranks"], int)
        and all(isinstance(entry, list) for entry in lists)
    )
    return document if sound and all(isinstance(text, str) for text in texts) else None
