"""A gang of 32 ranks on four nodes, over real SSH: it serves, fails with one cause, and leaves nothing behind.

One lab for all tests; the engines ignore each other's death (the stand-in's default). The tests depend on each
other only in that each of them ends with nothing running.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.load import complete
from tests.support.small_lab import RunningLab
from tests.support.waiting import until

from .conftest import LOSES_A_PART, needs_root

pytestmark = [pytest.mark.lab, needs_root, LOSES_A_PART]

MODEL = ("--model", "DeepSeek-V3-0324-Block64x64")
LEASE_S = 14
"""A node shows as silent after half of it; a look at a node that does not answer over SSH takes 10 s."""


def look_until(
    lab: RunningLab, done: Callable[[dict[str, Any]], bool], deadline_s: float, code: int | None = None
) -> dict[str, Any]:
    """Look until a condition of the gang is true."""
    seen: list[dict[str, Any]] = []

    def met() -> bool:
        seen[:] = [lab.gang(code=code)]
        return done(seen[0])

    until(met, deadline_s, lambda: json.dumps(seen)[:3000])
    return seen[0]


def nothing_left(lab: RunningLab, deadline_s: float, *nodes: str) -> None:
    until(lambda: not lab.engine_processes(nodes), deadline_s, lambda: f"left: {lab.engine_processes(nodes)}")


def states(gang: dict[str, Any]) -> list[str]:
    return [node["state"] for node in gang["nodes"]]


def write_inventory(lab: RunningLab, name: str, **variables: Any) -> Path:
    """The lab's inventory with other variables, in another file."""
    document = lab.lab_inventory()
    document["all"]["vars"] |= {"l40s_lease": LEASE_S, "l40s_env": {"STANDIN_SPEED": "0.15"}, **variables}
    path = lab.directory / name
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture(scope="module")
def lab(labs: Callable[[str], RunningLab]) -> RunningLab:
    made = labs("gang")
    made.run("up")
    return made


@pytest.fixture
def operator(lab: RunningLab) -> Iterator[RunningLab]:
    at_work = replace(lab, inventory=write_inventory(lab, "gang.yml"))
    yield at_work
    at_work.deploy("down", "--now")


def test_a_killed_up_is_followed_by_the_next_which_serves_and_ends_without_its_files(operator: RunningLab) -> None:
    first = operator.start("up", *MODEL)
    assert first.stdout is not None
    steps = []
    for line in first.stdout:
        steps.append(line)
        if "checking" in line:
            break
    assert "checking" in steps[-1], steps
    first.kill()
    first.communicate()
    said = operator.deploy("up", *MODEL).stdout
    assert "canary: " in said
    gang = operator.gang()
    assert (gang["state"], gang["trouble"], gang["cause"]) == ("ready", "", None)
    ranks = [rank for node in gang["nodes"] for rank in node["ranks"]]
    assert [rank["tp_rank"] for rank in ranks] == list(range(32))
    assert all(rank["state"] == "alive" and rank["gpu_memory_bytes"] > 1 << 30 for rank in ranks)
    assert "Paris" in complete(gang["service"]["url"], "any", "The capital of France is", 8)
    _state_directories_that_were_deleted_are_unknown_and_down_ends_it(operator)
    assert operator.gang()["cause"] is None


def _state_directories_that_were_deleted_are_unknown_and_down_ends_it(operator: RunningLab) -> None:
    """An agent runs from a copy of the application in that directory."""
    assert len(operator.engine_processes()) == 4
    for name in operator.hosts():
        operator.ssh(name, "rm -r /var/lib/l40s-deploy")
    gang = operator.gang(code=4)
    assert gang["state"] == "unknown" and states(gang) == ["unknown"] * 4
    refused = operator.deploy("up", *MODEL, code=3).stderr
    assert "no file in /var/lib/l40s-deploy tells of it" in refused and "`l40s-deploy down gang0`" in refused
    assert len(operator.engine_processes()) == 4, "what serves goes on"
    said = operator.deploy("down", "gang0").stdout
    assert "gang0: stopped on node0, node1, node2, node3" in said
    assert operator.engine_processes() == {} and operator.gang()["state"] == "absent"
    for name in operator.hosts():
        assert "l40s" not in operator.ssh(name, "ps -eo comm")
        assert operator.ssh(name, "ls /run/l40s-lab/gpu-claims").split() == []


@pytest.mark.turns(of="gang of 32 ranks: what is lost is named and ends everybody")
def test_a_killed_rank_is_named_and_ends_everybody_as_another_user_too(operator: RunningLab) -> None:
    operator = replace(operator, inventory=write_inventory(operator, "nobody.yml", l40s_engine_user="nobody"))
    operator.deploy("up", *MODEL)
    node, pid = operator.rank(19)
    assert node == "node2"
    assert operator.ssh(node, f"stat -c %U /proc/{pid}").strip() == "nobody"
    operator.ssh(node, f"kill -KILL {pid}")
    cause = look_until(operator, lambda gang: gang["state"] == "failed", 10.0)["cause"]
    assert (cause["node"], cause["tp_rank"], cause["signal"]) == ("node2", 19, signal.SIGKILL)
    nothing_left(operator, 10.0)
    look_until(operator, lambda gang: states(gang) == ["failed"] * 4, 10.0)
    assert operator.gang(code=5)["cause"]["tp_rank"] == 19


@pytest.mark.turns(of="gang of 32 ranks: what is lost is named and ends everybody")
def test_a_cut_link_is_shown_and_ends_both_sides_by_the_lease(operator: RunningLab) -> None:
    """With a long lease: on a busy machine two looks and their pause take as long as half of the usual one."""
    lease_s = 2 * LEASE_S
    operator = replace(operator, inventory=write_inventory(operator, "long-lease.yml", l40s_lease=lease_s))
    operator.deploy("up", *MODEL)
    operator.run("break", "node3", "link-down")
    begin = time.monotonic()
    try:
        assert operator.gang()["trouble"] in ("unreachable", "silent")
        gang = look_until(operator, lambda gang: gang["trouble"] == "silent", lease_s)
        lost = gang["nodes"][3]
        assert (lost["state"], lost["contact"]) == ("unreachable", "node")
        assert any("the machine is down or disconnected" in remark for remark in gang["remarks"])
        gang = look_until(operator, lambda gang: gang["state"] == "failed", lease_s + 10.0)
        assert gang["cause"]["node"] == "node3" and "no heartbeat" in gang["cause"]["text"]
        nothing_left(operator, 5.0, "node0", "node1", "node2")
    finally:
        operator.run("heal", "node3")
    until(
        lambda: operator.ssh("node3", "echo there", check=False), 10.0, "node3 is reached again"
    )  # its neighbour entry may be stale
    nothing_left(operator, max(begin + lease_s + 6.0 - time.monotonic(), 1.0), "node3")
    gang = look_until(operator, lambda gang: gang["nodes"][3]["state"] == "failed", 10.0)
    assert gang["cause"]["node"] == "node3"
