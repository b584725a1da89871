"""Differences between the SGLang versions that can be played: log messages, and which processes die together."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Version:
    """One SGLang version, as data. Messages are `str.format` patterns for the values that rank.py passes.

    prefix_always:       even a single rank has ` TP0` in its log lines and its title
    dies_with_parent:    ranks ask for SIGKILL when their launcher dies (PR_SET_PDEATHSIG)
    watches_ranks:       the leader's launcher checks its ranks once a second while it serves
    worker_joins_ranks:  a serving worker's launcher waits for its ranks to end; otherwise it only serves HTTP
    worker_keeps_term:   a serving worker's launcher ignores SIGTERM
    orderly_shutdown:    a drained leader asks all ranks of all nodes to stop, and exits 0
    checks_model_first:  the launcher reads config.json before it starts a rank
    config_missing:      class and message of the error for a directory without config.json, as in transformers
    missing_shards_fail: an index that names missing shards is an error before loading
    http_taken_exit:     exit status of a launcher whose HTTP port was taken: uvicorn's at the time
    open_paths:          prefixes of the paths that need no API key
    every_rank_tells_limits: the `max_total_num_tokens=` line comes from all ranks, else from TP0 only
    kv_mla:              '' if this version logs nothing for an MLA cache
    health_generates:    /health runs one token through all ranks; otherwise it is a constant 200
    """

    name: str
    prefix_always: bool
    dies_with_parent: bool
    watches_ranks: bool
    worker_joins_ranks: bool
    worker_keeps_term: bool
    orderly_shutdown: bool
    checks_model_first: bool
    config_missing: tuple[str, str]
    missing_shards_fail: bool
    health_generates: bool
    http_taken_exit: int
    open_paths: tuple[str, ...]
    every_rank_tells_limits: bool
    nccl: str
    max_running_requests: int
    chunked_prefill_size: int
    init_begin: str
    init_end: str
    memory_baseline: str
    shards: str
    load_end: str
    kv_mla: str
    kv_mha: str
    graph_begin: str
    graph_end: str
    limits: str
    prefill: str
    decode: str
    model_path: str


_V05 = Version(
    name="0.5.23",
    prefix_always=False,
    dies_with_parent=True,
    watches_ranks=True,
    worker_joins_ranks=True,
    worker_keeps_term=True,
    orderly_shutdown=True,
    checks_model_first=True,
    config_missing=("ValueError", "Unrecognized model in {path}. Should have a `model_type` key in its config.json."),
    missing_shards_fail=True,
    health_generates=True,
    http_taken_exit=3,
    open_paths=("/health", "/ready", "/metrics"),
    every_rank_tells_limits=False,
    nccl="2.27.5",
    max_running_requests=2048,
    chunked_prefill_size=4096,
    init_begin="Init parallel begin.",
    init_end="Init parallel ends. elapsed={elapsed:.2f} s",
    memory_baseline="Memory baseline taken. mem usage={used:.2f} GB",
    shards="Multi-thread loading shards",
    load_end=(
        "Load weight end. elapsed={elapsed:.2f} s, type={type}, {quant}avail mem={avail:.2f} GB, "
        "mem usage={used:.2f} GB."
    ),
    kv_mla="KV Cache is allocated. dtype: torch.bfloat16, #tokens: {tokens}, KV size: {size:.2f} GB",
    kv_mha=(
        "KV Cache is allocated. dtype: torch.bfloat16, #tokens: {tokens}, K size: {half:.2f} GB, V size: {half:.2f} GB"
    ),
    graph_begin=(
        "Capture target decode CUDA graph begin. backend=full, num_tokens_per_req=1, avail mem={avail:.2f} GB"
    ),
    graph_end=(
        "Capture target decode CUDA graph end. bs={sizes}, elapsed={elapsed:.2f} s, mem usage={used:.2f} GB, "
        "avail mem={avail:.2f} GB."
    ),
    limits=(
        "max_total_num_tokens={tokens}, chunked_prefill_size={chunk}, max_prefill_tokens=16384, "
        "max_running_requests={running}, context_len={context}, {device}={avail:.2f} GB"
    ),
    prefill=(
        "Prefill batch, #new-seq: {new}, #new-token: {tokens}, #cached-token: 0, token usage: 0.00, "
        "#running-req: {running}, #queue-req: 0, #pending-token: 0, {graph}, "
        "input throughput (token/s): {rate:.2f}"
    ),
    decode=(
        "Decode batch, #running-req: {running}, #token: {tokens}, token usage: {usage:.2f}, {graph}, "
        "gen throughput (token/s): {rate:.2f}, #queue-req: 0"
    ),
    model_path="/model_info",
)

_V04 = Version(
    name="0.4.4.post1",
    prefix_always=True,
    dies_with_parent=False,
    watches_ranks=False,
    worker_joins_ranks=False,
    worker_keeps_term=False,
    orderly_shutdown=False,
    checks_model_first=False,
    config_missing=(
        "OSError",
        (
            "{path} does not appear to have a file named config.json. Checkout "
            "'https://huggingface.co/{path}/tree/main' for available files."
        ),
    ),
    missing_shards_fail=False,
    health_generates=False,
    http_taken_exit=1,
    open_paths=("/health",),
    every_rank_tells_limits=True,
    nccl="2.21.5",
    max_running_requests=2049,
    chunked_prefill_size=8192,
    init_begin="Init torch distributed begin.",
    init_end="Init torch distributed ends. mem usage={used:.2f} GB",
    memory_baseline="",
    shards="Loading safetensors checkpoint shards",
    load_end=("Load weight end. type={type}, dtype=torch.bfloat16, avail mem={avail:.2f} GB, mem usage={used:.2f} GB."),
    kv_mla="",
    kv_mha="KV Cache is allocated. #tokens: {tokens}, K size: {half:.2f} GB, V size: {half:.2f} GB",
    graph_begin="Capture cuda graph begin. This can take up to several minutes. avail mem={avail:.2f} GB",
    graph_end=(
        "Capture cuda graph end. Time elapsed: {elapsed:.2f} s. avail mem={avail:.2f} GB. mem usage={used:.2f} GB."
    ),
    limits=(
        "max_total_num_tokens={tokens}, chunked_prefill_size={chunk}, max_prefill_tokens=16384, "
        "max_running_requests={running}, context_len={context}"
    ),
    prefill=(
        "Prefill batch. #new-seq: {new}, #new-token: {tokens}, #cached-token: 0, token usage: 0.00, "
        "#running-req: {running}, #queue-req: 0, "
    ),
    decode=(
        "Decode batch. #running-req: {running}, #token: {tokens}, token usage: {usage:.2f}, "
        "gen throughput (token/s): {rate:.2f}, largest-len: 0, #queue-req: 0, "
    ),
    model_path="/get_model_info",
)

PLAYED = {
    "0.5.23": _V05,
    "0.4.4": _V04,
    "0.4.4.post1": _V04,
    "0.4.4.post3": replace(_V04, name="0.4.4.post3"),  # the same lines and endpoints: scripts/engine_facts.py
}
"""The versions by the names that can be asked for."""
