"""NCCL_IB_HCA as NCCL reads it."""

from __future__ import annotations

import pytest

from orchestrator.protocol.network import names_ports, takes

PORTS = (("mlx5_0", 1), ("mlx5_1", 1), ("mlx5_1", 2), ("mlx5_10", 1), ("bnxt_re0", 1))


@pytest.mark.parametrize(
    ("pin", "taken"),
    [
        ("", "mlx5_0:1 mlx5_1:1 mlx5_1:2 mlx5_10:1 bnxt_re0:1"),
        ("=mlx5_0,mlx5_1", "mlx5_0:1 mlx5_1:1 mlx5_1:2"),
        ("=mlx5_1:2", "mlx5_1:2"),
        ("=mlx5_1:2:0", "mlx5_1:2"),
        ("mlx5_1", "mlx5_1:1 mlx5_1:2 mlx5_10:1"),
        ("mlx5_1:1", "mlx5_1:1 mlx5_10:1"),
        ("mlx5", "mlx5_0:1 mlx5_1:1 mlx5_1:2 mlx5_10:1"),
        ("mlx5_0,", "mlx5_0:1"),
        ("^mlx5_1", "mlx5_0:1 bnxt_re0:1"),
        ("^=mlx5_1:1", "mlx5_0:1 mlx5_1:2 mlx5_10:1 bnxt_re0:1"),
        ("=nothing", ""),
    ],
)
def test_the_ports_that_it_takes(pin: str, taken: str) -> None:
    assert [f"{device}:{port}" for device, port in PORTS if takes(pin, device, port)] == taken.split()


@pytest.mark.parametrize(
    ("pin", "names"),
    [("=mlx5_0:1,mlx5_1", ("mlx5_0:1", "mlx5_1")), ("mlx5_0", ()), ("^=mlx5_0", ()), ("", ()), ("=../x,a", ("a",))],
)
def test_the_ports_that_it_names_whole(pin: str, names: tuple[str, ...]) -> None:
    assert names_ports(pin) == names
