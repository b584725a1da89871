"""Agents of other users and state directories, found by the names that they show."""

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

from orchestrator.node import others, processes
from orchestrator.node.agent import preflight
from orchestrator.node.agent.staged_run import run_of
from orchestrator.node.engine.gpus import GpuMemory, GpuUse
from orchestrator.node.network import netlink
from orchestrator.node.network.netlink import UnixSocket
from orchestrator.protocol.verbs import OtherAgent

PORT = 7
LISTENS = """
import os, socket, sys, time
from orchestrator.node import others, processes
shown = others.announce(*sys.argv[1:4], int(sys.argv[4])) if sys.argv[1:] else []
s = socket.create_server(('127.0.0.1', 0))
child = os.fork()
child or (print(s.getsockname()[1], flush=True), time.sleep(600))
s.close()
time.sleep(600)
"""
"""A process whose child holds a port, shown as the agent that its arguments say."""


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


def run_folder(state: Path) -> str:
    return f"{state}/gangs/gang0/runs/r1"


def found(state: Path, others_of: Path) -> list[OtherAgent]:
    """Only those of the test's own: other agents may live on this machine."""
    return [one for one in others.other_agents(str(state)) if one.state_dir == str(others_of)]


def test_an_agent_of_another_directory_is_found_and_ours_is_not(
    tmp_path: Path, start: Callable[..., tuple[int, int]]
) -> None:
    here, there = tmp_path / "here", tmp_path / ("there/" + "and further/" * 20 + "é")
    pid, _ = start(str(there), "gang0", "node0", str(PORT))
    start(str(here), "gang0", "node0", str(PORT))
    mine = OtherAgent(gang="gang0", node="node0", port=PORT, state_dir=str(there), user=getpass.getuser())
    assert found(here, there) == [mine] and found(there, there) == []
    assert others.agent_above(pid) == mine and others.agent_above(os.getpid()) is None
    there.parent.mkdir(parents=True)
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
    pid, port = start(str(where), "gang1", "node9", str(PORT))
    gpu = GpuUse(index=0, used=2 << 30, processes=((pid, 2 << 30),))
    asked = {"ports": {"check_free": [{"port": port}]}, "device": "cuda", "gpus": [0]}
    run = run_of({**one.staging(0), **asked}, run_folder(Path(one.state_dir(0))))

    class Memory(GpuMemory):
        def ask(self, now: float) -> None:
            self.answer = {0: gpu}

        def wait(self, deadline_s: float) -> bool:
            return True

    failures = preflight.check(run, Memory((0,)))
    assert sorted(failure.kind for failure in failures) == ["gpu-busy", "port-taken"]
    for failure in failures:
        assert "gang1" in failure.what and "stop that process" not in failure.fix
        assert ("down gang1" if same_state else str(where)) in failure.fix


def test_the_same_part_of_a_gang_is_recognised_before_anything_else(
    tmp_path: Path, start: Callable[..., tuple[int, int]]
) -> None:
    one = Cluster(tmp_path / "gang", nodes=1)
    start(str(tmp_path / "there"), "gang0", one.name(0), str(one.agent_port))
    run = run_of(one.staging(0), run_folder(Path(one.state_dir(0))))
    first = preflight.check(run, GpuMemory(()))[0]
    assert first.kind == "runs-elsewhere" and str(tmp_path / "there") in first.fix


