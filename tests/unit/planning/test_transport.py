"""Which network carries a checkpoint."""

from __future__ import annotations

import pytest

from orchestrator.model.errors import InputError
from orchestrator.model.topology import Interface, Topology
from orchestrator.planning.choices import data_network


def node(name: str, number: int, *, rail: int = 100_000, shared: bool = True) -> Topology:
    network = "10.1.0" if shared else f"10.{number + 50}.0"
    return Topology(
        node=name,
        interfaces=(
            Interface(name="bond0", operstate="up", speed_mbps=20_000, ipv4=(f"10.0.0.{number}/24",)),
            Interface(name="ens1", operstate="up", speed_mbps=rail, ipv4=(f"{network}.{number}/24",)),
            Interface(name="docker0", operstate="up", speed_mbps=400_000, ipv4=("172.17.0.1/16",)),
            Interface(name="down0", operstate="down", speed_mbps=400_000, ipv4=(f"10.9.0.{number}/24",)),
        ),
    )


def test_the_fastest_network_that_all_share_is_taken() -> None:
    found = data_network({"a": node("a", 1), "b": node("b", 2)})
    assert found.addresses == {"a": "10.1.0.1", "b": "10.1.0.2"}
    assert "100 Gbit/s" in found.reason


def test_the_slowest_end_counts() -> None:
    found = data_network({"a": node("a", 1), "b": node("b", 2, rail=1000)})
    assert found.addresses == {"a": "10.0.0.1", "b": "10.0.0.2"}


def test_a_network_that_not_all_share_is_none() -> None:
    found = data_network({"a": node("a", 1), "b": node("b", 2, shared=False)})
    assert found.addresses["a"] == "10.0.0.1"


def test_the_operator_names_another() -> None:
    found = data_network({"a": node("a", 1), "b": node("b", 2)}, "bond0")
    assert found.addresses == {"a": "10.0.0.1", "b": "10.0.0.2"}
    with pytest.raises(InputError, match="no network on down0"):
        data_network({"a": node("a", 1), "b": node("b", 2)}, "down0")
