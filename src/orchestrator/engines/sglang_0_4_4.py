"""SGLang 0.4.4, the articles' version: 0.4.4.post1 to post4, as their wheels have it (scripts/engine_facts.py)."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from orchestrator.engines.causes import COMMON, REMARKS
from orchestrator.engines.engine import (
    WATCH,
    AttentionGroups,
    Division,
    Engine,
    Lookup,
    MemoryAsked,
    Names,
    RankCost,
    element_bytes,
    phases_of,
    usual_requests,
)
from orchestrator.engines.registry import Dialect
from orchestrator.protocol.staging import StopOrder

NAME = "sglang-0.4.4"

_NO_PIPELINES = "this version has no pipeline parallelism; it needs a stack with SGLang 0.5"


_WATCH = replace(
    WATCH,
    phases=phases_of(
        rendezvous=r"Init torch distributed begin\.",
        shards="Loading safetensors checkpoint",
        graphs=r"Capture cuda graph begin\.",
    ),
    causes=COMMON,
    remarks=REMARKS,
    http={**WATCH.http, "info": "/get_server_info"},
    # A worker has no handler: SIGTERM ends its launcher at once (and leaves its ranks in post1, which have no
    # PDEATHSIG), so only the leader is told, and what is left is ended by the agents.
    stop=StopOrder(drain_s=30, shutdown_s=10),
    barrier_s=300,
)


@cache
def _engine(version: str) -> Engine:
    return Engine(
        dialect=NAME,
        version=version,
        names=Names(
            tensor_parallel="--tp-size",
            cuda_graph_max_bs="--cuda-graph-max-bs",
            cuda_graph_sizes="--cuda-graph-bs",
        ),
        renamed=(
            ("--cuda-graph-max-bs-decode", "use --cuda-graph-max-bs, this version's name"),
            ("--pp-size", _NO_PIPELINES),
            ("--pipeline-parallel-size", _NO_PIPELINES),
            ("--attn-dp-size", "the plan sets it, by its layout"),
            ("--tp", "write the full name --tp-size"),
            ("--trust-remote", "write the full name --trust-remote-code"),
            ("--model", "write the full name --model-path"),
        ),
        watched=_WATCH,
        variables={"address": "SGLANG_HOST_IP"},
        # srt/layers/moe/fused_moe_triton/fused_moe.py (get_config_file_name, get_moe_configs),
        # srt/layers/quantization/fp8_kernel.py (get_w8a8_block_fp8_configs), srt/models/deepseek_v2.py
        tuned=Lookup(
            moe_parent="sglang/srt/layers/moe/fused_moe_triton",
            linear="sglang/srt/layers/quantization/configs",
        ),
        bench={"serving": "sglang.bench_serving", "one_batch": "sglang.bench_one_batch_server"},
        memory=_memory,
        request_table=_request_table,
        # srt/layers/dp_attention.py: _dp_gather fills a buffer by an all-reduce over all ranks, and
        # srt/models/deepseek_v2.py adds up the experts' parts by another
        attention=AttentionGroups(flag="--dp-size", switch="--enable-dp-attention", reduces=2),
    )


_CHUNK = 8192
_PADDING = 0.009
"""The articles' log of DeepSeek-R1-Channel-INT8 says 21.27 GiB of weights where their bytes are 21.08."""
_COST = RankCost(
    source="the articles' log of 0.4.4 on 32 L40S, with torch.compile",
    graph_bytes=int(2.02 / 23 * (1 << 30)),  # 2.02 GB for the 23 sizes to 160
    capture_s=lambda sizes: (2.0 * sizes, 411.0),  # 411 s for those; what a size costs alone it does not say
    compile_s=(0.0, 0.0),
)


def _memory(asked: MemoryAsked) -> Division:
    """srt/server_args.py (__post_init__): by tensor parallel degree. Attention groups have the whole embedding on every
    rank (srt/models/deepseek_v2.py: enable_tp)."""
    steps = ((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87))
    tensor, groups = asked.layout.tensor_parallel, asked.layout.attention_data_parallel
    own = next((value for least, value in steps if tensor >= least), 0.88)
    fraction = own if asked.given is None else asked.given
    why = f"sglang 0.4.4's own for TP{tensor}" if asked.given is None else "--mem-fraction-static"
    chunk = asked.number("--chunked-prefill-size") or _CHUNK
    return Division(
        fraction=fraction,
        explanation=f"static fraction {fraction:g}: {why}",
        max_tokens=asked.number("--max-total-tokens"),
        kv_bytes=element_bytes(asked.text("--kv-cache-dtype")),
        whole_embedding=True,
        chunk=chunk // groups if chunk > 0 else None,
        draft=bool(asked.text("--speculative-algorithm")),
        padding=_PADDING,
        graphs=_captured(asked),
        cost=_COST,
    )


def _captured(asked: MemoryAsked) -> tuple[int, ...]:
    """srt/model_executor/cuda_graph_runner.py (get_batch_sizes_to_capture), 160 the default of --cuda-graph-max-bs."""
    if "--disable-cuda-graph" in asked.flags:
        return ()
    most = asked.number("--cuda-graph-max-bs") or 160
    if given := asked.flags.get("--cuda-graph-bs"):
        sizes = list(map(int, given))
    elif asked.text("--speculative-algorithm"):
        sizes = list(range(1, 33))
    elif "--disable-cuda-graph-padding" in asked.flags:
        sizes = [*range(1, 33), 64, 128]
    else:
        sizes = [1, 2, 4, *range(8, 161, 8)]
    return tuple(sorted({size for size in sizes if size <= most}))


def _request_table(asked: MemoryAsked, context: int, tokens: int) -> tuple[int, int]:
    """srt/model_executor/model_runner.py (init_memory_pool)."""
    return (asked.number("--max-running-requests") or usual_requests(context, tokens)) + 1, context + 4


DIALECT = Dialect(
    name=NAME,
    versions=("0.4.4.post1", "0.4.4.post2", "0.4.4.post3", "0.4.4.post4"),
    stack="sglang-0.4.4-l40s",
    of=_engine,
)
