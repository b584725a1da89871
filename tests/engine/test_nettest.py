"""The network test with the stack's own torch on emulated nodes: Gloo over real links, some of them slowed."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.engine.kinds import WITH_ITS_TORCH
from tests.support import ib_write_bw
from tests.support.small_lab import IN_PLACE, SmallLab, small_lab
from tests.support.waiting import slack, until

pytestmark = [pytest.mark.engine, pytest.mark.lab, pytest.mark.timeout(900), WITH_ITS_TORCH]

NODES = 4
RANKS_S = 120
"""Time limit until a test's ranks run, on an idle machine."""


@pytest.fixture(scope="module")
def lab() -> Iterator[SmallLab]:
    with small_lab(f"nettest-{os.getpid()}", nodes=NODES, engine="sglang", gpus=1) as made:
        yield made


def nettest(lab: SmallLab, *words: str, code: int = 0) -> dict[str, Any]:
    done = lab.deploy("nettest", "--model", lab.model, "--json", *words, code=code)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def wait_for_ranks(lab: SmallLab) -> None:
    """Wait until they run on every node. Each node looks by itself, since they live only a few seconds."""
    look = f"until pgrep -f {IN_PLACE} >/dev/null; do sleep 0.2; done"
    with ThreadPoolExecutor(NODES) as nodes:
        list(nodes.map(lambda node: lab.on(node, look, timeout=RANKS_S * slack()), lab.hosts()))


def test_healthy_links_are_as_fast_as_each_other(lab: SmallLab) -> None:
    found = nettest(lab)
    (gang,) = found["gangs"]
    assert (found["verdict"], found["odd"], found["findings"]) == ("ok", None, [])
    assert gang["bisected"] is None
    data = found["verification"]
    assert (data["verdict"], data["pairs"], data["corrupt"]) == ("ok", NODES * (NODES - 1), [])
    assert 0 < data["seconds"] < gang["seconds"]
    assert gang["ranks"] == NODES and len(found["links"]) == NODES * (NODES - 1)
    assert {test["kind"] for test in found["tests"]} == {"all ranks"}
    assert all("Gloo over" in words for words in found["transport"].values())
    assert gang["price"].endswith("(calculated from this test)")
    assert json.loads(Path(gang["file"]).read_text())["verdict"] == "ok"
    assert gang["overhead_s"].keys() == {"look and plan", "import torch", "join and end"}
    assert all(seconds > 0 for seconds in gang["overhead_s"].values())
    parts = sum(gang["overhead_s"].values()) + gang["measuring_s"] + gang["measuring_rails_s"]
    assert parts < gang["seconds"] + 0.01  # each is rounded
    assert gang["rails"] == [] and "apt-get install -y perftest" in gang["rails_note"]
    assert not lab.in_place_processes()


@pytest.mark.turns(of="nettest: what is wrong or dies is named, and nothing is left")
def test_a_slow_rdma_port_is_named(lab: SmallLab) -> None:
    """The stand-in of ib_write_bw reports each port's rate as its bandwidth, and a lower one for the slow port."""
    program = Path(ib_write_bw.__file__).read_bytes()
    place = "/usr/local/bin/ib_write_bw"
    port = lab.on("node2", "ls /sys/class/infiniband").split()[-1]
    for node in lab.hosts():
        lab.on(node, f"cat >{place} && chmod 755 {place}", program)
    try:
        lab.on("node2", f"echo {port} 10 >/run/slow-rails")
        found = nettest(lab, code=7)
    finally:
        for node in lab.hosts():
            lab.on(node, f"rm -f {place} /run/slow-rails")
    (gang,) = found["gangs"]
    assert found["odd"] is not None, found["findings"]
    assert (found["odd"]["node"], found["odd"]["port"]) == ("node2", f"{port}:1")
    assert [one["id"] for one in found["findings"]] == ["NETTEST-SLOW-LINK"]
    assert "stand-in" in gang["rails_note"] and "given up" not in gang["rails_note"]
    slow = [(one["node"], one["port"]) for one in gang["rails"] if one["verdict"] == "slow"]
    assert slow == [("node2", f"{port}:1")]
    assert {one["memory"] for one in gang["rails"]} == {"host"} and {one["basis"] for one in gang["rails"]} == {
        "calculated"
    }


