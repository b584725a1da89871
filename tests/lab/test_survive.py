"""A node of a gang is dead for good: a guard runs the gang on three, and on four again, over real SSH.

Of 8 ranks here; `make long` plays what takes 32 of them: lost GPUs and ports, and a spare that a guard takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from tests.support.load import complete
from tests.support.ports import free_port
from tests.support.preloaded import L40S_DEPLOY
from tests.support.router import ROUTER_PORTS, NotInstalled, router_environment, router_group
from tests.support.small_lab import ENVIRONMENT, RunningLab, guarding, serving, small_lab
from tests.support.small_lab import MODEL as SMALL
from tests.support.waiting import slack, until

from .conftest import LOSES_A_PART, needs_root
from .test_gang_in_lab import look_until, nothing_left, write_inventory

pytestmark = [
    pytest.mark.lab,
    needs_root,
    pytest.mark.timeout(600),
    LOSES_A_PART,
]

MODEL = ("--model", "DeepSeek-V3-0324-Block64x64")
LEASE_S = 6
AFTER_S = 5
FOUR = ["node0", "node1", "node2", "node3"]


@pytest.fixture(scope="module")
def operator(labs: Callable[[str], RunningLab]) -> RunningLab:
    lab = labs("survive")
    lab.run("up")
    at_work = replace(lab, inventory=write_inventory(lab, "survive.yml", l40s_lease=LEASE_S))
    at_work.deploy("up", *MODEL)
    return at_work


@pytest.fixture(scope="module")
def small() -> Iterator[RunningLab]:
    with small_lab("survives", nodes=4) as lab:
        inventory = write_inventory(lab, "survive.yml", l40s_lease=LEASE_S, l40s_env=ENVIRONMENT)
        at_work = RunningLab(lab.name, lab.root, inventory)
        at_work.deploy("up", "--model", profile_of(at_work))
        yield at_work


def profile_of(small: RunningLab) -> str:
    return str(small.root.parent / f"{SMALL}.yml")


@pytest.fixture
def routed(small: RunningLab) -> Iterator[RunningLab]:
    """The same with the real router in front of the gang, for this test; without it if it can't be installed."""
    document = yaml.safe_load(small.inventory.read_text())
    try:
        group = router_group(router_environment(), small.directory / "router", free_port(adjacent=ROUTER_PORTS))
    except NotInstalled:
        yield small
        return
    document["all"]["children"]["router"] = group
    path = small.directory / "routed.yml"
    path.write_text(yaml.safe_dump(document))
    at_work = replace(small, inventory=path)
    try:
        at_work.deploy("router", "up")
        yield at_work
    finally:
        at_work.deploy("router", "down", code=None)


def sends_requests_to(operator: RunningLab, url: str) -> bool:
    """The router has this worker and no other; without a router there is nothing to check."""
    if operator.inventory.name != "routed.yml":
        return True
    workers = operator.json("router", "status")["workers"]
    return [(one["url"], one["healthy"]) for one in workers] == [(url, True)]


@contextmanager
def watched(operator: RunningLab, *more: str) -> Iterator[Path]:
    """A guard that goes on without a node and returns to all nodes by itself; yields the file of its output."""
    said = operator.directory / "guard.txt"
    words = [*L40S_DEPLOY, "guard", "--degrade-after", f"{AFTER_S}s", "--restore", "auto", *more]
    with guarding(words, operator.environment, said):
        yield said


def completion(url: str) -> str:
    return complete(url, "any", "The capital of France is", 8)


