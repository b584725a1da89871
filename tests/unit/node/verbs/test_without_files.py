"""Agents that live on after somebody has deleted their files: told, ended, and nobody else with them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.folders import delete_in_use
from tests.support.gang import Cluster, Gang
from tests.support.waiting import until

from orchestrator.node import processes, supervision
from orchestrator.node.verbs import figures, orders, report, stage, without_files
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.verbs import OtherAgent, ReportAnswer


def told(cluster: Cluster, rank: int = 0) -> tuple[OtherAgent, ...]:
    answer = ReportAnswer.read(report.answer(cluster.base(rank)))
    assert isinstance(answer, ReportAnswer)
    return answer.without_files


def everything(state: Path, _: str) -> None:
    delete_in_use(state)


def made_anew(state: Path, _: str) -> None:
    delete_in_use(state)
    (state / "gangs/gang0").mkdir(parents=True)


def run(state: Path, run_id: str) -> None:
    delete_in_use(state / "gangs/gang0/runs" / run_id)


def current(state: Path, _: str) -> None:
    (state / "gangs/gang0/current").unlink()


def whose_it_is(state: Path, run_id: str) -> None:
    (state / "gangs/gang0/runs" / run_id / "agent.json").unlink()


@pytest.mark.turns(play=2)
@pytest.mark.parametrize(
    ("gone", "now"),
    [(everything, False), (everything, True), (made_anew, True), (run, False), (current, True), (whose_it_is, False)],
)
def test_an_agent_without_files_is_told_and_ended(gang: Gang, gone: Callable[[Path, str], None], *, now: bool) -> None:
    cluster = gang(nodes=2).ready()
    agents = [cluster.agent(rank) for rank in range(2)]
    assert told(cluster) == ()
    for rank in range(2):
        gone(Path(cluster.state_dir(rank)), cluster.run_id)
    for rank, (pid, start) in enumerate(agents):
        (agent,) = told(cluster, rank)
        assert (agent.pid, agent.gang, agent.node) == (pid, "gang0", cluster.name(rank))
        assert processes.alive(pid, start)
        with pytest.raises(DeployError, match="already running") as refused:
            stage.stage({**cluster.staging(rank), "run_id": "r2"})
        assert refused.value.fix == "l40s-deploy down gang0"
    answers = cluster.stop_all(now=now, clear=True, ordered=True)
    assert not any(processes.alive(*agent) for agent in agents)
    for answer in answers:
        assert (answer["state"], answer["alive"], answer["left_behind"]) == ("stopped", False, [])
    assert told(cluster) == ()
    assert cluster.stop(0)["state"] in ("absent", "stopped")


def test_figures_tell_of_it_too(gang: Gang) -> None:
    cluster = gang(nodes=1).ready()
    agent = cluster.agent(0)
    asked = {"state_dir": cluster.state_dir(0), "nvml_deadline_s": 1.0}
    assert figures.answer(asked)["without_files"] == []
    delete_in_use(cluster.state_dir(0))
    assert [one["pid"] for one in figures.answer(asked)["without_files"]] == [agent[0]]
    cluster.stop_all(now=True)
    assert not processes.alive(*agent)


def test_a_report_alone_comes_back(gang: Gang) -> None:
    cluster = gang(nodes=1).ready()
    Path(cluster.state_dir(0), "gangs/gang0/runs", cluster.run_id, "report.json").unlink()
    until(lambda: cluster.states() == ["ready"])
    assert told(cluster) == ()
    assert cluster.stop(0)["state"] == "stopped"
    cluster.nothing_left()


def test_a_lock_alone_is_not_needed(gang: Gang) -> None:
    cluster = gang(nodes=1).ready()
    assert not Path(cluster.state_dir(0), "gangs/gang0/lock").exists()
    assert told(cluster) == () and cluster.states() == ["ready"]


def test_one_that_a_signal_has_stopped_is_killed_and_its_engine_with_it(gang: Gang) -> None:
    cluster = gang(nodes=1).ready()
    agent = cluster.agent(0)
    assert supervision.send(*agent, signal.SIGSTOP)
    delete_in_use(cluster.state_dir(0))
    assert orders.stop({**cluster.base(0), "deadline_s": 20})["state"] == "stopped"
    assert not processes.alive(*agent)
    cluster.nothing_left()


def test_one_that_is_not_over_in_time_is_told_as_alive(gang: Gang) -> None:
    cluster = gang(nodes=1).ready()
    agent = cluster.agent(0)
    delete_in_use(cluster.state_dir(0))
    answer = orders.stop({**cluster.base(0), "deadline_s": 0})
    assert (answer["state"], answer["alive"]) == ("unknown", True)
    until(lambda: not processes.alive(*agent), 20.0)
    cluster.nothing_left()


@pytest.fixture
def bystander() -> Iterator[tuple[int, int]]:
    """A process of ours that is no agent."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid, processes.start_of(process.pid)
        process.kill()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose name fits into that of a socket."""
    with tempfile.TemporaryDirectory(prefix="wf-", dir="/tmp") as folder:
        yield Path(folder)


def test_a_process_that_does_not_hold_the_socket_that_names_it_is_left_alone(
    short_path: Path, bystander: tuple[int, int]
) -> None:
    """Its process id was an agent's before, of which a fork still lives."""
    with socket.socket(socket.AF_UNIX) as shown:
        shown.bind(b"\0l40s-agent %d 0 7 node0 root gang0 %s" % (bystander[0], os.fsencode(short_path)))
        assert report.without_files(str(short_path)) == {}
        answer = orders.stop({"state_dir": str(short_path), "gang": "gang0", "deadline_s": 1})
    assert answer["state"] == "absent" and processes.alive(*bystander)


SHOWN = """
import socket, sys, os
s = socket.socket(socket.AF_UNIX)
s.bind(b'\\0l40s-agent %d 0 7 node0 root gang0 %s' % (os.getpid(), os.fsencode(sys.argv[1])))
print(flush=True)
input()
"""


def test_another_gangs_and_another_users_are_not_ended(short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"state_dir": str(short_path), "deadline_s": 1}
    with subprocess.Popen(
        [sys.executable, "-c", SHOWN, str(short_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline()
        assert list(report.without_files(str(short_path))) == [process.pid]
        assert orders.stop({**asked, "gang": "gang1"})["state"] == "absent"
        monkeypatch.setattr("orchestrator.node.others.ShownAgent.is_ours", lambda *_: False)
        with pytest.raises(DeployError, match="runs without its files") as refused:
            orders.stop({**asked, "gang": "gang0"})
        assert "ansible_become" in refused.value.fix
        assert process.poll() is None
        process.kill()


PARENT = "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True); input()"


def test_what_outlives_an_agent_is_killed(tmp_path: Path) -> None:
    code = [sys.executable, "-c", PARENT]
    with subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        start = processes.start_of(child)
        family = without_files._Family({process.pid: processes.start_of(process.pid)})
        process.kill()
        process.wait()
    assert family.await_end(10.0) and processes.alive(child, start)
    assert family.kill_left_over(10.0) == () and not processes.alive(child, start)
