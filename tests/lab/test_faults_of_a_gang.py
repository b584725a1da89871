"""Faults of ranks, agents and their GPUs, with a small running gang, and what its operator sees on a terminal."""

from __future__ import annotations

import re
import signal
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.load import Load
from tests.support.small_lab import SmallLab, small_lab
from tests.support.waiting import until

from orchestrator.loading.inventory import load_inventory

from .conftest import LOSES_A_PART, needs_root

pytestmark = [pytest.mark.lab, needs_root, LOSES_A_PART]


@pytest.fixture(scope="module")
def lab() -> Iterator[SmallLab]:
    with small_lab("gangfaults") as made:
        yield made


def logged(lab: SmallLab, *words: str) -> dict[str, list[str]]:
    """Lines of `logs WORDS` by node."""
    found: dict[str, list[str]] = {}
    for line in lab.deploy("logs", *words).stdout.splitlines():
        node, bar, text = line.partition(" | ")
        assert bar, line
        found.setdefault(node.strip(), []).append(text)
    return found


def failed(lab: SmallLab) -> dict[str, Any]:
    """The gang once it has failed and left nothing behind."""
    until(lambda: lab.gang()["state"] == "failed", 30, "failed")
    until(lambda: not lab.engine_processes(), 30, "nothing left")
    return lab.gang()


def test_the_rank_that_a_hung_engine_waits_for_is_named_by_ras_too(lab: SmallLab) -> None:
    lab.serve("--hung-after", "8")
    node, pid = lab.rank(3)
    lab.run("break", node, "hang-rank", "3")
    until(lambda: lab.gang().get("trouble") == "hung", 120, "hung")
    # Asked while its heartbeat is not yet late, RAS sees nothing; it is asked again after half a minute.
    until(lambda: "NCCL RAS gets no answer from rank 3 (pid " in lab.gang()["cause"]["text"], 90, "RAS misses it")
    cause = lab.gang()["cause"]
    assert (cause["node"], cause["tp_rank"]) == (node, 3)
    assert f"(pid {pid}) was stopped by a signal" in cause["text"] and f" of {node})" in cause["text"]
    assert "NCCL RAS gets no answer from rank 3" in lab.deploy("why").stdout
    waited = lab.deploy("up", "--model", lab.model, code=5)
    assert "gang0: degraded (hung): " in waited.stderr and f"fix: run `kill -CONT {pid}` on {node}" in waited.stderr
    assert lab.engine_processes()  # it has served: no `up` ends it
    lab.run("heal", node)
    until(lambda: lab.gang()["state"] == "ready", 60, "ready again")


@pytest.mark.turns(of="gang: a death is explained by its cause")
def test_a_rank_killed_with_a_signal_is_the_cause_and_logs_show_it(lab: SmallLab) -> None:
    lab.serve()
    assert {name: len(lines) for name, lines in logged(lab, "-n", "3").items()} == {"node0": 3, "node1": 3}
    assert set(logged(lab, "--node", "node1", "gang0")) == {"node1"}
    lab.run("break", "node1", "kill-rank", "2", "SEGV")
    cause = failed(lab)["cause"]
    assert (cause["node"], cause["tp_rank"], cause["signal"]) == ("node1", 2, 11)
    around = lab.deploy("logs", "--around-failure", "-n", "4")
    assert f"gang0: node1: {cause['text']}" in around.stderr
    lines = around.stdout.splitlines()
    assert all(line.startswith(("node1 | ", "node1 > ")) for line in lines)
    (marked,) = (place for place, line in enumerate(lines) if line.startswith("node1 > "))
    assert 0 < marked <= 4
    assert lines[marked].removeprefix("node1 > ") in cause["lines"]


def test_logs_follow_until_told_to_end(lab: SmallLab) -> None:
    lab.serve()
    with lab.start("logs", "-f", "-n", "1", "--node", "node0") as follower:
        assert follower.stdout is not None
        assert any(line.startswith("node0 | ") for line in follower.stdout)  # it runs, and follows
        urllib.request.urlopen(f"{lab.gang()['service']['url']}/v1/models", timeout=20).close()
        assert any("GET /v1/models" in line for line in follower.stdout)
        follower.send_signal(signal.SIGINT)
        assert follower.wait(20) == 130


@pytest.mark.turns(of="gang: a death is explained by its cause")
def test_the_rank_of_a_lost_gpu_ends_with_it(lab: SmallLab) -> None:
    lab.serve()
    lab.run("break", "node1", "gpu-lost", "1")
    cause = failed(lab)["cause"]
    assert (cause["node"], cause["tp_rank"], cause["signature"]) == ("node1", 3, "XID-79")
    assert cause["text"].startswith("GPU 1 fell off the bus (Xid 79): TP3 on GPU 1 (pid ")
    lab.run("heal", "node1")


