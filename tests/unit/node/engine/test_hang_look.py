"""What is gathered of ranks that stand still: real processes, asleep, stopped, blocked in the kernel and on a file."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.gang import Cluster
from tests.support.waiting import until

from orchestrator.node import processes
from orchestrator.node.agent.staged_run import Run, run_of
from orchestrator.node.engine import hang_inquiry, hang_look, pci_paths
from orchestrator.node.engine.hang_inquiry import HangQuestion
from orchestrator.node.engine.hang_look import Gathering
from orchestrator.node.files import ENGINE_LOG, HANG_FILE
from orchestrator.node.look import gauges
from orchestrator.protocol.gauges import GaugesAnswer, GpuGauges, PortGauges
from orchestrator.protocol.hang import HangLook, PortLook, RankLook
from orchestrator.protocol.planned import Transport

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


@contextmanager
def ras_that(answers: Sequence[str]) -> Iterator[str]:
    """The address of NCCL's RAS that answers so, one connection after the other; without a further answer it hangs."""
    server = socket.create_server(("127.0.0.1", 0))
    left = iter(answers)

    def serve() -> None:
        with suppress(OSError), ExitStack() as held:
            while True:
                client = held.enter_context(server.accept()[0])
                if (answer := next(left, None)) is None:
                    continue
                lines = held.enter_context(client.makefile("rwb", buffering=0))
                for wanted in (b"SET FORMAT json", b"TIMEOUT 2"):
                    assert lines.readline().strip() == wanted
                    lines.write(b"OK\n")
                lines.readline()
                client.sendall(answer.encode())
                client.shutdown(socket.SHUT_RDWR)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.getsockname()[1]}"
    finally:
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(5)


def status_of_ras(*counts: int) -> str:
    """Two ranks with so many operations each."""
    status = {"init_state": 0, "async_error": 0}
    ranks = [
        {"rank": rank, "host": "10.0.0.1", "pid": 100 + rank, "nvml_dev": rank, "status": status,
         "collective_counts": {"AllReduce": count}}
        for rank, count in enumerate(counts)
    ]  # fmt: skip
    return json.dumps({"communicators": [{"size": len(ranks), "ranks": ranks, "missing_ranks": []}]})


def with_ras(tmp_path: Path, address: str) -> Run:
    asked = run(tmp_path)
    network = replace(asked.network, ras=address)
    return replace(asked, network=network, addresses={"10.0.0.1": "node0"})


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


@pytest.mark.parametrize(
    ("counts", "launched", "behind"),
    [
        ([(10, 9), (10, 9)], (19, 19), [("node0", 101, "AllReduce", 9, 10)]),
        ([(10, 9), (20, 20)], (19, 40), []),
    ],
)
def test_what_nccl_counts_is_read_twice(
    counts: list[tuple[int, ...]], launched: tuple[int, ...], behind: list[tuple[object, ...]], tmp_path: Path
) -> None:
    with ras_that([status_of_ras(*numbers) for numbers in counts]) as address:
        look = Gathering(with_ras(tmp_path, address), HangQuestion(parent=os.getpid())).look()
    assert look.ras is not None
    assert look.ras.launched == launched
    late = [(rank.node, rank.pid, rank.operation, rank.launched, rank.most) for rank in look.ras.behind]
    assert late == behind


def test_where_everything_hangs_the_look_ends_in_time_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: Ranks
) -> None:
    """A figure of ours, which no busy machine stretches: each wait ends by a clock."""
    (tmp_path / "py-spy").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "py-spy").chmod(0o755)
    waits: list[float] = []

    def hangs(_: str, within_s: float) -> GaugesAnswer:
        waits.append(within_s)
        return GaugesAnswer(now=0.0, error="NVML did not respond")

    monkeypatch.setattr(gauges, "read", hangs)
    with ras_that([]) as address:
        asked = replace(with_ras(tmp_path, address), device="cuda", venv_python=str(tmp_path / "python3"))
        look = Gathering(asked, HangQuestion(((0, ranks.start(SLEEPS)),), os.getpid())).look()
    assert set(look.unread) == {"Python stacks", "GPUs", "NCCL RAS"}
    assert look.ras is None
    assert 2 * hang_look.STACK_S + sum(waits) + hang_look.APART_S <= 10.0
    assert hang_look.DEADLINE_S < hang_inquiry.GIVEN_UP_S <= 11.0


