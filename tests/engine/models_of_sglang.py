"""Runs in the engine's own environment: SGLang makes one rank's part of a model at each degree, without a weight.

argv: a JSON file of rows [folder with a config.json, tensor parallel degree]; the output file, with '' for each row
that the engine takes and its own words for each that it refuses. The other ranks are torch's fake process group;
tensors are on the device `meta`.
"""

# mypy: ignore-errors

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.distributed import parallel_state
from sglang.srt.distributed.device_communicators import shm_broadcast
from sglang.srt.layers.dp_attention import initialize_dp_attention
from sglang.srt.layers.moe import initialize_moe_config
from sglang.srt.model_loader import loader
from sglang.srt.runtime_context import SpawnRanks, publish
from sglang.srt.server_args import prepare_server_args
from torch.testing._internal.distributed.fake_pg import FakeStore


def nobody_answers():
    """Groups of ranks that do not exist."""
    grouped = dist.new_group
    dist.new_group = lambda ranks=None, *_, **__: grouped(ranks, backend="fake")
    shm_broadcast.MessageQueue.create_from_process_group = staticmethod(lambda *_, **__: None)


def refusal(folder, tensor):
    words = ["--model-path", folder, "--tp", str(tensor), "--nnodes", str(tensor), "--dist-init-addr", "127.0.0.1:1",
             "--device", "cpu", "--attention-backend", "torch_native", "--load-format", "dummy",
             "--skip-tokenizer-init"]  # fmt: skip
    args = prepare_server_args(words)
    args.resolve_once()
    publish(args, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0))
    initialize_moe_config()
    dist.init_process_group(backend="fake", rank=0, world_size=tensor, store=FakeStore())
    parallel_state.init_distributed_environment(world_size=tensor, rank=0, local_rank=0, backend="fake")
    parallel_state.initialize_model_parallel()
    initialize_dp_attention(args)
    try:
        config, load = ModelConfig.from_server_args(args), LoadConfig(load_format="dummy")
        with torch.device("meta"):
            loader._initialize_model(config, load, loader._get_quantization_config(config, load))
    except (ValueError, AssertionError) as refused:
        return f"{type(refused).__name__}: {refused}"
    finally:
        parallel_state.destroy_model_parallel()
        parallel_state.destroy_distributed_environment()
    return ""


if __name__ == "__main__":
    nobody_answers()
    rows = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps([refusal(*row) for row in rows]))
