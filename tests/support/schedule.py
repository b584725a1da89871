"""The order in which the files of `make test` run: the longest first, so that none is left to run alone at the end.

Most of the long ones wait (for an engine, for leases) more than they compute. So one worker takes the files that only
compute while the others wait, and helps them afterwards. A file stays with one worker, for its labs and fixtures.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

TESTS = Path(__file__).resolve().parents[1]
DURATIONS = TESTS / "durations.json"
RECORD = "RECORD_DURATIONS"
"""`RECORD_DURATIONS=1 make test`, on an idle machine, rewrites that file."""
LEAST_S = 5.0
"""Shorter durations are not recorded."""
WITH_PROCESSES = (
    "contract",
    "gpu",
    "unit/hosts",
    "lab/tests/standin",
    "unit/loading/test_ansible_yaml.py",
    "unit/loading/test_sources.py",
    "unit/node/agent",
    "unit/checkpoint/on_node/test_checkpoint_reblock.py",
    "unit/checkpoint/on_node/test_checkpoint_target.py",
    "unit/remote",
    "unit/gang/steps",
    "packaging",
    "slice",
)
"""Folders whose tests start processes of their own (sshds, agents, engines, ansible)."""
WAITING = (*WITH_PROCESSES, "chaos", "engine", "lab/test_")
"""Folders whose tests wait more than they compute."""
EACH_ALONE = ("contract/test_contract.py",)
"""Files whose tests share nothing: each test goes to any free worker."""


def of_a_run(environment: Mapping[str, str]) -> Mapping[str, str]:
    """What asks a run for something; nothing asks a pytest that one of its tests starts: it would write its own few
    durations over the run's."""
    return {} if "PYTEST_CURRENT_TEST" in environment else environment


def durations() -> dict[str, float]:
    """Recorded durations in seconds, by scope."""
    found: dict[str, float] = json.loads(DURATIONS.read_text())
    return found


def scope_of(nodeid: str) -> str:
    """What stays with one worker: a file by its path below tests/, or a single test of the files in EACH_ALONE."""
    nodeid = nodeid.removeprefix("tests/")
    place = nodeid.partition("::")[0]
    return nodeid if place in EACH_ALONE else place


def ordered(scopes: Iterable[str], known: Mapping[str, float]) -> list[str]:
    """The longest first; of those with unknown duration, waiting tests first, otherwise in the given order."""
    return sorted(scopes, key=lambda scope: (-known.get(scope, LEAST_S / 2), not scope.startswith(WAITING)))


def next_of(queue: Iterable[str], *, quick: bool) -> str:
    """The scope a worker takes next. quick: it takes scopes that only compute, while any are left."""
    scopes = list(queue)
    computing = (scope for scope in scopes if not scope.startswith(WAITING))
    return next(computing, scopes[0]) if quick else scopes[0]


class LongestFirst(LoadFileScheduling):  # type: ignore[misc]
    """xdist's scheduling by file, in our order."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if not self.assigned_work.get(node):
            for scope in ordered(self.workqueue, durations()):
                self.workqueue.move_to_end(scope)
        quick = node.gateway.id == "gw0" and len(self.nodes) > 1
        self.workqueue.move_to_end(next_of(self.workqueue, quick=quick), last=False)
        super()._assign_work_unit(node)


class Recorder:
    """Seconds that each scope took in a full run; what had no turn keeps those that it had."""

    def __init__(self) -> None:
        self.took: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.took[scope_of(report.nodeid)] += report.duration  # type: ignore[assignment]

    def pytest_sessionfinish(self, session: Any) -> None:
        DURATIONS.write_text(written(kept(durations(), self.took)))


def kept(known: Mapping[str, float], took: Mapping[str, float]) -> dict[str, float]:
    """What a run took, and what is known of files that had no turn in it. took: by scope, in seconds"""
    files = {scope: scope.partition("::")[0] for scope in known}
    there = {scope for scope, file in files.items() if (TESTS / file).exists() or (TESTS.parent / file).exists()}
    return {scope: known[scope] for scope in there} | dict(took)


def written(took: Mapping[str, float]) -> str:
    """The file's text."""
    long = {scope: round(seconds) for scope, seconds in took.items() if seconds >= LEAST_S}
    return json.dumps(dict(sorted(long.items(), key=lambda one: (-one[1], one[0]))), indent=2) + "\n"
