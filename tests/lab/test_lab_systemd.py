"""Nodes that boot systemd: complete machines, driven by a user who is not root, and removed without a trace."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.small_lab import RunningLab
from tests.support.waiting import until

from .conftest import THE_LAB_ITSELF, needs_root
from .test_lab_life import control_groups_of, expect_spotless, node_pids

pytestmark = [pytest.mark.lab, needs_root, THE_LAB_ITSELF]

FIRST_BUILD_S = 300


@pytest.fixture(scope="module")
def lab(labs: Callable[[str], RunningLab]) -> Iterator[RunningLab]:
    """Two nodes; the first lab on a machine makes the root file system."""
    made = labs("systemd")
    said = made.run("up", "--nodes", "2", "--level", "2", timeout=FIRST_BUILD_S).stderr
    if made.running_level() != 2:
        pytest.skip(next(line for line in said.splitlines() if line.startswith("level 1")))
    yield made
    made.run("down")


def test_systemd_has_booted_every_node_without_a_failed_unit(lab: RunningLab) -> None:
    for node in lab.hosts():
        assert lab.ssh(node, "cat /proc/1/comm; systemctl is-system-running; hostname").split() == [
            "systemd",
            "running",
            node,
        ]


def test_the_login_is_no_root_and_sudo_asks_nothing(lab: RunningLab) -> None:
    assert lab.lab_inventory()["all"]["vars"]["ansible_become"] is True
    assert lab.ssh("node0", "id -un; sudo -n id -un; test -w /etc || echo read-only").split() == [
        "operator",
        "root",
        "read-only",
    ]
    with pytest.raises(AssertionError, match="Permission denied"):
        lab.ssh("node0", "true", user="root")


def test_a_session_starts_with_the_machines_limits(lab: RunningLab) -> None:
    import resource

    wanted = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert int(lab.ssh("node0", "ulimit -n")) == min(wanted, 1048576)


def test_every_node_has_the_release_of_this_machine_and_its_own_journal(lab: RunningLab) -> None:
    ours = Path("/etc/os-release").read_text()
    assert lab.ssh("node0", "cat /etc/os-release") == ours
    python = subprocess.run(["/usr/bin/python3", "--version"], capture_output=True, text=True, check=True).stdout
    assert lab.ssh("node0", "python3 --version") == python
    lab.ssh("node0", "logger -t lab-test only-here")
    assert "only-here" in lab.ssh("node0", "sudo journalctl --no-pager -t lab-test")
    assert "only-here" not in lab.ssh("node1", "sudo journalctl --no-pager -t lab-test")


def test_a_unit_ends_as_a_whole_with_all_that_it_started(lab: RunningLab) -> None:
    lab.ssh("node0", "sudo systemd-run -q --unit=many -p KillMode=control-group sh -c 'sleep 77 & sleep 78 & wait'")
    members = "cat /sys/fs/cgroup/system.slice/many.service/cgroup.procs 2>/dev/null | wc -l"
    until(lambda: lab.ssh("node0", members) == "3\n", 10.0)
    lab.ssh("node0", "sudo systemctl stop many")
    assert lab.ssh("node0", "pgrep -x sleep || true") == ""


def test_this_machine_cannot_be_set_from_a_node(lab: RunningLab) -> None:
    ours = Path("/proc/sys/vm/swappiness").read_text()
    lab.ssh("node0", "sudo sysctl -q -w vm.swappiness=7 || true")
    assert Path("/proc/sys/vm/swappiness").read_text() == ours
    before = time.time()
    lab.ssh("node0", "sudo date -s '2001-01-01' || true")
    assert abs(time.time() - before) < 60


def test_a_setting_that_the_lab_shows_can_be_set_in_one_node(lab: RunningLab) -> None:
    """A new network namespace starts with this machine's ip_forward, whatever it is."""
    shown = "cat /proc/sys/kernel/numa_balancing /proc/sys/net/ipv4/ip_forward"
    before = lab.ssh("node1", shown).split()
    others = [str(1 - int(value)) for value in before]
    lab.ssh("node0", f"sudo sysctl -q -w kernel.numa_balancing={others[0]} net.ipv4.ip_forward={others[1]}")
    assert lab.ssh("node0", shown).split() == others
    assert lab.ssh("node1", shown).split() == before


def test_a_node_that_is_switched_off_from_inside_is_down(labs: Callable[[str], RunningLab], lab: RunningLab) -> None:
    other = labs("poweroff")
    other.run("up", "--nodes", "1", "--level", "2")
    other.ssh("node0", "sudo systemd-run -q --on-active=0.1 --timer-property=AccuracySec=10ms systemctl poweroff -ff")
    until(lambda: not node_pids(other), 20.0)
    assert [node["state"] for node in json.loads(other.run("status", "--json").stdout)["nodes"]] == ["down"]
    other.run("down")
    assert not control_groups_of(other)


def test_a_lab_whose_files_were_removed_leaves_no_control_groups(
    labs: Callable[[str], RunningLab], lab: RunningLab
) -> None:
    other = labs("fileless")
    other.run("up", "--nodes", "1", "--level", "2")
    assert control_groups_of(other)
    shutil.rmtree(other.directory)
    other.run("down")
    assert not control_groups_of(other)


@pytest.mark.turns
@pytest.mark.parametrize("victim", ["nobody", "supervisor", "node", "starter"])
def test_nothing_is_left_on_a_machine_of_our_own(lab: RunningLab, tmp_path: Path, victim: str) -> None:
    """A node's first process is its systemd."""
    expect_spotless(tmp_path, "2", victim)
