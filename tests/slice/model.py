"""The slice: a DeepSeek-V3 of full depth, cut so that each of a few ranks has the shapes and weights of one of 32.

What tensor parallelism divides is a 32nd of the real one for each rank; everything else is as it is there. Weights are
random, of a size that neither outweighs the embedding nor is lost in it: letters go on with the alphabet (the canary),
and successors of other tokens are random, so that experts are spread.
`python -m tests.slice.model DIR RANKS LAYERS BLOCK JOBS`, BLOCK 0 for channel INT8, by a Python with numpy and
tokenizers.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import NormalDist
from typing import Any, NamedTuple

from tests.gpu.checkpoint import ALPHABET, config_of, fp8_blocks, token, write_documents

ALL_RANKS = 32
LAYERS = 61
REAL = {
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "vocab_size": 129280,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
"""DeepSeek-V3's, as inventory/models has them."""
CUT = ("intermediate_size", "moe_intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size")
CONTEXT = 163840
INT8 = 0
"""In the place of a block's side: one scale for each output channel, in INT8."""
FIRST_WORD = 258
"""Tokens from here on are no bytes."""
_STD = 0.012
"""Of a weight: what the alphabet outweighs after 61 layers."""
_SIZES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "I8": 1}
_SPREAD = {"F8_E4M3": 107.0, "I8": 36.0}
"""Standard deviation of the stored numbers, about a quarter of their range."""


