"""A finer block changes no value, whatever the order and the shard of the scales; the official library agrees."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.turns import by_turns

from orchestrator.checkpoint.on_node.reblock import plan, reblock
from orchestrator.checkpoint.on_node.tensors import odd_scale
from orchestrator.checkpoint.on_node.verify_reblocked import verify
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.jobs import Progress

from .conftest import CONFIG, WEIGHTS, dequantised, digest_of, fp8_pair, make, official_read_all, silent, write

OFFICIAL = ("official", "together")
ARRANGED = [
    (order, scales)
    for scales in ("together", "scales elsewhere")
    for order in ("official", "weight first", "scale first", "reversed", "shuffled")
]
"""How tensors lie in their files: the official order in every run, of the others some."""


@pytest.mark.parametrize(
    "arranged", [OFFICIAL, *by_turns([one for one in ARRANGED if one != OFFICIAL], play=2)], ids=", ".join
)
def test_every_kind_of_layer_dequantises_to_the_same_bits(
    real_shapes: Any, tmp_path: Path, arranged: tuple[str, str]
) -> None:
    order, scales_elsewhere = arranged[0], arranged[1] != "together"
    source = write(tmp_path / "a", real_shapes, order=order, scales_elsewhere=scales_elsewhere)
    before = digest_of(source)
    make(source, tmp_path / "b")
    made = official_read_all(tmp_path / "b")
    assert made.keys() == real_shapes.keys()
    for name, (dtype, shape, data) in real_shapes.items():
        if not name.endswith("_scale_inv"):
            assert made[name] == (dtype, shape, data), name
    names = WEIGHTS if order == "official" else ("model.layers.0.self_attn.kv_a_proj_with_mqa.weight",)
    for name in names:
        old = dequantised(real_shapes, name, (128, 128)).view(np.uint32)
        assert np.array_equal(old, dequantised(made, name, (64, 64)).view(np.uint32)), name
        rows, columns = WEIGHTS[name]
        assert made[f"{name}_scale_inv"][1] == (-(-rows // 64), -(-columns // 64))
    assert digest_of(source) == before
    verify(plan(source, 64), tmp_path / "b", jobs=2, report=silent)


def test_the_directory_is_one_that_an_engine_loads(source: Path, tmp_path: Path) -> None:
    (source / "model-old.safetensors").write_bytes(b"no shard of the index")
    make(source, tmp_path / "b")
    config = json.loads((tmp_path / "b/config.json").read_text())
    assert config["quantization_config"].pop("weight_block_size") == [64, 64]
    wanted = json.loads((source / "config.json").read_text())
    wanted["quantization_config"].pop("weight_block_size")
    assert config == wanted
    index = json.loads((tmp_path / "b/model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(
        len(data) for _, _, data in official_read_all(tmp_path / "b").values()
    )
    assert index["weight_map"] == json.loads((source / "model.safetensors.index.json").read_text())["weight_map"]
    assert sorted(str(p.relative_to(tmp_path / "b")) for p in (tmp_path / "b").rglob("*") if p.is_file()) == [
        "config.json",
        "inference/config.json",
        "model-00001-of-000002.safetensors",
        "model-00002-of-000002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
    ]


def test_a_checkpoint_of_one_file_without_an_index(small: Any, tmp_path: Path) -> None:
    make(write(tmp_path / "a", small, single=True), tmp_path / "b")
    assert not (tmp_path / "b/model.safetensors.index.json").exists()
    verify(plan(tmp_path / "a", 64), tmp_path / "b", jobs=1, report=silent)


@pytest.mark.parametrize("block", [1, 32, 64])
def test_any_divisor(source: Path, small: Any, tmp_path: Path, block: int) -> None:
    make(source, tmp_path / "b", block)
    made = official_read_all(tmp_path / "b")
    for name in (name for name in small if f"{name}_scale_inv" in small):
        old = dequantised(small, name, (128, 128)).view(np.uint32)
        assert np.array_equal(old, dequantised(made, name, (block, block)).view(np.uint32)), name


def test_files_behind_links_as_the_hub_cache_has_them(small: Any, tmp_path: Path) -> None:
    blobs = write(tmp_path / "blobs", small)
    (tmp_path / "a").mkdir()
    for path in blobs.glob("*.*"):
        (tmp_path / "a" / path.name).symlink_to(path)
    make(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b/config.json").is_file()
    assert not any(path.is_symlink() for path in (tmp_path / "b").rglob("*"))
    verify(plan(tmp_path / "a", 64), tmp_path / "b", jobs=1, report=silent)


def test_a_finished_target_is_left_as_it_is(source: Path, tmp_path: Path) -> None:
    make(source, tmp_path / "b")
    before = digest_of(tmp_path / "b")
    again = make(source, tmp_path / "b")
    assert again.resumed == again.total == again.done
    assert digest_of(tmp_path / "b") == before


def test_progress_ends_at_its_total(source: Path, tmp_path: Path) -> None:
    seen: list[Progress] = []
    last = reblock(plan(source, 64), tmp_path / "b", jobs=2, report=seen.append)
    assert last.done == last.total == sum(p.stat().st_size for p in (tmp_path / "b").glob("*.safetensors"))
    assert last.shards_done == last.shards == 2
    assert [progress.done for progress in seen] == sorted(progress.done for progress in seen)


def test_fp8_experts_fused_in_one_tensor(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.experts.gate_up_proj"
    tensors = fp8_pair(name, (3, 192, 576), np.random.default_rng(1))
    make(write(tmp_path / "a", tensors), tmp_path / "b")
    made = official_read_all(tmp_path / "b")
    assert made[f"{name}_scale_inv"][1] == (3, 3, 9)
    assert np.array_equal(dequantised(tensors, name, (128, 128)), dequantised(made, name, (64, 64)))


def test_scales_of_one_byte(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    tensors = {
        "a.weight": ("F8_E4M3", (256, 130), rng.bytes(256 * 130)),
        "a.weight_scale_inv": ("F8_E8M0", (2, 2), bytes((1, 2, 3, 4))),
    }
    make(write(tmp_path / "a", tensors, shards=1), tmp_path / "b")
    assert official_read_all(tmp_path / "b")["a.weight_scale_inv"] == (
        "F8_E8M0",
        (4, 3),
        bytes((1, 1, 2, 1, 1, 2, 3, 3, 4, 3, 3, 4)),
    )


def without(name: str) -> Any:
    return lambda tensors: {key: value for key, value in tensors.items() if key != name}


def with_block(block: Any) -> Any:
    return lambda config: {
        **config,
        "quantization_config": {**config["quantization_config"], "weight_block_size": block},
    }


UP = "model.layers.0.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("change", "block", "kind", "says"),
    [
        ({"tensors": without(UP)}, 64, "broken-source", "no shard contains its weight"),
        ({"tensors": without(f"{UP}_scale_inv")}, 64, "broken-source", "has no "),
        ({"config": with_block([64, 128])}, 32, "broken-source", "blocks of 64x128"),
        ({"config": with_block([64, 64])}, 64, "already", "already"),
        ({"config": lambda c: {**c, "quantization_config": None}}, 64, "not-fp8-block", "quantisation is none"),
        (
            {"config": lambda c: {**c, "quantization_config": {"quant_method": "w8a8_int8"}}},
            64,
            "not-fp8-block",
            "w8a8",
        ),
        ({"config": with_block(["128", 128])}, 64, "not-fp8-block", "fp8"),
        ({}, 96, "not-a-divisor", "is not divisible by 96"),
        ({}, 0, "not-a-divisor", "is not divisible by 0"),
        ({}, -64, "not-a-divisor", "is not divisible by -64"),
        ({}, 256, "not-a-divisor", "is not divisible by 256"),
    ],
)
def test_what_cannot_be_reblocked_is_refused_in_words(
    small: Any, tmp_path: Path, change: dict[str, Any], block: int, kind: str, says: str
) -> None:
    tensors = change.get("tensors", dict)(small)
    config = change.get("config", dict)(CONFIG)
    source = write(tmp_path / "a", tensors, config=config)
    before = digest_of(source)
    with pytest.raises(DeployError) as refused:
        make(source, tmp_path / "b", block)
    assert refused.value.kind == kind
    assert says in refused.value.what
    assert refused.value.fix
    assert not (tmp_path / "b").exists()
    assert digest_of(source) == before


FIRST, SECOND = "model-00001-of-000002.safetensors", "model-00002-of-000002.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.mark.parametrize(
    ("file", "damaged", "says"),
    [
        (SECOND, lambda data: data[:-1], "truncated"),
        (SECOND, lambda data: data[:100], "truncated"),
        (SECOND, lambda _: b"", "ends after 0 bytes"),
        (FIRST, None, "but missing"),
        ("config.json", None, "no such file"),
        ("config.json", lambda _: b'{"quantization_config": ', "cannot be read"),
        (INDEX, lambda _: b'{"weight_map": [1, 2]}', "weight_map"),
        (INDEX, lambda data: data.replace(b"model-00001-of-000002", b"../../etc/passwd"), "outside the directory"),
    ],
)
def test_a_broken_source_is_refused_before_anything_is_written(
    source: Path, tmp_path: Path, file: str, damaged: Callable[[bytes], bytes] | None, says: str
) -> None:
    """damaged: what becomes of the file's bytes; None: there is no such file"""
    if damaged:
        (source / file).write_bytes(damaged((source / file).read_bytes()))
    else:
        (source / file).unlink()
    with pytest.raises(DeployError, match=says):
        make(source, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_source_that_changes_while_it_is_read(source: Path, tmp_path: Path) -> None:
    job = plan(source, 64)
    (source / SECOND).write_bytes((source / SECOND).read_bytes()[:-1])
    with pytest.raises(DeployError) as refused:
        reblock(job, tmp_path / "b", jobs=1, report=silent)
    assert refused.value.kind == "source-changed"
    assert not (tmp_path / "b/config.json").exists()


LIMIT_KIB = 200 * 1024
CHILD = """
import sys
from pathlib import Path
from orchestrator.checkpoint.on_node.reblock import plan, reblock
from orchestrator.checkpoint.on_node.verify_reblocked import verify
job = plan(Path(sys.argv[1]), 64)
reblock(job, Path(sys.argv[2]), jobs=4, report=lambda now: None)
verify(job, Path(sys.argv[2]), jobs=4, report=lambda now: None)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def write_holes(directory: Path, shapes: dict[str, tuple[int, int]], shards: int) -> None:
    """A checkpoint of zeros that takes little disk: its weights are holes."""
    directory.mkdir()
    weight_map: dict[str, str] = {}
    names = list(shapes)
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:06d}.safetensors"
        header: dict[str, object] = {}
        at = 0
        for name in names[number::shards]:
            rows, columns = shapes[name]
            grid = (-(-rows // 128), -(-columns // 128))
            for tensor, dtype, shape, width in (
                (f"{name}_scale_inv", "F32", grid, 4),
                (name, "F8_E4M3", (rows, columns), 1),
            ):
                size = shape[0] * shape[1] * width
                header[tensor] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + size]}
                weight_map[tensor] = file
                at += size
        text = json.dumps(header).encode()
        with (directory / file).open("wb") as out:
            out.write(len(text).to_bytes(8, "little") + text)
            out.truncate(8 + len(text) + at)
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    config = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    (directory / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("shapes", "shards"),
    [
        ({"model.layers.0.mlp.up_proj.weight": (32768, 8192), "model.layers.1.mlp.up_proj.weight": (576, 8192)}, 1),
        (
            {
                f"model.layers.{layer}.mlp.experts.{expert}.{kind}_proj.weight": (8, 8)
                for layer in range(3, 62)
                for expert in range(256)
                for kind in ("gate", "up", "down")
            },
            163,
        ),
    ],
    ids=["one large matrix", "as many tensors as DeepSeek-V3 has"],
)
def test_memory_is_bounded_by_the_number_of_tensors_never_by_their_size(
    tmp_path: Path, shapes: dict[str, tuple[int, int]], shards: int
) -> None:
    write_holes(tmp_path / "a", shapes, shards)
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path / "a"), str(tmp_path / "b")],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert int(child.stdout) < LIMIT_KIB


ODD = {"NaN": np.nan, "infinite": np.inf, "negative": -0.5}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("dtype", ["F32", "F64", "F16", "BF16"])
def test_a_scale_that_no_quantisation_gives_is_named(kind: str, dtype: str) -> None:
    values = np.array([0.0, 0.25, ODD[kind], 1.0], dtype=np.float32)
    raw = {
        "F32": values.tobytes(),
        "F64": values.astype(np.float64).tobytes(),
        "F16": values.astype(np.float16).tobytes(),
        "BF16": (values.view(np.uint32) >> 16).astype(np.uint16).tobytes(),
    }[dtype]
    assert odd_scale(raw, dtype) == (2, kind)
    size = len(raw) // 4
    assert odd_scale(raw[: 2 * size], dtype) is None


def test_zeros_and_unknown_types_are_no_odd_scales() -> None:
    assert odd_scale(np.array([0.0, -0.0, 3e38], dtype=np.float32).tobytes(), "F32") is None
    assert odd_scale(b"\xff\xff", "U8") is None and odd_scale(b"", "F32") is None


@pytest.mark.parametrize(
    ("dtype", "sound", "odd"),
    [
        ("F8_E8M0", b"\0\x01\x7f\xfe", {0xFF: "NaN"}),
        ("F8_E4M3", b"\0\x80\x01\x7e", {0x7F: "NaN", 0xFF: "NaN", 0x81: "negative", 0xFE: "negative"}),
        ("F8_E5M2", b"\0\x80\x7b", {0x7C: "infinite", 0xFC: "infinite", 0x7D: "NaN", 0xFF: "NaN", 0xFB: "negative"}),
        ("F8_E4M3FNUZ", b"\0\x7f", {0x80: "NaN", 0x81: "negative", 0xFF: "negative"}),
        ("F8_E5M2FNUZ", b"\0\x7f", {0x80: "NaN", 0xFF: "negative"}),
    ],
)
def test_scales_of_one_byte_have_odd_values_too(dtype: str, sound: bytes, odd: dict[int, str]) -> None:
    assert odd_scale(sound, dtype) is None
    for value, kind in odd.items():
        assert odd_scale(sound + bytes([value, value]), dtype) == (len(sound), kind)


@pytest.mark.parametrize(("dtype", "width"), [("I32", 4), ("U16", 2), ("BOOL", 1), ("I64", 8)])
def test_scales_that_are_no_floating_point_are_refused_unless_they_are_accepted(
    dtype: str, width: int, tmp_path: Path
) -> None:
    name = "model.layers.0.self_attn.o_proj.weight"
    tensors = fp8_pair(name, (256, 256), np.random.default_rng(7))
    tensors[f"{name}_scale_inv"] = (dtype, (2, 2), bytes(4 * width))
    source = write(tmp_path / "a", tensors)
    with pytest.raises(DeployError, match=f"{name}_scale_inv has scales of the type {dtype}") as told:
        reblock(plan(source, 64), tmp_path / "b", jobs=1, report=silent)
    assert told.value.kind == "odd-scale" and "--accept-scales" in told.value.fix
    reblock(plan(source, 64, accept_scales=True), tmp_path / "b", jobs=1, report=silent)


@pytest.mark.parametrize("kind", ODD)
def test_odd_scales_are_refused_unless_they_are_accepted(kind: str, tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.o_proj.weight"
    tensors = fp8_pair(name, (256, 256), np.random.default_rng(7))
    dtype, shape, raw = tensors[f"{name}_scale_inv"]
    scales = np.frombuffer(raw, dtype=np.float32).copy()
    scales[3] = ODD[kind]
    tensors[f"{name}_scale_inv"] = (dtype, shape, scales.tobytes())
    source = write(tmp_path / "a", tensors)
    with pytest.raises(DeployError, match=f"{name}_scale_inv has a scale that is {kind} at element 3") as told:
        reblock(plan(source, 64), tmp_path / "b", jobs=1, report=silent)
    assert told.value.kind == "odd-scale" and "--accept-scales" in told.value.fix
    job = plan(source, 64, accept_scales=True)
    reblock(job, tmp_path / "b", jobs=1, report=silent)
    verify(job, tmp_path / "b", jobs=1, report=silent)
