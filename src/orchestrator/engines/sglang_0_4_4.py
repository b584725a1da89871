"""SGLang 0.4.4: the articles' version. Wordings and flags are those of the wheel 0.4.4.post1."""

from __future__ import annotations

from orchestrator.engines.causes import COMMON, REMARKS
from orchestrator.engines.dialect import Dialect, Names

_SHARDS = r"Loading safetensors checkpoint shards:.{0,256}\|\s{0,8}(?P<step>\d{1,6})/(?P<of>\d{1,6})\b"

DIALECT = Dialect(
    name="sglang-0.4.4",
    flags_versions=("0.4.4.post1",),
    names=Names(
        tensor_parallel="--tp-size",
        pipeline_parallel=None,
        expert_parallel=None,
        nccl_port=None,
        cuda_graph_max_bs="--cuda-graph-max-bs",
        config=None,
    ),
    renamed=(
        ("--cuda-graph-max-bs-decode", "use --cuda-graph-max-bs, this version's name"),
        ("--pp-size", "this version has no pipeline parallelism; it needs a stack with SGLang 0.5"),
        ("--pipeline-parallel-size", "this version has no pipeline parallelism; it needs a stack with SGLang 0.5"),
        ("--attn-dp-size", "use --enable-dp-attention with --dp-size"),
        ("--tp", "write the full name --tp-size"),
        ("--trust-remote", "write the full name --trust-remote-code"),
        ("--model", "write the full name --model-path"),
    ),
    phases=(
        ("rendezvous", r"Init torch distributed begin\."),
        ("nccl", r"sglang is using nccl==|NCCL INFO Bootstrap"),
        ("weights", rf"Load weight begin\.|{_SHARDS}"),
        ("kv-cache", r"Load weight end\."),
        ("graphs", r"Capture cuda graph begin\."),
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
        "info": "/get_server_info",
    },
    # A worker has no handler: SIGTERM ends its launcher at once and leaves its ranks (no PDEATHSIG in this
    # version), so only the leader is told, and what is left is ended by the agents.
    stop={"leader_signal": "TERM", "drain_s": 30, "shutdown_s": 10, "worker_signal": None},
    barrier_s=300,
)
