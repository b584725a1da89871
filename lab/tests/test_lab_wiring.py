from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict, make_dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.hostile import ODD_YAML

from l40s_lab.hardware import sysfs, wiring
from l40s_lab.hardware.infiniband import gid_table
from l40s_lab.hardware.machine import Gpu, Nic, NodeMachine, PcieSwitch
from l40s_lab.hardware.realise import nic_ports, realise
from orchestrator.protocol.errors import InputError


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    document = copy.deepcopy(wiring.load("right"))
    change(document)
    return document


def test_a_wiring_can_be_a_part_of_what_is_written_down() -> None:
    kept = make_dataclass("Kept", ["wiring"])(wiring.load("right"))
    assert yaml.safe_load(yaml.safe_dump(asdict(kept)))["wiring"] == wiring.load("right")


@pytest.mark.parametrize(
    ("change", "place", "found"),
    [
        (lambda d: d.pop("primary"), "w", "primary"),
        (lambda d: d.update(primary="eth9"), "w: primary", "eth9"),
        (lambda d: d.update(cabling=1), "w: cabling", "cabling"),
        (lambda d: d["roots"][0].update(numa="left"), "w: roots[0]: numa", "left"),
        (lambda d: d["roots"][0].update(bus=True), "w: roots[0]: bus", "True"),
        (lambda d: d["roots"][1]["ports"][0].update(card={"gpus": {}}), "w: roots[1]: ports[0]: card", "gpus"),
        (lambda d: d["roots"][2]["ports"][0]["card"]["nic"].pop("ports"), "w: roots[2]: ports[0]: card.nic", "ports"),
        (
            lambda d: d["roots"][2]["ports"][0]["card"]["nic"]["ports"][0].update(state="half"),
            "w: roots[2]: ports[0]: card.nic: ports[0]: state",
            "half",
        ),
        (lambda d: d["bonds"][0].update(slaves=["ens9"]), "w: bonds.bond0", "ens9"),
        (lambda d: d["bonds"][0].update(slaves="ens7f0np0"), "w: bonds[0]: slaves", "a list"),
    ],
)
def test_a_complaint_names_the_place_and_what_was_found(change: Any, place: str, found: str) -> None:
    with pytest.raises(InputError) as refused:
        wiring.parse(changed(change), "w")
    assert refused.value.where == place
    assert found in refused.value.what


def test_an_unknown_wiring_is_answered_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="no wiring 'left'") as refused:
        wiring.load("left")
    assert "right, tcp-only, wrong" in refused.value.fix


@pytest.mark.parametrize("text", ["- 1\n", "a: [\n", ""])
def test_a_file_that_is_no_wiring_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "mine.yml"
    file.write_text(text)
    with pytest.raises(InputError):
        wiring.load(str(file))


def test_right_and_wrong_differ_as_the_articles_tell() -> None:
    right, wrong = (wiring.parse(wiring.load(name), name) for name in ("right", "wrong"))

    def cards_behind_switches(machine: Any) -> int:
        switches = [port.card for root in machine.roots for port in root.ports if isinstance(port.card, PcieSwitch)]
        return sum(isinstance(port.card, Nic) for switch in switches for port in switch.ports)

    assert (cards_behind_switches(right), cards_behind_switches(wrong)) == (2, 1)
    assert (right.primary, wrong.primary) == ("bond0", "ens7f0np0")


@pytest.mark.parametrize("name", wiring.names())
def test_every_wiring_that_ships_is_sound_for_every_node_and_says_what_it_is(name: str) -> None:
    document = wiring.load(name)
    assert wiring.summaries()[name]
    for index in range(wiring.nodes_per_gang(document, name)):
        machine = wiring.parse(document, name, index)
        realise(machine, lab="lab", node=f"node{index}", index=index, address=f"10.9.8.{10 + index}")


def own(tmp_path: Path, text: str) -> str:
    file = tmp_path / "mine.yml"
    file.write_text(text)
    return str(file)


def gpus(machine: Any) -> list[list[Gpu]]:
    switches = [port.card for root in machine.roots for port in root.ports if isinstance(port.card, PcieSwitch)]
    return [[port.card for port in switch.ports if isinstance(port.card, Gpu)] for switch in switches]


def test_a_wiring_can_change_another(tmp_path: Path) -> None:
    change = "base: right\nsystem: {driver: %s}\ngpus: {name: X}\nnames: {bond0: main, mlx5_0: rocep1}\n"
    with pytest.raises(InputError, match=r"found 570\.1, wanted str"):
        wiring.load(own(tmp_path, change % "570.1"))
    mine = own(tmp_path, change % "'570'")
    machine = wiring.parse(wiring.load(mine), mine)
    assert machine.primary == machine.bonds[0].name == "main"
    assert (machine.system.driver, machine.system.cuda) == ("570", 13000)
    assert {gpu.name for switch in gpus(machine) for gpu in switch} == {"X"}
    assert [port.rdma for port in nic_ports(machine)][:2] == ["rocep1", "mlx5_1"]


