"""The stand-in on GPUs: engines of a few nodes of two ranks, launched as tests/contract launches them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.contract.under_test import PROFILE, EngineUnderTest, Node, stand_in
from tests.support.sources import LAB

PACKAGE = LAB / "standin"


class GpuEngine(EngineUnderTest):
    """Its ranks do not notice the death of a peer, which is the stand-in's default."""

    def __init__(self, folder: Path) -> None:
        maker = stand_in(folder, 0.02)
        maker.settings["STANDIN_PEER_DEATH"] = "ignore"
        super().__init__(maker, folder, model_directory(folder / PROFILE))

    def start_node(self, node_rank: int, *, gpus: int = 2, extra: Sequence[str] = (), **how: Any) -> Node:
        """As the contract's, on GPUs."""
        return super().start_node(node_rank, gpus=gpus, extra=("--device", "cuda", *extra), **how)


def model_directory(path: Path, **changes: Any) -> Path:
    """config.json, an index of 4 shards and the mark that they are missing on purpose, as on a lab's nodes."""
    path.mkdir(parents=True)
    (path / ".standin").touch()
    config = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "num_hidden_layers": 4,
        "num_attention_heads": 128,
        "hidden_size": 512,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "first_k_dense_replace": 3,
        "max_position_embeddings": 4096,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]},
        **changes,
    }
    (path / "config.json").write_text(json.dumps(config))
    shards = {f"weight{number}": f"model-0000{number}-of-00004.safetensors" for number in range(4)}
    (path / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 4 * 2**30}, "weight_map": shards})
    )
    return path


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[GpuEngine]:
    made = GpuEngine(tmp_path)
    yield made
    made.end()


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuEngine]:
    """Two serving nodes of two ranks, shared by tests that leave them unchanged."""
    made = GpuEngine(tmp_path_factory.mktemp("serving"))
    made.start(settings={"NCCL_DEBUG": "INFO", "CUDA_VISIBLE_DEVICES": "5,7"})
    made.ready()
    yield made
    made.end()
