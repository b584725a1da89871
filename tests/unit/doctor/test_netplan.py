"""What a node's network lacks, as files: the articles' cluster becomes the right one, and nothing else is touched."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support import preloaded
from tests.support.faults import _port_down, _port_without_address, _rails_in_one_subnet, _spare_port_down, fault
from tests.support.healthy_cluster import Change, HealthyNode, cluster_of, cluster_with, healthy_nodes

from orchestrator.doctor.netplan import BOND_FILE, PFC_FILE, RAIL_FILE, SYSCTL_FILE, NodeFiles, lacking
from orchestrator.doctor.rules.support.cluster import Cluster
from orchestrator.doctor.steps.recordings import examine_given, given
from orchestrator.model.inventory import Overrides
from orchestrator.model.topology import Topology
from orchestrator.protocol.errors import Exit

EXAMPLES = Path(__file__).parents[3] / "examples"


def example(name: str) -> Cluster:
    return examine_given(given([str(EXAMPLES / name)])).cluster


def ethernets(found: NodeFiles, path: str = RAIL_FILE) -> dict[str, Any]:
    network: dict[str, Any] = yaml.safe_load(found.wanted[path][1])["network"]
    assert network["version"] == 2
    return network["ethernets"] | network.get("bonds", {})  # type: ignore[no-any-return]


def configured(topology: Topology) -> dict[str, tuple[tuple[str, ...], int]]:
    """Addresses and MTU by interface."""
    return {one.name: (one.ipv4, one.mtu) for one in topology.interfaces}


def test_the_articles_cluster_becomes_the_right_one_with_the_card_moved() -> None:
    """Slot 17's card is moved to slot 15, and its interfaces are called after it."""
    wrong, right = example("articles"), example("right")
    found = lacking(wrong)
    assert [one.node for one in found] == list(right.topologies)
    for one in found:
        assert set(one.wanted) == {RAIL_FILE, BOND_FILE} and not one.open
        now, wanted = wrong.topologies[one.node], configured(right.topologies[one.node])
        for name, entry in (rails := ethernets(one)).items():
            interface = now.interface(name)
            assert interface and entry["match"]["macaddress"] == interface.mac
            moved = name.replace("ens17", "ens15")
            assert (tuple(entry["addresses"]), entry["mtu"]) == wanted.pop(moved)
        assert len(rails) == 4
        card = ethernets(one, BOND_FILE)
        bond = card.pop("bond0")
        assert set(bond["interfaces"]) == set(card) == set(right.topologies[one.node].interface("bond0").slaves)  # type: ignore[union-attr]
        assert bond["parameters"]["mode"] == "802.3ad"
        assert (tuple(bond["addresses"]), bond["mtu"]) == wanted.pop("bond0")
        assert {name for name, (addresses, _) in wanted.items() if addresses} == {"lo"}
    assert lacking(right) == ()


APART = "".join(f"net.ipv4.conf.all.{name}\n" for name in ("arp_ignore = 1", "arp_announce = 2", "rp_filter = 2"))


def _small(node: HealthyNode) -> None:
    node.machine.write(node.interface("ens2f1np1"), {"mtu": 1500})


def _strict(node: HealthyNode) -> None:
    node.files["/proc/sys/net/ipv4/conf/ens2f1np1/rp_filter"] = "1\n"