class Tensor(NamedTuple):
    """One tensor of a file; kind: what its numbers are."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: str


class File(NamedTuple):
    """One file to write."""

    path: Path
    tensors: tuple[Tensor, ...]
    seed: int
    dimensions: dict[str, int]


def dimensions(ranks: int, layers: int = LAYERS) -> dict[str, int]:
    """Of the slice for so many ranks."""
    sizes = {name: value * ranks // ALL_RANKS if name in CUT else value for name, value in REAL.items()}
    return {**sizes, "num_hidden_layers": layers}


def profile(name: str, directory: str, sizes: dict[str, int], block: int, graphs: int) -> dict[str, Any]:
    """Its model profile. directory: below the model root; graphs: the largest batch that is captured."""
    described = {
        "name": name,
        "source": "made by tests/slice: the ranks of a few GPUs have the shapes of one of 32",
        "directory": directory,
        "architecture": "DeepseekV3ForCausalLM",
        "quantisation": "int8-channel" if block == INT8 else "fp8-block",
        "shards": sizes["num_hidden_layers"] + 1,
        "cuda_graph_max_bs": graphs,
        "dimensions": sizes,
        "canary": {"prompt": ALPHABET[:6], "max_tokens": 8, "expect_any": [ALPHABET[6:14]]},
    }
    return described if block == INT8 else {**described, "block": [block, block]}


def config(sizes: dict[str, int], block: int) -> dict[str, Any]:
    """Its config.json."""
    quantisation = {"quant_method": "w8a8_int8"} if block == INT8 else fp8_blocks(block)
    return config_of(sizes, quantisation, longest=CONTEXT, groups=8, top_groups=4, rope_factor=40)


def tensors_of(layer: int, sizes: dict[str, int], block: int) -> tuple[Tensor, ...]:
    """Of one layer, as the checkpoint names them."""
    hidden, heads, name = sizes["hidden_size"], sizes["num_attention_heads"], f"model.layers.{layer}"
    attention = f"{name}.self_attn"
    query = sizes["qk_nope_head_dim"] + sizes["qk_rope_head_dim"]
    key_and_value = sizes["qk_nope_head_dim"] + sizes["v_head_dim"]
    linear = (
        (f"{attention}.q_a_proj", sizes["q_lora_rank"], hidden),
        (f"{attention}.q_b_proj", heads * query, sizes["q_lora_rank"]),
        (f"{attention}.kv_a_proj_with_mqa", sizes["kv_lora_rank"] + sizes["qk_rope_head_dim"], hidden),
        (f"{attention}.kv_b_proj", heads * key_and_value, sizes["kv_lora_rank"]),
        (f"{attention}.o_proj", hidden, heads * sizes["v_head_dim"]),
        *_feed_forward(name, layer, sizes),
    )
    norms = (
        (f"{name}.input_layernorm.weight", hidden),
        (f"{name}.post_attention_layernorm.weight", hidden),
        (f"{attention}.q_a_layernorm.weight", sizes["q_lora_rank"]),
        (f"{attention}.kv_a_layernorm.weight", sizes["kv_lora_rank"]),
    )
    quantised = [tensor for part in linear for tensor in _quantised(*part, block)]
    return (*(Tensor(norm, "BF16", (size,), "ones") for norm, size in norms), *quantised, *_router(name, layer, sizes))


def _feed_forward(name: str, layer: int, sizes: dict[str, int]) -> Iterator[tuple[str, int, int]]:
    hidden = sizes["hidden_size"]
    width, places = sizes["intermediate_size"], [f"{name}.mlp"]
    if layer >= sizes["first_k_dense_replace"]:
        width = sizes["moe_intermediate_size"]
        places = [f"{name}.mlp.experts.{expert}" for expert in range(sizes["n_routed_experts"])]
        places.append(f"{name}.mlp.shared_experts")
    for place in places:
        yield f"{place}.gate_proj", width, hidden
        yield f"{place}.up_proj", width, hidden
        yield f"{place}.down_proj", hidden, width


def _router(name: str, layer: int, sizes: dict[str, int]) -> Iterator[Tensor]:
    if layer >= sizes["first_k_dense_replace"]:
        experts = sizes["n_routed_experts"]
        yield Tensor(f"{name}.mlp.gate.weight", "BF16", (experts, sizes["hidden_size"]), "router")
        yield Tensor(f"{name}.mlp.gate.e_score_correction_bias", "F32", (experts,), "zeros")


def _quantised(name: str, rows: int, columns: int, block: int) -> Iterator[Tensor]:
    if block == INT8:
        yield Tensor(f"{name}.weight", "I8", (rows, columns), "numbers")
        yield Tensor(f"{name}.weight_scale", "F32", (rows, 1), "scales of I8")
        return
    yield Tensor(f"{name}.weight", "F8_E4M3", (rows, columns), "numbers")
    scales = (-(-rows // block), -(-columns // block))
    yield Tensor(f"{name}.weight_scale_inv", "F32", scales, "scales of F8_E4M3")


def ends_of(sizes: dict[str, int]) -> tuple[Tensor, ...]:
    """What is in no layer."""
    table = (sizes["vocab_size"], sizes["hidden_size"])
    return (
        Tensor("model.embed_tokens.weight", "BF16", table, "embedding"),
        Tensor("lm_head.weight", "BF16", table, "head"),
        Tensor("model.norm.weight", "BF16", table[1:], "ones"),
    )


def make(folder: Path, sizes: dict[str, int], block: int, jobs: int) -> dict[str, float]:
    """Write it, one file a layer; returns its bytes, the seconds, and how many tensors there are."""
    began, layers = time.monotonic(), sizes["num_hidden_layers"]
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"model-{number + 1:05d}-of-{layers + 1:06d}.safetensors" for number in range(layers + 1)]
    work = [File(paths[layer], tensors_of(layer, sizes, block), layer, sizes) for layer in range(layers)]
    work.insert(0, File(paths[-1], ends_of(sizes), 0, sizes))
    with multiprocessing.Pool(jobs) as pool:
        size = sum(pool.imap_unordered(_write, work))
    where = {tensor.name: file.path.name for file in work for tensor in file.tensors}
    words = {f"Ġw{number}": number for number in range(FIRST_WORD, sizes["vocab_size"])}
    write_documents(folder, config(sizes, block), where, size, words)
    return {"bytes": size, "seconds": round(time.monotonic() - began, 1), "tensors": len(where)}


def _write(file: File) -> int:
    """Returns the bytes of its tensors."""
    import numpy

    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in file.tensors:
        start, end = end, end + _count(tensor) * _SIZES[tensor.dtype]
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    source = numpy.random.default_rng(file.seed)
    with file.path.open("wb", buffering=1 << 20) as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for tensor in file.tensors:
            out.write(_numbers(tensor, source, file.dimensions))
    return end


def _count(tensor: Tensor) -> int:
    total = 1
    for size in tensor.shape:
        total *= size
    return total


def _numbers(tensor: Tensor, source: Any, sizes: dict[str, int]) -> bytes:
    """As they lie in the file."""
    import numpy

    count = _count(tensor)
    if tensor.kind == "numbers":
        random: bytes = source.bytes(count)
        return random.translate(_table(tensor.dtype))
    if tensor.kind.startswith("scales"):
        spread = numpy.exp(0.3 * source.standard_normal(count))
        return bytes((_STD / _SPREAD[tensor.kind.split()[-1]] * spread).astype(numpy.float32).tobytes())
    if tensor.kind == "ones":
        return bytes(numpy.full(count, 0x3F80, dtype=numpy.uint16).tobytes())
    if tensor.kind == "zeros":
        return bytes(4 * count)
    if tensor.kind == "router":
        return _bf16(0.02 * source.standard_normal(count, dtype=numpy.float32))
    table = (sizes["vocab_size"], sizes["hidden_size"])
    embedding = numpy.random.default_rng(99).standard_normal(table, dtype=numpy.float32)
    if tensor.kind == "embedding":
        return _bf16(embedding)
    head = 0.05 * numpy.random.default_rng(98).standard_normal(table, dtype=numpy.float32)
    for letter, following in zip(ALPHABET, ALPHABET[1:] + ALPHABET[0], strict=True):
        head[token(following)] = 0.02 * embedding[token(letter)]
    return _bf16(head)


def _bf16(values: Any) -> bytes:
    """Rounded to the nearest, ties to even."""
    import numpy

    bits = numpy.ascontiguousarray(values, dtype=numpy.float32).view(numpy.uint32)
    return bytes(((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(numpy.uint16).tobytes())


_TABLES: dict[str, bytes] = {}


def _table(dtype: str) -> bytes:
    """For bytes.translate: a random byte becomes a number of a normal distribution, as it is stored."""
    if dtype not in _TABLES:
        normal = NormalDist(0.0, _SPREAD[dtype])
        wanted = [normal.inv_cdf((number + 0.5) / 256) for number in range(256)]
        codes = [_nearest_e4m3(value) if dtype == "F8_E4M3" else round(value) & 0xFF for value in wanted]
        _TABLES[dtype] = bytes(codes)
    return _TABLES[dtype]


def _nearest_e4m3(value: float) -> int:
    """The byte of the nearest FP8 number; 0x7F and 0xFF are no numbers."""
    finite = [code for code in range(256) if code & 0x7F != 0x7F]
    return min(finite, key=lambda code: abs(e4m3(code) - value))


def e4m3(code: int) -> float:
    """What a byte means as FP8 (sign, 4 bits of exponent with bias 7, 3 bits of mantissa)."""
    sign, exponent, mantissa = -1 if code & 0x80 else 1, code >> 3 & 0xF, code & 7
    if exponent == 0:
        return sign * mantissa * 2.0**-9
    return sign * (8 + mantissa) * 2.0 ** (exponent - 10)


if __name__ == "__main__":
    place, ranks, layers, side, processes = sys.argv[1:6]
    print(json.dumps(make(Path(place), dimensions(int(ranks), int(layers)), int(side), int(processes))))
