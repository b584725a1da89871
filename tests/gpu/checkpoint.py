"""The checkpoint that the proof serves: a DeepSeek-V3 of 80 MB in block FP8 that goes on with the alphabet.

Every part of the architecture is there. Its weights are random; the layers neither outweigh the embedding nor are lost
in it: a greedy generation from letters is known, and the log-probabilities of other tokens show the layers' arithmetic.
A prediction layer behind them drafts the letter after the next.
`python -m tests.gpu.checkpoint make DIR BLOCK` and `... reference DIR OUT.json`, by a Python that has torch.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

ALPHABET = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = 1024
DIMENSIONS = {
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "moe_intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": VOCABULARY,
    "n_routed_experts": 16,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "first_k_dense_replace": 1,
    "q_lora_rank": 512,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "num_nextn_predict_layers": 1,
}
_SHARDS = 2
NONE: Mapping[str, int] = MappingProxyType({})


def prompts() -> dict[str, list[int]]:
    """Token ids by a prompt's name: letters, and random tokens whose log-probabilities the layers decide."""
    randomly = random.Random(7)
    asked = {f"random {number}": [randomly.randrange(260, VOCABULARY) for _ in range(200)] for number in range(6)}
    letters = [token(letter) for letter in ALPHABET * 2]
    return {"letters": letters, **asked}


def profile(block: int, name: str) -> dict[str, Any]:
    """Its model profile: what is started a dozen times compiles and captures no 58 graphs of its prefill each time.
    name: of the directory below the model root"""
    return {
        "name": name,
        "source": "made by tests/gpu",
        "directory": name,
        "architecture": "DeepseekV3ForCausalLM",
        "quantisation": "fp8-block",
        "block": [block, block],
        "shards": _SHARDS,
        "cuda_graph_max_bs": 4,
        "flags": {"0.5": {"--cuda-graph-backend-prefill": "disabled"}},
        "dimensions": DIMENSIONS,
        "canary": {"prompt": "abcdef", "max_tokens": 8, "expect_any": ["ghijklmn"]},
    }


def config(block: int) -> dict[str, Any]:
    """Its config.json."""
    return config_of(DIMENSIONS, fp8_blocks(block), longest=8192, groups=4, top_groups=2, rope_factor=2.0)


def fp8_blocks(side: int) -> dict[str, Any]:
    """`quantization_config` of FP8 in blocks of so many rows and columns."""
    return {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [side, side]}


def config_of(
    dimensions: Mapping[str, int],
    quantisation: Mapping[str, Any],
    *,
    longest: int,
    groups: int,
    top_groups: int,
    rope_factor: float,
) -> dict[str, Any]:
    """config.json of a DeepSeek-V3. longest: tokens of a context; groups: of experts, of which a token takes the best
    top_groups."""
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_nextn_predict_layers": 0,
        **dimensions,
        **dict.fromkeys(("attention_bias", "tie_word_embeddings"), False),
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "ep_size": 1,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": longest,
        "moe_layer_freq": 1,
        "n_group": groups,
        "norm_topk_prob": True,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000,
        "rope_scaling": {
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": rope_factor,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096,
            "type": "yarn",
        },
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "topk_group": top_groups,
        "topk_method": "noaux_tc",
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "quantization_config": dict(quantisation),
    }


