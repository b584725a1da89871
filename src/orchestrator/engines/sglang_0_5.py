"""SGLang 0.5: 0.5.10, 0.5.17 and 0.5.23, as their wheels have it (scripts/engine_facts.py).

What changed between them is a range below: it holds from the first version that was read with it.
"""

from __future__ import annotations

from orchestrator.engines.causes import COMMON, REMARKS
from orchestrator.engines.dialect import Dialect
from orchestrator.engines.engine import Engine, Names, Pool, PoolQuestion
from orchestrator.engines.since import since
from orchestrator.engines.tuned_files import Lookup

NAME = "sglang-0.5"

_GRAPH_SIZE = since(("0.5.10", "--cuda-graph-max-bs"), ("0.5.17", "--cuda-graph-max-bs-decode"))
_READY = since(("0.5.10", ""), ("0.5.23", "/ready"))
"""A flag that draining lowers; before it only /health, which sends a request through all ranks."""
_RENDEZVOUS = since(("0.5.10", r"Init torch distributed begin\."), ("0.5.23", r"Init parallel begin\."))
_GRAPHS = since(
    ("0.5.10", r"Capture (?:cuda|piecewise CUDA) graph begin\."),
    ("0.5.17", r"Capture (?:target|draft) \w+ CUDA graph begin\."),
)
_WHOLE_SHARED = since(("0.5.10", ""), ("0.5.17", "SGLANG_SHARED_EXPERT_TP1"))
_MOE_CONFIGS = since(
    ("0.5.10", "sglang/srt/layers/moe/fused_moe_triton"),
    ("0.5.17", "sglang/srt/layers/moe/moe_runner/triton_utils"),
)
_GEMM_CONFIGS = since(
    ("0.5.10", "sglang/srt/layers/quantization/configs"),
    ("0.5.17", "sglang/kernels/ops/quantization/configs"),
    ("0.5.23", "sglang/kernels/ops/gemm/configs"),
)
_BENCH = since(
    ("0.5.10", {"serving": "sglang.bench_serving", "one_batch": "sglang.bench_one_batch_server"}),
    ("0.5.17", {"serving": "sglang.benchmark.serving", "one_batch": "sglang.benchmark.one_batch_server"}),
)
_SHUTDOWN_S = since(("0.5.10", 10), ("0.5.23", 20))
"""From 0.5.23 a serving worker ignores SIGTERM and waits for rank 0's ShutdownReq (srt/entrypoints/engine.py)."""

_SHARDS = (
    r"(?:Loading safetensors checkpoint|Multi-thread loading) shards:"
    r".{0,256}\|\s{0,8}(?P<step>\d{1,6})/(?P<of>\d{1,6})\b"
)

_GONE = "gone since 0.4.4"
_RENAMED = (
    ("--cuda-graph-max-bs", "use --cuda-graph-max-bs-decode, its name in this version"),
    ("--cuda-graph-bs", "use --cuda-graph-bs-decode, its name in this version"),
    ("--cuda-graph-max-bs-decode", "use --cuda-graph-max-bs, its name in this version"),
    ("--cuda-graph-bs-decode", "use --cuda-graph-bs, its name in this version"),
    ("--attn-dp-size", "use --enable-dp-attention with --dp-size"),
    ("--enable-ep-moe", "use --ep-size N"),
    ("--enable-flashinfer-mla", "use --attention-backend flashinfer"),
    ("--disable-mla", f"{_GONE}; MLA can't be turned off"),
    ("--torchao-config", _GONE),
    ("--debug-tensor-dump-inject", _GONE),
    ("--enable-double-sparsity", _GONE),
    ("--ds-channel-config-path", _GONE),
    ("--ds-heavy-channel-num", _GONE),
    ("--ds-heavy-channel-type", _GONE),
    ("--ds-heavy-token-num", _GONE),
    ("--ds-sparse-decode-threshold", _GONE),
    ("--enable-nan-detection", _GONE),
    ("--stream-output", "use --incremental-streaming-output"),
    ("--tp", "write the full name --tp-size"),
    ("--trust-remote", "write the full name --trust-remote-code"),
)


def _engine(version: str) -> Engine:
    ready, whole_shared = _READY.at(version), _WHOLE_SHARED.at(version)
    return Engine(
        dialect=NAME,
        version=version,
        names=Names(
            tensor_parallel="--tp-size",
            pipeline_parallel="--pp-size",
            expert_parallel="--ep-size",
            nccl_port="--nccl-port",
            cuda_graph_max_bs=_GRAPH_SIZE.at(version),
            config="--config",
        ),
        renamed=_RENAMED,
        phases=(
            ("rendezvous", _RENDEZVOUS.at(version)),
            ("nccl", r"sglang is using nccl==|NCCL INFO Bootstrap"),
            ("weights", rf"Load weight begin\.|{_SHARDS}"),
            ("kv-cache", r"Load weight end\."),
            ("graphs", _GRAPHS.at(version)),
            ("warm-up", r"\bmax_total_num_tokens=\d+|Uvicorn running on "),
            ("ready", r"The server is fired up and ready to roll!"),
        ),
        causes=COMMON,
        remarks=REMARKS,
        http={
            "alive": "/health",
            "generate": "/health_generate",
            **({"ready": ready} if ready else {}),
            "models": "/v1/models",
            "completions": "/v1/completions",
            "metrics": "/metrics",
            "info": "/server_info",
            "loads": "/v1/loads",
        },
        variables={"address": "SGLANG_HOST_IP", **({"whole_shared": whole_shared} if whole_shared else {})},
        # fused_moe_triton_config.py below moe_parent (get_config_file_name, get_moe_configs), fp8_kernel.py beside
        # the GEMM configs (get_w8a8_block_fp8_configs), srt/models/deepseek_v2.py (shared experts, fused q_a and kv_a)
        tuned=Lookup(
            moe_parent=_MOE_CONFIGS.at(version),
            linear=_GEMM_CONFIGS.at(version),
            by_triton=True,
            channel_in_name=True,
            down=True,
            fuses_shared=True,
            fuses_qkv_a=True,
            variable="SGLANG_MOE_CONFIG_DIR",
            skips_compiled=True,
        ),
        bench=_BENCH.at(version),
        pool=_pool,
        stop={"leader_signal": "TERM", "drain_s": 30, "shutdown_s": _SHUTDOWN_S.at(version), "worker_signal": None},
        barrier_s=480,
    )


def _pool(asked: PoolQuestion) -> Pool:
    """0.5.23 arg_groups/memory_hook.py, in MiB; MLA takes the path without post-capture sizing."""
    mib = asked.gpu_mib
    chunk = 4096 if mib < 60 * 1024 else 8192
    graphs = 2 * (asked.graphs or 160)
    ranks = asked.tensor_parallel * asked.pipeline_parallel
    reserved = 512 + chunk * 3 // 2 + 1024 * ranks // 8 + graphs
    fraction = round((mib - reserved) / mib, 3)
    return Pool(
        fraction,
        f"static fraction ({mib} - (512 + 1.5 x {chunk} + 1024 x {ranks}/8"
        f" + 2 x {graphs // 2})) / {mib} MiB = {fraction:g}: sglang 0.5.23's own, without a prefill graph",
    )


DIALECT = Dialect(name=NAME, versions=("0.5.10", "0.5.17", "0.5.23"), stack="sglang-0.5.23", of=_engine)
