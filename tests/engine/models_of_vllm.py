"""Runs in the engine's own environment: vLLM makes one rank's part of a model at each degree, without a weight.

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
from torch.testing._internal.distributed.fake_pg import FakeStore
from vllm.config import set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.distributed.device_communicators import shm_broadcast
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.kernels.linear.scaled_mm.cpu import CPUFp8BlockScaledMMKernel
from vllm.model_executor.model_loader.utils import initialize_model


def nobody_answers():
    """Groups of ranks that do not exist."""
    grouped = dist.new_group
    dist.new_group = lambda ranks=None, *_, **__: grouped(ranks, backend="fake")
    shm_broadcast.MessageQueue.create_from_process_group = staticmethod(lambda *_, **__: None)
    torch.cpu._is_amx_tile_supported = lambda: True  # no kernel runs: each that a GPU has is taken for there
    CPUFp8BlockScaledMMKernel.can_implement = classmethod(lambda *_: (True, None))
    CpuCommunicator._all_group_ranks_share_shm_group_name = lambda _: False


def refusal(folder, tensor):
    dist.init_process_group(backend="fake", rank=0, world_size=tensor, store=FakeStore())
    try:
        config = EngineArgs(
            model=folder, tensor_parallel_size=tensor, load_format="dummy", skip_tokenizer_init=True,
            enforce_eager=True, distributed_executor_backend="mp",
        ).create_engine_config()  # fmt: skip
        with set_current_vllm_config(config):
            parallel_state.init_distributed_environment(world_size=tensor, rank=0, local_rank=0, backend="fake")
            parallel_state.initialize_model_parallel(tensor)
        with torch.device("meta"):
            initialize_model(config)
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
