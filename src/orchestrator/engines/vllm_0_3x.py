"""vLLM 0.32 and 0.33, as their wheels have it (scripts/engine_facts.py).

One engine over several nodes without Ray: rank 0's node runs the API server, the engine core and its workers, every
other node `--headless` workers alone, which serve no HTTP and do not notice that the first node has ended.

What is not offered, and why: expert and attention parallelism (vLLM spreads experts over all ranks of a data parallel
group, which is another layout than --ep and --attn-dp), `bench` (its client takes other loads and reports other
figures), `golden` (/generate is SGLang's), `tuning` (its tuner is not in the wheel).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from orchestrator.engines.causes import COMMON, REMARKS
from orchestrator.engines.engine import (
    ACCESS,
    HARMLESS,
    WATCH,
    Division,
    Engine,
    Intent,
    Lookup,
    MemoryAsked,
    Names,
    QueueLimit,
    element_bytes,
    of_nodes,
    option,
)
from orchestrator.engines.known_flags import Option
from orchestrator.engines.registry import Dialect
from orchestrator.model.profile import CudaGraphs
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.staging import CausePattern, PhasePattern, ProbeOrder, StopOrder, Watch

NAME = "vllm-0.3x"
PRODUCT = "vLLM"

_DRAIN_S = 30

_OURS = {
    "--tensor-parallel-size": "--tp N of this command",
    "--pipeline-parallel-size": "--pp N of this command",
    "--data-parallel-size": "--replicas of this command: an engine per node",
    "--nnodes": "the gang's group in the inventory",
    "--node-rank": "the order of the gang's group in the inventory",
    "--headless": "the order of the gang's group in the inventory",
    "--master-addr": "l40s_address in the inventory",
    "--master-port": "l40s_dist_init_port in the inventory",
    "--distributed-executor-backend": "nothing; the agent watches the processes of `mp`",
    "--shutdown-timeout": "nothing; the agent counts on it when it drains the gang",
    "--kv-cache-memory-bytes": "--gpu-memory-utilization, by which the plan counts",
    "--model": "the profile's directory and l40s_model_root in the inventory",
    "--host": "l40s_http_host in the inventory",
    "--port": "l40s_http_port in the inventory",
    "--uds": "l40s_http_host and l40s_http_port in the inventory",
    "--api-key": "l40s_api_key_file in the inventory; as an argument it would show in the process list and the log",
    "--config": "l40s_args in the inventory, flag by flag; a file's contents can't be checked",
}
_RENAMED = (
    ("--tp-size", "the plan sets --tensor-parallel-size, by its layout"),
    ("--pp-size", "the plan sets --pipeline-parallel-size, by its layout"),
    ("--ep-size", "vLLM spreads experts over all ranks; this needs another layout than the plan's"),
    ("--mem-fraction-static", "use --gpu-memory-utilization, vLLM's name"),
    ("--context-length", "use --max-model-len, vLLM's name"),
    ("--max-running-requests", "use --max-num-seqs, vLLM's name"),
    ("--chunked-prefill-size", "use --max-num-batched-tokens, vLLM's name"),
    ("--cuda-graph-max-bs", "use --max-cudagraph-capture-size, vLLM's name"),
    ("--cuda-graph-max-bs-decode", "use --max-cudagraph-capture-size, vLLM's name"),
    ("--disable-cuda-graph", "use --enforce-eager, vLLM's name"),
    ("--watchdog-timeout", "set VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS with l40s_env"),
    ("--model-path", "the plan sets --model"),
)
_SAID = (
    ("--mem-fraction-static (vLLM: --gpu-memory-utilization)", "--gpu-memory-utilization"),
    ("--mem-fraction-static", "--gpu-memory-utilization"),
    ("--context-length", "--max-model-len"),
    ("--max-running-requests", "--max-num-seqs"),
    ("sgl-kernel and flashinfer", "vllm and flashinfer"),
)
"""What the common causes call by SGLang's name."""

