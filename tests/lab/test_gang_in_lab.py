"""A gang of 32 ranks on four nodes, over real SSH: it serves, fails with one cause, and leaves nothing behind.

One lab for all tests; the engines ignore each other's death (the stand-in's default). The tests depend on each
other only in that each of them ends with nothing running.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.load import complete
from tests.support.preloaded import L40S_DEPLOY
from tests.support.small_lab import small_lab
from tests.support.waiting import slack, until

from .conftest import RunningLab, needs_root

pytestmark = [pytest.mark.lab, needs_root]

MODEL = ("--model", "DeepSeek-V3-0324-Block64x64")
LEASE_S = 14
"""A node shows as silent after half of it; a look at a node that does not answer over SSH takes 10 s."""
ENGINE = r"sglang::|sglang\.launch_server"


@dataclass(frozen=True)
class Operator:
    """An operator who types commands against one lab."""

    lab: RunningLab
    inventory: Path

    def command(self, *words: str) -> list[str]:
        return [*L40S_DEPLOY, *words, "-i", str(self.inventory)]

    def type(self, *words: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        return self.lab.deploy(*words, code=code, inventory=self.inventory)

    def gang(self, code: int | None = None) -> dict[str, Any]:
        """The one gang of `status --json`. code: None allows any."""
        (gang,) = json.loads(self.type("status", "--json", code=code).stdout)["gangs"]
        return dict(gang)

    def until(
        self, done: Callable[[dict[str, Any]], bool], deadline_s: float, code: int | None = None
    ) -> dict[str, Any]:
        """Repeat the look until a condition of the gang is true."""
        seen: list[dict[str, Any]] = []

        def met() -> bool:
            seen[:] = [self.gang(code)]
            return done(seen[0])

        until(met, deadline_s, lambda: json.dumps(seen)[:3000])
        return seen[0]

    def engines(self, *nodes: str) -> dict[str, str]:
        """Engine processes that still run, by node; a node without any is left out."""
        asked = nodes or tuple(self.lab.hosts())
        found = {node: self.lab.ssh(node, f"ps -eo pid,stat,args | grep -E '{ENGINE}' | grep -v grep || true")
                 for node in asked}  # fmt: skip
        return {node: text for node, text in found.items() if any(" Z" not in line for line in text.splitlines())}

    def is_reached(self, node: str) -> bool:
        try:
            self.lab.ssh(node, "true")
        except AssertionError:
            return False
        return True

    def nothing_left(self, deadline_s: float, *nodes: str) -> None:
        until(lambda: not self.engines(*nodes), deadline_s, lambda: f"nothing left: {self.engines(*nodes)}")

    def rank(self, tp_rank: int) -> tuple[str, int]:
        """Node and process id (on that node) of a TP rank."""
        ranks = {
            rank["tp_rank"]: (node["name"], rank["pid"]) for node in self.gang()["nodes"] for rank in node["ranks"]
        }
        return ranks[tp_rank]


def states(gang: dict[str, Any]) -> list[str]:
    return [node["state"] for node in gang["nodes"]]


def write_inventory(lab: RunningLab, name: str, **variables: Any) -> Path:
    """The lab's inventory with other variables, in another file."""
    document = lab.inventory()
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
def operator(lab: RunningLab) -> Iterator[Operator]:
    at_work = Operator(lab, write_inventory(lab, "gang.yml"))
    yield at_work
    at_work.type("down", "--now")


def test_a_killed_up_is_followed_by_the_next_and_it_serves(operator: Operator) -> None:
    first = subprocess.Popen(
        operator.command("up", *MODEL), env=operator.lab.environment(), stderr=subprocess.PIPE, text=True
    )
    assert first.stderr is not None
    steps = []
    for line in first.stderr:
        steps.append(line)
        if "checking" in line:
            break
    assert "checking" in steps[-1], steps
    first.kill()
    first.communicate()
    said = operator.type("up", *MODEL).stdout
    assert "canary: " in said
    gang = operator.gang()
    assert (gang["state"], gang["trouble"], gang["cause"]) == ("ready", "", None)
    ranks = [rank for node in gang["nodes"] for rank in node["ranks"]]
    assert [rank["tp_rank"] for rank in ranks] == list(range(32))
    assert all(rank["state"] == "alive" and rank["gpu_memory_bytes"] > 1 << 30 for rank in ranks)
    assert "Paris" in complete(gang["service"]["url"], "any", "The capital of France is", 8)
    operator.type("down")
    assert operator.engines() == {}
    gang = operator.gang()
    assert (gang["state"], gang["cause"]) == ("absent", None)
    for name in operator.lab.hosts():
        assert "l40s" not in operator.lab.ssh(name, "ps -eo comm")
        assert operator.lab.ssh(name, "ls /run/l40s-lab/gpu-claims").split() == []


