"""Runs in the engine's own environment: vLLM makes one rank's part of a model at each degree, without a weight.

argv: as of `fake_ranks.main`.
"""

# mypy: ignore-errors

from __future__ import annotations

import torch
from fake_ranks import main, nobody_answers
from vllm.config import set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.distributed.device_communicators import shm_broadcast
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.kernels.linear.scaled_mm.cpu import CPUFp8BlockScaledMMKernel
from vllm.model_executor.model_loader.utils import initialize_model


def as_on_gpus():
    """No kernel runs: each that a GPU has is taken for there."""
    torch.cpu._is_amx_tile_supported = lambda: True
    CPUFp8BlockScaledMMKernel.can_implement = classmethod(lambda *_: (True, None))
    CpuCommunicator._all_group_ranks_share_shm_group_name = lambda _: False


def start(folder, tensor):
    return folder, tensor


def make(folder, tensor):
    config = EngineArgs(
        model=folder, tensor_parallel_size=tensor, load_format="dummy", skip_tokenizer_init=True,
        enforce_eager=True, distributed_executor_backend="mp",
    ).create_engine_config()  # fmt: skip
    with set_current_vllm_config(config):
        parallel_state.init_distributed_environment(world_size=tensor, rank=0, local_rank=0, backend="fake")
        parallel_state.initialize_model_parallel(tensor)
    with torch.device("meta"):
        initialize_model(config)


if __name__ == "__main__":
    nobody_answers(shm_broadcast)
    as_on_gpus()
    main(start, make, parallel_state)
