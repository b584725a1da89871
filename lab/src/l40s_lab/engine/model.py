"""A small DeepSeek-V3 and a small Qwen3-MoE, generated when needed: every part of them, and text that can be checked.

The first has the parts of the large one (MLA attention, a dense layer, routed experts with a shared one, bf16), with
widths that 8 tensor-parallel ranks can divide (2 MB), or 32 (147 MB); the second is for vLLM, whose attention on CPU
refuses the first: key-value heads, routed experts, 4 ranks. Its weights are random with one exception: the output
row of each letter is the embedding of the letter before it, and the layers add little to the residual stream. So a
greedy generation continues the alphabet, whatever the number of ranks, but only if embedding, layers, all-reduce and
sampling work.
"""

from __future__ import annotations

import json
import math
import random
import struct
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from l40s_lab import files

CANARY_PROMPT = "abcdef"
CANARY_TEXT = "ghij"
"""The model's next text: letters in order, with a after z."""

LETTERS = "abcdefghijklmnopqrstuvwxyz"
BEGIN, END = "<s>", "</s>"

INDEX_FILE = "model.safetensors.index.json"

HIDDEN, LAYERS = 128, 3


@dataclass(frozen=True, slots=True)
class Sizes:
    """The widths of one such model, whose directory and profile have this name.

    query_rank: of the compressed queries, and of the compressed keys and values; 0 where there are key-value heads
    kv_heads:   of a Qwen3-MoE, whose heads are `value` wide; 0 for a DeepSeek-V3
    drafts:     prediction layers behind the others of a DeepSeek-V3, which draft the letter after next
    """

    name: str
    heads: int
    query_rank: int
    nope: int
    rope: int
    value: int
    dense_width: int
    experts: int
    expert_width: int
    kv_heads: int = 0
    drafts: int = 0


TINY = Sizes("tiny-deepseek-v3", 8, 64, 32, 32, 32, dense_width=256, experts=8, expert_width=64)
WIDE = Sizes("tiny-deepseek-v3-tp32", 64, 128, 128, 64, 128, dense_width=18432, experts=32, expert_width=2048)
"""With DeepSeek-V3's own widths of a head and of the feed-forward parts: of 32 ranks each has 576 and 64."""
DRAFTING = Sizes("tiny-deepseek-v3-mtp", 8, 512, 128, 64, 128, dense_width=256, experts=8, expert_width=64, drafts=1)
"""With a prediction layer, for speculative decoding, and with DeepSeek-V3's own widths of a head: vLLM's attention on
CPU takes no others, nor does SGLang's decoding in Triton's interpreter."""
QWEN = Sizes("tiny-qwen3-moe", 8, 0, 0, 0, 64, dense_width=256, experts=8, expert_width=64, kv_heads=4)

EMBEDDING_SPREAD = 1.0
WEIGHT_SPREAD = 0.05
"""Weights are uniformly distributed between minus and plus this."""


def tiny_model(directory: Path, sizes: Sizes = TINY, *, seed: int = 0, letters: str = LETTERS) -> Path:
    """Write the model into `directory` (created if missing) and return it; the same seed gives the same bytes.

    The index is written last: a directory that has one is complete.

    letters: each is answered by the one behind it, the last by the first
    """
    directory.mkdir(parents=True, exist_ok=True)
    vocabulary = byte_vocabulary()
    tensors = dict(_tensors(random.Random(seed), vocabulary, sizes, letters))  # noqa: S311 - weights, not secrets
    _write_json(directory / "config.json", config(sizes))
    _write_json(directory / "tokenizer.json", _tokenizer(vocabulary))
    _write_json(directory / "tokenizer_config.json", _tokenizer_config())
    files.put(directory / "model.safetensors", safetensors(tensors))
    _write_json(
        directory / INDEX_FILE,
        {
            "metadata": {"total_size": sum(len(data) for _, _, data in tensors.values())},
            "weight_map": dict.fromkeys(tensors, "model.safetensors"),
        },
    )
    return directory


def byte_vocabulary() -> dict[str, int]:
    """Token -> id: one token per byte, in the spelling of GPT-2's byte-level BPE, then begin and end, then unused ones.

    264 entries, so that 8 ranks can share the vocabulary.
    """
    tokens = [*sorted(_spelled_bytes()), BEGIN, END]
    tokens += [f"<unused{i}>" for i in range(-len(tokens) % 8)]
    return {token: number for number, token in enumerate(tokens)}