@pytest.mark.turns(of="gang: a death is explained by its cause")
def test_a_link_that_went_down_explains_the_rank_that_crashed_after_it(lab: SmallLab) -> None:
    lab.serve()
    lab.run("break", "node1", "port-down")
    lab.run("break", "node1", "kill-rank", "2", "ABRT")
    cause = failed(lab)["cause"]
    assert (cause["node"], cause["tp_rank"], cause["signature"]) == ("node1", 2, "NIC-DOWN")
    assert re.match(r"the link of \S+ \(mlx5_\d+\) went down: TP2 on GPU 0", cause["text"])
    assert cause["lines"][-1].endswith(": Link down") and "switch port" in cause["fix"]
    lab.run("heal", "node1")


@pytest.fixture
def failing_over(lab: SmallLab) -> Iterator[None]:
    """The inventory asks for port failover, which is off by default."""
    lab.write_inventory(vars={"l40s_port_failover": True})
    yield
    lab.write_inventory()
    lab.serve("--replace")


@pytest.mark.usefixtures("failing_over")
def test_a_rail_that_is_cut_under_a_serving_gang_fails_no_request_and_restarts_nothing(lab: SmallLab) -> None:
    lab.serve("--replace")
    before = lab.gang()
    until(lambda: "NVIDIA/nccl#2334" in str(lab.gang()["remarks"]), 60, "status says what is known of it")
    with Load(before["service"]["url"], before["model"], clients=2, pause_s=0.05) as load:
        until(lambda: load.good, 30, "requests are answered")
        lab.run("break", "node1", "port-down")
        try:
            (rail,) = until(lambda: lab.gang()["rails"], 30, "status names the rail")
            answered = load.good
            assert (rail["node"], rail["up"]) == ("node1", False)
            assert rail["port"].startswith("mlx5_") and "tokens/s" in rail["text"]
            seen = until(
                lambda: (one := lab.gang())["degraded_reason"] == "rails" and one, 30, "every node answers in time"
            )
            assert (seen["state"], seen["run_id"]) == ("ready", before["run_id"])
            down = f"RDMA port {rail['port']} is down"
            words = ("status", "--remarks")
            until(lambda: down in lab.deploy(*words, code=None).stdout.replace("\n", " "), 30, "status says so")
        finally:
            lab.run("heal", "node1")
        (back,) = until(lambda: [one for one in lab.gang()["rails"] if one["up"]], 30, "the port is back")
        until(lambda: load.good > answered, 30, "requests are answered over the other port")
    assert load.bad == []
    assert back["port"] == rail["port"] and "l40s-deploy restart gang0" in back["text"]
    assert lab.gang()["run_id"] == before["run_id"]


@pytest.mark.turns(of="gang: a verb that meets a fault says it and goes on")
def test_down_ends_a_gang_with_a_full_disk_of_which_status_tells(lab: SmallLab) -> None:
    lab.serve()
    lab.run("break", "node1", "disk-full")
    try:
        until(lambda: any("the disk of node1 is full" in remark for remark in lab.gang()["remarks"]), 30, "it is said")
        assert lab.gang()["state"] == "ready"
        lab.deploy("down")
        assert lab.gang()["state"] == "absent" and not lab.engine_processes()
    finally:
        lab.run("heal", "node1")


@pytest.mark.turns(of="gang: a verb that meets a fault says it and goes on")
def test_a_port_that_is_dropped_for_a_while_holds_a_guard_back_and_does_not_end_it(lab: SmallLab) -> None:
    lab.serve()
    before = lab.gang()["run_id"]
    port = load_inventory(lab.inventory).gangs[0].leader.ports.dist_init
    lab.run("break", "node0", "firewall-port", str(port))
    node, _ = lab.rank(3)
    with lab.start("guard", "--pause", "1") as guard:
        assert guard.stdout is not None
        lab.run("break", node, "kill-rank", "3")
        assert any(f"TCP port {port} is dropped" in line for line in guard.stdout)
        assert failed(lab)["run_id"] == before
        lab.run("heal", "node0", "firewall-port")
        assert any("it has been restarted" in line for line in guard.stdout)
        guard.send_signal(signal.SIGINT)
        assert guard.wait(20) == 130
    gang = lab.gang()
    assert gang["state"] == "ready" and gang["run_id"] != before
