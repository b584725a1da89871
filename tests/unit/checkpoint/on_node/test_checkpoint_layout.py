"""The new shard holds every tensor once, aligned, and shares what can be shared."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.checkpoint.on_node.shard import PAGE, Piece, ShardLayout, lay_out
from orchestrator.checkpoint.on_node.tensors import LENGTH_BYTES, Header, Tensor, parse_header

WIDTH = {"F32": 4, "BF16": 2, "F8_E4M3": 1}


def header(*tensors: tuple[str, str, tuple[int, ...]], data_start: int = 800) -> Header:
    placed = []
    at = 0
    for name, dtype, shape in tensors:
        size = prod(shape) * WIDTH[dtype]
        placed.append(Tensor(name, dtype, shape, at, at + size))
        at += size
    return Header(tuple(placed), {"format": "pt"}, data_start)


def check_whole(source: Header, layout: ShardLayout, changed: Mapping[str, tuple[int, ...]]) -> None:
    """Every byte of the target comes from exactly one place, and it is the right one."""
    made = parse_header(layout.head[LENGTH_BYTES:])
    assert made.file_size == layout.size
    assert {t.name for t in made.tensors} == {t.name for t in source.tensors}
    before = {t.name: t for t in source.tensors}
    from_source = {(piece.target, piece.target + piece.length): piece.source - piece.target for piece in layout.pieces}
    scale_at = {scale.source.name: scale.target for scale in layout.scales}
    for tensor in made.tensors:
        begin, end = made.data_start + tensor.begin, made.data_start + tensor.end
        assert begin % WIDTH[tensor.dtype] == 0
        assert tensor.shape == changed.get(tensor.name, before[tensor.name].shape)
        if tensor.name in changed:
            assert scale_at.pop(tensor.name) == begin
        elif tensor.nbytes:
            shift = next(by for (first, last), by in from_source.items() if first <= begin and end <= last)
            assert begin + shift == source.data_start + before[tensor.name].begin
    assert not scale_at
    copied = sum(piece.length for piece in layout.pieces)
    assert copied == sum(t.nbytes for t in source.tensors if t.name not in changed)


def test_the_order_that_the_library_writes_is_shared_nearly_whole() -> None:
    source = header(
        ("a_scale_inv", "F32", (16, 56)),
        ("bias", "F32", (256,)),
        ("b_scale_inv", "F32", (56, 16)),
        ("norm", "BF16", (7168,)),
        ("a", "F8_E4M3", (2048, 7168)),
        ("b", "F8_E4M3", (7168, 2048)),
    )
    changed = {"a_scale_inv": (32, 112), "b_scale_inv": (112, 32)}
    layout = lay_out(source, changed)
    check_whole(source, layout, changed)
    assert layout.shareable >= 2 * 2048 * 7168 - PAGE
    assert len(layout.head) < 2 * PAGE


def test_no_scale_means_the_same_data() -> None:
    source = header(("norm", "BF16", (40000,)), ("bias", "F32", (3,)))
    layout = lay_out(source, {})
    check_whole(source, layout, {})
    assert layout.shareable > 70000


@given(
    st.lists(st.tuples(st.sampled_from(["F32", "BF16", "F8_E4M3", "scale"]), st.integers(0, 70000)), max_size=12),
    st.integers(8, 5000),
)
def test_any_order_of_any_sizes(kinds: list[tuple[str, int]], data_start: int) -> None:
    tensors = [
        (f"t{i}" + ("_scale_inv" if kind == "scale" else ""), "F32" if kind == "scale" else kind, (size,))
        for i, (kind, size) in enumerate(kinds)
    ]
    source = header(*tensors, data_start=data_start)
    changed = {name: (shape[0] * 4,) for name, _, shape in tensors if name.endswith("_scale_inv")}
    check_whole(source, lay_out(source, changed), changed)


@given(st.integers(0, 20000), st.integers(0, 20000), st.integers(0, 50000))
def test_what_is_shareable_is_whole_pages_on_both_sides(source: int, target: int, length: int) -> None:
    piece = Piece(source, target, length)
    skipped = -source % PAGE
    if piece.shareable:
        assert piece.shareable % PAGE == 0
        assert (source + skipped) % PAGE == (target + skipped) % PAGE == 0
        assert skipped + piece.shareable <= length
