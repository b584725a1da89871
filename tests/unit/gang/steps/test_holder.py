"""Whether a lock's holder still runs: only if this machine can tell."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from orchestrator.gang.steps.status.unfinished import has_ended, this_process
from orchestrator.node import processes
from orchestrator.protocol.verbs import LockHolder


@pytest.fixture
def ended() -> dict[str, Any]:
    """A process of this machine that was killed."""
    process = subprocess.Popen(["sleep", "600"])
    holder = this_process() | {"pid": process.pid, "start": processes.start_of(process.pid)}
    assert not has_ended(LockHolder(token="t", **holder))
    process.kill()
    process.wait()
    return holder


def test_we_run_and_a_killed_process_of_this_machine_has_ended(ended: dict[str, Any]) -> None:
    assert not has_ended(LockHolder(token="t", **this_process()))
    assert has_ended(LockHolder(token="t", **ended))


def test_another_process_with_its_id_is_not_it(ended: dict[str, Any]) -> None:
    assert has_ended(LockHolder(token="t", **this_process() | {"start": ended["start"] + 1}))


@pytest.mark.parametrize(
    "unlike",
    [{"boot": "another"}, {"pid_namespace": "pid:[1]"}, {"boot": ""}, {"boot": None}, {"pid": None}, {"start": None}],
)
def test_one_that_can_not_be_seen_from_here_has_not_ended(ended: dict[str, Any], unlike: dict[str, Any]) -> None:
    """A container or a cloned machine with the same host name, and the holder as an older release wrote it."""
    assert not has_ended(LockHolder(token="t", **{**ended, **unlike}))
