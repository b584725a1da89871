"""SGLang 0.5. Wordings and flags are those of the wheel 0.5.23."""

from __future__ import annotations

from orchestrator.engines.causes import COMMON, REMARKS
from orchestrator.engines.dialect import Dialect, Names

_GONE = "gone since 0.4.4"

_SHARDS = (
    r"(?:Loading safetensors checkpoint|Multi-thread loading) shards:"
    r".{0,256}\|\s{0,8}(?P<step>\d{1,6})/(?P<of>\d{1,6})\b"
)

DIALECT = Dialect(
    name="sglang-0.5",
    flags_versions=("0.5.23",),
    names=Names(
        tensor_parallel="--tp-size",
        pipeline_parallel="--pp-size",
        expert_parallel="--ep-size",
        nccl_port="--nccl-port",
        cuda_graph_max_bs="--cuda-graph-max-bs-decode",
        config="--config",
    ),
    renamed=(
        ("--cuda-graph-max-bs", "use --cuda-graph-max-bs-decode, its name in this version"),
        ("--cuda-graph-bs", "use --cuda-graph-bs-decode, its name in this version"),
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
    ),
    phases=(
        ("rendezvous", r"Init parallel begin\."),
        ("nccl", r"sglang is using nccl==|NCCL INFO Bootstrap"),
        ("weights", rf"Load weight begin\.|{_SHARDS}"),
        ("kv-cache", r"Load weight end\."),
        ("graphs", r"Capture (?:target|draft) \w+ CUDA graph begin\."),
        ("warm-up", r"\bmax_total_num_tokens=\d+|Uvicorn running on "),
        ("ready", r"The server is fired up and ready to roll!"),
    ),
    causes=COMMON,
    remarks=REMARKS,
    http={
        "alive": "/health",
        "generate": "/health_generate",
        "models": "/v1/models",
        "completions": "/v1/completions",
        "metrics": "/metrics",
        "info": "/server_info",
    },
    # A worker ignores SIGTERM once it serves and waits for rank 0's ShutdownReq (srt/entrypoints/engine.py).
    stop={"leader_signal": "TERM", "drain_s": 30, "shutdown_s": 20, "worker_signal": None},
    barrier_s=480,
)
