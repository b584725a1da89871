"""A DeepSeek-V3 of about 2 MB, generated when needed: every part of the architecture, and text that can be checked.

It has the parts of the large one (MLA attention, a dense layer, routed experts with a shared one, bf16), with widths
that 1, 2, 4 and 8 tensor-parallel ranks can divide. Its weights are random with one exception: the output row of each
letter is the embedding of the letter before it, and the layers add little to the residual stream. So a greedy
generation continues the alphabet, whatever the number of ranks, but only if embedding, layers, all-reduce and sampling
work.
"""

from __future__ import annotations

import json
import random
import struct
from array import array
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

CANARY_PROMPT = "abcdef"
CANARY_TEXT = "ghij"
"""The model's next text: letters in order, with a after z."""

LETTERS = "abcdefghijklmnopqrstuvwxyz"
BEGIN, END = "<s>", "</s>"

INDEX_FILE = "model.safetensors.index.json"

HIDDEN, LAYERS, HEADS, DENSE_WIDTH = 128, 3, 8, 256
QUERY_RANK, KEY_VALUE_RANK, NOPE, ROPE, VALUE = 64, 64, 32, 32, 32
EXPERTS, EXPERT_WIDTH = 8, 64

EMBEDDING_SPREAD = 1.0
WEIGHT_SPREAD = 0.05
"""Weights are uniformly distributed between minus and plus this."""


def tiny_model(directory: Path, *, seed: int = 0) -> Path:
    """Write the model into `directory` (created if missing) and return it; the same seed gives the same bytes.

    The index is written last: a directory that has one is complete.
    """
    directory.mkdir(parents=True, exist_ok=True)
    vocabulary = byte_vocabulary()
    tensors = dict(_tensors(random.Random(seed), vocabulary))  # noqa: S311 - weights, not secrets
    _write_json(directory / "config.json", _config(vocabulary))
    _write_json(directory / "tokenizer.json", _tokenizer(vocabulary))
    _write_json(directory / "tokenizer_config.json", _tokenizer_config())
    _write(directory / "model.safetensors", _safetensors(tensors))
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


def _tensors(rng: random.Random, vocabulary: Mapping[str, int]) -> Iterator[tuple[str, Tensor]]:
    """Names and shapes as in checkpoints of DeepseekV3ForCausalLM."""

    def matrix(rows: int, columns: int) -> Tensor:
        return _bf16(rows, columns, values=(rng.uniform(-WEIGHT_SPREAD, WEIGHT_SPREAD) for _ in range(rows * columns)))

    def ones(length: int) -> Tensor:
        return _bf16(length, values=(1.0 for _ in range(length)))

    def gated(prefix: str, width: int) -> Iterator[tuple[str, Tensor]]:
        yield prefix + "gate_proj.weight", matrix(width, HIDDEN)
        yield prefix + "up_proj.weight", matrix(width, HIDDEN)
        yield prefix + "down_proj.weight", matrix(HIDDEN, width)

    embedding = [
        [rng.uniform(-EMBEDDING_SPREAD, EMBEDDING_SPREAD) for _ in range(HIDDEN)] for _ in range(len(vocabulary))
    ]
    output = [[0.0] * HIDDEN for _ in range(len(vocabulary))]
    for letter, following in zip(LETTERS, LETTERS[1:] + LETTERS[0], strict=True):
        output[vocabulary[following]] = embedding[vocabulary[letter]]
    yield "model.embed_tokens.weight", _rows(embedding)
    yield "lm_head.weight", _rows(output)
    yield "model.norm.weight", ones(HIDDEN)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        attention = prefix + "self_attn."
        yield prefix + "input_layernorm.weight", ones(HIDDEN)
        yield prefix + "post_attention_layernorm.weight", ones(HIDDEN)
        yield attention + "q_a_proj.weight", matrix(QUERY_RANK, HIDDEN)
        yield attention + "q_a_layernorm.weight", ones(QUERY_RANK)
        yield attention + "q_b_proj.weight", matrix(HEADS * (NOPE + ROPE), QUERY_RANK)
        yield attention + "kv_a_proj_with_mqa.weight", matrix(KEY_VALUE_RANK + ROPE, HIDDEN)
        yield attention + "kv_a_layernorm.weight", ones(KEY_VALUE_RANK)
        yield attention + "kv_b_proj.weight", matrix(HEADS * (NOPE + VALUE), KEY_VALUE_RANK)
        yield attention + "o_proj.weight", matrix(HIDDEN, HEADS * VALUE)
        if layer == 0:
            yield from gated(prefix + "mlp.", DENSE_WIDTH)
            continue
        yield prefix + "mlp.gate.weight", matrix(EXPERTS, HIDDEN)
        yield prefix + "mlp.gate.e_score_correction_bias", ("F32", (EXPERTS,), bytes(4 * EXPERTS))
        yield from gated(prefix + "mlp.shared_experts.", EXPERT_WIDTH)
        for expert in range(EXPERTS):
            yield from gated(f"{prefix}mlp.experts.{expert}.", EXPERT_WIDTH)


def _rows(rows: list[list[float]]) -> Tensor:
    return _bf16(len(rows), len(rows[0]), values=(value for row in rows for value in row))


def _bf16(*shape: int, values: Iterator[float]) -> Tensor:
    """bfloat16 is the upper half of float32; the lower half is cut off."""
    halves = array("H", struct.pack(f"<{_product(shape)}f", *values))
    return "BF16", shape, halves[1::2].tobytes()


def _product(shape: tuple[int, ...]) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size


def _safetensors(tensors: Mapping[str, Tensor]) -> bytes:
    """The format: header length (8 bytes, little-endian), JSON header padded with spaces to 8 bytes, contents."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (kind, shape, data) in tensors.items():
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values())


def _config(vocabulary: Mapping[str, int]) -> dict[str, Any]:
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "torch_dtype": "bfloat16",
        "vocab_size": len(vocabulary),
        "bos_token_id": vocabulary[BEGIN],
        "eos_token_id": vocabulary[END],
        "tie_word_embeddings": False,
        "hidden_size": HIDDEN,
        "intermediate_size": DENSE_WIDTH,
        "hidden_act": "silu",
        "num_hidden_layers": LAYERS,
        "num_nextn_predict_layers": 0,
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "q_lora_rank": QUERY_RANK,
        "kv_lora_rank": KEY_VALUE_RANK,
        "qk_nope_head_dim": NOPE,
        "qk_rope_head_dim": ROPE,
        "v_head_dim": VALUE,
        "max_position_embeddings": 2048,
        "rope_theta": 10000.0,
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
        "n_routed_experts": EXPERTS,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": EXPERT_WIDTH,
        "n_group": 2,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
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
    _write(path, (json.dumps(document, indent=1) + "\n").encode())


def _write(path: Path, contents: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(contents)
    partial.replace(path)
