"""Processes of a lab and the GPUs of this machine that its nodes may share."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.waiting import until

from l40s_lab import syscalls
from l40s_lab.faults.processes import _limit_to_its_use
from l40s_lab.faults.registry import find
from l40s_lab.node import host_gpus
from l40s_lab.node.living import _RANK
from l40s_lab.processes import Identity
from orchestrator.protocol.errors import InputError, NodeError


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


def test_only_the_very_process_is_killed() -> None:
    process = sleeper()
    identity = Identity.of(process.pid)
    assert identity is not None
    for stranger in (replace(identity, start=identity.start + 1), replace(identity, boot="another boot")):
        assert not stranger.alive
        stranger.kill()
    assert process.poll() is None, "a number alone is not the process"
    assert identity.end(deadline_s=10)
    process.wait()


def test_a_zombie_is_not_alive() -> None:
    process = sleeper()
    identity = Identity.of(process.pid)
    assert identity is not None
    process.kill()
    until(lambda: not identity.alive, 10.0)
    assert Identity.of(process.pid) is None
    process.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="a PID namespace of one's own needs root")
def test_pid_1_ends_though_a_shell_into_its_namespace_was_stopped_with_what_it_ran() -> None:
    """As after `lab break NODE freeze` under a `lab exec`."""
    outside = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", "echo; sleep 60; :"], stdout=subprocess.PIPE
    )
    assert outside.stdout is not None and outside.stdout.readline() == b"\n"
    (first,) = children(outside.pid)
    shell = subprocess.Popen(["nsenter", "-t", str(first), "-p", "--", "sleep", "60"])
    try:
        until(lambda: bool(children(shell.pid)), 10.0)
        (inside,) = children(shell.pid)
        os.kill(inside, signal.SIGSTOP)
        until(lambda: state(shell.pid) == "T", 10.0)
        identity = Identity.of(first)
        assert identity is not None and identity.end(deadline_s=10)
    finally:
        shell.send_signal(signal.SIGCONT)
        for process in (shell, outside):
            process.kill()
            process.wait(10)
        outside.stdout.close()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][:1]


@pytest.mark.parametrize(
    ("title", "rank"),
    [
        (b"sglang::scheduler_TP3\0", 3),
        (b"sglang::scheduler_DP1_TP12", 12),
        (b"sglang::scheduler_PP1_TP0\0\0", 0),
        (b"sglang::scheduler\0", 0),
        (b"sglang::scheduler", 0),
        (b"sglang::detokenizer\0", None),
        (b"sglang::scheduler_TPx", None),
        (b"sglang::schedulers\0", None),
        (b"python\0", None),
    ],
)
def test_a_ranks_title_says_its_number_and_nothing_where_there_is_one_rank(title: bytes, rank: int | None) -> None:
    found = _RANK.match(title)
    assert (int(found[1] or 0) if found else None) == rank


@pytest.mark.parametrize(
    ("name", "words", "done"),
    [
        ("kill-rank", ("5",), "the process of TP rank 5 gets KILL, as from the OOM killer"),
        ("kill-rank", ("5", "TERM"), "the process of TP rank 5 gets TERM"),
        ("slow-node", ("1gbit", "bond0"), "limits traffic into and out of bond0 to 1gbit"),
        ("mtu", ("ens5",), "the port ens5 gets an MTU of 1500; larger frames are lost"),
        ("delay", ("40",), "every frame to and from DEV (default: the TCP side) is delayed by 40 milliseconds"),
    ],
)  # fmt: skip
def test_what_was_done_is_told_with_the_words_that_were_given(name: str, words: tuple[str, ...], done: str) -> None:
    assert find(name).done(words) == done


PARAMETERS = """ResmanDebugLevel: 4294967295
RmLogonRC: 1
ModifyDeviceFiles: 1
DeviceFileUID: 0
"""
"""The first lines of /proc/driver/nvidia/params (driver 580)."""
OF_ALL = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-caps/nvidia-cap1")


def machine(root: Path, gpus: int, of_all: tuple[str, ...] = OF_ALL) -> Path:
    for name in (*(f"nvidia{number}" for number in range(gpus)), *of_all):
        (root / "dev" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "dev" / name).touch()
    return root


def test_gpus_are_found_by_their_numbers_and_nothing_else_is_taken_for_one(tmp_path: Path) -> None:
    found = host_gpus.find(machine(tmp_path, 11))
    assert [Path(gpu).name for gpu in found.gpus] == [f"nvidia{number}" for number in range(11)]
    assert [host_gpus.inside(device) for device in found.of_all] == list(OF_ALL)


@pytest.mark.parametrize(
    ("gpus", "of_all", "words"), [(0, (), "/dev/nvidia0"), (2, (), "2 GPUs but no"), (0, OF_ALL, "nvidia0")]
)
def test_a_machine_without_gpus_or_driver_is_refused_with_what_was_found(
    tmp_path: Path, gpus: int, of_all: tuple[str, ...], words: str
) -> None:
    with pytest.raises(NodeError, match=words):
        host_gpus.find(machine(tmp_path, gpus, of_all))


def shared(root: Path, gpus: int, wanted: list[int | None]) -> dict[str, list[str]]:
    nodes = [f"node{number}" for number in range(len(wanted))]
    found = host_gpus.share(host_gpus.find(machine(root, gpus)), nodes, wanted)
    return {node: [host_gpus.inside(device) for device in devices] for node, devices in found.items()}


@pytest.mark.parametrize(
    ("gpus", "wanted", "expected"),
    [
        (4, [None] * 4, [["0"], ["1"], ["2"], ["3"]]),
        (4, [None] * 2, [["0", "1"], ["2", "3"]]),
        (5, [None] * 2, [["0", "1"], ["2", "3"]]),
        (4, [3, 1], [["0", "1", "2"], ["3"]]),
    ],
)
def test_each_gpu_belongs_to_one_node_and_all_have_the_drivers_own_files(
    tmp_path: Path, gpus: int, wanted: list[int | None], expected: list[list[str]]
) -> None:
    nodes = list(shared(tmp_path, gpus, wanted).values())
    assert nodes == [[*(f"nvidia{number}" for number in own), *OF_ALL] for own in expected]
    assert [host_gpus.gpu_count([f"/dev/{name}" for name in node]) for node in nodes] == [len(own) for own in expected]


@pytest.mark.parametrize("wanted", [[None] * 5, [3, 2], [4, 0]])
def test_too_few_gpus_are_refused(tmp_path: Path, wanted: list[int | None]) -> None:
    with pytest.raises(InputError, match="found 4 GPUs on this machine"):
        shared(tmp_path, 4, wanted)


def test_the_driver_makes_no_device_files_in_a_node() -> None:
    shown = host_gpus.without_new_files(PARAMETERS)
    assert shown == PARAMETERS.replace("ModifyDeviceFiles: 1", "ModifyDeviceFiles: 0")
    assert host_gpus.without_new_files(shown) == shown


def test_a_disk_is_limited_while_somebody_writes_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    used, page, given = [900], 4096, []

    def statvfs(_: str) -> SimpleNamespace:
        return SimpleNamespace(f_blocks=10_000, f_bfree=10_000 - used[0], f_frsize=page)

    def mount(*_: Any, options: str, flags: int) -> None:
        used[0] += 100
        if int(options.removeprefix("size=")) < used[0] * page:
            raise OSError(errno.EINVAL, "too small for what is used")
        given.append(int(options.removeprefix("size=")))

    monkeypatch.setattr(os, "statvfs", statvfs)
    monkeypatch.setattr(syscalls, "mount", mount)
    _limit_to_its_use("/run/disk")
    assert used[0] * page <= given[0] < (used[0] + 1000) * page
    monkeypatch.setattr(syscalls, "mount", lambda *_, **__: (_ for _ in ()).throw(OSError(errno.EPERM, "")))
    with pytest.raises(PermissionError):
        _limit_to_its_use("/run/disk")
