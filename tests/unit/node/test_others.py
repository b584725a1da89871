"""Agents of other users and state directories, found by their command lines."""

from __future__ import annotations

import getpass
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.gang import Cluster
from tests.support.waiting import until

from orchestrator.node import others
from orchestrator.node.agent import preflight
from orchestrator.node.agent.run import run_of
from orchestrator.node.engine.gpus import GpuMemory, GpuUse
from orchestrator.protocol.verbs import OtherAgent

PORT = 7
LISTENS = (
    "import os, socket, sys, time; s = socket.create_server(('127.0.0.1', 0)); child = os.fork();"
    " child or (print(s.getsockname()[1], flush=True), time.sleep(600)); s.close(); time.sleep(600)"
)
"""A process whose child holds a port; its other arguments are an agent's."""


@pytest.fixture
def start() -> Iterator[Callable[..., tuple[int, int]]]:
    """Starts such a process with these arguments; its process id, and its child's port."""
    begun: list[subprocess.Popen[str]] = []

    def one(*words: str) -> tuple[int, int]:
        code = [sys.executable, "-c", LISTENS, *words]
        begun.append(subprocess.Popen(code, stdout=subprocess.PIPE, text=True, start_new_session=True))
        assert begun[-1].stdout is not None
        return begun[-1].pid, int(begun[-1].stdout.readline())

    yield one
    for process in begun:
        os.killpg(process.pid, 9)
        process.communicate()


def run_folder(state: Path, gang: str = "gang0") -> str:
    return f"{state}/gangs/{gang}/runs/r1"


def found(state: Path, others_of: Path) -> list[OtherAgent]:
    """Only those of the test's own: other agents may live on this machine."""
    return [one for one in others.other_agents(str(state)) if one.state_dir == str(others_of)]


def test_an_agent_of_another_directory_is_found_and_ours_is_not(
    tmp_path: Path, start: Callable[..., tuple[int, int]]
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    pid, _ = start(*others.agent_words(run_folder(there), "node0", PORT))
    start(*others.agent_words(run_folder(here), "node0", PORT))
    start("agent", run_folder(tmp_path / "older"))
    start("agent", "/not/a/run", "node0", str(PORT))
    mine = OtherAgent(gang="gang0", node="node0", port=PORT, state_dir=str(there), user=getpass.getuser())
    assert found(here, there) == [mine] and found(there, there) == []
    (older,) = found(here, tmp_path / "older")
    assert (older.gang, older.node, older.port) == ("gang0", "", 0)
    assert others.agent_above(pid) == mine and others.agent_above(os.getpid()) is None
    (tmp_path / "link").symlink_to(there)
    assert found(tmp_path / "link", there) == []


@pytest.mark.parametrize(
    ("other", "me", "how"),
    [
        ("root", "ops", "set `ansible_become: true` and `l40s_state_dir: /x` in this one"),
        ("ops", "root", "set user ops and `l40s_state_dir: /x` in this one"),
        ("ops", "ops", "set `l40s_state_dir: /x` in this one"),
    ],
)
def test_what_is_said_names_both_places_and_how_to_get_there(other: str, me: str, how: str) -> None:
    agent = OtherAgent(gang="gang0", node="node0", port=PORT, state_dir="/x", user=other)
    assert agent.what("/y", me) == f"gang gang0 runs there, its state in /x as {other}; this inventory says /y as {me}"
    assert agent.fix(me).endswith(how)


@pytest.mark.parametrize("same_state", [False, True])
def test_nobody_is_told_to_kill_what_belongs_to_a_gang(
    tmp_path: Path, start: Callable[..., tuple[int, int]], *, same_state: bool
) -> None:
    one = Cluster(tmp_path / "gang", nodes=1)
    where = Path(one.state_dir(0)) if same_state else tmp_path / "there"
    pid, port = start(*others.agent_words(run_folder(where, "gang1"), "node9", PORT))
    gpu = GpuUse(index=0, used=2 << 30, processes=((pid, 2 << 30),))
    asked = {"ports": {"check_free": [{"port": port}]}, "device": "cuda", "gpus": [0]}
    run = run_of({**one.staging(0), **asked}, run_folder(Path(one.state_dir(0))))

    class Memory(GpuMemory):
        def ask(self, now: float) -> None:
            self.answer = {0: gpu}

        def wait(self, deadline_s: float) -> bool:
            return True

    failures = preflight.check(run, Memory("", (0,)))
    assert sorted(failure.kind for failure in failures) == ["gpu-busy", "port-taken"]
    for failure in failures:
        assert "gang1" in failure.what and "stop that process" not in failure.fix
        assert ("down gang1" if same_state else str(where)) in failure.fix


def test_the_same_part_of_a_gang_is_recognised_before_anything_else(
    tmp_path: Path, start: Callable[..., tuple[int, int]]
) -> None:
    one = Cluster(tmp_path / "gang", nodes=1)
    start(*others.agent_words(run_folder(tmp_path / "there"), one.name(0), one.agent_port))
    run = run_of(one.staging(0), run_folder(Path(one.state_dir(0))))
    first = preflight.check(run, GpuMemory("", ()))[0]
    assert first.kind == "runs-elsewhere" and str(tmp_path / "there") in first.fix


def test_a_listener_that_is_not_shown_is_nobody_to_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_listeners", lambda _: set())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        failure = until(lambda: preflight.port_failure("127.0.0.1", taken.getsockname()[1], "/x"))
    assert failure.kind == "port-taken" and "stop" not in failure.fix