def test_nodes_differ_in_turn(tmp_path: Path) -> None:
    mine = own(tmp_path, "base: right\nnodes: [{}, {keep_gpus: 3, ports: {'*': {mtu: 1500}}}]\n")
    document = wiring.load(mine)
    machines = [wiring.parse(document, mine, index) for index in range(4)]
    assert [[len(switch) for switch in gpus(machine)] for machine in machines] == [[4, 4], [2, 1], [4, 4], [2, 1]]
    assert {port.mtu for port in nic_ports(machines[3])} == {1500}
    assert machines[0] == machines[2] == wiring.parse(wiring.load("right"), "right")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("base: nowhere\n", "mine.yml: base"),
        ("base: [right]\n", "mine.yml: base"),
        ("base: mine.yml\n", "mine.yml: base"),
        ("base: right\ncable: 1\n", "mine.yml: cable"),
        ("base: right\nnodes: {}\n", "mine.yml: nodes"),
        ("base: right\nnodes: [1]\n", "mine.yml: nodes[0]"),
        ("base: right\nnodes: [{}, {keep_gpus: 9}]\n", "mine.yml: nodes[1]: keep_gpus"),
        ("base: right\nnodes: [{keep_gpus: true}]\n", "mine.yml: nodes[0]: keep_gpus"),
        ("base: right\nports: {eth7: {mtu: 1500}}\n", "mine.yml: ports"),
        ("base: right\nports: {'*': 1}\n", "mine.yml: ports: *"),
        ("base: right\nnames: {eth7: eth8}\n", "mine.yml: names"),
        ("base: right\ngpus: 4\n", "mine.yml: gpus"),
        ("base: right\nnodes_per_gang: 0\n", "mine.yml: nodes_per_gang"),
        ("base: right\nnodes_per_gang: many\n", "mine.yml: nodes_per_gang"),
        ("base: right\nroots: 7\ngpus: {}\n", "mine.yml: roots"),
        ("base: right\nroots: [7, {ports: 8}]\nports: {'*': {}}\n", "mine.yml: roots[0]"),
        ("base: right\nbonds: [7]\nnames: {ens5f0np0: x}\n", "mine.yml: bonds[0]"),
    ],
)
def test_a_change_that_cannot_be_is_refused_by_its_place(tmp_path: Path, text: str, place: str) -> None:
    with pytest.raises(InputError) as refused:
        wiring.load(own(tmp_path, text))
    assert place in refused.value.where


def test_infiniband_ports_have_one_gid_and_no_interface_for_it(node: Callable[..., NodeMachine]) -> None:
    tree = sysfs.render(node("infiniband"))
    port = next(path for path in tree.files if path.endswith("/mlx5_0/ports/1/link_layer")).removesuffix("/link_layer")
    guid = tree.files[port.removesuffix("/ports/1") + "/node_guid"].decode().strip().replace(":", "")
    assert tree.files[f"{port}/link_layer"] == b"InfiniBand\n"
    assert tree.files[f"{port}/gids/0"].decode().strip().replace(":", "") == f"fe80{0:012x}{guid}"
    assert tree.files[f"{port}/gids/1"].decode().strip().strip("0:") == ""
    assert f"{port}/gid_attrs/ndevs/0" in tree.einval
    assert tree.files[f"{port}/lid"] != b"0x0\n"
    assert tree.files[port.split("/infiniband/")[0] + "/class"] == b"0x020700\n"


def test_an_ipv6_address_moves_the_gid_of_the_ipv4_address(node: Callable[..., NodeMachine]) -> None:
    plain, both = node("mixed-names", 0).interface("ens5f0np0"), node("mixed-names", 2).interface("ens5f0np0")
    mapped = [
        [index for index, (gid, kind) in enumerate(gid_table(one)) if ":ffff:" in gid and kind == "RoCE v2"]
        for one in (plain, both)
    ]
    assert mapped == [[3], [5]]
    assert (both.ipv6, both.ipv4) == (("fd00:101::12/64",), ("192.168.101.12/24",))


def test_a_cluster_without_rdma_shows_none(node: Callable[..., NodeMachine]) -> None:
    tree = sysfs.render(node("tcp-only"))
    assert not any("infiniband" in path for path in tree.files)
    assert not any("/module/mlx5" in path for path in tree.files)
    assert any(target.endswith("/drivers/ice") for target in tree.links.values())


@pytest.mark.parametrize("text", ODD_YAML)
def test_yaml_of_any_shape_is_refused_without_a_defect(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.yml").write_text(text)
    with pytest.raises(InputError):
        wiring.parse(wiring.load(str(tmp_path / "odd.yml")), "w")