def test_whose_ancestors_are_hidden_is_not_told_to_be_stopped(
    tmp_path: Path, start: Callable[..., tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with /proc mounted with hidepid, which shows a user's own processes alone."""
    _, port = start()
    said = until(lambda: preflight.port_failure("127.0.0.1", port, "/x"))
    assert "stop that process" in said.fix
    read = processes.read
    monkeypatch.setattr(processes, "read", lambda one: None if one == os.getpid() else read(one))
    hidden = preflight.port_failure("127.0.0.1", port, "/x")
    assert hidden is not None and "stop" not in hidden.fix


@pytest.mark.parametrize("name", [b"", b" ", b" 1", b" 1 0 ", b" 1 0 x node u g /s", b" \xff \xfe"])
def test_odd_names_are_nobodys(tmp_path: Path, name: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as odd:
        odd.bind(b"\0l40s-agent" + name)
        assert others.agent_above(1) is None and found(tmp_path, Path("/s")) == []


STRANGER = 4242
"""A user id without a name."""


@pytest.fixture
def strangers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests' processes show is a stranger's by the kernel."""
    names = netlink.unix_names
    monkeypatch.setattr(
        netlink, "unix_names", lambda: {name: one._replace(owner=STRANGER) for name, one in names().items()}
    )


@pytest.mark.usefixtures("strangers")
def test_a_strangers_socket_keeps_nobody_from_a_start_and_is_named(
    tmp_path: Path, start: Callable[..., tuple[int, int]]
) -> None:
    one = Cluster(tmp_path / "gang", nodes=1)
    start("/evil/path", "gang0", one.name(0), str(one.agent_port))
    run = run_of(one.staging(0), run_folder(Path(one.state_dir(0))))
    assert "runs-elsewhere" not in {failure.kind for failure in preflight.check(run, GpuMemory(()))}
    (agent,) = found(Path(one.state_dir(0)), Path("/evil/path"))
    assert agent.stranger == str(STRANGER)
    assert "4242" in agent.what("/y", "ops") and "/evil" not in agent.what("/y", "ops") + agent.fix("ops")


@pytest.mark.usefixtures("strangers")
def test_what_a_stranger_says_of_somebody_elses_process_is_not_believed(
    tmp_path: Path, start: Callable[..., tuple[int, int]]
) -> None:
    pid, port = start("/evil/path", "gang0", "node0", str(PORT))
    assert others.agent_above(pid) is None  # it is the tests' user's
    failure = preflight.port_failure("127.0.0.1", port, str(tmp_path))
    assert failure is not None and failure.kind == "port-taken" and "/evil" not in failure.fix


@pytest.mark.usefixtures("strangers")
def test_a_strangers_own_process_that_is_in_the_way_is_named_without_his_path(
    tmp_path: Path, start: Callable[..., tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, port = start("/evil/path", "gang0", "node0", str(PORT))
    monkeypatch.setattr(others, "_owner_name", lambda _: str(STRANGER))
    failure = preflight.port_failure("127.0.0.1", port, str(tmp_path))
    assert failure is not None and failure.kind == "port-taken"
    assert "4242" in failure.what and "/evil" not in failure.what + failure.fix


def test_where_the_kernel_does_not_tell_whose_a_socket_is_all_are_believed(
    tmp_path: Path, start: Callable[..., tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_such_thing() -> dict[bytes, UnixSocket]:
        raise OSError(2, "no unix_diag")

    monkeypatch.setattr(netlink, "unix_names", no_such_thing)
    pid, _ = start(str(tmp_path / "there"), "gang0", "node0", str(PORT))
    agent = others.agent_above(pid)
    assert agent is not None and agent.stranger == ""


def test_a_strangers_sockets_do_not_crowd_out_those_of_root(monkeypatch: pytest.MonkeyPatch) -> None:
    word = b"\0l40s-agent %d 0 7 node0 u g /%d"
    made = {word % (pid, pid): STRANGER for pid in range(1, 500)} | {word % (7, 0): 0, word % (1000, 1000): 0}
    monkeypatch.setattr(netlink, "unix_names", lambda: {name: UnixSocket(owner, 1) for name, owner in made.items()})
    states = {agent.state_dir for agent in others.other_agents("/x")}
    assert {"/0", "/1000"} <= states and "/7" not in states and len(states) <= 64


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_the_kernel_tells_whose_a_socket_is(tmp_path: Path) -> None:
    code = (
        "import os, socket, time; os.setuid(4242); s = socket.socket(socket.AF_UNIX);"
        f"s.bind(b'\\0l40s-agent 1 0 7 node0 root gang0 {tmp_path}'); print(flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        try:
            (agent,) = found(Path("/nowhere"), tmp_path)
        finally:
            process.kill()
    assert agent.stranger == str(STRANGER) and agent.user == "root"