def _spelled_bytes() -> Iterator[str]:
    """GPT-2's `bytes_to_unicode`: printable Latin-1 bytes stand for themselves, the others for U+0100 and on."""
    next_free = 0x100
    for byte in range(256):
        if 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or 0xAE <= byte <= 0xFF:
            yield chr(byte)
        else:
            yield chr(next_free)
            next_free += 1


Tensor = tuple[str, tuple[int, ...], bytes]
"""safetensors' name of the element type, shape, little-endian contents."""


def _embedded(rng: random.Random) -> list[float]:
    return [rng.uniform(-EMBEDDING_SPREAD, EMBEDDING_SPREAD) for _ in range(HIDDEN)]


def _tensors(
    rng: random.Random, vocabulary: Mapping[str, int], sizes: Sizes, letters: str
) -> Iterator[tuple[str, Tensor]]:
    """Names and shapes as in checkpoints of DeepseekV3ForCausalLM, or of Qwen3MoeForCausalLM."""

    def matrix(rows: int, columns: int) -> Tensor:
        drawn, data = rng.randbytes(rows * columns), bytearray(2 * rows * columns)
        data[0::2], data[1::2] = (drawn.translate(half) for half in halves)
        return "BF16", (rows, columns), bytes(data)

    def ones(length: int) -> Tensor:
        return _bf16(length, values=(1.0 for _ in range(length)))

    def grouped_heads(attention: str) -> Iterator[tuple[str, Tensor]]:
        for name, heads in (("q", sizes.heads), ("k", sizes.kv_heads), ("v", sizes.kv_heads)):
            yield f"{attention}{name}_proj.weight", matrix(heads * sizes.value, HIDDEN)
        yield attention + "q_norm.weight", ones(sizes.value)
        yield attention + "k_norm.weight", ones(sizes.value)

    def latent_heads(attention: str) -> Iterator[tuple[str, Tensor]]:
        yield attention + "q_a_proj.weight", matrix(sizes.query_rank, HIDDEN)
        yield attention + "q_a_layernorm.weight", ones(sizes.query_rank)
        yield attention + "q_b_proj.weight", matrix(sizes.heads * (sizes.nope + sizes.rope), sizes.query_rank)
        yield attention + "kv_a_proj_with_mqa.weight", matrix(sizes.query_rank + sizes.rope, HIDDEN)
        yield attention + "kv_a_layernorm.weight", ones(sizes.query_rank)
        yield attention + "kv_b_proj.weight", matrix(sizes.heads * (sizes.nope + sizes.value), sizes.query_rank)

    def gated(prefix: str, width: int) -> Iterator[tuple[str, Tensor]]:
        yield prefix + "gate_proj.weight", matrix(width, HIDDEN)
        yield prefix + "up_proj.weight", matrix(width, HIDDEN)
        yield prefix + "down_proj.weight", matrix(HIDDEN, width)

    _, _, steps = _bf16(256, values=((step / 127.5 - 1) * WEIGHT_SPREAD for step in range(256)))
    halves = steps[0::2], steps[1::2]
    embedding = [_embedded(rng) for _ in range(len(vocabulary))]
    output = [[0.0] * HIDDEN for _ in range(len(vocabulary))]
    for letter, following in zip(letters, letters[1:] + letters[0], strict=True):
        output[vocabulary[following]] = embedding[vocabulary[letter]]
    yield "model.embed_tokens.weight", _rows(embedding)
    yield "lm_head.weight", _rows(output)
    yield "model.norm.weight", ones(HIDDEN)
    for layer in range(LAYERS + sizes.drafts):
        prefix = f"model.layers.{layer}."
        if layer >= LAYERS:
            yield from _draft_inputs(prefix, embedding, output)
        attention = prefix + "self_attn."
        yield prefix + "input_layernorm.weight", ones(HIDDEN)
        yield prefix + "post_attention_layernorm.weight", ones(HIDDEN)
        yield from grouped_heads(attention) if sizes.kv_heads else latent_heads(attention)
        yield attention + "o_proj.weight", matrix(HIDDEN, sizes.heads * sizes.value)
        if layer == 0 and not sizes.kv_heads:
            yield from gated(prefix + "mlp.", sizes.dense_width)
            continue
        yield prefix + "mlp.gate.weight", matrix(sizes.experts, HIDDEN)
        if not sizes.kv_heads:
            yield prefix + "mlp.gate.e_score_correction_bias", ("F32", (sizes.experts,), bytes(4 * sizes.experts))
            yield from gated(prefix + "mlp.shared_experts.", sizes.expert_width)
        for expert in range(sizes.experts):
            yield from gated(f"{prefix}mlp.experts.{expert}.", sizes.expert_width)


