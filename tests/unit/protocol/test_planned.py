"""NCCL_IB_HCA as NCCL reads it."""

from __future__ import annotations

import pytest

from orchestrator.protocol.planned import Layout, names_ports, takes

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


@pytest.mark.parametrize(
    ("layout", "key", "words"),
    [
        (Layout(tensor_parallel=32, nnodes=4, gpus_per_node=8), "TP32", "TP32"),
        (
            Layout(tensor_parallel=8, pipeline_parallel=4, expert_parallel=8, nnodes=4, gpus_per_node=8),
            "TP8 PP4 EP8",
            "PP4 x TP8 with EP8",
        ),
        (Layout(tensor_parallel=8, attention_data_parallel=2, nnodes=1, gpus_per_node=8), "TP8 DP2",
         "TP8 with attention DP2"),
    ],
)  # fmt: skip
def test_a_layout_in_words(layout: Layout, key: str, words: str) -> None:
    assert (layout.key, str(layout)) == (key, words)
    assert Layout.read(layout.as_json()) == layout
