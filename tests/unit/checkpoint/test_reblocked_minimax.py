"""A tiny MiniMax-M2, as SGLang cuts it: refused at a degree, re-blocked by the command that the refusal names, bit by
bit the same, and served there by the profile that `models add` writes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.cli.main import main
from orchestrator.loading.profiles import load_profile
from orchestrator.planning.layout import ABILITIES, obstacles, refuse
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.planned import Layout

from .on_node.conftest import Raw, dequantised, fp8_pair, official_read_all, write

HIDDEN, INNER, HEADS, HEAD = 256, 768, 8, 64
WEIGHTS = {
    "model.layers.0.self_attn.q_proj.weight": (HEADS * HEAD, HIDDEN),
    "model.layers.0.self_attn.k_proj.weight": (4 * HEAD, HIDDEN),
    "model.layers.0.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD),
    "model.layers.0.block_sparse_moe.experts.0.w1.weight": (INNER, HIDDEN),
    "model.layers.0.block_sparse_moe.experts.0.w2.weight": (HIDDEN, INNER),
    "model.layers.0.block_sparse_moe.experts.0.w3.weight": (INNER, HIDDEN),
}
CONFIG: dict[str, Any] = {
    "architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2", "hidden_size": HIDDEN,
    "intermediate_size": INNER, "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": 4,
    "head_dim": HEAD, "vocab_size": 512, "num_local_experts": 1, "num_experts_per_tok": 1,
    "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
}  # fmt: skip
TP4 = Layout(tensor_parallel=4, nnodes=1, gpus_per_node=4)


@pytest.fixture
def tensors() -> dict[str, Raw]:
    """All kinds of its matrices, with norms and the router."""
    made, rng = dict[str, Raw](), np.random.default_rng(5)
    for name, shape in WEIGHTS.items():
        made |= fp8_pair(name, shape, rng)
    made["model.layers.0.block_sparse_moe.gate.weight"] = ("BF16", (1, HIDDEN), rng.bytes(HIDDEN * 2))
    return made | {"model.norm.weight": ("BF16", (HIDDEN,), rng.bytes(HIDDEN * 2))}


def added(directory: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The file of the profile that `models add` writes."""
    assert main(["models", "add", str(directory), "--out", str(file), "--json"]) == 0
    return str(json.loads(capsys.readouterr().out)["file"])


def test_it_is_served_at_the_degree_that_its_stock_blocks_forbid(
    tensors: dict[str, Raw], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = write(tmp_path / "M2", tensors, config=CONFIG), tmp_path / "M2-fine"
    stock = load_profile(added(source, tmp_path / "stock.yml", capsys))
    with pytest.raises(InputError, match="768/4 = 192 is not a multiple of the quantisation block 128") as caught:
        refuse(stock, TP4, ABILITIES, where="gang gang0")
    assert "re-block to 64x64 for TP4" in caught.value.fix
    verb, options = re.findall("`(checkpoint reblock) (.*?)`", caught.value.fix)[0]
    assert main([*verb.split(), str(source), str(target), *options.split(), "--verify"]) == 0
    capsys.readouterr()
    made = official_read_all(target)
    for name in WEIGHTS:
        old = dequantised(tensors, name, (128, 128)).view(np.uint32)
        assert np.array_equal(old, dequantised(made, name, (64, 64)).view(np.uint32)), name
    fine = load_profile(added(target, tmp_path / "fine.yml", capsys))
    assert fine.block == (64, 64) and not obstacles(fine, 4)
    refuse(fine, TP4, ABILITIES, where="gang gang0")
