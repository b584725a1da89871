"""Runs in the engine's own environment: SGLang's own functions on command lines for an L40S.

No GPU is needed: CUDA's answers are an L40S's (SM89, 46068 MiB), kernel packages are empty stubs that only import.
argv: a JSON file of rows {words, before, loaded, layers}, with bytes before and after the weights; the output file;
where another version's sources are unpacked, of which only the arguments are resolved.
"""

# mypy: ignore-errors

from __future__ import annotations

import gc
import importlib.abc
import importlib.machinery
import json
import sys
import types
from pathlib import Path
from types import SimpleNamespace

MIB = 46068


class _Anything:
    def __init__(self, *_, **__):
        pass

    def __call__(self, *words, **_):
        return words[0] if len(words) == 1 and callable(words[0]) else self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()

    def __mro_entries__(self, _):
        return (object,)


class _Empty(types.ModuleType):
    __version__ = "99.0"

    def __init__(self, name):
        super().__init__(name)
        self.__path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("sgl_kernel", "flashinfer", "deep_gemm"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Empty(spec.name)

    def exec_module(self, module):
        pass


def pretend():
    import torch

    l40s = SimpleNamespace(major=8, minor=9, total_memory=MIB << 20, multi_processor_count=142, name="NVIDIA L40S",
                           warp_size=32, shared_memory_per_block_optin=101376)  # fmt: skip
    torch.version.cuda = "13.0"
    for name, value in {"is_available": True, "get_device_capability": (8, 9), "get_device_name": l40s.name,
                        "device_count": 8, "get_device_properties": l40s, "current_device": 0}.items():  # fmt: skip
        setattr(torch.cuda, name, lambda *_, value=value: value)
    import sglang.srt.utils.common as common

    common.get_nvgpu_memory_capacity = lambda: MIB
    gc.collect = lambda *_: 0  # the engine collects before it reads memory, in every row: two thirds of the time


def of_another_version(folder):
    """Its sources instead of the installed ones: its models' names may be in the installed Transformers by now."""
    from transformers.models.auto.configuration_auto import _LazyConfigMapping as Mapping

    register = Mapping.register
    Mapping.register = lambda self, key, value, **_: register(self, key, value, exist_ok=True)
    sys.path.insert(0, folder)


def resolved(row):
    """Of a version before 0.5.23, which resolves while it parses."""
    from sglang.srt.server_args import prepare_server_args

    args = prepare_server_args(row["words"])
    chunk = getattr(args, "_resolved", lambda: args)().chunked_prefill_size
    return {"fraction": args.mem_fraction_static, "chunk": chunk}


def answer(row):
    import torch
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.mem_cache import kv_cache_configurator as kv
    from sglang.srt.model_executor import pool_configurator as pools
    from sglang.srt.server_args import prepare_server_args

    args = prepare_server_args(row["words"])
    args.resolve_once()
    said = args.resolved_dict()
    fraction, dtype = said["mem_fraction_static"], said["kv_cache_dtype"]
    config = ModelConfig.from_server_args(args)
    tensor = said["tp_size"] // said["attn_dp_size"]
    kv.get_schedule = lambda: SimpleNamespace(
        mem_fraction_static=fraction, max_total_tokens=said["max_total_tokens"], prefill_max_requests=None
    )
    graphs = SimpleNamespace(cuda_graph_config=SimpleNamespace(prefill=SimpleNamespace(
        full_prefill_max_req=None, backend="disabled")))  # fmt: skip
    kv.get_exec = lambda: SimpleNamespace(graph=graphs)
    kv.get_disagg = lambda: SimpleNamespace(disaggregation_mode="null")
    kv.get_mm = lambda: SimpleNamespace(mm_feature_transport=None)
    kv.mm_runtime_reservation_gb = lambda **_: 0.0
    world = SimpleNamespace(cpu_group=None)
    kv.get_parallel = lambda: SimpleNamespace(launch_world_size=1, world_group=world, pp_size=1)
    pools.get_parallel = lambda: SimpleNamespace(attn_tp_size=tensor, attn_dcp_size=1)
    kv.get_available_gpu_memory = lambda *_, **__: row["loaded"] / (1 << 30)
    element = torch.float8_e4m3fn if dtype.startswith("fp8") else torch.bfloat16
    mla = bool(getattr(config.hf_text_config, "kv_lora_rank", None))
    import sglang.srt.layers.cp.utils as cp

    cp.get_glm_dsa_layer_split_effective_num_layers = lambda _, layers: layers
    holder = SimpleNamespace(
        model_config=config, kv_cache_dtype=element, kv_cache_dtype_str=dtype, use_mla_backend=mla,
        server_args=SimpleNamespace(enable_hisparse=False), device="cuda", gpu_id=0, mambaish_config=None,
        is_draft_worker=False, post_capture_kv_active=False,
    )  # fmt: skip
    free = kv.KVCacheConfigurator._profile_available_bytes(holder, row["before"] / (1 << 30))
    pool = _of_windows(pools, holder, said) if config.is_hybrid_swa else _plain(pools, holder, row, said)
    tokens = pool.calculate_pool_sizes(free, said["page_size"]).max_total_num_tokens
    tokens = kv.KVCacheConfigurator._apply_token_constraints(holder, tokens)
    return {
        "fraction": fraction, "tokens": tokens, "request_table": _request_table(kv, holder, said, tokens),
        "attention_groups": said["attn_dp_size"], "chunk": said["chunked_prefill_size"],
    }  # fmt: skip


def _request_table(kv, holder, said, tokens):
    """Bytes of ReqToTokenPool.req_to_token, by the engine's own number of requests and columns."""
    import sglang.srt.mem_cache.allocation_sizing as sizing

    kv.get_schedule = lambda: SimpleNamespace(max_running_requests=said["max_running_requests"])
    holder.attn_dp_size = said["attn_dp_size"]
    sizing.max_speculative_num_draft_tokens = lambda: said["speculative_num_draft_tokens"]
    sizing.get_alloc_page_size = lambda: said["page_size"]
    sizing.get_spec = lambda: SimpleNamespace(speculative_algorithm=said["speculative_algorithm"])
    requests = kv.KVCacheConfigurator.resolve_max_num_reqs(holder, tokens)
    columns = holder.model_config.context_len + sizing.get_req_to_token_extra_context_len()
    return (requests + 1) * columns * 4


def _of_windows(pools, holder, said):
    """Of a model with sliding-window layers, as create_memory_pool_configurator makes it."""
    config = holder.model_config
    pools.get_schedule = lambda: SimpleNamespace(swa_full_tokens_ratio=said["swa_full_tokens_ratio"] or 0.8)
    pools.get_memory = lambda: SimpleNamespace(enable_unified_memory=False)
    pools._dflash_draft_cell_size = lambda _: 0
    holder.layer_info = SimpleNamespace(
        full_attention_layer_ids=config.full_attention_layer_ids, swa_attention_layer_ids=config.swa_attention_layer_ids
    )
    holder.sliding_window_size, holder.page_size = config.sliding_window_size, said["page_size"]
    holder.spec_algorithm = SimpleNamespace(is_eagle=lambda: False, is_standalone=lambda: False)
    holder.fused_entry_bytes = lambda _: None
    return pools.HybridSWAPoolConfigurator(holder)


def _plain(pools, holder, row, said):
    dtype = said["kv_cache_dtype"]
    pool = pools.DefaultPoolConfigurator.__new__(pools.DefaultPoolConfigurator)
    pool.kv_cache_dtype_str, pool._fixed_overhead_bytes, pool._zero_kv_max_tokens = dtype, 0, 0
    cell = pool._compute_cell_size(holder, row["layers"])
    if said["speculative_algorithm"] == "EAGLE":
        cell += int(cell / row["layers"])
    pool._cell_size = cell
    return pool


def answer_or_error(row):
    try:
        return answer(row) if len(sys.argv) == 3 else resolved(row)
    except (Exception, SystemExit) as failure:
        return {"error": f"{type(failure).__name__}: {failure}"[:500]}


def main():
    sys.meta_path.insert(0, _Finder())
    if len(sys.argv) > 3:
        of_another_version(sys.argv[3])
    pretend()
    rows = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps([answer_or_error(row) for row in rows]))


if __name__ == "__main__":
    main()