_OWN = (
    CausePattern(
        id="ENGINE-MISSING",
        pattern=r"No module named '?vllm\b|No package metadata was found for vllm",
        text="vLLM is not installed in the stack's environment on this node",
        fix="reinstall the stack: run `l40s-deploy prepare`",
    ),
    CausePattern(
        id="FLAG-REFUSED",
        pattern=r"\bvalidation errors? for \w{1,64}(?:Config|Args)\b|ValueError: Unknown attention backend: ",
        text="vLLM refuses a combination of its options, or the model's configuration; the lines below say which",
        fix="compare its flags (`l40s-deploy plan --show argv`) with those lines",
        weak=True,
    ),
    CausePattern(  # vllm issues 31936, 43172
        id="GPU-ARCH",
        pattern=r"No valid attention backend found.{0,4000}\bcompute capability not supported",
        text="vLLM has no attention kernel for this model, with these settings, on this GPU's architecture: its reasons"
        " name each",
        fix="use another stack, as a newer vLLM or SGLang, or another model; sparse MLA (DeepSeek V3.2,"
        " GLM-5) has kernels"
        " for few architectures",
        weak=True,
    ),
    CausePattern(
        id="MODEL-UNSUPPORTED",
        pattern=r"Head dimension \d{1,6} is not supported by|No valid attention backend found",
        text="vLLM has no attention kernel for this model's head size, or the settings that its reasons name, on this"
        " device",
        fix="use another stack (`l40s-deploy models MODEL`), or another model",
    ),
    CausePattern(
        id="LOADING-LATE",
        pattern=r"Timed out waiting for engine core processes to start",
        text="the engine's ranks were not ready within VLLM_ENGINE_READY_TIMEOUT_S: a slow disk, or a rank that waits",
        fix="compare the nodes' disks and the ranks' phases; set VLLM_ENGINE_READY_TIMEOUT_S higher with l40s_env",
        secondary=True,
    ),
    CausePattern(
        id="COLLECTIVE-TIMEOUT",
        pattern=r"RPC call to \w{1,64} timed out",
        text="a rank did not answer the engine core in time: it waits for another rank, hangs or is dead",
        fix="check the rank that failed or went silent first",
        secondary=True,
    ),
)
_ENDED = CausePattern(
    id="CHILD-FAILED",
    pattern=r"(?:Worker ?[Pp]roc|RayWorkerProc) \S{1,64} died unexpectedly"
    r"|[Ee]ngine core proc\w{0,8} .{0,64}died unexpectedly"
    r"|WorkerProc (?:failed|was terminated)|EngineCore (?:failed to start|encountered a(?: fatal error|n issue))"
    r"|(?:WorkerProc|Engine core) initialization failed",
    text="one of vLLM's processes on this node ended",
    fix="read its last log lines: `l40s-deploy logs --around-failure`",
    secondary=True,
)
"""vllm/v1/executor/multiproc_executor.py, v1/engine/core_client.py, v1/engine/core.py. Behind all others: a paste may
have the reason in the same line."""