def make(folder: Path, block: int) -> None:
    """Write it."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    tensors = _tensors(torch, block)
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(_SHARDS):
        file = f"model-{shard + 1:05d}-of-{_SHARDS:06d}.safetensors"
        part = names[shard * len(names) // _SHARDS : (shard + 1) * len(names) // _SHARDS]
        save_file({name: tensors[name].contiguous() for name in part}, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    write_documents(folder, config(block), weight_map, size)


def write_documents(
    folder: Path, document: Mapping[str, Any], weight_map: Mapping[str, str], size: int, words: Mapping[str, int] = NONE
) -> None:
    """What lies beside the weights; config.json last, so that it shows that all is there.

    document: config.json; size: bytes of all tensors; words: further ones of the tokenizer, by their ids
    """
    index = {"metadata": {"total_size": size}, "weight_map": dict(weight_map)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    generation = {"bos_token_id": 0, "eos_token_id": 1, "do_sample": False}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    _write_tokenizer(folder, words, document["max_position_embeddings"])
    (folder / "config.json").write_text(json.dumps(document, indent=1))


def _tensors(torch: Any, block: int) -> dict[str, Any]:
    tensors: dict[str, Any] = {}
    size = DIMENSIONS
    hidden, heads, layers = size["hidden_size"], size["num_attention_heads"], size["num_hidden_layers"]

    def plain(name: str, values: Any) -> None:
        tensors[name] = values.to(torch.bfloat16)

    def ones(name: str, length: int) -> None:
        plain(name, torch.ones(length))

    def linear(name: str, rows: int, columns: int) -> None:
        tensors[f"{name}.weight"], tensors[f"{name}.weight_scale_inv"] = _quantised(torch, rows, columns, block)

    def gated(name: str, width: int) -> None:
        for part in ("gate_proj", "up_proj"):
            linear(f"{name}.{part}", width, hidden)
        linear(f"{name}.down_proj", hidden, width)

    embedding, head = torch.randn(VOCABULARY, hidden), torch.randn(VOCABULARY, hidden) * 0.05
    for letter, following in zip(ALPHABET, ALPHABET[1:] + ALPHABET[0], strict=True):
        head[token(following)] = embedding[token(letter)] * 0.06
    plain("model.embed_tokens.weight", embedding)
    plain("lm_head.weight", head)
    ones("model.norm.weight", hidden)
    query = size["qk_nope_head_dim"] + size["qk_rope_head_dim"]
    for layer in range(layers + size["num_nextn_predict_layers"]):
        name = f"model.layers.{layer}"
        ones(f"{name}.input_layernorm.weight", hidden)
        ones(f"{name}.post_attention_layernorm.weight", hidden)
        linear(f"{name}.self_attn.q_a_proj", size["q_lora_rank"], hidden)
        ones(f"{name}.self_attn.q_a_layernorm.weight", size["q_lora_rank"])
        linear(f"{name}.self_attn.q_b_proj", heads * query, size["q_lora_rank"])
        linear(f"{name}.self_attn.kv_a_proj_with_mqa", size["kv_lora_rank"] + size["qk_rope_head_dim"], hidden)
        ones(f"{name}.self_attn.kv_a_layernorm.weight", size["kv_lora_rank"])
        keys_and_values = heads * (size["qk_nope_head_dim"] + size["v_head_dim"])
        linear(f"{name}.self_attn.kv_b_proj", keys_and_values, size["kv_lora_rank"])
        linear(f"{name}.self_attn.o_proj", hidden, heads * size["v_head_dim"])
        if layer < size["first_k_dense_replace"]:
            gated(f"{name}.mlp", size["intermediate_size"])
            continue
        plain(f"{name}.mlp.gate.weight", torch.randn(size["n_routed_experts"], hidden) * 0.02)
        tensors[f"{name}.mlp.gate.e_score_correction_bias"] = torch.zeros(size["n_routed_experts"])
        for expert in range(size["n_routed_experts"]):
            gated(f"{name}.mlp.experts.{expert}", size["moe_intermediate_size"])
        gated(f"{name}.mlp.shared_experts", size["moe_intermediate_size"] * size["n_shared_experts"])
    for layer in range(layers, layers + size["num_nextn_predict_layers"]):
        name = f"model.layers.{layer}"
        plain(f"{name}.embed_tokens.weight", embedding)
        for norm in ("enorm", "hnorm", "shared_head.norm"):
            ones(f"{name}.{norm}.weight", hidden)
        plain(f"{name}.eh_proj.weight", torch.eye(hidden, 2 * hidden))
        plain(f"{name}.shared_head.head.weight", head)
    return tensors


def _quantised(torch: Any, rows: int, columns: int, block: int) -> tuple[Any, Any]:
    """(FP8 weight, its scales). The four 64x64 blocks of one 128x128 block have maxima of their own."""
    spread = torch.exp(0.5 * torch.randn(-(-rows // 64), -(-columns // 64)))
    weight = torch.randn(rows, columns) * 0.02
    weight *= spread.repeat_interleave(64, 0)[:rows].repeat_interleave(64, 1)[:, :columns]
    down, across = -(-rows // block), -(-columns // block)
    padded = torch.zeros(down * block, across * block)
    padded[:rows, :columns] = weight
    blocks = padded.view(down, block, across, block)
    scale = (blocks.abs().amax(dim=(1, 3)) / 448.0).clamp(min=1e-12)
    values = (blocks / scale[:, None, :, None]).reshape(down * block, across * block)[:rows, :columns]
    return values.contiguous().to(torch.float8_e4m3fn), scale.float()


def token(letter: str) -> int:
    """Its id by a byte-level tokenizer without merges: two special tokens, then the bytes' characters in order."""
    return 2 + _bytes_alphabet().index(letter)


def _bytes_alphabet() -> list[str]:
    """The 256 characters that byte-level tokenizers write bytes as, sorted (GPT-2's bytes_to_unicode)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    return sorted([*map(chr, printable), *(chr(256 + number) for number in range(256 - len(printable)))])


def _write_tokenizer(folder: Path, words: Mapping[str, int], longest: int) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    special = {"<s>": 0, "</s>": 1}
    letters = {letter: number for number, letter in enumerate(_bytes_alphabet(), start=2)}
    tokenizer = Tokenizer(models.BPE(vocab={**special, **letters, **words}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "model_max_length": longest,
        "clean_up_tokenization_spaces": False,
        "chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def reference(folder: Path, out: Path) -> None:
    """The prompts' log-probabilities in float32 on the CPU, by Transformers, from the dequantised weights."""
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM

    settings = json.loads((folder / "config.json").read_text())
    block = settings.pop("quantization_config")["weight_block_size"][0]
    stored = {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}
    weights = {}
    layers = settings["num_hidden_layers"]
    drafting = tuple(f"model.layers.{layers + layer}." for layer in range(settings["num_nextn_predict_layers"]))
    for name, stored_weight in stored.items():
        if name.endswith("_scale_inv") or name.startswith(drafting):
            continue
        weight, scale = stored_weight.float(), stored.get(f"{name}_scale_inv")
        if scale is not None:
            rows, columns = weight.shape
            weight *= scale.repeat_interleave(block, 0)[:rows].repeat_interleave(block, 1)[:, :columns]
        weights[name] = weight.contiguous()
    with tempfile.TemporaryDirectory() as place:
        save_file(weights, f"{place}/model.safetensors", metadata={"format": "pt"})
        Path(place, "config.json").write_text(json.dumps({**settings, "torch_dtype": "float32"}))
        model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32, attn_implementation="eager").eval()
    said = {}
    with torch.no_grad():
        for name, tokens in prompts().items():
            found = torch.log_softmax(model(torch.tensor([tokens])).logits[0].float(), -1)
            following = [found[place, token].item() for place, token in enumerate(tokens[1:])]
            said[name] = {"next": following, "best": found.argmax(-1).tolist(), "spread": found.std(-1).mean().item()}
    out.write_text(json.dumps(said))


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        reference(Path(sys.argv[2]), Path(sys.argv[3]))
