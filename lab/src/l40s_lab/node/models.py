"""Model directories like those of checkpoints, without weights: config.json and the index of its shards."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict
from typing import Any

from l40s_lab.engine.model import INDEX_FILE, QWEN, TINY, WIDE, Tensor, safetensors
from l40s_lab.node.tree import FileTree
from orchestrator.loading.profiles import load_profile, profile_names
from orchestrator.model.profile import ModelProfile

_REAL_WEIGHTS = (TINY.name, WIDE.name, QWEN.name)
"""Checkpoints that the lab makes with weights; they are bind-mounted."""
_NO_WEIGHTS = ".standin"
"""Marks for the stand-in a directory whose weights are missing on purpose."""
_FAMILIES = {
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "DeepseekV32ForCausalLM": "deepseek_v32",
    "DeepseekV4ForCausalLM": "deepseek_v4",
    "Glm4MoeForCausalLM": "glm4_moe",
    "GlmMoeDsaForCausalLM": "glm_moe_dsa",
    "GptOssForCausalLM": "gpt_oss",
    "KimiK25ForConditionalGeneration": "kimi_k25",
    "MiniMaxM2ForCausalLM": "minimax_m2",
    "Qwen3MoeForCausalLM": "qwen3_moe",
}
"""model_type by architecture."""
_NAMES = {
    "MiniMaxM2ForCausalLM": {"n_routed_experts": "num_local_experts"},
    "GptOssForCausalLM": {"n_routed_experts": "num_local_experts"},
    "Qwen3MoeForCausalLM": {"n_routed_experts": "num_experts"},
}
_ROPE = {
    "beta_fast": 32,
    "beta_slow": 1,
    "factor": 40,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
    "type": "yarn",
}
_DEEPSEEK = {
    "n_group": 8,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "scoring_func": "sigmoid",
    "routed_scaling_factor": 2.5,
    "rope_scaling": _ROPE,
}


def render(root: str) -> FileTree:
    """A directory for every built-in profile."""
    tree = FileTree()
    for name in profile_names():
        if name in _REAL_WEIGHTS:
            continue
        profile = load_profile(name)
        folder = f"{root}/{profile.directory}"
        tree.put(f"{folder}/{_NO_WEIGHTS}", "an emulated node's model directory: it has an index but no weights")
        tree.put(f"{folder}/config.json", json.dumps(config(profile), indent=2))
        if profile.shards:
            tree.put(f"{folder}/model.safetensors.index.json", json.dumps(index(profile), indent=2))
    return tree


def checkpoint(profile: ModelProfile) -> dict[str, bytes]:
    """File -> content of an FP8 checkpoint with the profile's dimensions, but only two small matrices for weights."""
    side = profile.block[0]
    tensors: dict[str, Tensor] = {}
    for part in _DENSE[:2]:
        tensors[f"model.layers.0.{part}"] = "F8_E4M3", (2 * side, 2 * side), bytes(4 * side * side)
        tensors[f"model.layers.0.{part}_scale_inv"] = "F32", (2, 2), struct.pack("<4f", *[1.0] * 4)
    shard = "model-00001-of-000001.safetensors"
    weights = {"metadata": {}, "weight_map": dict.fromkeys(tensors, shard)}
    documents = {"config.json": config(profile), INDEX_FILE: weights}
    return {name: json.dumps(one, indent=2).encode() for name, one in documents.items()} | {shard: safetensors(tensors)}


def config(profile: ModelProfile) -> dict[str, Any]:
    """config.json with the profile's dimensions and quantisation, in the format of its family."""
    family = _FAMILIES.get(profile.architecture, "deepseek_v3")
    document: dict[str, Any] = {
        "architectures": [profile.architecture],
        "model_type": family,
        **_dimensions(profile),
        "hidden_act": "silu",
        "max_position_embeddings": 163840,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    }
    if profile.dimensions.kv_lora_rank:
        document |= _DEEPSEEK
    if family == "gpt_oss":
        kinds = ("sliding_attention", "full_attention")
        layers = profile.dimensions.num_hidden_layers
        document |= {"sliding_window": 128, "layer_types": [kinds[layer % 2] for layer in range(layers)]}
    if profile.vision:
        encoder = {"num_hidden_layers": profile.vision.layers, "hidden_size": profile.vision.hidden_size}
        text = {**document, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
        document = {"architectures": document["architectures"], "model_type": family, "text_config": text,
                    "vision_config": encoder, "torch_dtype": "bfloat16"}  # fmt: skip
    if quantised := _quantised(profile):
        document["quantization_config"] = quantised
    return document


def _dimensions(profile: ModelProfile) -> dict[str, int]:
    """By this family's names, without dimensions that it does not have."""
    found = {name: value for name, value in asdict(profile.dimensions).items() if value or profile.attention == "mla"}
    for name, theirs in _NAMES.get(profile.architecture, {}).items():
        if name in found:
            found[theirs] = found.pop(name)
    return found


def _quantised(profile: ModelProfile) -> dict[str, Any]:
    kind = profile.quantisation
    if kind == "fp8-block":
        return {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                "weight_block_size": list(profile.block)}  # fmt: skip
    if kind == "mxfp4":
        return {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    if kind == "int4-group":
        weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": profile.group}
        group = {"targets": ["Linear"], "weights": weights, "input_activations": None, "output_activations": None}
        left_out = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]
        return {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": group},
                "ignore": left_out}  # fmt: skip
    if kind == "fp8-channel":
        weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", "dynamic": False}
        inputs = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True}
        group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
        return {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": group},
                "ignore": ["lm_head"]}  # fmt: skip
    return {}


def index(profile: ModelProfile) -> dict[str, Any]:
    """The index of all shards: real tensor names of every layer, without those of single experts."""
    tensors = ["model.embed_tokens.weight"]
    layers = profile.dimensions.num_hidden_layers + profile.dimensions.num_nextn_predict_layers
    for layer in range(layers):
        dense = layer < profile.dimensions.first_k_dense_replace
        tensors += [f"model.layers.{layer}.{part}" for part in (*_ATTENTION, *(_DENSE if dense else _MOE))]
    tensors += ["model.norm.weight", "lm_head.weight"]
    weight_map = {
        tensor: f"model-{1 + position * profile.shards // len(tensors):05d}-of-{profile.shards:06d}.safetensors"
        for position, tensor in enumerate(tensors)
    }
    return {"metadata": {"total_size": profile.bytes} if profile.bytes else {}, "weight_map": weight_map}


_ATTENTION = (
    "input_layernorm.weight", "self_attn.q_a_proj.weight", "self_attn.q_a_layernorm.weight",
    "self_attn.q_b_proj.weight", "self_attn.kv_a_proj_with_mqa.weight", "self_attn.kv_a_layernorm.weight",
    "self_attn.kv_b_proj.weight", "self_attn.o_proj.weight", "post_attention_layernorm.weight",
)  # fmt: skip
_DENSE = ("mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight")
_MOE = (
    "mlp.gate.weight", "mlp.gate.e_score_correction_bias", "mlp.shared_experts.gate_proj.weight",
    "mlp.shared_experts.up_proj.weight", "mlp.shared_experts.down_proj.weight",
)  # fmt: skip
