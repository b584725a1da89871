"""Checkpoints made of numpy arrays: DeepSeek's layer kinds, shards in several orders, scales in any shard."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from numpy.typing import NDArray

from orchestrator.checkpoint.on_node.reblock import plan, reblock
from orchestrator.protocol.jobs import Progress

Raw = tuple[str, tuple[int, ...], bytes]
"""dtype as safetensors writes it, shape, bytes."""

FP8_VALUES = np.zeros(256, dtype=np.float32)
"""Value of every E4M3FN byte: 1 sign, 4 exponent (bias 7) and 3 mantissa bits; 0x7f and 0xff are NaN."""
for byte in range(256):
    sign, exponent, mantissa = (-1.0) ** (byte >> 7), byte >> 3 & 15, byte & 7
    if byte & 0x7F == 0x7F:
        FP8_VALUES[byte] = np.nan
    elif exponent == 0:
        FP8_VALUES[byte] = sign * mantissa / 8 * 2.0**-6
    else:
        FP8_VALUES[byte] = sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)

WEIGHTS: Mapping[str, tuple[int, int]] = {
    "model.layers.0.self_attn.q_a_proj.weight": (1536, 7168),
    "model.layers.0.self_attn.q_b_proj.weight": (24576, 192),
    "model.layers.0.self_attn.kv_a_proj_with_mqa.weight": (576, 7168),
    "model.layers.0.self_attn.kv_b_proj.weight": (32768, 512),
    "model.layers.0.self_attn.o_proj.weight": (896, 16384),
    "model.layers.0.mlp.gate_proj.weight": (18432, 256),
    "model.layers.0.mlp.up_proj.weight": (18432, 256),
    "model.layers.0.mlp.down_proj.weight": (256, 18432),
    "model.layers.1.mlp.experts.0.gate_proj.weight": (2048, 896),
    "model.layers.1.mlp.experts.0.up_proj.weight": (2048, 896),
    "model.layers.1.mlp.experts.0.down_proj.weight": (896, 2048),
    "model.layers.1.mlp.shared_experts.gate_proj.weight": (2048, 200),
    "model.layers.2.eh_proj.weight": (300, 14336),
}
"""DeepSeek's kinds of FP8 matrices with the dimensions that are cut or cropped; layer 2 stands for MTP."""

CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 2,
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    },
}