def test_py_spy_stops_no_process_and_is_asked_for_no_value(tmp_path: Path, ranks: Ranks) -> None:
    (tmp_path / "py-spy").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\necho "[]"\n')
    (tmp_path / "py-spy").chmod(0o755)
    pid = ranks.start(SLEEPS)
    gathered(tmp_path, pid, venv_python=str(tmp_path / "python3"))
    assert (tmp_path / "asked").read_text() == 2 * f"dump --nonblocking --json --pid {pid}\n"


def test_ptrace_that_is_refused_is_said_with_what_to_do() -> None:
    words = hang_look._reason(b"Error: Permission denied (os error 13)\n")
    assert words == "py-spy may not read the ranks: ptrace is refused (run as root, or kernel.yama.ptrace_scope=0)"


def test_ports_are_read_twice_gpus_have_power_and_clock_and_the_log_has_the_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = [
        GaugesAnswer(
            now=at,
            gpus=(GpuGauges(index=0, power_mw=91500, power_limit_mw=350000, sm_clock_mhz=2520, utilization_percent=100),
                  GpuGauges(index=7, power_mw=1)),
            ports=(PortGauges(device="mlx5_0", port=1, state="4: ACTIVE", counters={"port_xmit_data": sent, "x": 3}),
                   PortGauges(device="mlx5_9", port=1)),
        )
        for at, sent in ((100.0, 5), (102.0, 905))
    ]  # fmt: skip
    left = iter(readings)
    monkeypatch.setattr(gauges, "read", lambda *_: next(left))
    monkeypatch.setattr(hang_look, "APART_S", 0.1)
    asked = run(tmp_path, device="cuda", venv_python="/nonexistent/python3")
    network = replace(asked.network, transport=Transport.RDMA, hca="=mlx5_0:1")
    log = Path(asked.path(ENGINE_LOG))
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("h:1:2 [0] NCCL INFO NCCL version 2.28.9+cuda12.8\nh:1:2 [0] NCCL INFO NET register userbuff 0x1\n")
    look = Gathering(replace(asked, network=network), HangQuestion(parent=os.getpid())).look()
    assert [(port.name, port.state, port.rose, port.apart_s) for port in look.ports] == [
        ("mlx5_0:1", "4: ACTIVE", {"port_xmit_data": 900}, 2.0)
    ]
    (gpu,) = look.gpus
    assert (gpu.power_w, gpu.power_limit_w, gpu.clock_mhz, gpu.utilization) == (91.5, 350.0, 2520, 100)
    assert (look.facts.nccl, look.facts.registers, look.facts.rdma) == ("2.28.9", True, True)


def compiler_below(tmp_path: Path, ranks: Ranks) -> None:
    """A process of that name."""
    (tmp_path / "nvcc").symlink_to(shutil.which("sleep") or "/bin/sleep")
    child = subprocess.Popen([tmp_path / "nvcc", "600"])
    ranks.held.callback(child.wait)
    ranks.held.callback(child.kill)
    until(lambda: (found := processes.read(child.pid)) is not None and found.name == "nvcc", 10.0)


def test_a_compiler_below_the_engine_is_named_and_looked_at_again(tmp_path: Path, ranks: Ranks) -> None:
    compiler_below(tmp_path, ranks)
    assert gathered(tmp_path, venv_python="/nonexistent/python3").compilers == ("nvcc",)


@pytest.mark.parametrize(
    ("seen", "again"),
    [
        ({"compilers": ("cicc",)}, True),
        ({"ports": (PortLook(name="m:1", rose={"port_xmit_data": 1 << 22}, apart_s=2.0),)}, True),
        ({"ports": (PortLook(name="m:1", rose={"port_rcv_data": 1 << 22}, apart_s=2.0),)}, True),
        ({"ports": (PortLook(name="m:1", rose={"port_rcv_data": 1 << 10}, apart_s=2.0),)}, False),
        ({"ranks": (RankLook(tp_rank=0, stacks=(("a (m.py:1)",), ("b (m.py:2)",))),)}, True),
        ({"ranks": (RankLook(tp_rank=0, stacks=(("a (m.py:1)",), ("a (m.py:1)",))),)}, False),
        ({}, False),
    ],
)
def test_what_goes_on_is_looked_at_again(
    seen: dict[str, Any], again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a controller judges it: else a guard waited for ever for what has ended since."""
    monkeypatch.setattr(Gathering, "look", lambda _: HangLook(node="node0", **seen))
    monkeypatch.setattr(hang_look, "staged_in", lambda _: run(tmp_path))
    assert hang_look.run([str(tmp_path), HangQuestion().words()]) == (hang_inquiry.MOVED if again else 0)
    assert (tmp_path / HANG_FILE).exists()


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
