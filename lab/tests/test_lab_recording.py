"""Recorded machines as nodes: a snapshot of such a node equals the recording."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.sources import ROOT

from l40s_lab.hardware import procfs, recording, sysfs
from l40s_lab.hardware.machine import NodeMachine
from l40s_lab.nvml import config
from orchestrator.model.snapshot import Snapshot, snapshot_from_json
from orchestrator.protocol.errors import InputError

VM = snapshot_from_json(json.loads((ROOT / "tests/recorded/two-h200-vm.json").read_bytes()))


def shown(snapshot: Snapshot, index: int = 0, *, copy: bool = False) -> NodeMachine:
    return recording.realise(
        snapshot,
        recording.networks([snapshot]),
        lab="lab",
        node=f"node{index}",
        index=index,
        address=f"10.9.8.{10 + index}",
        copy=copy,
    )


def recorded(node: NodeMachine) -> Snapshot:
    """A snapshot of a described machine, like the probe's, as far as a recording needs it."""
    tree = sysfs.render(node, live_network=False)
    files = {f"/sys{path}": content.decode("latin-1") for path, content in tree.files.items()}
    files |= {path: bytes(tree.files[path.removeprefix("/sys")]).hex() for path in files if path.endswith("/config")}
    addresses = {
        one.name: [{"family": "inet", "address": address.split("/")[0], "prefixlen": 24} for address in one.ipv4]
        for one in node.interfaces
    }
    links = {f"/sys{path}": target for path, target in tree.links.items()}
    return Snapshot(node=node.node, taken_at=0.0, files=files, links=links, host={"addresses": addresses})


def test_a_machine_of_ours_recorded_and_shown_again_is_the_same(node: Callable[..., NodeMachine]) -> None:
    original = node("right", 1)
    again = shown(recorded(original), 1)
    assert {one.name: one.ipv4 for one in again.interfaces} == {
        one.name: ("10.9.8.11/24",) if one.primary else one.ipv4 for one in original.interfaces
    }
    assert {(one.name, one.mac, one.mtu, one.enabled, one.primary, one.bond) for one in again.interfaces} == {
        (one.name, one.mac, one.mtu, one.enabled, one.primary, one.bond) for one in original.interfaces
    }
    assert len({one.rail for one in again.interfaces if one.ipv4}) == 5, "each network has its own bridge"
    before, after = (sysfs.render(one, live_network=False) for one in (original, again))
    assert after.links == before.links
    lost = {path for path, content in before.files.items() if after.files.get(path) != content}
    assert not lost, sorted(lost)[:5]


def test_live_interfaces_lend_their_own_attributes(node: Callable[..., NodeMachine]) -> None:
    tree = sysfs.render(shown(recorded(node("right"))))
    folder = next(path for path in tree.borrowed if path.endswith("/ens5f0np0"))
    assert tree.borrowed[folder] == "/devices/virtual/net/ens5f0np0"
    assert f"{folder}/mtu" not in tree.files
    assert f"{folder}/speed" in tree.files
    assert "/devices/virtual/net/bond0/bonding/mode" in tree.files
    assert "/devices/pci0000:15" in tree.opaque


def test_the_nodes_own_address_has_its_gids(node: Callable[..., NodeMachine]) -> None:
    original = node("wrong", 2)
    moved = shown(recorded(original), 0)
    gids = {
        content.decode().strip()
        for path, content in sysfs.render(moved).files.items()
        if "/mlx5_2/ports/1/gids/" in path and b"ffff" in content
    }
    assert gids == {"0000:0000:0000:0000:0000:ffff:0a09:080a"}


def test_a_second_node_of_one_recording_has_numbers_of_its_own(node: Callable[..., NodeMachine]) -> None:
    first, second = shown(recorded(node("right"))), shown(recorded(node("right")), 1, copy=True)
    for one, other in zip(first.interfaces, second.interfaces, strict=True):
        assert one.mac != other.mac
        assert not set(one.ipv4) & set(other.ipv4)
    files = sysfs.render(second).files
    address = second.interface("ens5f0np0").ipv4[0].split("/")[0].split(".")
    gid = f"ffff:{int(address[0]):02x}{int(address[1]):02x}:{int(address[2]):02x}{int(address[3]):02x}"
    assert any(gid in content.decode("latin-1") for path, content in files.items() if "/mlx5_0/ports/1/gids/" in path)


def test_a_real_machine_keeps_what_makes_it_itself() -> None:
    node = shown(VM)
    assert [one.name for one in node.interfaces] == ["eth0"], "interfaces of the kernel's own are not made"
    assert node.interface("eth0").mtu == 1400
    assert node.interface("eth0").ipv6 == ("fd00::2/64",)
    tree = sysfs.render(node)
    assert "/devices/pci0000:00" in tree.opaque
    assert not any("/net/ifb" in path for path in (*tree.files, *tree.links, *tree.einval))
    assert "/devices/system/cpu/online" not in tree.files, "programs size themselves by it"
    assert "/cpuinfo" in procfs.render(node).files
    assert not any(path.startswith("/sys/net") for path in procfs.render(node).files)
    assert len(sysfs.render(node, config_bytes=64).files["/devices/pci0000:00/0000:00:06.0/config"]) == 64


def test_nvml_says_what_it_said() -> None:
    lines = config.render(shown(VM)).splitlines()
    assert lines[:4] == ["driver=580.159.04", "nvml=13.580.159.04", "cuda=13000", "count=2"]
    assert {"0.name=NVIDIA H200", "0.busid=0000:00:06.0", "1.busid=0000:00:07.0", "0.mem_total=143771",
            "0.maxgen=5", "topo.0.1=30", "p2p.0.1=0"} <= {*lines}  # fmt: skip


@pytest.mark.parametrize(
    ("nvml", "lines"),
    [
        ({"error": "libnvidia-ml.so.1 is missing"}, ["init=9", "count=0"]),
        ({}, ["count=0"]),
        (
            {"devices": [{"index": 0, "errors": {"nvmlDeviceGetHandleByIndex": "GPU is lost"}}]},
            ["count=1", "0.fail=15"],
        ),
        ({"devices": [7, {"name": "a\nhang=1", "memory": "x", "topology": []}]}, ["count=1", "0.name=a?hang=1"]),
    ],
)
def test_whatever_nvml_said_is_told_in_whole_lines(nvml: dict[str, Any], lines: list[str]) -> None:
    assert recording.nvml_configuration(nvml).splitlines() == lines


def test_a_machine_without_an_interface_cannot_be_a_node() -> None:
    with pytest.raises(InputError, match="no network interface"):
        shown(Snapshot(node="n", taken_at=0.0, files={"/sys/class/dmi/id/sys_vendor": "X"}))


def test_a_recorded_gpu_keeps_its_compute_capability_and_nvlinks() -> None:
    link = {"active": 1, "p2p": 1, "remote": "FFFFFFF:FF:FF.0"}
    devices = [{**VM.nvml["devices"][0], "nvlinks": [link, link, {**link, "active": 0}]}]
    lines = recording.nvml_configuration({**VM.nvml, "devices": devices}).splitlines()
    assert {"0.sm_major=9", "0.sm_minor=0", "0.nvlinks=3", "0.nvlinks_up=2"} <= set(lines)
    assert "0.nvlink_remote=ffffffff:ff:ff.0" in lines
