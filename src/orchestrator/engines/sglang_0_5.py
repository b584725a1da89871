"""SGLang 0.5: 0.5.10, 0.5.17 and 0.5.23, as their wheels have it (scripts/engine_facts.py).

What changed between them is a range below: it holds from the first version that was read with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from math import gcd

from orchestrator.engines.causes import COMMON, PCIE_IPC, PCIE_IPC_IN_USE, REMARKS
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
from orchestrator.engines.registry import Dialect, since
from orchestrator.protocol.staging import StopOrder, Watch

NAME = "sglang-0.5"
_VERSIONS = ("0.5.10", "0.5.17", "0.5.23")

_GRAPH_SIZE = since(("0.5.10", "--cuda-graph-max-bs"), ("0.5.17", "--cuda-graph-max-bs-decode"))
_GRAPH_SIZES = since(("0.5.10", "--cuda-graph-bs"), ("0.5.17", "--cuda-graph-bs-decode"))
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
_BENCH_FLAGS = since(
    ("0.5.10", ("--flush-cache", "--warmup-requests", "1")),
    (
        "0.5.23",
        ("--flush-cache", "--warmup-requests", "1", "--ready-check-timeout-sec", "0", "--output-details"),
    ),
)
_SHARED_NAMES = since(("0.5.10", ()), ("0.5.17", ("sglang_loads_*.shm",)))
"""Each start's figures of load, never removed (srt/managers/load_snapshot.py, shm_path_for)."""


@dataclass(frozen=True, slots=True)
class _GraphRules:
    """What a version captures by default, and sets memory aside for.

    decode_off, prefill_off: flags that leave a phase without graphs
    mla, stages, groups:     whether prefill has graphs with latent attention, pipeline stages, attention groups
    limited:                 the largest decode graph is no larger than the requests that may run
    """

    decode_off: tuple[str, ...]
    prefill_off: tuple[str, ...]
    mla: bool = True
    stages: bool = False
    groups: bool = True
    limited: bool = False


_OFF = ("--disable-cuda-graph", "--disable-decode-cuda-graph")
_PREFILL_OFF = (
    "--disable-cuda-graph",
    "--disable-prefill-cuda-graph",
    "--disable-piecewise-cuda-graph",
    "--enable-two-batch-overlap",
)
_GRAPH_RULES = since(
    ("0.5.10", _GraphRules((), ("--disable-piecewise-cuda-graph", "--enable-torch-compile", "--speculative-algorithm",
                                "--enable-lora"), groups=False)),
    ("0.5.17", _GraphRules(_OFF, _PREFILL_OFF, mla=False, stages=True)),
    ("0.5.23", _GraphRules(_OFF, _PREFILL_OFF, limited=True)),
)  # fmt: skip
"""srt/server_args.py of 0.5.10 (_handle_piecewise_cuda_graph) and of 0.5.17
(_disable_breakable_cudagraph_if_incompatible), arg_groups/cuda_graph_hook.py of 0.5.23."""
_ATTENTION = since(
    ("0.5.10", AttentionGroups(flag="--dp-size", switch="--enable-dp-attention", reduces=1)),
    ("0.5.23", AttentionGroups(flag="--attn-dp-size", reduces=1)),
)
"""A decode step gathers the groups' tokens for the experts and scatters the sums: together one all-reduce
(srt/layers/dp_attention.py: _dp_gather_via_all_gather, dp_reduce_scatter_tensor)."""
_DRAFT_MIB = since(("0.5.10", 4096), ("0.5.17", 0))
"""What is set aside for speculative decoding."""
_DRAFTED = 48
"""Concurrent requests with speculative decoding, by default."""
_WINDOW_SHARE = 0.8
"""Default of --swa-full-tokens-ratio (arg_groups/fields/schedule.py; earlier srt/server_args.py)."""
_SHUTDOWN_S = since(("0.5.10", 10), ("0.5.23", 20))
"""From 0.5.23 a serving worker ignores SIGTERM and waits for rank 0's ShutdownReq (srt/entrypoints/engine.py)."""

