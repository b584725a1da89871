"""Nodes that share device files of this machine. On a machine without GPUs, other character devices stand for them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from l40s_lab.breaking.breaking import break_node, heal_node
from l40s_lab.life.down import down
from l40s_lab.life.request import Request
from l40s_lab.life.up import Raised, up
from l40s_lab.node import host_gpus
from l40s_lab.node.living import find_node
from orchestrator.protocol.errors import InputError

pytestmark = [pytest.mark.lab, pytest.mark.skipif(os.geteuid() != 0, reason="nodes with a /dev of their own need root")]
NULL = os.makedev(1, 3)
NAME = "hostgpus"
STACK = """name: host-gpu-test-1.2
source: made by the tests
dialect: sglang-0.5
engine_version: 0.5.23
device: cuda
"""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Raised]:
    devices = tmp_path / "dev"
    devices.mkdir()
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm"):
        os.mknod(devices / name, 0o20666, NULL)
    found = host_gpus.find(tmp_path)
    venv = tmp_path / "venvs/host-gpu-test-1.2"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin/python3").symlink_to("/usr/bin/python3")
    (tmp_path / "host-gpu-test-1.2.yml").write_text(STACK)
    monkeypatch.setattr(host_gpus, "find", lambda: found)
    monkeypatch.setattr(host_gpus, "VENVS", str(tmp_path / "venvs"))
    monkeypatch.setenv("L40S_LAB_ROOT", str(tmp_path / "labs"))
    stack = str(tmp_path / "host-gpu-test-1.2.yml")
    try:
        yield up(Request(name=NAME, nodes=2, gpus="host", stack=stack), print)
    finally:
        down(NAME)


def seen(node: str, command: str) -> str:
    return find_node(NAME, node).run_here(["sh", "-c", command], what=command)


def test_a_node_has_its_own_gpus_alone_and_they_are_the_machines_devices(lab: Raised) -> None:
    assert seen("node0", "cd /dev; ls -d nvidia*").split() == ["nvidia-uvm", "nvidia0", "nvidia1", "nvidiactl"]
    assert seen("node1", "cd /dev; ls -d nvidia*").split() == ["nvidia-uvm", "nvidia2", "nvidia3", "nvidiactl"]
    assert seen("node1", "stat -c %t:%T /dev/nvidia3; echo x >/dev/nvidia3; stat -c %F /dev/nvidia3").split("\n")[
        :2
    ] == ["1:3", "character special file"]
    assert lab.blueprint.engine == "host-gpu-test-1.2"
    inventory = lab.home.inventory.read_text()
    assert "l40s_gpus: 2" in inventory and "host-gpu-test-1.2.yml" in inventory
    assert seen("node0", "hostname; ls /sys/class/net").split() == ["node0", "eth0", "lo"]
    assert seen("node0", "cat /sys/devices/system/cpu/online") == Path("/sys/devices/system/cpu/online").read_text()


def test_what_a_node_writes_to_the_engines_environment_is_its_own(lab: Raised) -> None:
    venv = f"{host_gpus.VENVS}/host-gpu-test-1.2"
    assert seen("node0", f"cd {venv} && mkdir -p share && echo tuned >share/new && cat share/new").strip() == "tuned"
    assert seen("node1", f"ls {venv}").split() == ["bin"] == [entry.name for entry in Path(venv).iterdir()]


def test_cables_can_be_cut_and_real_hardware_cannot_be_broken(lab: Raised) -> None:
    break_node(NAME, "node1", "link-down", ())
    assert seen("node1", "cat /sys/class/net/eth0/carrier").strip() == "0"
    heal_node(NAME, "node1", None)
    assert seen("node1", "cat /sys/class/net/eth0/carrier").strip() == "1"
    with pytest.raises(InputError, match="changes emulated hardware, but this lab's hardware is real"):
        break_node(NAME, "node1", "driver-skew", ())


def test_power_off_and_on_again_leaves_a_node_its_gpus(lab: Raised) -> None:
    break_node(NAME, "node0", "power-off", ())
    heal_node(NAME, "node0", "power-off")
    assert seen("node0", "cd /dev; ls -d nvidia*").split() == ["nvidia-uvm", "nvidia0", "nvidia1", "nvidiactl"]
