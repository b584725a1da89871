"""Which nodes a lab has, in which network, and its inventory, which is read as any operator's."""

from __future__ import annotations

import ipaddress
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from l40s_lab.life import addressing, cluster, inventory
from l40s_lab.life.addressing import choose_network, make_room
from l40s_lab.life.blueprint import Blueprint, Show
from orchestrator.loading.inventory import load_inventory
from orchestrator.protocol.errors import InputError, NodeError

MINE = """
all:
  vars:
    ansible_user: admin
    l40s_env: {NCCL_DEBUG: WARN}
    l40s_model_root: /data/models
    l40s_http_port: 8080
    l40s_ib_hca: mlx5_7
  children:
    gangs:
      children:
        alpha:
          vars: {l40s_lease: 20, l40s_stack: our-own}
          hosts:
            gpu-[01:02].dc1: {l40s_gpus: 4}
        beta:
          hosts:
            gpu-03.dc1: {ansible_host: 192.168.5.3, l40s_address: 192.168.5.3}
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "hosts.yml"
    path.write_text(MINE)
    return str(path)


def numbered(count: int) -> tuple[str, ...]:
    return tuple(f"node{index}" for index in range(count))


def test_twelve_nodes_make_three_gangs() -> None:
    made = cluster.equal_gangs(numbered(12), 3)
    assert list(made.gangs) == ["gang0", "gang1", "gang2"]
    assert made.gangs["gang2"] == ("node8", "node9", "node10", "node11")
    assert made.nodes == numbered(12)


@pytest.mark.parametrize(("nodes", "gangs", "where"), [(4, 3, "--gangs"), (2, 4, "--gangs"), (241, 1, "--nodes")])
def test_unequal_gangs_and_too_many_nodes_are_refused(nodes: int, gangs: int, where: str) -> None:
    with pytest.raises(InputError) as refused:
        cluster.equal_gangs(numbered(nodes), gangs)
    assert refused.value.where == where


def test_an_inventory_gives_gangs_names_gpus_and_what_means_something_in_a_lab(mine: str) -> None:
    made = cluster.like(mine, same_hardware=False)
    assert made.gangs == {"alpha": ("gpu-01.dc1", "gpu-02.dc1"), "beta": ("gpu-03.dc1",)}
    assert made.gpus == {"gpu-01.dc1": 4, "gpu-02.dc1": 4, "gpu-03.dc1": 8}
    assert made.variables["gpu-01.dc1"] == {
        "l40s_env": {"NCCL_DEBUG": "WARN"},
        "l40s_http_port": 8080,
        "l40s_lease": 20,
        "l40s_gpus": 4,
    }
    assert made.left_out == ("l40s_address", "l40s_ib_hca", "l40s_model_root", "l40s_stack our-own")


def test_spares_stay_spares_and_a_router_is_named(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yml"
    hosts = "{n1: {}, n2: {}, n3: {l40s_role: spare}}"
    path.write_text(
        f"all: {{children: {{gangs: {{children: {{east: {{hosts: {hosts}}}}}}}, router: {{hosts: {{f: {{}}}}}}}}}}"
    )
    made = cluster.like(str(path), same_hardware=False)
    assert made.gangs == {"east": ("n1", "n2", "n3")} and made.variables["n3"] == {"l40s_role": "spare"}
    assert (made.left_out, made.router) == ((), "f")


def test_names_of_devices_stay_where_the_lab_shows_these_very_machines(mine: str) -> None:
    made = cluster.like(mine, same_hardware=True)
    assert made.variables["gpu-03.dc1"]["l40s_ib_hca"] == "mlx5_7"


def test_one_variable_less(mine: str) -> None:
    made = cluster.like(mine, same_hardware=False).without("l40s_env")
    assert not any("l40s_env" in variables for variables in made.variables.values())


@pytest.mark.parametrize("name", ["a:b", "x" * 64])
def test_a_node_that_could_not_be_a_host_name_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts.yml"
    path.write_text(f"gangs: {{children: {{gang0: {{hosts: {{'{name}': {{}}}}}}}}}}\n")
    with pytest.raises(InputError, match="node name"):
        cluster.like(str(path), same_hardware=False)


Network = ipaddress.IPv4Network


@given(
    st.lists(
        st.builds(
            lambda number, length: Network((number, length), strict=False),
            st.integers(0x0A000000, 0x0AFFFFFF),
            st.integers(12, 32),
        ),
        max_size=20,
    )
)
def test_a_network_collides_with_nothing_that_is_used(used: list[Network]) -> None:
    chosen = choose_network("lab", used)
    assert chosen.prefixlen == 24
    assert chosen.subnet_of(Network("10.0.0.0/8"))
    assert not any(chosen.overlaps(network) for network in used)


def test_the_same_name_gets_the_same_network_and_the_next_one_when_it_is_taken() -> None:
    first = choose_network("lab", [])
    assert choose_network("lab", [Network("0.0.0.0/0")]) == first, "a default route owns no address"
    assert choose_network("lab", [first]) != first


def test_no_room_is_told() -> None:
    with pytest.raises(NodeError, match="no free"):
        choose_network("lab", [Network("10.0.0.0/8")])


def test_the_kernel_s_table_of_neighbours_is_made_to_hold_the_lab_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addressing, "_NEIGHBOURS", tmp_path)
    said: list[str] = []
    make_room(500, said.append)  # a namespace that shows no such file
    for name, value in (("gc_thresh2", 4096), ("gc_thresh3", 1024)):
        (tmp_path / name).write_text(f"{value}\n")
    make_room(0, said.append)
    assert said == []
    make_room(7800, said.append)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"gc_thresh2": "8824", "gc_thresh3": "8824"}
    assert "gc_thresh3=8824" in said[0]


def test_where_it_may_not_be_changed_the_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise PermissionError

    monkeypatch.setattr(addressing, "_NEIGHBOURS", tmp_path)
    for name in ("gc_thresh2", "gc_thresh3"):
        (tmp_path / name).write_text("1024")
    monkeypatch.setattr(Path, "write_text", refused)
    with pytest.raises(NodeError) as told:
        make_room(7800, print)
    command = "sudo sysctl -w net.ipv4.neigh.default.gc_thresh2=8824 net.ipv4.neigh.default.gc_thresh3=8824"
    assert command in told.value.fix


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