_BAR = r".{0,256}\|\s{0,8}(?P<step>\d{1,6})/(?P<of>\d{1,6})\b"
_PHASES = (
    ("rendezvous", r"Initializing a V1 LLM engine|headless multiproc executor|world_size=\d{1,6} rank=\d{1,6}"),
    ("nccl", r"vLLM is using nccl==|NCCL INFO Bootstrap|rank \d{1,6} in world size \d{1,6} is assigned as"),
    ("weights", rf"Starting to load model |Loading safetensors checkpoint shards:{_BAR}"),
    ("kv-cache", r"Loading weights took|Model loading took|Available KV cache memory|KV cache size: "),
    ("graphs", rf"Profiling CUDA graph memory|Capturing CUDA graphs?{_BAR}"),
    ("warm-up", r"Graph capturing finished|init engine \(profile|Starting vLLM server on "),
    ("ready", r"Application startup complete\."),
)
"""v1/engine/core.py, distributed/parallel_state.py, model_executor/model_loader, v1/worker, uvicorn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmEngine(Engine):
    """One version of vLLM: another shape of command line."""

    def graph_options(self, graphs: CudaGraphs) -> tuple[Option, ...]:
        """What is captured; vLLM compiles by itself (--optimization-level)."""
        if graphs.sizes:
            why = "the profile: batch sizes captured as CUDA graphs"
            return (Option(self.names.cuda_graph_sizes, tuple(map(str, graphs.sizes)), why),)
        if graphs.max_bs is not None:
            why = "the profile: largest batch captured as a CUDA graph"
            return (option(self.names.cuda_graph_max_bs, graphs.max_bs, why),)
        return ()

    def queue_option(self, queue: QueueLimit, groups: int = 1) -> Option:
        """It counts those that run as well, of all groups (v1/engine/async_llm.py: check_admission). Raises InputError
        where it is not known how many run."""
        del groups
        if queue.running is None:
            raise InputError(
                "vLLM counts running and waiting requests together, and how many run at once is not known here",
                where="inventory: l40s_max_queued",
                fix=f"say it with {self.names.max_running} in l40s_args",
            )
        words = f"{queue.running} run and {queue.waiting} wait: {queue.source}"
        return option(self.names.max_queued, queue.running + queue.waiting, words)

    def _options(self, intent: Intent) -> Iterator[Option]:
        """The first node serves; the others are given no port, since they have no HTTP."""
        layout = intent.layout
        if intent.nccl_port is not None:
            yield self.nccl_port(intent.nccl_port)  # refused: it has no such flag
        yield option("--model", intent.model_path, "the profile's directory below the node's model root")
        yield option(self.names.tensor_parallel, layout.tensor_parallel, "layout: tensor parallel degree")
        if layout.pipeline_parallel > 1:
            yield option("--pipeline-parallel-size", layout.pipeline_parallel, "layout: pipeline parallel degree")
        why = "a process for each rank, which the agent watches; also where there is one rank"
        yield option("--distributed-executor-backend", "mp", why)
        if layout.nnodes > 1:
            address, _, port = intent.dist_init.rpartition(":")
            yield from of_nodes(intent)
            yield option("--master-addr", address.strip("[]"), "rendezvous on the leader, the same on every node")
            yield option("--master-port", port, "l40s_dist_init_port, the same on every node")
        yield from self.of_model(intent)
        yield option("--shutdown-timeout", _DRAIN_S, "running requests may finish; by default they are aborted")
        if layout.nnodes > 1 and intent.node_rank > 0:
            yield Option("--headless", (), "workers alone: the first node serves")
        else:
            yield option("--host", intent.host, "l40s_http_host")
            yield option("--port", intent.port, "l40s_http_port")


def _watch() -> Watch:
    return Watch(
        phases=tuple(PhasePattern(phase=phase, pattern=pattern) for phase, pattern in _PHASES),
        causes=(*_OWN, *map(_worded, COMMON), _ENDED),
        raised=tuple(map(_worded, WATCH.raised)),
        pointers=WATCH.pointers,
        remarks=tuple(replace(remark, fix=_TUNED_BY_HAND) for remark in REMARKS),
        # /health is 503 only once the engine is marked as dead, and 200 while it hangs: the agent generates a token
        http={**WATCH.http, "generate": WATCH.http["completions"], "info": "/version"},
        stop=StopOrder(drain_s=_DRAIN_S + 5, shutdown_s=15),
        # utils/system_utils.py (set_process_title), multiproc_executor.py (setup_proc_title_and_log_prefix)
        rank_title=r"^VLLM::Worker(?:_(?!TP)[A-Z]+\d+)*(?:_TP(?P<tp>\d+))?",
        other_titles=(r"^VLLM::EngineCore", r"^VLLM::APIServer"),
        rank_prefix=r"^\(Worker(?:_(?!TP)[A-Z]{1,8}\d{1,6}){0,4}_TP(?P<tp>\d{1,6})(?:_[A-Z]{1,8}\d{1,6}){0,4} pid=",
        # vllm/logging_utils/formatter.py, system_utils.py (decorate_logs)
        record=r"^(?P<speaker>\(\w{1,64} pid=\d{1,9}\) )ERROR [\d: -]{1,32} \[[\w.]{1,64}:\d{1,6}\] ?",
        requests=r"^(?:\(\w{1,64} pid=\d{1,9}\) )?INFO" + ACCESS,
        # said at each start where the limit can not be raised: "can cause fd limit errors like ... Too many open
        # files"
        harmless=rf"{HARMLESS}|Found ulimit of \d",
        own=WATCH.own,
        probe=ProbeOrder(
            answer_s=20,
            probes=3,
            log=r"Avg prompt throughput: (?!0\.0 tokens/s, Avg generation throughput: 0\.0 )",
            counters=r"^vllm:(?:prompt|generation)_tokens_total\b.*$",
            pause=r"Compiling a graph for|torch\.compile takes|Start compiling function",
            pause_s=1200,
            resumed=r"init engine \(profile",
        ),
    )


@cache
def _engine(version: str) -> Engine:
    return VllmEngine(
        dialect=NAME,
        product=PRODUCT,
        package="vllm",
        version=version,
        names=Names(
            tensor_parallel="--tensor-parallel-size",
            pipeline_parallel="--pipeline-parallel-size",
            max_running="--max-num-seqs",
            max_queued="--max-num-queued-reqs",
            cuda_graph_max_bs="--max-cudagraph-capture-size",
            cuda_graph_sizes="--cudagraph-capture-sizes",
            config="--config",
        ),
        ours=_OURS,
        launch=("{venv}/bin/python3", "-m", "vllm.entrypoints.cli.main", "serve"),
        renamed=_RENAMED,
        watched=_watch(),
        variables={"address": "VLLM_HOST_IP"},
        # fused_moe.py (get_config_file_name, get_moe_configs), quantization/utils/fp8_utils.py (get_w8a8_block_fp8_
        # configs); VLLM_TUNED_CONFIG_FOLDER is looked into first, and is no replacement: it is not `variable`
        tuned=Lookup(
            moe_parent="vllm/model_executor/layers/fused_moe",
            linear="vllm/model_executor/layers/quantization/utils/configs",
            fuses_qkv_a=True,
            spaced=False,
        ),
        bench={},
        compiles=False,
        memory=_memory,
        request_table=None,
    )


def _worded(cause: CausePattern) -> CausePattern:
    text, fix = cause.text, cause.fix
    for theirs, ours in _SAID:
        text, fix = text.replace(theirs, ours), fix.replace(theirs, ours)
    return replace(cause, text=text, fix=fix)


_TUNED_BY_HAND = (
    "tune with benchmarks/kernels/benchmark_moe.py (or benchmark_w8a8_block_fp8.py) of vLLM's repository; for MoE, set"
    " VLLM_TUNED_CONFIG_FOLDER with l40s_env to the folder of the file"
)


def _memory(asked: MemoryAsked) -> Division:
    """v1/worker/utils.py (request_memory) and gpu_worker.py (determine_available_memory): a part of the whole GPU, out
    of which come weights, CUDA context, graphs and the peak of a profiled step; the last two are measured at each
    start, so that the KV cache is smaller than what is calculated here."""
    given = asked.text("--gpu-memory-utilization")
    fraction = float(given) if given else 0.92
    why = "--gpu-memory-utilization" if given else "vLLM's own"
    return Division(
        fraction=fraction,
        of_total=True,
        explanation=f"{fraction:g} of the whole GPU: {why}; activations and graphs, which vLLM measures at its start, "
        "are not calculated: there will be fewer KV tokens",
        kv_bytes=element_bytes(asked.text("--kv-cache-dtype")),
        draft=any(flag in asked.flags for flag in ("--speculative-config", "--spec-method")),
    )


DIALECT = Dialect(name=NAME, product=PRODUCT, versions=("0.32.0", "0.33.0"), stack="vllm-0.33.0", of=_engine)
