"""The header is read as strictly as by the official library, which also reads the headers that we write."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.checkpoint.on_node.tensors import (
    HeaderError,
    Tensor,
    encode_header,
    finer,
    header_length,
    misfits,
    padded,
    parse_header,
    scale_shape,
)


def entry(**changes: Any) -> dict[str, Any]:
    return {"dtype": "F8_E4M3", "shape": [2, 3], "data_offsets": [0, 6], **changes}


def text(**entries: Any) -> bytes:
    return json.dumps(entries).encode()


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "does not start"),
        (b" {}", "does not start"),
        (b'{"a": ', "does not end"),
        (text(a=entry()) + b"\n", "does not end"),
        (b"{}}", "not JSON"),
        (b"{\xff}", "not JSON"),
        (b'{"a":' * 20000 + b"}", "not JSON"),
        (text(a={"dtype": "F32"}), "has no dtype"),
        (text(a=[]), "has no dtype"),
        (text(a={**entry(), "extra": 1}), "has no dtype"),
        (text(a=entry(dtype="F7")), "unknown dtype"),
        (text(a=entry(dtype=[])), "unknown dtype"),
        (text(a=entry(shape=[2, -3])), "has shape"),
        (text(a=entry(shape=[2, True])), "has shape"),
        (text(a=entry(data_offsets=[6, 0])), "has shape"),
        (text(a=entry(data_offsets=[0])), "has shape"),
        (text(a=entry(shape=[2, 4])), "needs 8 bytes"),
        (text(a=entry(data_offsets=[1, 7])), "ends at 0"),
        (text(a=entry(), b=entry(data_offsets=[5, 11])), "ends at 6"),
        (text(a=entry(), b=entry(data_offsets=[8, 14])), "ends at 6"),
        (b'{"a":1,"a":2}', "duplicate"),
        (text(__metadata__={"a": 1}), "does not map strings"),
        (text(__metadata__=[]), "does not map strings"),
    ],
)
def test_what_the_library_would_refuse_is_refused(raw: bytes, says: str) -> None:
    with pytest.raises(HeaderError, match=says):
        parse_header(raw)


@pytest.mark.parametrize("prefix", [b"", b"1234567", (10**8 + 1).to_bytes(8, "little"), b"\xff" * 8])
def test_a_length_that_no_file_has(prefix: bytes) -> None:
    with pytest.raises(HeaderError):
        header_length(prefix)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_header_or_a_told_error(raw: bytes) -> None:
    for candidate in (raw, b"{" + raw + b"}"):
        with suppress(HeaderError):
            parse_header(candidate)


WORDS = st.characters(codec="utf-8")
NAMES = st.text(WORDS, min_size=1, max_size=12).filter(lambda name: name != "__metadata__")


@given(
    st.dictionaries(NAMES, st.tuples(st.sampled_from(["F32", "BF16", "F8_E4M3", "U8"]), st.lists(st.integers(0, 4)))),
    st.none() | st.dictionaries(st.text(WORDS), st.just("pt"), max_size=2),
    st.integers(0, 20),
)
def test_what_is_written_is_read_back_by_us_and_by_the_library(
    kinds: dict[str, tuple[str, list[int]]], metadata: dict[str, str] | None, padding: int
) -> None:
    tensors = []
    at = 0
    for name, (dtype, shape) in kinds.items():
        size = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "U8": 1}[dtype]
        for side in shape:
            size *= side
        tensors.append(Tensor(name, dtype, tuple(shape), at, at + size))
        at += size
    head = padded(encode_header(tensors, metadata), padding)
    header = parse_header(head[8:])
    assert {t.name: t for t in header.tensors} == {t.name: t for t in tensors}
    assert header.metadata == metadata
    assert header.data_start == len(head)
    assert header.file_size == len(head) + at
    read = dict(safetensors.deserialize(head + bytes(at)))  # type: ignore[no-untyped-call]
    assert {name: tuple(value["shape"]) for name, value in read.items()} == {t.name: t.shape for t in tensors}


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
