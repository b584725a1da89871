"""What an ordinary shell sees on the nodes of a level-1 lab, over OpenSSH."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.small_lab import RunningLab

from .conftest import THE_LAB_ITSELF, needs_root
from .test_lab_life import expect_console_of_root

pytestmark = [pytest.mark.lab, needs_root, THE_LAB_ITSELF]

IB = "/sys/class/infiniband"


@pytest.fixture(scope="module")
def lab(labs: Callable[[str], RunningLab]) -> RunningLab:
    made = labs("nodes")
    print(made.run("up").stderr)
    return made


def test_every_node_is_a_machine_of_its_own(lab: RunningLab) -> None:
    seen = {
        node: lab.ssh(node, "hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id; readlink /proc/self/ns/*")
        for node in lab.hosts()
    }
    assert list(seen) == ["node0", "node1", "node2", "node3"]
    for node, text in seen.items():
        assert text.splitlines()[0] == node
    different = [set(text.splitlines()) for text in seen.values()]
    shared = set.intersection(*different)
    assert not any(line.startswith(("net:", "mnt:", "pid:", "uts:", "ipc:")) for line in shared)
    assert not any(len(line) in (32, 36) for line in shared), "machine ids and boot ids differ"


def test_a_session_has_a_plain_environment(lab: RunningLab) -> None:
    out = lab.ssh("node1", "umask; echo $PATH; id -u; ps -e -o comm= | sort | uniq").splitlines()
    assert out[0] == "0022"
    assert out[1] == "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    assert out[2] == "0"
    assert set(out[3:]) <= {"python", "python3", "python3.10", "python3.11", "python3.12", "python3.13", "sshd",
                            "sshd-session", "bash", "ps", "sort", "uniq"}  # fmt: skip


def test_nodes_reach_each_other_by_name_and_on_every_rail(lab: RunningLab) -> None:
    for host in ("node3", "192.168.101.13", "192.168.102.13", "192.168.103.13", "192.168.104.13"):
        # "refused" at once means that the machine is up and nothing listens on the port
        said = lab.ssh("node0", f"timeout 5 bash -c '</dev/tcp/{host}/9' 2>&1 || true")
        assert "Connection refused" in said, host


def test_what_leads_out_of_the_lab_is_refused_at_once(lab: RunningLab) -> None:
    said = lab.ssh("node0", "timeout 5 bash -c '</dev/tcp/192.0.2.77/9' 2>&1 || true")
    assert "unreachable" in said


def test_http_reaches_a_node_from_this_machine(lab: RunningLab) -> None:
    lab.ssh("node2", "cd /workspace; setsid python3 -m http.server 8000 >/dev/null 2>&1 </dev/null &")
    address = lab.hosts()["node2"]
    lab.ssh("node2", "for i in $(seq 100); do bash -c '</dev/tcp/127.0.0.1/8000' 2>/dev/null && exit; sleep 0.05; done")
    done = subprocess.run(
        ["curl", "-sf", "-m", "5", f"http://{address}:8000/DeepSeek-V3-0324-Block64x64/config.json"],
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout)["hidden_size"] == 7168


def test_the_hosts_own_devices_are_not_seen(lab: RunningLab) -> None:
    ours = {link.name for link in Path("/sys/bus/pci/devices").glob("*")}
    seen = set(lab.ssh("node0", "ls /sys/bus/pci/devices").split())
    drivers = set(lab.ssh("node0", "cat /sys/bus/pci/devices/*/uevent | grep ^DRIVER | sort -u").split())
    assert drivers == {f"DRIVER={name}" for name in ("ast", "mlx5_core", "nvidia", "nvme", "pcieport")}
    assert len(seen) == 39
    assert not {
        name for name in ours & seen if "virtio" in (Path("/sys/bus/pci/devices") / name / "uevent").read_text()
    }
    assert lab.ssh("node0", "find /sys/class /sys/bus -maxdepth 3 -xtype l") == ""


def test_sysfs_and_netlink_say_the_same_of_an_interface(lab: RunningLab) -> None:
    links = {link["ifname"]: link for link in json.loads(lab.ssh("node0", "ip -json address show"))}
    names = set(lab.ssh("node0", "ls /sys/class/net").split())
    assert names == set(links) == {"lo", "bond0", "ens5f0np0", "ens5f1np1", "ens7f0np0", "ens7f1np1", "ens15f0np0",
                                   "ens15f1np1"}  # fmt: skip
    for name in names - {"lo"}:
        mtu, address, state = lab.ssh("node0", f"cd /sys/class/net/{name}; cat mtu address operstate").split()
        assert (int(mtu), address, state) == (links[name]["mtu"], links[name]["address"], "up")
    assert lab.ssh("node0", "cat /sys/class/net/bond0/bonding/slaves").split() == ["ens7f0np0", "ens7f1np1"]
    assert lab.ssh("node0", "cat /sys/class/net/bond0/speed /sys/class/net/ens5f0np0/speed").split() == [
        "200000",
        "100000",
    ]
    assert "802.3ad" in lab.ssh("node0", "cat /proc/net/bonding/bond0")


def test_a_change_of_the_kernels_shows_through_sysfs(lab: RunningLab) -> None:
    folder = "/sys/class/net/ens15f1np1"
    lab.ssh("node3", "ip link set ens15f1np1 mtu 4000 down")
    assert lab.ssh("node3", f"cat {folder}/mtu {folder}/operstate").split() == ["4000", "down"]
    lab.ssh("node3", "ip link set ens15f1np1 mtu 9000 up")


def test_proc_tells_of_the_machine(lab: RunningLab) -> None:
    out = lab.ssh(
        "node0", "cat /proc/driver/nvidia/version; grep -m1 'model name' /proc/cpuinfo; head -1 /proc/net/tcp"
    )
    assert "Open Kernel Module for x86_64  580.65.06" in out
    assert "Xeon(R) Platinum 8462Y+" in out
    assert "local_address" in out, "the rest of /proc/net is the node's own"


def test_wrong_wiring_replaces_the_right_one(labs: Callable[[str], RunningLab]) -> None:
    lab = labs("wrong")
    lab.run("up", "--nodes", "1", "--gangs", "1")
    said = lab.run("up", "--nodes", "1", "--wiring", "wrong").stderr
    assert "replacing" in said
    card = lab.ssh("node0", f"readlink -f {IB}/mlx5_4/device").strip()
    assert card == "/sys/devices/pci0000:b7/0000:b7:01.0/0000:b8:00.0", "on a root port"
    states = lab.ssh("node0", f"cat {IB}/*/ports/1/state").splitlines()
    assert states == ["4: ACTIVE", "1: DOWN", "4: ACTIVE", "1: DOWN", "4: ACTIVE", "1: DOWN"]
    addresses = json.loads(lab.ssh("node0", "ip -json -4 address show"))
    assert [link["ifname"] for link in addresses if link["ifname"] != "lo"] == ["ens7f0np0"]


def test_the_console_is_root_and_needs_no_network(lab: RunningLab) -> None:
    expect_console_of_root(lab)