@pytest.mark.parametrize(
    ("breaks", "path", "wanted"),
    [
        (_port_without_address, RAIL_FILE, {"ens2f1np1": (["10.2.0.13/24"], 9000)}),
        (_small, RAIL_FILE, {"ens2f1np1": (["10.2.0.13/24"], 9000)}),
        (_strict, SYSCTL_FILE, "net.ipv4.conf.all.rp_filter = 2\n"),
        (_rails_in_one_subnet, SYSCTL_FILE, APART),
        (_spare_port_down, BOND_FILE, {"bond0": (["10.0.0.13/24"], 9000)}),
        (_port_down, "", {}),  # it has all that a file could give it
        (fault("port set to InfiniBand").breaks, "", {}),
    ],
)  # fmt: skip
def test_a_node_gets_what_it_lacks_and_keeps_what_it_has(breaks: Change, path: str, wanted: Any) -> None:
    found = lacking(cluster_with("node2", breaks))
    if not path:
        assert found == ()
        return
    (one,) = found
    assert one.node == "node2" and set(one.wanted) == {path} and f"+++ {path}" in one.diff
    if path == SYSCTL_FILE:
        assert one.wanted[path][1] == wanted
    else:
        entries = {name: (entry["addresses"], entry["mtu"]) for name, entry in ethernets(one, path).items()
                   if "addresses" in entry}  # fmt: skip
        assert entries == wanted


def pfc(*priorities: int) -> str:
    return bytes([8, sum(1 << one for one in priorities), 0, 0, *bytes(132)]).hex()


@pytest.mark.parametrize(
    ("others", "own", "ib_tc", "wanted"),
    [
        (pfc(3), pfc(), None, "dev ens2f1np1 prio-pfc 3:on\n"),
        (pfc(), pfc(), 106, "dev ens2f1np1 prio-pfc 3:on\n"),
        (pfc(), pfc(), None, ""),
        (pfc(3), pfc(4), None, ""),
        (pfc(3), None, None, ""),
    ],
)
def test_a_lossless_class_is_turned_on_where_it_is_off(
    others: str, own: str | None, ib_tc: int | None, wanted: str
) -> None:
    nodes = healthy_nodes(3)
    for name, node in nodes.items():
        node.host["flow_control"] = {"ens2f1np1": own if name == "node1" else others}
    cluster = cluster_of(nodes)
    specs = {**cluster.specs, "node1": replace(cluster.specs["node1"], overrides=Overrides(ib_tc=ib_tc))}
    (unit,) = [one.wanted[PFC_FILE][1] for one in lacking(replace(cluster, specs=specs)) if PFC_FILE in one.wanted] or [
        ""
    ]
    assert unit.partition("/usr/sbin/dcb pfc set ")[2].partition("\n\n")[0] == wanted.removesuffix("\n")


def test_what_was_not_read_is_said_and_nothing_is_written_for_it() -> None:
    nodes = healthy_nodes(2)
    _port_without_address(nodes["node1"])
    del nodes["node1"].host["addresses"]
    (one,) = lacking(cluster_of(nodes))
    assert one.node == "node1" and not one.wanted and "not read" in one.open[0] and not one.diff


def test_a_full_network_is_said() -> None:
    nodes = healthy_nodes(2)
    for node in nodes.values():
        node.machine.addresses["ens2f1np1"] = []
    nodes["node0"].machine.address("ens2f1np1", "10.9.9.8/31")
    (one,) = lacking(cluster_of(nodes))
    assert not one.wanted and "10.9.9.8/31, its rail's network, has no free one" in one.open[0]


def test_the_command_writes_them_and_says_how_to_try_them(tmp_path: Path) -> None:
    def doctor(*words: str) -> subprocess.CompletedProcess[str]:
        return preloaded.run(("doctor", *words, "--netplan", str(tmp_path)), {}, 60.0)

    done = doctor("--example", "articles")
    assert done.returncode == Exit.FINDINGS and '+      addresses: ["192.168.101.10/24"]' in done.stdout
    assert "nothing was applied" in done.stderr and "sudo netplan try" in done.stderr and "bond" in done.stderr
    for path in (RAIL_FILE, BOND_FILE):
        assert (tmp_path / "node3" / path).stat().st_mode & 0o777 == 0o600
    (first, *_) = json.loads(doctor("--example", "articles", "--json").stdout)["netplan"]
    assert (first["node"], first["open"]) == ("node0", []) and "192.168.101.10" in first["diff"]
    done = doctor("--example", "right")
    assert done.returncode == 0 and "lack nothing" in done.stderr
