"""One flipped byte anywhere is found, and the proof names its position."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checkpoint.on_node import verify_reblocked
from orchestrator.checkpoint.on_node.reblock import plan, reblock
from orchestrator.checkpoint.on_node.tensors import LENGTH_BYTES, parse_header
from orchestrator.checkpoint.on_node.verify_reblocked import verify
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.jobs import Progress

from .conftest import silent, write


@pytest.fixture
def pair(small: Any, tmp_path: Path) -> tuple[Path, Path]:
    source = write(tmp_path / "a", small)
    reblock(plan(source, 64), tmp_path / "b", jobs=1, report=silent)
    return source, tmp_path / "b"


def flip(path: Path, at: int, bits: int = 0x01) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= bits
    path.write_bytes(data)


def proof_of(pair: tuple[Path, Path]) -> DeployError:
    with pytest.raises(DeployError) as failed:
        verify(plan(pair[0], 64), pair[1], jobs=2, report=silent)
    return failed.value


def tensor_at(shard: Path, name: str) -> int:
    data = shard.read_bytes()
    header = parse_header(data[LENGTH_BYTES : LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")])
    return header.data_start + next(t.begin for t in header.tensors if t.name == name)


def holder(target: Path, name: str) -> Path:
    return next(path for path in sorted(target.glob("*.safetensors")) if f'"{name}"'.encode() in path.read_bytes())


def test_equal_sides_are_counted(pair: tuple[Path, Path], small: Any) -> None:
    seen: list[Progress] = []
    proof = verify(plan(pair[0], 64), pair[1], jobs=2, report=seen.append)
    assert proof.tensors == len(small)
    assert proof.scales == 4
    assert seen[-1].done == seen[-1].total == proof.bytes


def test_a_scale_is_named_with_its_block(pair: tuple[Path, Path]) -> None:
    name = "model.layers.0.self_attn.kv_a_proj_with_mqa.weight_scale_inv"
    shard = holder(pair[1], name)
    flip(shard, tensor_at(shard, name) + (8 * 4 + 3) * 4)
    failure = proof_of(pair)
    assert failure.where == f"{shard}: {name}"
    assert "scale [8, 3]" in failure.what


@pytest.mark.parametrize("bits", [0x01, 0x80, 0xFF])
def test_every_file_is_looked_at(pair: tuple[Path, Path], bits: int) -> None:
    for path in sorted(path for path in pair[1].rglob("*") if path.is_file()):
        size = path.stat().st_size
        for at in {0, 7, 9, size // 3, size // 2, size - 2} & set(range(size)):
            flip(path, at, bits)
            assert proof_of(pair).kind == "differs", (path, at)
            flip(path, at, bits)
    verify(plan(pair[0], 64), pair[1], jobs=1, report=silent)


def test_every_byte_of_a_header(pair: tuple[Path, Path]) -> None:
    shard = min(pair[1].glob("*.safetensors"))
    length = LENGTH_BYTES + int.from_bytes(shard.read_bytes()[:LENGTH_BYTES], "little")
    for at in range(0, length, 17):
        flip(shard, at)
        assert proof_of(pair).kind == "differs", at
        flip(shard, at)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors.index.json"])
def test_a_missing_file(pair: tuple[Path, Path], name: str) -> None:
    (pair[1] / name).unlink()
    assert proof_of(pair).kind == "differs"


def test_the_other_block(pair: tuple[Path, Path]) -> None:
    with pytest.raises(DeployError, match="quantization_config"):
        verify(plan(pair[0], 32), pair[1], jobs=1, report=silent)


def test_a_side_that_cannot_be_read_is_named_as_such(pair: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(descriptor: int, length: int, offset: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(verify_reblocked, "read_exactly", fails)
    failure = proof_of(pair)
    assert failure.kind == "unreadable"
    assert Path(failure.where).parent in pair
    assert "Input/output error" in failure.what
