"""Legal tensor-parallel degrees against the engine's own checks, for the models that people have."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.planning.dimensions import dimensions, head_dim
from orchestrator.planning.parallel import degrees

DEEPSEEK: dict[str, Any] = {
    "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61,
    "num_attention_heads": 128, "num_key_value_heads": 128, "n_routed_experts": 256, "n_shared_experts": 1,
    "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "vocab_size": 129280,
}  # fmt: skip
KIMI = {**DEEPSEEK, "num_attention_heads": 64, "num_key_value_heads": 64, "n_routed_experts": 384}
QWEN = {
    "hidden_size": 4096, "intermediate_size": 12288, "moe_intermediate_size": 1536, "num_hidden_layers": 94,
    "num_attention_heads": 64, "num_key_value_heads": 4, "num_experts": 128, "head_dim": 128,
}  # fmt: skip
MINIMAX = {
    "hidden_size": 3072, "intermediate_size": 1536, "num_hidden_layers": 62, "num_attention_heads": 48,
    "num_key_value_heads": 8, "num_local_experts": 256, "head_dim": 128,
}  # fmt: skip
LLAMA = {
    "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8,
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "block", "allowed"),
    [
        (DEEPSEEK, (128, 128), [1, 2, 4, 8, 16]),
        (DEEPSEEK, (64, 64), [1, 2, 4, 8, 16, 32]),
        (DEEPSEEK, (32, 32), [1, 2, 4, 8, 16, 32, 64]),
        (DEEPSEEK, None, [1, 2, 4, 8, 16, 32, 64, 128]),
        (KIMI, (64, 64), [1, 2, 4, 8, 16, 32]),
        (QWEN, (128, 128), [1, 2, 4]),
        (QWEN, (64, 64), [1, 2, 4, 8]),
        (MINIMAX, (128, 128), [1, 2, 4]),
        (LLAMA, (128, 128), [1, 2, 4, 8, 16, 32]),
        ({"text_config": DEEPSEEK}, (128, 128), [1, 2, 4, 8, 16]),
    ],
)
def test_degrees(config: dict[str, Any], block: tuple[int, int] | None, allowed: list[int]) -> None:
    size = dimensions(config)
    found = degrees(size, block, head_dim=head_dim(config, size))
    assert [degree.tensor_parallel for degree in found if not degree.refusal] == allowed


def test_the_reason_is_the_arithmetic() -> None:
    refusals = {d.tensor_parallel: d.refusal for d in degrees(dimensions(DEEPSEEK), (128, 128), head_dim=0)}
    assert refusals[32] == "moe_intermediate_size 2048 / 32 = 64 is 0.5 blocks of 128"
    dense = dimensions({**DEEPSEEK, "moe_intermediate_size": 4096})
    refusals = {d.tensor_parallel: d.refusal for d in degrees(dense, (128, 128), head_dim=0)}
    assert refusals[32] == "intermediate_size 18432 / 32 = 576 is 4.5 blocks of 128"


def test_a_config_that_says_nothing() -> None:
    assert dimensions({"hidden_size": "large", "num_experts": None}).hidden_size == 0
