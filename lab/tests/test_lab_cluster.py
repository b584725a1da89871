"""Which nodes a lab has."""

from __future__ import annotations

from pathlib import Path

import pytest

from l40s_lab.life import cluster
from orchestrator.model.errors import InputError

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