def test_a_guard_goes_on_without_a_dead_leader_and_returns_when_it_is_back(routed: RunningLab) -> None:
    operator, lost = routed, "node0"
    left = [name for name in FOUR if name != lost]
    with watched(operator) as said:
        before, led = operator.gang(code=0)["run_id"], operator.gang(code=0)["service"]["url"]
        assert sends_requests_to(operator, led)
        operator.run("break", lost, "power-off")
        until(lambda: f"on 3 of 4 nodes, without {lost}" in said.read_text(), LEASE_S + AFTER_S + 60, said.read_text)
        gang = look_until(
            operator,
            lambda gang: gang["run_id"] != before and gang["state"] == "degraded" and serving(gang, left),
            60,
        )
        assert gang["degraded_reason"] == "nodes", said.read_text()
        assert (gang["serving_nodes"], gang["missing"]) == (3, [lost])
        assert sorted({rank["tp_rank"] for node in gang["nodes"] for rank in node["ranks"]}) == [0, 1]
        assert "Paris" in completion(gang["service"]["url"])
        assert operator.deploy("status", code=3).stdout.count("3 of 4 nodes")
        until(lambda: sends_requests_to(operator, gang["service"]["url"]), 30 * slack(), said.read_text)
        assert gang["service"]["url"] != led

        on_three = gang["run_id"]
        operator.run("heal", lost, "power-off")
        until(lambda: "it serves on all 4 nodes again" in said.read_text(), 90, said.read_text)
        gang = look_until(
            operator,
            lambda gang: gang["degraded_reason"] is None and gang["state"] == "ready" and serving(gang, FOUR),
            60,
        )
        assert gang["missing"] == []
        assert "Paris" in completion(gang["service"]["url"])
        until(lambda: sends_requests_to(operator, led), 30 * slack(), said.read_text)
        runs = operator.json("history")["runs"]
        newest = [run["run_id"] for run in runs if run["run_id"] >= on_three]
        phases = gang["start"]["phases"]
        assert phases["weights"] <= phases[gang["start"]["longest"]] <= gang["start"]["seconds"]
        assert runs[0]["start"] == gang["start"]
        assert sorted(newest) == [on_three, gang["run_id"]], "one restart took it back"


@pytest.mark.long
def test_a_node_that_answers_but_has_lost_a_gpu_is_left_out_until_it_has_it_again(operator: RunningLab) -> None:
    lost = "node1"
    with watched(operator) as said:
        before = operator.gang(code=0)["run_id"]
        operator.run("break", lost, "gpu-lost", "3")
        gang = look_until(
            operator,
            lambda gang: (
                gang["run_id"] != before and gang["state"] == "degraded" and serving(gang, ["node0", "node2", "node3"])
            ),
            (AFTER_S + 60) * slack(),
        )
        assert gang["missing"] == [lost], said.read_text()
        operator.run("heal", lost)
        look_until(operator, lambda gang: gang["state"] == "ready" and serving(gang, FOUR), 60 * slack())
        until(lambda: "it serves on all 4 nodes again" in said.read_text(), 30 * slack(), said.read_text)
    words = said.read_text()
    assert f" gang0: {lost}: GPU 3 fell off the bus" in words and "GPU-MISSING" in words
    assert f"on 3 of 4 nodes, without {lost}" in words


def test_the_stack_without_pipelines_can_not_go_on_and_says_what_could(small: RunningLab) -> None:
    words = ("--stack", "sglang-0.4.4-l40s", "--without", "node1", "--dry-run")
    refused = small.deploy("up", "--model", profile_of(small), *words, code=2)
    assert "TP6 does not work" in refused.stderr
    assert "needs a stack with SGLang 0.5" in refused.stderr
    until(lambda: small.gang(code=0)["state"] == "ready", 30 * slack())


@pytest.mark.long
def test_a_gang_whose_node_lost_its_last_rdma_port_is_planned_anew_over_tcp_until_it_is_back(
    operator: RunningLab,
) -> None:
    node, _ = operator.rank(17)
    ports = [name for name in operator.ssh(node, "ls /sys/class/infiniband").split() if name.startswith("mlx5")]
    before = operator.gang(code=0)["run_id"]
    operator.run("break", node, "kill-rank", "17")
    look_until(operator, lambda gang: gang["state"] == "failed", 30 * slack())
    for port in ports:
        operator.run("break", node, "port-down", port, check=False)
    with watched(operator, "--pause", "1") as said:
        gang = look_until(
            operator,
            lambda gang: gang["run_id"] != before and gang["state"] == "ready" and serving(gang, FOUR),
            (AFTER_S + 60) * slack(),
        )
        until(lambda: "4 of 4 nodes, planned anew" in said.read_text(), 30 * slack(), said.read_text)
        over_tcp = gang["run_id"]
        operator.run("heal", node)
        look_until(
            operator,
            lambda gang: gang["run_id"] != over_tcp and gang["state"] == "ready" and serving(gang, FOUR),
            60 * slack(),
        )
        until(lambda: "it serves on all 4 nodes again" in said.read_text(), 30 * slack(), said.read_text)
    words = " ".join(said.read_text().split())
    assert f"{node}: none of its RDMA ports can be used" in words
    assert "no RDMA port of this node can carry the gang's traffic: all of it uses TCP on bond0" in words, words
    assert "about 26 instead of 49 tokens/s" in words
    assert "NCCL_" not in operator.deploy("plan", *MODEL, "--diff").stdout