def fp8_pair(
    name: str, shape: tuple[int, ...], rng: np.random.Generator, block: tuple[int, int] = (128, 128)
) -> dict[str, Raw]:
    """A weight of random bytes (no NaN) and its scales."""
    weight = rng.integers(0, 255, size=shape, dtype=np.uint8)
    weight[weight == 0x7F] = 0
    grid = (*shape[:-2], -(-shape[-2] // block[0]), -(-shape[-1] // block[1]))
    scale = rng.random(grid, dtype=np.float32) + 1e-4
    return {name: ("F8_E4M3", shape, weight.tobytes()), f"{name}_scale_inv": ("F32", grid, scale.tobytes())}


def deepseek(seed: int = 7, weights: Mapping[str, tuple[int, int]] = WEIGHTS) -> dict[str, Raw]:
    """All layer kinds, norms and the router's bias among them."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, Raw] = {}
    for name, shape in weights.items():
        tensors |= fp8_pair(name, shape, rng)
    tensors["model.layers.0.input_layernorm.weight"] = ("BF16", (7168,), rng.bytes(7168 * 2))
    tensors["model.layers.1.mlp.gate.weight"] = ("BF16", (256, 896), rng.bytes(256 * 896 * 2))
    tensors["model.layers.1.mlp.gate.e_score_correction_bias"] = ("F32", (256,), rng.bytes(1024))
    tensors["model.norm.weight"] = ("BF16", (7,), rng.bytes(14))
    return tensors


def encode(tensors: Mapping[str, Raw], order: Sequence[str], metadata: Mapping[str, str] | None = None) -> bytes:
    """A safetensors file with the data in the order given; not the code under test."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    at = 0
    for name in order:
        dtype, shape, data = tensors[name]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(tensors[name][2] for name in order)


WIDTH = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "BOOL": 1, "U16": 2, "I32": 4, "I64": 8}
ORDERS: Mapping[str, Callable[[Sequence[str], Mapping[str, Raw]], list[str]]] = {
    "official": lambda names, tensors: sorted(names, key=lambda n: (-WIDTH[tensors[n][0]], n)),
    "weight first": lambda names, tensors: sorted(names),
    "scale first": lambda names, tensors: sorted(names, key=lambda n: (n.removesuffix("_scale_inv"), -len(n))),
    "reversed": lambda names, tensors: sorted(names, reverse=True),
    "shuffled": lambda names, tensors: [
        sorted(names)[i] for i in np.random.default_rng(len(names)).permutation(len(names))
    ],
}


def write(
    directory: Path,
    tensors: Mapping[str, Raw],
    *,
    order: str = "official",
    shards: int = 2,
    scales_elsewhere: bool = False,
    config: Mapping[str, Any] = CONFIG,
    single: bool = False,
) -> Path:
    """Write a checkpoint directory with a tokenizer, code in a folder, and a licence."""
    directory.mkdir(parents=True)
    names = sorted(tensors)
    home = {name: number % shards for number, name in enumerate(n for n in names if not n.endswith("_scale_inv"))}
    for name in names:
        if name.endswith("_scale_inv"):
            weight = home.get(name.removesuffix("_scale_inv"), 0)
            home[name] = (weight + 1) % shards if scales_elsewhere else weight
    files = (
        ["model.safetensors"] if single else [f"model-{i + 1:05d}-of-{shards:06d}.safetensors" for i in range(shards)]
    )
    for number, file in enumerate(files):
        held = names if single else [name for name in names if home[name] == number]
        (directory / file).write_bytes(encode(tensors, ORDERS[order](held, tensors), {"format": "pt"}))
    if not single:
        total = sum(len(data) for _, _, data in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": {name: files[home[name]] for name in names}}
        (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    (directory / "tokenizer.json").write_text('{"version": "1.0"}')
    (directory / "inference").mkdir()
    (directory / "inference" / "config.json").write_text("{}")
    (directory / ".gitattributes").write_text("*.safetensors filter=lfs")
    return directory


def official_read(path: Path) -> dict[str, Raw]:
    """The official library's reading of a file. Its names for types are mapped back to the header's."""
    with safetensors.safe_open(str(path), framework="np") as opened:
        kinds = {name: opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118
    entries = safetensors.deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
    return {name: (kinds[name], tuple(entry["shape"]), bytes(entry["data"])) for name, entry in entries}


def official_read_all(directory: Path) -> dict[str, Raw]:
    """Every tensor of a directory by the index's map, or of the single file."""
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        return official_read(directory / "model.safetensors")
    weight_map = json.loads(index.read_text())["weight_map"]
    shards = {file: official_read(directory / file) for file in set(weight_map.values())}
    return {name: shards[file][name] for name, file in weight_map.items()}


def dequantised(tensors: Mapping[str, Raw], name: str, block: tuple[int, int]) -> NDArray[np.float32]:
    """weight[i, j] * scale[i // n, j // k], element by element, in float32."""
    _, shape, data = tensors[name]
    _, grid, scale_data = tensors[f"{name}_scale_inv"]
    weight = FP8_VALUES[np.frombuffer(data, np.uint8)].reshape(shape)
    scale = np.frombuffer(scale_data, np.float32).reshape(grid)
    rows, columns = np.arange(shape[-2]) // block[0], np.arange(shape[-1]) // block[1]
    result: NDArray[np.float32] = weight * scale[..., rows[:, None], columns[None, :]]
    return result


def digest_of(directory: Path) -> dict[str, tuple[int, int, int]]:
    """Size, mtime and a checksum of every file: the meaning of 'the source is intact'."""
    return {
        str(path.relative_to(directory)): (path.stat().st_size, path.stat().st_mtime_ns, zlib.crc32(path.read_bytes()))
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="session")
def real_shapes() -> dict[str, Raw]:
    """Made once: about 80 MB."""
    return deepseek()


SMALL = {
    "model.layers.0.self_attn.kv_a_proj_with_mqa.weight": (576, 256),
    "model.layers.0.mlp.up_proj.weight": (384, 640),
    "model.layers.1.mlp.experts.0.down_proj.weight": (320, 200),
    "model.layers.2.eh_proj.weight": (65, 1025),
}


@pytest.fixture
def small() -> dict[str, Raw]:
    """A checkpoint of less than a megabyte."""
    return deepseek(seed=3, weights=SMALL)


@pytest.fixture
def source(small: dict[str, Raw], tmp_path: Path) -> Path:
    """That checkpoint, written."""
    return write(tmp_path / "a", small)


def silent(_: Progress) -> None:
    """A progress watcher that does nothing."""


def make(source: Path, target: Path, block: int = 64) -> Progress:
    """Write the source with finer blocks."""
    return reblock(plan(source, block), target, jobs=2, report=silent)