@pytest.mark.turns(of="nettest: what is wrong or dies is named, and nothing is left")
def test_a_slow_link_is_named_and_up_does_not_start_on_it(lab: SmallLab) -> None:
    lab.run("break", "node1", "slow-link", "node3", "20mbit")
    try:
        found = nettest(lab, code=7)
        done = lab.deploy("up", "--model", lab.model, "--nettest", code=None)
    finally:
        lab.run("heal", "node1")
    assert {found["odd"]["from"], found["odd"]["to"]} == {"node1", "node3"}
    (finding,) = found["findings"]
    assert (finding["id"], finding["severity"]) == ("NETTEST-SLOW-LINK", "slow")
    assert "decode step" in finding["effect"] and "nettest" in finding["fix"]
    slow = [link for link in found["links"] if link["verdict"] == "slow"]
    assert {(link["from"], link["to"]) for link in slow} == {("node1", "node3"), ("node3", "node1")}
    assert done.returncode == 7, done.stderr
    assert "no rank was started" in done.stderr and "NETTEST-SLOW-LINK" in done.stderr
    assert lab.gang()["state"] in ("absent", "failed") and not lab.engine_processes()


@pytest.mark.turns(of="nettest: what is wrong or dies is named, and nothing is left")
def test_a_link_that_corrupts_data_is_named_and_nothing_starts_on_it(lab: SmallLab) -> None:
    """One byte of a MiB, with right checksums: the nodes' kernels and Gloo notice nothing."""
    lab.run("break", "node1", "corrupt-link", "node3")
    try:
        found = nettest(lab, "--verify", code=7)
        done = lab.deploy("up", "--model", lab.model, "--nettest", code=None)
    finally:
        lab.run("heal", "node1")
    (wrong,) = found["verification"]["corrupt"]
    assert (wrong["from"], wrong["to"]) == ("node1", "node3") and wrong["bytes"] > 0
    assert [(one["id"], one["severity"]) for one in found["findings"]] == [("DATA-CORRUPT", "stop")]
    assert (found["verdict"], found["tests"], found["links"]) == ("failed", [], [])
    assert done.returncode == 3, done.stderr
    assert "no rank was started: DATA-CORRUPT" in done.stderr and "node1 to node3" in done.stderr
    assert lab.gang()["state"] in ("absent", "failed") and not lab.engine_processes()


@pytest.mark.turns(of="nettest: what is wrong or dies is named, and nothing is left")
def test_a_slow_node_is_named(lab: SmallLab) -> None:
    lab.run("break", "node2", "slow-node", "50mbit")
    try:
        found = nettest(lab, code=7)
    finally:
        lab.run("heal", "node2")
    assert (found["odd"]["node"], found["findings"][0]["id"]) == ("node2", "NETTEST-SLOW-NODE")
    assert found["gangs"][0]["bisected"] == "node2"  # halves of the nodes name the same one


@pytest.mark.turns(of="nettest: what is wrong or dies is named, and nothing is left")
def test_a_rank_that_dies_ends_all_and_is_the_one_message(lab: SmallLab) -> None:
    test = lab.start("nettest", "--model", lab.model)
    wait_for_ranks(lab)
    lab.on("node2", f"pkill -KILL -f {IN_PLACE} || true", check=False)
    said = test.communicate(timeout=120)[0]
    assert test.returncode in (3, 4), said
    assert said.count("error:") == 1 and "node2" in said
    until(lambda: not lab.in_place_processes(), 30, "nothing of it is left")


@pytest.mark.turns(of="nettest: what is wrong or dies is named, and nothing is left")
def test_an_interrupted_start_leaves_no_agent_and_says_so(lab: SmallLab) -> None:
    start = lab.start("up", "--model", lab.model, "--nettest")
    wait_for_ranks(lab)
    start.send_signal(signal.SIGINT)
    said = start.communicate(timeout=120)[0]
    assert start.returncode == 130 and "no rank of gang0 was started" in said and "continues" not in said
    until(lambda: not lab.in_place_processes() and not lab.engine_processes(), 30, "nothing of it is left")
    assert lab.gang()["state"] in ("absent", "failed")


@pytest.mark.turns(of="nettest: what is wrong or dies is named, and nothing is left")
def test_a_node_that_is_lost_in_the_middle_is_the_one_message(lab: SmallLab) -> None:
    test = lab.start("nettest", "--model", lab.model)
    wait_for_ranks(lab)
    lab.run("break", "node2", "power-off")
    try:
        said = test.communicate(timeout=180)[0]
    finally:
        lab.run("heal", "node2", "power-off")
    assert test.returncode == 4, said
    assert said.count("error:") == 1 and "error: node2" in said and "lost during the network test" in said
    until(lambda: not lab.in_place_processes(), 60, "nothing of it is left on the others")
