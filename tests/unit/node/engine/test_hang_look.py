"""What is gathered of ranks that stand still: real processes, asleep, stopped, blocked in the kernel and on a file."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.gang import Cluster
from tests.support.waiting import until

from orchestrator.node import processes
from orchestrator.node.agent.staged_run import Run, run_of
from orchestrator.node.engine import hang_look, pci_paths
from orchestrator.node.engine.hang_look import Gathering, HangQuestion
from orchestrator.protocol.hang import HangLook, RankLook

needs_py_spy = pytest.mark.skipif(
    not Path(sys.executable).with_name("py-spy").exists() and shutil.which("py-spy") is None,
    reason="py-spy is not installed here",
)
SECRET = "a-value-that-nobody-may-see"
SLEEPS = f"""
import sys, time
def waits_for_nobody(secret={SECRET!r}):
    time.sleep(600)
print("up", flush=True)
waits_for_nobody()
"""
READS = """
import sys
print("up", flush=True)
open(sys.argv[1], "rb", buffering=0).read()
"""
FORKS = """
import os, sys
print("up", flush=True)
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)])
"""
"""Its child waits for a writer before it executes anything, and so long the parent is in state D (vfork(2))."""


@dataclass
class Ranks:
    """Python processes that end with their test."""

    held: ExitStack
    pipe: Path

    def start(self, text: str) -> int:
        child = subprocess.Popen([sys.executable, "-c", text, str(self.pipe)], stdout=subprocess.PIPE)
        self.held.callback(child.wait)
        self.held.callback(child.kill)
        assert child.stdout is not None and child.stdout.readline() == b"up\n"
        child.stdout.close()
        return child.pid


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    pipe = tmp_path / "weights"
    os.mkfifo(pipe)
    with ExitStack() as held:
        yield Ranks(held, pipe)
        writer = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)  # lets go of who waits in the kernel
        os.close(writer)


def run(tmp_path: Path, **more: object) -> Run:
    raw = Cluster(tmp_path / "gang", nodes=1).staging(0)
    return run_of({**raw, **more}, str(tmp_path))


def gathered(tmp_path: Path, *pids: int, **more: object) -> HangLook:
    wanted = HangQuestion(tuple(enumerate(pids)), os.getpid())
    return Gathering(run(tmp_path, **more), wanted).look()


def state_of(pid: int) -> str:
    found = processes.read(pid)
    return found.state if found else ""


def blocked(pid: int) -> bool:
    return state_of(pid) in "SD" and hang_look._call(pid) not in ("", None)


@needs_py_spy
def test_a_rank_is_seen_twice_with_the_place_it_stands_at_and_no_value(ranks: Ranks, tmp_path: Path) -> None:
    pid = ranks.start(SLEEPS)
    until(lambda: hang_look._call(pid) == "clock_nanosleep", 20.0)
    look = gathered(tmp_path, pid)
    (rank,) = look.ranks
    assert rank.states == ("S", "S")
    assert [stack[0].partition(" ")[0] for stack in rank.stacks] == ["waits_for_nobody"] * 2
    assert SECRET not in json.dumps(look.as_json())
    assert look.unread == {}
    assert look.took_s < hang_look.DEADLINE_S + 1


def test_a_stopped_rank_and_one_that_waits_for_a_file_show_by_their_state(ranks: Ranks, tmp_path: Path) -> None:
    stopped, reads, forks = ranks.start(SLEEPS), ranks.start(READS), ranks.start(FORKS)
    os.kill(stopped, signal.SIGSTOP)
    until(lambda: state_of(stopped) == "T" and state_of(forks) == "D" and blocked(reads), 20.0)
    by_pid: dict[int, RankLook] = {rank.pid: rank for rank in gathered(tmp_path, stopped, reads, forks).ranks}
    assert by_pid[stopped].states == ("T", "T")
    assert by_pid[forks].states == ("D", "D")
    assert by_pid[reads].calls == ("openat", "openat")


def test_a_rank_that_is_gone_and_a_missing_py_spy_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: Ranks
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    look = gathered(tmp_path, ranks.start(SLEEPS), 2**22 + 1, venv_python="/nonexistent/bin/python3")
    assert look.unread["Python stacks"] == "py-spy is not installed: run `l40s-deploy prepare`"
    assert [rank.stacks for rank in look.ranks] == [(), ()]
    assert look.ranks[1].states == ()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'Permission Denied: Try running again with elevated permissions' >&2; exit 1", "ptrace is refused"),
        ("echo 'Error: Failed to find python version' >&2; exit 1", "Failed to find python version"),
        ("echo '[{\"frames\": 7}]'", ""),
        ("exec sleep 60", "did not answer within"),
        ("yes | head -c 9000000", ""),
    ],
)
def test_a_py_spy_that_fails_floods_or_hangs_is_only_said(
    script: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: Ranks
) -> None:
    program = tmp_path / "py-spy"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(hang_look, "APART_S", 0.1)
    look = gathered(tmp_path, ranks.start(SLEEPS), venv_python=str(tmp_path / "python3"))
    assert said in look.unread.get("Python stacks", "")
    assert look.ranks[0].stacks == ()
    assert len(look.ranks[0].states) == 2


@needs_py_spy
def test_an_agent_gathers_once_when_its_engine_hangs(tmp_path: Path) -> None:
    stuck = tmp_path / "stuck"
    cluster = Cluster(tmp_path / "gang", nodes=2, env={0: {"FAKE_STUCK": str(stuck)}})
    try:
        cluster.ready()
        stuck.write_text("0.3")
        until(lambda: cluster.report(0)["service_state"] == "hung", 10.0)
        until(lambda: all(cluster.report(rank)["hang"] for rank in range(2)), 30.0)
        until(lambda: not any(cluster.report(rank)["looks_until"] for rank in range(2)), 10.0)
        look = HangLook.read(cluster.report(1)["hang"])
        assert isinstance(look, HangLook)
        assert [(rank.tp_rank, len(rank.stacks)) for rank in look.ranks] == [(2, 2), (3, 2)]
        assert cluster.states() == ["ready", "ready"]
        kept = cluster.log(1).with_name("hang.json")
        assert kept.stat().st_mode & 0o777 == 0o600
        cluster.stop_all(now=True)
    finally:
        cluster.close()


def test_a_gang_that_is_ended_while_it_is_looked_at_ends_at_once(tmp_path: Path) -> None:
    program = tmp_path / "py-spy"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    stuck = tmp_path / "stuck"
    changes = {0: {"venv_python": str(tmp_path / "python3")}}
    cluster = Cluster(tmp_path / "gang", nodes=1, env={0: {"FAKE_STUCK": str(stuck)}}, changes=changes)
    (tmp_path / "python3").symlink_to(sys.executable)
    try:
        cluster.ready()
        stuck.write_text("0.3")
        until(lambda: cluster.report(0)["looks_until"] > 0, 10.0)
        cluster.stop_all(now=True)
        assert cluster.report(0)["looks_until"] == 0.0
    finally:
        cluster.close()


def test_acs_and_the_iommu_are_read_for_the_gpus_of_the_gang(tmp_path: Path) -> None:
    gpu, port = "0000:03:00.0", "0000:02:00.0"
    folder = tmp_path / "devices/pci0000:00" / port / gpu
    folder.mkdir(parents=True)
    (tmp_path / "bus/pci/devices").mkdir(parents=True)
    for name, place in ((gpu, folder), (port, folder.parent)):
        (tmp_path / "bus/pci/devices" / name).symlink_to(place)
    assert pci_paths.diverted([f"0000{gpu}"], str(tmp_path)) is None
    config = bytearray(4096)
    config[0x34], config[0x40], config[0x42] = 0x40, 0x10, 6 << 4
    config[0x100:0x104] = (0x000D).to_bytes(4, "little")
    (folder.parent / "config").write_bytes(bytes(config))
    assert pci_paths.diverted([gpu], str(tmp_path)) is False
    config[0x106] = 0x1C
    (folder.parent / "config").write_bytes(bytes(config))
    assert pci_paths.diverted([gpu], str(tmp_path)) is True
    (folder.parent / "config").write_bytes(bytes(4096))
    (folder / "iommu_group").mkdir()
    (folder / "iommu_group/type").write_text("DMA-FQ\n")
    assert pci_paths.diverted([gpu], str(tmp_path)) is True
