"""Faults of ranks, agents and their GPUs, with a small running gang, and what its operator sees on a terminal."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.load import Load
from tests.support.preloaded import L40S_DEPLOY
from tests.support.small_lab import SmallLab, small_lab
from tests.support.terminal import COLUMNS, LINES, rendered
from tests.support.waiting import until

from orchestrator.loading.inventory import load_inventory

from .conftest import needs_root

pytestmark = [pytest.mark.lab, needs_root]

ALWAYS = ((1, 0), (8, 1))
"""GPUs per node and the killed node's rank: the smallest gang's leader and a member of the largest; `make long`
plays the others too."""


@pytest.fixture(scope="module")
def lab() -> Iterator[SmallLab]:
    with small_lab("gangfaults") as made:
        yield made


def strike(lab: SmallLab, *words: str) -> None:
    lab.deploy("lab", *words, "--name", lab.name)


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


def test_a_rank_that_stands_still_and_goes_on(lab: SmallLab) -> None:
    lab.serve()
    node, pid = lab.rank(3)
    strike(lab, "break", node, "hang-rank", "3")
    assert lab.on(node, f"ps -o stat= -p {pid}").startswith("T")
    assert "hang-rank 3" in json.dumps(lab.json("lab", "status", "--name", lab.name))
    strike(lab, "heal", node)
    assert not lab.on(node, f"ps -o stat= -p {pid}").startswith("T")


def test_the_rank_that_a_hung_engine_waits_for_is_named_by_ras_too(lab: SmallLab) -> None:
    lab.serve("--hung-after", "8")
    node, pid = lab.rank(3)
    strike(lab, "break", node, "hang-rank", "3")
    until(lambda: lab.gang().get("trouble") == "hung", 120, "hung")
    until(lambda: "NCCL RAS" in str(lab.gang()["cause"]), 60, "RAS was asked")
    cause = lab.gang()["cause"]
    assert (cause["node"], cause["tp_rank"]) == (node, 3)
    assert f"(pid {pid}) was stopped by a signal" in cause["text"]
    assert "NCCL RAS gets no answer from rank 3 (pid " in cause["text"] and f" of {node})" in cause["text"]
    assert "NCCL RAS gets no answer from rank 3" in lab.deploy("why").stdout
    strike(lab, "heal", node)
    until(lambda: lab.gang()["state"] == "ready", 60, "ready again")


def test_a_rank_killed_with_a_signal_is_the_cause_and_logs_show_it(lab: SmallLab) -> None:
    lab.serve()
    assert {name: len(lines) for name, lines in logged(lab, "-n", "3").items()} == {"node0": 3, "node1": 3}
    assert set(logged(lab, "--node", "node1", "gang0")) == {"node1"}
    strike(lab, "break", "node1", "kill-rank", "2", "SEGV")
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


@pytest.mark.parametrize("words", [("--node", "nix"), ("nix",), ("nix", "--around-failure")])
def test_logs_of_what_is_not_there_are_refused(lab: SmallLab, words: tuple[str, ...]) -> None:
    refused = lab.deploy("logs", *words, check=False)
    assert refused.returncode == 2
    assert "called 'nix'" in refused.stderr and "one of:" in refused.stderr


def test_the_rank_of_a_lost_gpu_ends_with_it(lab: SmallLab) -> None:
    lab.serve()
    strike(lab, "break", "node1", "gpu-lost", "1")
    cause = failed(lab)["cause"]
    assert (cause["node"], cause["tp_rank"], cause["signature"]) == ("node1", 3, "XID-79")
    assert cause["text"].startswith("GPU 1 fell off the bus (Xid 79): TP3 on GPU 1 (pid ")
    strike(lab, "heal", "node1")


def test_a_link_that_went_down_explains_the_rank_that_crashed_after_it(lab: SmallLab) -> None:
    lab.serve()
    strike(lab, "break", "node1", "port-down")
    strike(lab, "break", "node1", "kill-rank", "2", "ABRT")
    cause = failed(lab)["cause"]
    assert (cause["node"], cause["tp_rank"], cause["signature"]) == ("node1", 2, "NIC-DOWN")
    assert re.match(r"the link of \S+ \(mlx5_\d+\) went down: TP2 on GPU 0", cause["text"])
    assert cause["lines"][-1].endswith(": Link down") and "switch port" in cause["fix"]
    strike(lab, "heal", "node1")


def test_a_rail_that_is_cut_under_a_serving_gang_fails_no_request_and_restarts_nothing(lab: SmallLab) -> None:
    lab.serve()
    before = lab.gang()
    with Load(before["service"]["url"], before["model"], clients=2, pause_s=0.05) as load:
        until(lambda: load.good, 30, "requests are answered")
        strike(lab, "break", "node1", "port-down")
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
            until(lambda: down in lab.deploy(*words, check=False).stdout.replace("\n", " "), 30, "status says so")
        finally:
            strike(lab, "heal", "node1")
        (back,) = until(lambda: [one for one in lab.gang()["rails"] if one["up"]], 30, "the port is back")
        until(lambda: load.good > answered, 30, "requests are answered over the other port")
    assert load.bad == []
    assert back["port"] == rail["port"] and "l40s-deploy restart gang0" in back["text"]
    assert lab.gang()["run_id"] == before["run_id"]


def test_down_says_that_a_disk_is_full_and_stops_its_node_too(lab: SmallLab) -> None:
    lab.serve()
    strike(lab, "break", "node1", "disk-full")
    try:
        told = lab.deploy("down", check=False)
        said = told.stdout + told.stderr
        assert told.returncode != 0 and "node1" in said and "disk is full" in said, said
        assert "taken over" not in said and "without a report" not in said
        assert not lab.engine_processes()
    finally:
        strike(lab, "heal", "node1")
    lab.deploy("down")
    assert lab.gang()["state"] == "absent"


def test_a_killed_agent_takes_its_engine_with_it(lab: SmallLab) -> None:
    lab.serve()
    strike(lab, "break", "node1", "kill-agent")
    until(lambda: not lab.engine_processes(["node1"]), 30, "the engine follows its agent")
    failed(lab)


def test_a_port_that_is_dropped_for_a_while_holds_a_guard_back_and_does_not_end_it(lab: SmallLab) -> None:
    lab.serve()
    before = lab.gang()["run_id"]
    port = load_inventory(lab.inventory).gangs[0].leader.ports.dist_init
    strike(lab, "break", "node0", "firewall-port", str(port))
    node, _ = lab.rank(3)
    with lab.start("guard", "--pause", "1") as guard:
        assert guard.stdout is not None
        strike(lab, "break", node, "kill-rank", "3")
        assert any(f"TCP port {port} is dropped" in line for line in guard.stdout)
        assert failed(lab)["run_id"] == before
        strike(lab, "heal", "node0", "firewall-port")
        assert any("it has been restarted" in line for line in guard.stdout)
        guard.send_signal(signal.SIGINT)
        assert guard.wait(20) == 130
    gang = lab.gang()
    assert gang["state"] == "ready" and gang["run_id"] != before


def test_a_restart_ends_with_the_table_of_ready_nodes(lab: SmallLab) -> None:
    lab.serve()
    typed = f"stty cols {COLUMNS} rows {LINES}; {shlex.join([*L40S_DEPLOY, 'restart'])}"
    done = subprocess.run(
        ["script", "-qec", typed, "/dev/null"],
        env={**lab.environment, "TERM": "xterm-256color"},
        capture_output=True,
        timeout=180,
        check=False,
    )
    shown = rendered(done.stdout)
    assert done.returncode == 0, "\n".join(shown)
    ready = [line.split()[:3] for line in shown if " ready " in line and line[:1].isdigit()]
    assert ready == [[str(rank), f"node{rank}", "ready"] for rank in range(2)], "\n".join(shown)
    assert shown[-1].startswith("serves again after "), "\n".join(shown)


def test_status_tells_a_script_of_a_killed_rank(lab: SmallLab) -> None:
    lab.serve()
    assert lab.deploy("status", check=False).returncode == 0
    strike(lab, "break", "node1", "kill-rank", "3")
    try:
        until(lambda: lab.gang()["state"] == "failed", 30.0, "the gang has failed")
        assert lab.deploy("status", check=False).returncode == 5
    finally:
        lab.deploy("restart")
    assert lab.deploy("status", check=False).returncode == 0


@pytest.fixture(scope="module")
def dying(request: pytest.FixtureRequest) -> Iterator[SmallLab]:
    with small_lab(f"deaths{request.param}", nodes=4, gpus=request.param, deaths="cuda") as made:
        yield made


@pytest.mark.parametrize(
    ("dying", "place"),
    [
        pytest.param(gpus, place, id=f"{gpus}-gpus-{whose}", marks=() if (gpus, place) in ALWAYS else pytest.mark.long)
        for gpus in (1, 2, 8)
        for place, whose in ((1, "a-members"), (0, "the-leaders"))
    ],
    indirect=["dying"],
)
def test_of_ranks_that_die_as_cuda_lets_them_the_killed_one_is_the_cause(dying: SmallLab, place: int) -> None:
    dying.serve()
    victim = place * dying.gpus + dying.gpus // 2
    strike(dying, "break", f"node{place}", "kill-rank", str(victim))
    cause = failed(dying)["cause"]
    assert (cause["node"], cause["tp_rank"], cause["signal"]) == (f"node{place}", victim, signal.SIGKILL), cause
    dying.deploy("down", "--now")


VICTIMS = {
    "launcher": ("the engine's parent process was killed", "kill -9 $(ps -o ppid= -p $(pgrep -of ^sglang::scheduler))"),
    "detokenizer": ("the engine's process sglang::detokenizer (pid ", "kill -9 $(pgrep -f ^sglang::detokenizer)"),
    "guardian": ("the engine's guardian process (pid ", ""),
    "agent": ("(reported by its guardian process), and its engine with it", ""),
}
SAMPLES = (("launcher", 8, 1), ("launcher", 1, 0), ("detokenizer", 1, 0), ("guardian", 1, 1))


@pytest.mark.parametrize(
    ("dying", "which", "place"),
    [
        pytest.param(gpus, which, place, id=f"{gpus}-gpus-{which}-node{place}-{turn}",
                     marks=() if turn == 0 and (which, gpus, place) in SAMPLES else pytest.mark.long)
        for gpus in (1, 8)
        for which in VICTIMS
        for place in (0, 1)
        for turn in range(10)
        if place == 0 or which != "detokenizer"
    ],
    indirect=["dying"],
)  # fmt: skip
def test_of_processes_that_take_their_ranks_with_them_the_killed_one_is_the_cause(
    dying: SmallLab, which: str, place: int
) -> None:
    dying.serve()
    node, (text, kill) = f"node{place}", VICTIMS[which]
    if kill:
        dying.on(node, kill)
    else:
        strike(dying, "break", node, f"kill-{which}")
    cause = failed(dying)["cause"]
    assert (cause["node"], cause["tp_rank"]) == (node, None) and text in cause["text"] and cause["fix"], cause
    dying.deploy("down", "--now")