def with_a_spare(operator: RunningLab, spare: str) -> RunningLab:
    """The same lab, with one of its nodes as a spare of the gang of the others."""
    path = write_inventory(operator, "spare.yml", l40s_lease=LEASE_S)
    document = yaml.safe_load(path.read_text())
    (gang,) = document["all"]["children"]["gangs"]["children"].values()
    gang["hosts"][spare]["l40s_role"] = "spare"
    path.write_text(yaml.safe_dump(document))
    return replace(operator, inventory=path)


@pytest.mark.long
def test_a_spare_takes_the_place_of_a_dead_node_and_gives_it_back(operator: RunningLab) -> None:
    """A gang of three here: it runs as requested, with the same layout, on the spare, which its inventory gets while
    the guard runs."""
    operator.deploy("down", "--now")
    three, lost, asked = with_a_spare(operator, "node3"), "node1", ("--tp", "8", "--pp", "3")
    plan = three.json("plan", *MODEL, *asked)["gangs"][0]
    assert (plan["spares"], plan["nodes"]) == (["node3"], ["node0", "node1", "node2"])
    roles = {node["name"]: node["role"] for node in three.json("doctor")["nodes"]}
    assert roles == {"node0": "member", "node1": "member", "node2": "member", "node3": "spare"}
    three.deploy("up", *MODEL, *asked)
    gang = three.gang(code=0)
    assert (gang["state"], [(one["name"], one["state"]) for one in gang["spares"]]) == ("ready", [("node3", "idle")])
    assert [node["name"] for node in gang["nodes"]] == ["node0", "node1", "node2"]

    with_spare = three.inventory.read_text()
    document = yaml.safe_load(with_spare)
    (group,) = document["all"]["children"]["gangs"]["children"].values()
    del group["hosts"]["node3"]
    three.inventory.write_text(yaml.safe_dump(document))
    with watched(three) as said:
        locked = "test -e /var/lib/l40s-deploy/gangs/guard.gang0/lock && echo locked"
        until(lambda: three.ssh("node0", locked, check=False), 30 * slack(), said.read_text)
        three.inventory.write_text(with_spare)
        until(lambda: "gang0: node3 is new, a spare" in said.read_text(), 30 * slack(), said.read_text)
        before = gang["run_id"]
        three.run("break", lost, "power-off")
        gang = look_until(
            three,
            lambda gang: (
                gang["run_id"] != before and gang["state"] == "ready" and serving(gang, ["node0", "node3", "node2"])
            ),
            (LEASE_S + AFTER_S + 60) * slack(),
        )
        assert (gang["state"], gang["degraded_reason"], gang["missing"]) == ("ready", None, [lost]), said.read_text()
        assert (gang["serving_nodes"], gang["spares"][0]["state"]) == (3, "serving")
        assert "Paris" in completion(gang["service"]["url"])
        assert {one["node"] for one in three.json("lock")["locks"]} >= {"node3"}

        three.run("heal", lost, "power-off")
        gang = look_until(
            three, lambda gang: gang["state"] == "ready" and serving(gang, ["node0", "node1", "node2"]), 90 * slack()
        )
        assert (gang["state"], gang["missing"], gang["spares"][0]["state"]) == ("ready", [], "idle")
    words = said.read_text()
    assert f"without {lost}, with the spare node3" in words and "it serves on all 3 nodes again" in words
    nothing_left(three, 30 * slack(), "node3")


def test_up_without_a_node_takes_the_spare_and_down_ends_it_there(small: RunningLab) -> None:
    small.deploy("down", "--now")
    three = with_a_spare(small, "node3")
    asked = ("--tp", "2", "--pp", "3", "--without", "node0", "--replace")
    said = three.deploy("up", "--model", profile_of(small), *asked)
    assert "in its place: node3" in said.stderr
    gang = three.gang(code=0)
    assert serving(gang, ["node3", "node1", "node2"])
    three.deploy("restart", "--now")
    assert serving(three.gang(code=0), ["node3", "node1", "node2"]), "a restart keeps the spare"
    three.deploy("down", "--now")
    nothing_left(three, 30 * slack())
    assert three.gang()["state"] == "absent"
