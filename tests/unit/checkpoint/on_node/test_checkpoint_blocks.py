"""The rule of finer blocks against numpy's own indexing, over all shapes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.checkpoint.on_node.blocks import finer, misfits, scale_shape
from orchestrator.checkpoint.on_node.header import Tensor

DIVISORS = st.sampled_from([1, 2, 3, 4, 6])


@given(
    st.lists(st.integers(1, 3), max_size=1),
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.tuples(st.sampled_from([6, 12]), st.sampled_from([4, 12])),
    st.tuples(DIVISORS, st.sampled_from([1, 2, 4])),
    st.sampled_from([np.uint8, np.uint16, np.uint32, np.uint64]),
)
def test_every_element_keeps_its_scale(
    experts: list[int], size: tuple[int, int], old: tuple[int, int], parts: tuple[int, int], kind: type[np.uint8]
) -> None:
    new = (old[0] // parts[0], old[1] // parts[1])
    weight = (*experts, *size)
    grid = scale_shape(weight, old)
    scales = np.arange(1, 1 + int(np.prod(grid))).astype(kind).reshape(grid)
    made = np.frombuffer(finer(scales.tobytes(), weight, scales.itemsize, old, new), kind)
    made = made.reshape(scale_shape(weight, new))
    i, j = np.arange(size[0])[:, None], np.arange(size[1])[None, :]
    assert np.array_equal(scales[..., i // old[0], j // old[1]], made[..., i // new[0], j // new[1]])


@pytest.mark.parametrize(
    ("rows", "before", "after"), [(576, 5, 9), (18432, 144, 288), (2048, 16, 32), (1, 1, 1), (65, 1, 2), (129, 2, 3)]
)
def test_counts_of_blocks_are_rounded_up(rows: int, before: int, after: int) -> None:
    assert scale_shape((rows, 7168), (128, 128)) == (before, 56)
    assert scale_shape((rows, 7168), (64, 64)) == (after, 112)


def tensor(name: str, dtype: str, *shape: int) -> Tensor:
    return Tensor(name, dtype, shape, 0, 0)


@pytest.mark.parametrize(
    ("tensors", "found"),
    [
        ([tensor("w", "F8_E4M3", 256, 200), tensor("w_scale_inv", "F32", 2, 2)], []),
        ([tensor("w", "F8_E4M3", 256, 200)], ["SCALE-MISSING"]),
        ([tensor("w", "F8_E5M2", 2, 256, 200)], ["SCALE-MISSING"]),
        ([tensor("w", "F8_E4M3", 256)], []),
        ([tensor("w", "BF16", 256, 200)], []),
        ([tensor("w_scale_inv", "F32", 2, 2)], ["SCALE-ORPHAN"]),
        ([tensor("w", "BF16", 256, 200), tensor("w_scale_inv", "F32", 2, 2)], ["SCALE-ORPHAN"]),
        ([tensor("w", "F8_E4M3", 256, 200), tensor("w_scale_inv", "F32", 4, 4)], ["SCALE-SHAPE"]),
        ([tensor("w", "F8_E4M3", 256, 200), tensor("w_scale_inv", "F32", 1)], ["SCALE-SHAPE"]),
        ([tensor("w", "F8_E4M3", 2, 256, 200), tensor("w_scale_inv", "F32", 2, 2)], ["SCALE-SHAPE"]),
    ],
)
def test_tensors_that_the_block_does_not_explain(tensors: list[Tensor], found: list[str]) -> None:
    assert [misfit.id for misfit in misfits({t.name: t for t in tensors}, (128, 128))] == found
