"""`doctor` on emulated nodes over real SSH: the articles' faulty cluster, and the corrected one."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.small_lab import RunningLab
from tests.support.waiting import slack

from orchestrator.doctor.netplan import BOND_FILE, RAIL_FILE

from .conftest import SEEN, needs_root

pytestmark = [pytest.mark.lab, needs_root, SEEN]


def doctor(lab: RunningLab, *words: str) -> tuple[int, dict[str, Any], float]:
    began = time.monotonic()
    done = lab.deploy("doctor", "--json", *words, code=None)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout), time.monotonic() - began


def test_the_wrong_cluster_gives_its_three_faults_and_nothing_else(labs: Callable[[str], RunningLab]) -> None:
    lab = labs("doctor-wrong")
    lab.run("up", "--wiring", "wrong")
    code, said, _ = doctor(lab)
    assert code == 3
    bad = [finding for finding in said["findings"] if finding["severity"] in ("stop", "slow")]
    assert said["findings"][:12] == bad  # first in the list
    for name in ("node0", "node1", "node2", "node3"):
        card, traffic, ports = (finding for finding in bad if finding["node"] == name)
        assert (card["id"], card["devices"]) == ("NIC-NOT-UNDER-SWITCH", ["mlx5_4", "mlx5_5", "0000:b8:00"])
        assert "move the card from slot 17 to slot 15 or 16, empty" in card["fix"]
        assert (traffic["id"], traffic["devices"]) == ("TRAFFIC-ON-TCP", ["ens7f0np0"])
        assert (ports["id"], ports["devices"]) == ("RDMA-PORT-DOWN", ["mlx5_1", "mlx5_3", "mlx5_5", "mlx5_0", "mlx5_4"])
    assert {(one["nNodes"], one["localRanks"]) for one in said["nccl"]} == {(4, 8)}
    code, said, _ = doctor(lab, "--node", "node2")
    assert code == 3 and [node["name"] for node in said["nodes"]] == ["node2"] and not said["unreachable"]
    assert {one["id"] for one in said["findings"] if one["node"] == "node2" and one["severity"] == "slow"} == {
        *("NIC-NOT-UNDER-SWITCH", "TRAFFIC-ON-TCP", "RDMA-PORT-DOWN")
    }
    assert {one["node"] for one in said["findings"]} <= {"", "node2"}


HEAR = """
import socket
heard = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
heard.bind(("0.0.0.0", 5999)); heard.settimeout(60)
seen = set()
while len(seen) < 4:
    seen.add(heard.recvfrom(9000)[1][0])
"""
SAY = """
import socket, sys
for address in sys.argv[1:]:
    socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(bytes(1000), (address, 5999))
"""


def test_the_files_for_netplan_open_every_rail_of_the_wrong_cluster(
    labs: Callable[[str], RunningLab], tmp_path: Path
) -> None:
    """Applied with ip in the nodes' own network: packets pass on all four rails, which were down or without an address.
    The bond is not: a node's only way in runs over that card. The lab's cables, as a switch, keep their MTU."""
    lab = labs("doctor-netplan")
    lab.run("up", "--wiring", "wrong", "--nodes", "2")
    code, said, _ = doctor(lab, "--netplan", str(tmp_path))
    assert code == 3 and [one["node"] for one in said["netplan"]] == ["node0", "node1"]
    addresses: dict[str, list[str]] = {}
    for node in lab.hosts():
        document = yaml.safe_load((tmp_path / node / RAIL_FILE).read_text())
        for name, entry in document["network"]["ethernets"].items():
            assert entry["match"]["macaddress"] in lab.ssh(node, f"ip link show dev {name}")
            lab.ssh(node, f"ip link set dev {name} up mtu {entry['mtu']}")
            for address in entry["addresses"]:
                lab.ssh(node, f"ip address add {address} dev {name}")
                addresses.setdefault(node, []).append(address.partition("/")[0])
        assert (tmp_path / node / BOND_FILE).exists()
    assert {node: len(found) for node, found in addresses.items()} == {"node0": 4, "node1": 4}
    with ThreadPoolExecutor(1) as listening:
        heard = listening.submit(lab.ssh, "node0", "python3 -", HEAR.encode())
        while not heard.done():  # for a minute at most
            lab.ssh("node1", f"python3 - {' '.join(addresses['node0'])}", SAY.encode())
        heard.result()


def test_the_right_cluster_has_nothing_wrong(labs: Callable[[str], RunningLab]) -> None:
    lab = labs("doctor-right")
    lab.run("up", "--wiring", "right")
    doctor(lab)  # the first look also brings our application to the nodes
    code, said, seconds = doctor(lab)
    assert code == 0
    assert {finding["severity"] for finding in said["findings"]} <= {"note"}
    assert {(one["nNodes"], one["localRanks"]) for one in said["nccl"]} == {(8, 4)}
    assert seconds < 12 * slack()  # 3 s on a quiet machine


@pytest.mark.turns(of="doctor: cards are tried against each other")
def test_rails_that_switches_keep_apart_stop_the_start(labs: Callable[[str], RunningLab]) -> None:
    lab = labs("doctor-isolated")
    lab.run("up", "--wiring", "rails-isolated", "--nodes", "2")
    code, said, _ = doctor(lab)
    assert code == 3
    (found,) = [one for one in said["findings"] if one["severity"] in ("stop", "slow")]
    assert (found["id"], found["severity"]) == ("RAILS-ISOLATED", "stop")
    assert "32 of 32 paths between cards are closed" in found["title"]  # 16 between the nodes, 8 within each


@pytest.mark.turns(of="doctor: cards are tried against each other")
def test_a_single_node_tries_the_way_between_its_cards(labs: Callable[[str], RunningLab]) -> None:
    for name, wiring, severities in (("isolated", "rails-isolated", ["stop"]), ("routed", "right", [])):
        lab = labs(f"doctor-one-{name}")
        lab.run("up", "--wiring", wiring, "--nodes", "1")
        _, said, _ = doctor(lab)
        assert [one["severity"] for one in said["findings"] if one["id"] == "RAILS-ISOLATED"] == severities
        lab.run("down")
