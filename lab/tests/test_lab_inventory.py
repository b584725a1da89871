"""The lab's inventory is read by the same code as any operator's inventory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from l40s_lab.life import inventory
from l40s_lab.life.blueprint import Blueprint, Show
from orchestrator.loading.inventory import load_inventory

BLUEPRINT = Blueprint(
    name="lab",
    directory="/run/l40s-lab/lab",
    level=1,
    prefix="10.70.3",
    nodes=("node0", "node1", "node2", "node3"),
    gangs={"gang0": ("node0", "node1"), "gang1": ("node2", "node3")},
    engine="standin",
    wiring_name="right",
    wiring={"primary": "bond0"},
    fingerprint="f",
    host_link="l40s-12345678",
    shows=(Show(outside="/a", inside="/b"),),
)

GPUS = dict.fromkeys(BLUEPRINT.nodes, 8)


def test_a_level_1_lab_is_an_ordinary_cluster(tmp_path: Path) -> None:
    file = tmp_path / "inventory.yml"
    file.write_text(yaml.safe_dump(inventory.document(BLUEPRINT, GPUS, "sglang-0.5.23"), sort_keys=False))
    read = load_inventory(file)
    assert [(gang.name, [node.name for node in gang.nodes]) for gang in read.gangs] == [
        ("gang0", ["node0", "node1"]),
        ("gang1", ["node2", "node3"]),
    ]
    node = read.gangs[1].nodes[1]
    assert (node.reach.host, node.reach.port, node.reach.user) == ("10.70.3.13", 22, "root")
    assert node.reach.key_file == "/run/l40s-lab/lab/client"
    assert node.reach.known_hosts_file == "/run/l40s-lab/lab/known_hosts"
    assert (node.gpus, node.stack, node.fs_root, node.address) == (8, "sglang-0.5.23", "/", None)


def test_level_0_nodes_differ_in_every_place_that_they_would_share(tmp_path: Path) -> None:
    file = tmp_path / "inventory.yml"
    zero = replace(BLUEPRINT, level=0, prefix="127.77.5", port=22022)
    file.write_text(yaml.safe_dump(inventory.document(zero, GPUS, "sglang-0.5.23"), sort_keys=False))
    nodes = list(load_inventory(file).nodes)
    for name in ("fs_root", "state_dir", "venv", "address", "http_host"):
        assert len({getattr(node, name) for node in nodes}) == len(nodes), name
    assert {node.reach.port for node in nodes} == {22022}
    assert {node.overrides.socket_ifname for node in nodes} == {"lo"}


@pytest.mark.parametrize("accept", [(), ("LIMITS",)])
def test_only_this_machines_own_shortcomings_are_accepted(tmp_path: Path, accept: tuple[str, ...]) -> None:
    file = tmp_path / "inventory.yml"
    file.write_text(yaml.safe_dump(inventory.document(BLUEPRINT, GPUS, "sglang-0.5.23", accept)))
    assert {node.accept for node in load_inventory(file).nodes} == {accept}


def test_a_blueprint_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    blueprint = replace(BLUEPRINT, directory=str(tmp_path))
    blueprint.write()
    assert Blueprint.read(tmp_path) == blueprint


def test_settings_asked_for_are_said_once_where_all_nodes_have_them(tmp_path: Path) -> None:
    variables = {name: {"l40s_env": {"A": "1"}, "l40s_http_port": 8080, "l40s_accept": "MTU"} for name in GPUS}
    variables["node3"] = {**variables["node3"], "l40s_lease": 20}
    asked = replace(BLUEPRINT, variables=variables)
    document = inventory.document(asked, {**GPUS, "node0": 4}, "sglang-0.5.23", ("LIMITS",))
    assert document["all"]["vars"]["l40s_http_port"] == 8080
    assert document["all"]["vars"]["l40s_accept"] == ["MTU", "LIMITS"]
    gangs = document["all"]["children"]["gangs"]["children"]
    assert gangs["gang0"]["hosts"]["node0"] == {"l40s_gpus": 4, "ansible_host": "10.70.3.10"}
    assert gangs["gang1"]["hosts"]["node3"] == {"l40s_lease": 20, "l40s_gpus": 8, "ansible_host": "10.70.3.13"}


def test_a_systemd_node_is_reached_as_its_operator(tmp_path: Path) -> None:
    file = tmp_path / "inventory.yml"
    file.write_text(yaml.safe_dump(inventory.document(replace(BLUEPRINT, level=2), GPUS, "sglang-0.5.23")))
    assert {(node.reach.user, node.reach.become) for node in load_inventory(file).nodes} == {("operator", True)}
