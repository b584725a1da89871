"""Runs in the engine's own environment: SGLang makes one rank's part of a model at each degree, without a weight.

argv: as of `fake_ranks.main`.
"""

# mypy: ignore-errors

from __future__ import annotations

import torch
from fake_ranks import main, nobody_answers
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.distributed import parallel_state
from sglang.srt.distributed.device_communicators import shm_broadcast
from sglang.srt.layers.dp_attention import initialize_dp_attention
from sglang.srt.layers.moe import initialize_moe_config
from sglang.srt.model_loader import loader
from sglang.srt.runtime_context import SpawnRanks, publish
from sglang.srt.server_args import prepare_server_args


def start(folder, tensor):
    words = ["--model-path", folder, "--tp", str(tensor), "--nnodes", str(tensor), "--dist-init-addr", "127.0.0.1:1",
             "--device", "cpu", "--attention-backend", "torch_native", "--load-format", "dummy",
             "--skip-tokenizer-init"]  # fmt: skip
    args = prepare_server_args(words)
    args.resolve_once()
    publish(args, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0))
    initialize_moe_config()
    parallel_state.init_distributed_environment(world_size=tensor, rank=0, local_rank=0, backend="fake")
    parallel_state.initialize_model_parallel()
    initialize_dp_attention(args)
    return (args,)


def make(args):
    config, load = ModelConfig.from_server_args(args), LoadConfig(load_format="dummy")
    with torch.device("meta"):
        loader._initialize_model(config, load, loader._get_quantization_config(config, load))


if __name__ == "__main__":
    nobody_answers(shm_broadcast)
    main(start, make, parallel_state)