_GONE = "removed after 0.4.4"
_RENAMED = (
    ("--attn-dp-size", "the plan sets it, by its layout"),
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


def _renamed(version: str) -> tuple[tuple[str, str], ...]:
    """Names that other versions have, with what to write for this one."""
    own = {name_in(other): name_in(version) for name_in in (_GRAPH_SIZE, _GRAPH_SIZES) for other in _VERSIONS}
    return (*((other, f"use {name}, its name in this version") for other, name in own.items()), *_RENAMED)


def _watch(version: str) -> Watch:
    ready = _READY(version)
    return replace(
        WATCH,
        phases=phases_of(
            rendezvous=_RENDEZVOUS(version),
            shards="(?:Loading safetensors checkpoint|Multi-thread loading)",
            graphs=_GRAPHS(version),
        ),
        causes=COMMON,
        remarks=(*REMARKS, *PCIE_IPC),
        http={**WATCH.http, **({"ready": ready} if ready else {}), "info": "/server_info", "loads": "/v1/loads"},
        stop=StopOrder(drain_s=30, shutdown_s=_SHUTDOWN_S(version)),
        barrier_s=480,
        shared_names=_SHARED_NAMES(version),
    )


@cache
def _engine(version: str) -> Engine:
    whole_shared = _WHOLE_SHARED(version)
    return Engine(
        dialect=NAME,
        version=version,
        names=Names(
            tensor_parallel="--tp-size",
            pipeline_parallel="--pp-size",
            expert_parallel="--ep-size",
            micro_batch="--pp-max-micro-batch-size",
            nccl_port="--nccl-port",
            cuda_graph_max_bs=_GRAPH_SIZE(version),
            cuda_graph_sizes=_GRAPH_SIZES(version),
            config="--config",
        ),
        renamed=_renamed(version),
        watched=_watch(version),
        proofs={"SGLANG_ENABLE_PCIE_IPC_ALLREDUCE": PCIE_IPC_IN_USE},
        variables={"address": "SGLANG_HOST_IP", **({"whole_shared": whole_shared} if whole_shared else {})},
        # fused_moe_triton_config.py below moe_parent (get_config_file_name, get_moe_configs), fp8_kernel.py beside
        # the GEMM configs (get_w8a8_block_fp8_configs), srt/models/deepseek_v2.py (shared experts, fused q_a and kv_a)
        tuned=Lookup(
            moe_parent=_MOE_CONFIGS(version),
            linear=_GEMM_CONFIGS(version),
            by_triton=True,
            channel_in_name=True,
            down=True,
            fuses_shared=True,
            fuses_qkv_a=True,
            variable="SGLANG_MOE_CONFIG_DIR",
            skips_compiled=True,
        ),
        # "out of maintenance and might cause error": its manual, docs/advanced_features/server_arguments.md
        compiles=False,
        bench=_BENCH(version),
        bench_flags=_BENCH_FLAGS(version),
        memory=partial(_memory, version),
        request_table=_request_table,
        graph_step=_graph_step,
        largest_graph=partial(_largest_graph, version),
        attention=_ATTENTION(version),
    )


_TAKEN, _TAKEN_NVLINK = int(1.50 * (1 << 30)), int(2.28 * (1 << 30))
"""In use before the first weight, of the rank that has least left: a slice of DeepSeek-V3 by 0.5.17 on four H100, as
four nodes over TCP and as one node with NVLink (tests/slice/measured.md); not measured with 32 ranks, RDMA or PCIe."""
PADDING = 0.013
"""Its log says 20.96 GiB of weights where their bytes are 20.69 (the same): the allocator's blocks."""
_GIB = 1 << 30
_COST = RankCost(
    source="the slice of DeepSeek-V3 on 2 and 4 H100 by SGLang 0.5.17",
    graph_bytes=int(0.0555 * _GIB),  # 8 sizes 0.43 GiB, 20 sizes 1.11
    capture_s=lambda sizes: (5.0 + 0.7 * sizes, 10.0 + 0.75 * sizes),  # 8 sizes 13 s, 20 sizes 20 to 24
    compile_s=(120.0, 155.0),  # 145 to 164 s in all for 8 sizes, 156 for 20
    activations=lambda chunk: int((0.8 + 1.2 * chunk / 4096) * _GIB),  # 2.0 GiB at 4096 tokens, 3.2 at 8192
)
"""tests/slice/measured.md and its figures, of 0.5.17, which captures decode alone."""
_COST_WITH_PREFILL_GRAPHS = RankCost(
    source="the slice of DeepSeek-V3 on 1 and 2 H200 by SGLang 0.5.23",
    graph_bytes=int(0.05 * _GIB),  # 20 sizes 1.00 GiB, 8 sizes 0.35
    capture_s=lambda sizes: (37.0 + 0.7 * sizes, 60.0 + 0.75 * sizes),  # prefill 38 to 50 s of it, 50 to 58 sizes
    compile_s=(129.0, 205.0),  # 181 to 212 s in all on one node, 165 to 192 for prefill; 330 on two, 118 when compiled
    activations=lambda chunk: int((1.3 + 3.0 * chunk / 4096) * _GIB),  # 4.3 GiB at 4096 tokens over TCP, 7.2 at 8192
    prefill_graphs=True,
    prefill_tokens=lambda chunk: sum(_prefill_sizes(chunk)),
)
"""The same, of 0.5.23, which captures prefill as well unless it is told not to."""
_SIZES = ((20, 2048, 8, 8), (35, 4096, 48, 160), (60, 4096, 32, 160), (160, 8192, 256, 512), (10**9, 16384, 512, 512))
"""Below this many GiB: chunk, largest decode graph below TP4, and from TP4 on."""


def _memory(version: str, asked: MemoryAsked) -> Division:
    """arg_groups/memory_hook.py (handle_gpu_memory_settings, reserve_for_graph_mb) of 0.5.23; earlier versions have it
    in srt/server_args.py, the same but for the ranges above."""
    chunk = asked.number("--chunked-prefill-size") or _sizes(asked)[1]
    draft = asked.text("--speculative-algorithm") not in ("", "NGRAM")
    own, words = _own_fraction(version, asked, chunk)
    given = asked.given
    return Division(
        fraction=own if given is None else given,
        explanation=f"static fraction {words}"
        if given is None
        else f"static fraction {given:g}: --mem-fraction-static",
        max_tokens=asked.number("--max-total-tokens"),
        kv_bytes=element_bytes(asked.text("--kv-cache-dtype")),
        chunk=chunk // asked.layout.attention_data_parallel if chunk > 0 else None,
        window_share=_window_share(asked),
        draft=draft,
        taken=_TAKEN_NVLINK if asked.nvlink else _TAKEN,
        padding=PADDING,
        graphs=_captured(version, asked),
        cost=_COST_WITH_PREFILL_GRAPHS if _graphs(version, asked, chunk)[1] else _COST,
    )


def _request_table(asked: MemoryAsked, context: int, tokens: int) -> tuple[int, int]:
    """mem_cache/kv_cache_configurator.py (resolve_max_num_reqs), memory_pool.py (ReqToTokenPool: a row for padding) and
    allocation_sizing.py (get_req_to_token_extra_context_len, pages of one token)."""
    running = _running(asked)
    rows = usual_requests(context, tokens) if running is None else running
    return min(rows, tokens // 2) + 1, context + 4 + (asked.number("--speculative-num-draft-tokens") or 0)


def _running(asked: MemoryAsked) -> int | None:
    """Most requests that may run at once in an attention group, where flags say it (resolve_max_num_reqs)."""
    most = asked.number("--max-running-requests") or (_DRAFTED if asked.flags.get("--speculative-algorithm") else None)
    return None if most is None else max(1, most // asked.layout.attention_data_parallel)


def _window_share(asked: MemoryAsked) -> float:
    """mem_cache pools of full and sliding-window layers (HybridSWAPoolConfigurator; in 0.5.10 set_num_token_hybrid)."""
    if "--disable-hybrid-swa-memory" in asked.flags:
        return 1.0
    return float(asked.text("--swa-full-tokens-ratio") or _WINDOW_SHARE)


def _reserved_mib(version: str, asked: MemoryAsked, chunk: int) -> list[tuple[str, float]]:
    """What the engine leaves free, term by term, in words and MiB."""
    groups, ranks = asked.layout.attention_data_parallel, asked.layout.tensor_parallel * asked.layout.pipeline_parallel
    decode, prefill = _graphs(version, asked, chunk)
    tokens = max(chunk if chunk > 0 else (asked.number("--max-prefill-tokens") or 16384), 2048)
    parts = [
        ("512", 512.0),
        (f"1.5 x {tokens} (chunk)", 1.5 * tokens),
        (f"1024 x {ranks}/8 (ranks)", 1024 * ranks / 8),
        (f"2 x {decode} (decode graphs)", 2.0 * decode),
        (f"{prefill} (prefill graphs)", float(prefill)),
    ]
    if groups > 1:
        size = _decode_size(version, asked)
        parts.append((f"attention in {groups} groups", size * groups * (4.5 if size > 300 else 3.0)))
    if asked.text("--speculative-algorithm"):
        parts.append(("speculative decoding", float(_DRAFT_MIB(version))))
    return parts


def _own_fraction(version: str, asked: MemoryAsked, chunk: int) -> tuple[float, str]:
    """The default fraction of a GPU, and its arithmetic in MiB."""
    mib, parts = asked.gpu_mib, _reserved_mib(version, asked, chunk)
    reserved = sum(size for _, size in parts)
    if mib > 60 * 1024:
        reserved = max(reserved, 10 * 1024)
    fraction = round((mib - reserved) / mib, 3)
    sums = " + ".join(words for words, size in parts if size)
    words = f"({mib} - ({sums})) / {mib} MiB = {fraction:g}: sglang {version}'s own"
    if asked.vision is None or "--language-only" in asked.flags or "--language-model-only" in asked.flags:
        return fraction, words
    factor = _vision_factor(*asked.vision)
    return fraction * factor, f"{words}; x {factor:.3f} for the vision encoder = {fraction * factor:.3f}"


def _vision_factor(layers: int, hidden: int) -> float:
    """adjust_mem_fraction_for_vlm: 0.95, and a tenth less for each doubling over ViT-L/14, between 0.8 and 1.05."""
    over = layers * hidden**2 / (24 * 1024**2) - 1.0
    return 0.95 * max(0.8, min(1.05, 1.0 - 0.1 * over))


def _sizes(asked: MemoryAsked) -> tuple[int, int, int, int]:
    return next(row for row in _SIZES if asked.gpu_mib < row[0] * 1024)


def _decode_size(version: str, asked: MemoryAsked) -> int:
    """The largest batch of a decode graph, were there one."""
    _, _, small, large = _sizes(asked)
    own = small if asked.layout.tensor_parallel < 4 else large
    running = asked.number("--max-running-requests") if _GRAPH_RULES(version).limited else None
    if asked.text("--speculative-algorithm") and running is None:
        running = _DRAFTED
    if sizes := asked.flags.get(_GRAPH_SIZES(version)):
        return max(map(int, sizes))
    return asked.number(_GRAPH_SIZE(version)) or (min(own, running) if running else own)


def _graphs(version: str, asked: MemoryAsked, chunk: int) -> tuple[int, int]:
    """What is captured: the largest batch of decode, 0 for none; prefill sizes, 0 where prefill runs eagerly."""
    decode = _largest_graph(version, asked)
    backend = asked.text("--cuda-graph-backend-prefill")
    if backend == "disabled" or (not backend and _eager_prefill(version, asked)):
        return decode, 0
    if asked.mla:
        return decode, 1536
    largest = asked.number("--cuda-graph-max-bs-prefill") or min(chunk, asked.number("--max-total-tokens") or chunk)
    return decode, 8 * len(asked.flags.get("--cuda-graph-bs-prefill") or _prefill_sizes(largest))


def _largest_graph(version: str, asked: MemoryAsked) -> int:
    """The largest batch of decode that it is to capture, 0 for none."""
    off = any(flag in asked.flags for flag in _GRAPH_RULES(version).decode_off)
    backend = asked.text("--cuda-graph-backend-decode")
    return 0 if backend == "disabled" or (off and not backend) else _decode_size(version, asked)


def _captured(version: str, asked: MemoryAsked) -> tuple[int, ...]:
    """base_cuda_graph_runner.py (get_batch_sizes_to_capture); in 0.5.10 it is in cuda_graph_runner.py."""
    most = _largest_graph(version, asked)
    if most == 0:
        return ()
    sizes = _decode_sizes(version, asked, most)
    if (running := _running(asked)) is not None:
        aligned = _alignment(asked)
        limit = -(-running // aligned) * aligned
        sizes = {min(size, limit) for size in sizes}
    step = _graph_step(asked)
    return tuple(sorted(size for size in sizes if size % step == 0))


def _alignment(asked: MemoryAsked) -> int:
    """srt/utils/common.py (get_cuda_graph_batch_size_alignment): the ranks of an attention group, where they share out
    the tokens of a step, as between groups, or for dense layers that each rank has whole."""
    groups = asked.layout.attention_data_parallel
    halves = 2 if "--enable-two-batch-overlap" in asked.flags else 1
    shared_out = groups > 1 or asked.whole_dense or "--moe-dense-tp-size" in asked.flags
    return halves * (asked.layout.tensor_parallel // groups if shared_out else 1)


def _graph_step(asked: MemoryAsked) -> int:
    """The tokens of a captured batch are multiples of the alignment; a draft's requests have several tokens each."""
    aligned = _alignment(asked)
    each = 1 if "--enable-two-batch-overlap" in asked.flags else asked.number("--speculative-num-draft-tokens") or 1
    return aligned // gcd(aligned, each)


def _decode_sizes(version: str, asked: MemoryAsked, most: int) -> set[int]:
    """cuda_graph_hook.py: generate_decode_cuda_graph_batch_sizes; before 0.5.23 the same in srt/server_args.py."""
    if given := asked.flags.get(_GRAPH_SIZES(version)):
        return set(map(int, given))
    if "--disable-cuda-graph-padding" in asked.flags:
        return set(range(1, most + 1))
    small, steps = [1, 2, 4, 8, 12], [(16, 257, 8), (272, 512, 16), (512, most + 1, 32)]
    if asked.text("--speculative-algorithm"):
        small, steps = list(range(1, 9)), [(10, 33, 2), (40, 65, 4), (72, 257, 8), (272, most + 1, 16)]
    sizes = {size for first, end, step in steps for size in range(first, end, step)}
    return {size for size in (*small, *sizes) if size <= most} | {most}


def _eager_prefill(version: str, asked: MemoryAsked) -> bool:
    """Whether prefill graphs are off unless a backend is requested."""
    rules = _GRAPH_RULES(version)
    unfit = (
        asked.mla and not rules.mla,
        asked.layout.pipeline_parallel > 1 and not rules.stages,
        asked.layout.attention_data_parallel > 1 and not rules.groups,
    )
    return any(unfit) or any(flag in asked.flags for flag in rules.prefill_off)


def _prefill_sizes(largest: int) -> list[int]:
    """cuda_graph_hook.py: generate_prefill_cuda_graph_batch_sizes."""
    steps = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256), (4608, largest + 1, 512))
    return [size for first, end, step in steps for size in range(first, end, step) if size <= largest]


DIALECT = Dialect(name=NAME, versions=_VERSIONS, stack="sglang-0.5.23", of=_engine)