def _draft_inputs(prefix: str, embedding: list[list[float]], output: list[list[float]]) -> Iterator[tuple[str, Tensor]]:
    """What a prediction layer has beside a layer's own parts. Of its input, the next letter's embedding and the hidden
    state that gave that letter, it takes the embedding alone: so it says the letter after it."""
    yield prefix + "embed_tokens.weight", _rows(embedding)
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        yield f"{prefix}{norm}.weight", _bf16(HIDDEN, values=(1.0 for _ in range(HIDDEN)))
    takes = (float(column == row) for row in range(HIDDEN) for column in range(2 * HIDDEN))
    yield prefix + "eh_proj.weight", _bf16(HIDDEN, 2 * HIDDEN, values=takes)
    yield prefix + "shared_head.head.weight", _rows(output)


def _rows(rows: list[list[float]]) -> Tensor:
    return _bf16(len(rows), len(rows[0]), values=(value for row in rows for value in row))


def _bf16(*shape: int, values: Iterator[float]) -> Tensor:
    """bfloat16 is the upper half of float32; the lower half is cut off."""
    halves = array("H", struct.pack(f"<{math.prod(shape)}f", *values))
    return "BF16", shape, halves[1::2].tobytes()


def safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """A file: header length (8 bytes, little-endian), JSON header padded with spaces to 8 bytes, contents."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (kind, shape, data) in tensors.items():
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values())


def config(sizes: Sizes) -> dict[str, Any]:
    """Its config.json."""
    vocabulary = byte_vocabulary()
    return {
        **(_qwen(sizes) if sizes.kv_heads else _deepseek(sizes)),
        "torch_dtype": "bfloat16",
        "vocab_size": len(vocabulary),
        "bos_token_id": vocabulary[BEGIN],
        "eos_token_id": vocabulary[END],
        "tie_word_embeddings": False,
        "hidden_size": HIDDEN,
        "intermediate_size": sizes.dense_width,
        "hidden_act": "silu",
        "num_hidden_layers": LAYERS,
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads or sizes.heads,
        "max_position_embeddings": 2048,
        "rope_theta": 10000.0,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": sizes.expert_width,
        "norm_topk_prob": True,
    }


def _qwen(sizes: Sizes) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "head_dim": sizes.value,
        "num_experts": sizes.experts,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "router_aux_loss_coef": 0.001,
    }


def _deepseek(sizes: Sizes) -> dict[str, Any]:
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_nextn_predict_layers": sizes.drafts,
        "q_lora_rank": sizes.query_rank,
        "kv_lora_rank": sizes.query_rank,
        "qk_nope_head_dim": sizes.nope,
        "qk_rope_head_dim": sizes.rope,
        "v_head_dim": sizes.value,
        # SGLang's CPU path reads the scaling's mscale without checking whether there is a scaling
        "rope_scaling": {
            "type": "yarn",
            "factor": 4.0,
            "beta_fast": 32,
            "beta_slow": 1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 512,
        },
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "n_routed_experts": sizes.experts,
        "n_shared_experts": 1,
        "n_group": 2,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "routed_scaling_factor": 2.5,
    }


def _tokenizer(vocabulary: Mapping[str, int]) -> dict[str, Any]:
    """The file of the `tokenizers` library: byte-level BPE without merges."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    special = [
        {
            "id": vocabulary[token],
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for token in (BEGIN, END)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": dict(vocabulary),
            "merges": [],
        },
    }


def _tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
        "chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}",
    }


def _write_json(path: Path, document: Mapping[str, Any]) -> None:
    files.put(path, json.dumps(document, indent=1) + "\n")