def test_a_killed_rank_is_named_and_ends_everybody_as_another_user_too(lab: RunningLab, operator: Operator) -> None:
    operator = Operator(lab, write_inventory(lab, "nobody.yml", l40s_engine_user="nobody"))
    operator.type("up", *MODEL)
    node, pid = operator.rank(19)
    assert node == "node2"
    assert operator.lab.ssh(node, f"stat -c %U /proc/{pid}").strip() == "nobody"
    operator.lab.ssh(node, f"kill -KILL {pid}")
    begin = time.monotonic()
    gang = operator.gang()
    assert time.monotonic() - begin < 2.0 * slack()
    assert gang["state"] == "failed"
    cause = gang["cause"]
    assert (cause["node"], cause["tp_rank"], cause["signal"]) == ("node2", 19, signal.SIGKILL)
    operator.nothing_left(5.0 - (time.monotonic() - begin) / slack())
    operator.until(lambda gang: states(gang) == ["failed"] * 4, 5.0)
    assert operator.gang(code=5)["cause"]["tp_rank"] == 19


def test_a_killed_agent_ends_everything(operator: Operator) -> None:
    operator.type("up", *MODEL)
    gang = operator.gang()
    folder = f"/var/lib/l40s-deploy/gangs/{gang['name']}/runs/{gang['run_id']}"
    agent = json.loads(operator.lab.ssh("node1", f"cat {folder}/agent.json"))
    operator.lab.ssh("node1", f"kill -KILL {agent['pid']}")
    gang = operator.until(lambda gang: gang["state"] == "failed", 3.0)
    assert gang["cause"]["node"] == "node1" and "agent" in gang["cause"]["text"]
    operator.nothing_left(5.0)
    operator.until(lambda gang: states(gang) == ["failed", "dead", "failed", "failed"], 5.0)


def cut(lab: RunningLab, node: str, word: str) -> None:
    """Take the lab's end of a node's primary cable down or up, in the bridges' network namespace."""
    supervisor = json.loads((lab.directory / "supervisor.json").read_text())["pid"]
    inside = ["nsenter", "-t", str(supervisor), "-n", "ip"]
    cables = json.loads(subprocess.check_output([*inside, "-j", "link", "show", "master", "lab"], text=True))
    (cable,) = [one["ifname"] for one in cables if one["ifname"].startswith(f"n{node.removeprefix('node')}p")]
    subprocess.run([*inside, "link", "set", cable, word], check=True)


def test_a_cut_link_is_shown_and_ends_both_sides_by_the_lease(operator: Operator) -> None:
    """With a long lease: on a busy machine two looks and their pause take as long as half of the usual one."""
    lease_s = 2 * LEASE_S
    operator = replace(operator, inventory=write_inventory(operator.lab, "long-lease.yml", l40s_lease=lease_s))
    operator.type("up", *MODEL)
    cut(operator.lab, "node3", "down")
    begin = time.monotonic()
    try:
        assert operator.gang()["trouble"] in ("unreachable", "silent")
        gang = operator.until(lambda gang: gang["trouble"] == "silent", lease_s)
        lost = gang["nodes"][3]
        assert (lost["state"], lost["contact"]) == ("unreachable", "node")
        assert any("the machine is down or disconnected" in remark for remark in gang["remarks"])
        gang = operator.until(lambda gang: gang["state"] == "failed", lease_s + 10.0)
        assert gang["cause"]["node"] == "node3" and "no heartbeat" in gang["cause"]["text"]
        operator.nothing_left(5.0, "node0", "node1", "node2")
    finally:
        cut(operator.lab, "node3", "up")
    until(lambda: operator.is_reached("node3"), 10.0, "node3 is reached again")  # its neighbour entry may be stale
    operator.nothing_left(max(begin + lease_s + 6.0 - time.monotonic(), 1.0), "node3")
    gang = operator.until(lambda gang: gang["nodes"][3]["state"] == "failed", 10.0)
    assert gang["cause"]["node"] == "node3"


def test_gangs_rise_together_and_die_alone() -> None:
    with small_lab("two-gangs", gangs=2) as lab:
        lab.serve()
        before = {gang["name"]: gang for gang in lab.json("status")["gangs"]}
        assert [gang["state"] for gang in before.values()] == ["ready", "ready"]
        node, pid = lab.rank(3, 1)
        lab.on(node, f"kill -KILL {pid}")
        first, second = lab.json("status")["gangs"]
        assert (first["state"], first["run_id"]) == ("ready", before["gang0"]["run_id"])
        assert (second["state"], second["cause"]["node"], second["cause"]["tp_rank"]) == ("failed", node, 3)
        lab.serve("--gang", "gang1")
        first, second = lab.json("status")["gangs"]
        assert (first["state"], first["run_id"]) == ("ready", before["gang0"]["run_id"])
        assert second["state"] == "ready" and second["run_id"] != before["gang1"]["run_id"]
        lab.deploy("down", "gang0")
        assert [gang["state"] for gang in lab.json("status")["gangs"]] == ["absent", "ready"]
