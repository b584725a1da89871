"""What one engine version knows: its flags, log lines, endpoints, stop order, memory and files. Data, and no I/O."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.engines.exceptions import POINTERS, RAISED
from orchestrator.engines.known_flags import KnownFlags, Option, known_flags
from orchestrator.engines.serving import METRICS
from orchestrator.model.profile import CudaGraphs, ModelProfile
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.planned import Layout
from orchestrator.protocol.staging import CausePattern, PhasePattern, ProbeOrder, Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAsked:
    """What decides how an engine divides a GPU.

    flags:   every flag of the command line but the layout's, by its first spelling, with its values
    gpu_mib: the GPU's memory in MiB, as NVML says it
    mla:     the model has multi-head latent attention
    vision:  layers and hidden size of a multimodal model's encoder
    nvlink:  several GPUs of a node may be joined by NVLink
    whole_dense: dense layers are kept complete on every rank
    """

    flags: Mapping[str, tuple[str, ...]]
    layout: Layout
    gpu_mib: int
    mla: bool
    vision: tuple[int, int] | None = None
    nvlink: bool = False
    whole_dense: bool = False

    def number(self, flag: str) -> int | None:
        """A flag's only value as an integer; None where it is not given."""
        return int(self.text(flag)) if self.text(flag) else None

    def text(self, flag: str) -> str:
        """A flag's first value, '' where it is not given."""
        return self.flags[flag][0] if self.flags.get(flag) else ""

    @property
    def given(self) -> float | None:
        """--mem-fraction-static, which every version takes as it is."""
        value = self.text("--mem-fraction-static")
        return float(value) if value else None


FIRST_TAKEN = int(1.29 * (1 << 30))
"""CUDA context, NCCL's buffers and libraries before the first weight, in bytes: the articles' log of SGLang 0.4.4 on 32
L40S with RDMA has 22.43 + 21.27 GiB of 46068 MiB at that moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCost:
    """What a rank of DeepSeek-V3 at TP32 was measured to cost beside weights and KV cache, without a draft.

    source:         who measured it, in words
    graph_bytes:    a batch size that is captured as a decode graph
    capture_s:      seconds that the capture takes with what was compiled before: (least, most) for so many sizes
    compile_s:      more of them with empty kernel caches: (least, most)
    activations:    bytes beside these graphs at the most, for tokens of a chunk of prefill; None where nobody measured
    prefill_graphs: prefill is captured too, and its graphs count as activations: they hold those of their sizes
    prefill_tokens: of all sizes of prefill that are captured, for tokens of a chunk; None where prefill is not
    """

    source: str
    graph_bytes: int
    capture_s: Callable[[int], tuple[float, float]]
    compile_s: tuple[float, float]
    activations: Callable[[int], int] | None = None
    prefill_graphs: bool = False
    prefill_tokens: Callable[[int], int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """How one engine version divides a GPU.

    fraction:    of the memory before the weights, for weights and KV cache; of_total: of the whole GPU
    explanation: how it was computed
    max_tokens:  most tokens that the KV cache is allowed, None for as many as fit
    kv_bytes:    of one element of the KV cache
    whole_embedding: with attention groups, every rank has the whole embedding, else a group's ranks share it
    chunk:       tokens that one attention group prefills at once, None where prefill is not divided
    window_share: tokens that a sliding-window layer keeps for each one that a full layer keeps
    draft:       a multi-token prediction layer is loaded as the draft, and has a KV cache of its own
    taken:       bytes of the GPU that are in use before the first weight
    padding:     what the allocator takes for the weights beyond their bytes, as a share of these
    graphs:      batch sizes whose decode is captured, in order; None where the engine's rule is not known
    cost:        what was measured of graphs and activations; None where nothing was
    """

    fraction: float
    of_total: bool = False
    explanation: str
    max_tokens: int | None = None
    kv_bytes: int = 2
    whole_embedding: bool = False
    chunk: int | None = None
    window_share: float = 1.0
    draft: bool = False
    taken: int = FIRST_TAKEN
    padding: float = 0.0
    graphs: tuple[int, ...] | None = None
    cost: RankCost | None = None


def usual_requests(context: int, tokens: int) -> int:
    """Requests that every version of SGLang reserves space for by default: 512 full contexts' worth of the KV cache,
    but 2048 to 4096. context: tokens that one request may have; tokens: those of the KV cache"""
    return max(min(int(tokens / context * 512), 4096), 2048)


def element_bytes(kv_cache_dtype: str) -> int:
    """Of one element of the KV cache: 1 for FP8, else 2 (bf16, the engine's `auto`)."""
    return 1 if kv_cache_dtype.startswith("fp8") else 2


CONFIG_FILE = "engine-secrets.yml"
"""An engine's own configuration file."""
ARGUMENTS_FILE = "engine-secrets.args"
"""Arguments, one a line, for templates/launch_with_secrets.py."""
STUB_FILE = "launch_with_secrets.py"
SERVED_FLAG = "--served-model-name"
"""Of every version of both families: what clients ask for."""


_UNSAID = CudaGraphs()
CONCURRENCY = 128
"""Requests at once that a pipeline is laid out for: the most of the articles' tables."""
LAUNCH = ("{venv}/bin/python3", "-m", "sglang.launch_server")
HARMLESS = (
    r"NCCL WARN (?:\S{1,64} )?Call to bind failed ?: Address already in use"
    r"|^\[W\S{0,16} .{0,64}socket\.cpp.{0,64}bind(?! to 0\.0\.0\.0:\d{1,5} \(errno: 98)"
    r"|[Ii]notify|epoll_ctl"  # which lack no disk
    r"|\bIgnore import error when loading "
)
"""The port of NCCL's own monitor, RAS (ras/client_support.cc: every other of its sockets takes any free port), is
taken on every node with two jobs; torch's store warns of each address that it can't take, and fails if it gets none:
of all IPv4 addresses last (torch/csrc/distributed/c10d/socket.cpp, SocketListenOp::run); a module of a model that is
not served (sglang/srt/models/registry.py)."""
ACCESS = r""": {1,16}\S{0,64} - \"|HTTP/\d(?:\.\d)?\" \d{3}(?: [A-Za-z' -]{0,40})?$"""
"""After INFO: lines of uvicorn's access log, which hold what a client wrote, by their beginning, or by their end where
another process's line came between (every version: set_uvicorn_logging_configs in sglang/srt/utils)."""
WATCH = Watch(
    rank_title=r"^sglang::scheduler(?:_(?!TP)[A-Z_]+\d+)*(?:_TP(?P<tp>\d+))?",  # no number where TP is 1
    other_titles=(r"^sglang::",),
    rank_prefix=r"^\[[^\]]{0,128}\bTP(?P<tp>\d{1,6})\b",
    requests=r"^(?:\[[\d :-]{19}\] )?(?:\x1b\[\d{1,3}m)?INFO(?:\x1b\[\d{0,3}m)?" + ACCESS,
    harmless=HARMLESS,
    raised=RAISED,
    pointers=POINTERS,
    own=r"NCCL INFO (?:Bootstrap ?: Using |NET/IB\w{0,16} : Using.{0,1024}; OOB )"
    r"(?P<interface>[^\s:]{1,32}):(?P<address>[^\s<]{1,64})",
    probe=ProbeOrder(
        answer_s=20,
        answer_env="SGLANG_HEALTH_CHECK_TIMEOUT",
        probes=3,
        log=r"\b(?:Prefill|Decode) batch\b",
        counters=r"^sglang[:_](?:prompt|generation)_tokens_total\b.*$",
        # model_executor/model_runner and layers/deep_gemm_wrapper/compile_utils, which says 10 to 20 minutes
        pause=r"Update engine weights online from disk begin|DeepGEMM JIT (?:Pre-Compile session|Compiling for)",
        pause_s=1200,
        resumed=r"Update weights end\.",
    ),
    http={
        "alive": "/health",
        "generate": "/health_generate",
        "models": "/v1/models",
        "completions": "/v1/completions",
        "metrics": METRICS,
    },
)
"""What all versions of SGLang have in common for a node agent."""


def phases_of(*, rendezvous: str, shards: str, graphs: str) -> tuple[PhasePattern, ...]:
    """SGLang's start. shards: what counts them; graphs: what is said before they are captured. tqdm's bar of rank 0
    counts the batch sizes in all versions (cuda_graph_runner.py)."""
    count = r".{0,256}\|\s{0,8}(?P<step>\d{1,6})/(?P<of>\d{1,6})\b"
    patterns = {
        "rendezvous": rendezvous,
        "nccl": r"sglang is using nccl==|NCCL INFO Bootstrap",
        "weights": rf"Load weight begin\.|{shards} shards:{count}",
        "kv-cache": r"Load weight end\.",
        "graphs": rf"{graphs}|(?:Capturing|Compiling) [a-z ]{{1,32}}\({count}",
        "warm-up": r"\bmax_total_num_tokens=\d+|Uvicorn running on ",
        "ready": r"The server is fired up and ready to roll!",
    }
    return tuple(PhasePattern(phase=phase, pattern=pattern) for phase, pattern in patterns.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimit:
    """How many requests may wait in a gang before further ones are refused.

    waiting: of the whole gang; running: how many it runs at once, None where that is not known; source: who says so
    """

    waiting: int
    running: int | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What one node's engine should do, in no version's words.

    dist_init:   host:port of the rendezvous, '' where one node needs none
    whole_dense: dense layers are kept complete on every rank, because their cut would not end on a block
    micro_batch: most requests in a pipeline stage at once; None spreads CONCURRENCY over the stages
    queue:       None lets any number of requests wait
    """

    model_path: str
    served_name: str = ""
    layout: Layout
    micro_batch: int | None = None
    whole_dense: bool = False
    node_rank: int = 0
    dist_init: str = ""
    host: str
    port: int
    nccl_port: int | None = None
    trust_remote_code: bool = False
    graphs: CudaGraphs = _UNSAID
    queue: QueueLimit | None = None


def option(flag: str, value: object, source: str) -> Option:
    """One with one value."""
    return Option(flag, (str(value),), source)


def of_nodes(intent: Intent) -> Iterator[Option]:
    """Of an engine on several nodes, in every family."""
    yield option("--nnodes", intent.layout.nnodes, "nodes in the gang's inventory group")
    yield option("--node-rank", intent.node_rank, "this node's position in the gang's inventory group")


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """This family's full spellings; None where it has no such flag."""

    tensor_parallel: str
    pipeline_parallel: str | None = None
    expert_parallel: str | None = None
    micro_batch: str | None = None
    nccl_port: str | None = None
    max_running: str = "--max-running-requests"
    max_queued: str = "--max-queued-requests"
    """Most requests that may wait; not every version has it."""
    cuda_graph_max_bs: str
    cuda_graph_sizes: str
    config: str | None = None
    """Flag that reads further flags from a YAML file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionGroups:
    """How a version divides attention among groups of ranks, each with requests of its own.

    flag:     takes the number of groups
    switch:   flag that it needs beside it, '' for none
    reduces:  all-reduces over all tensor parallel ranks a layer that are left; without groups there are two
    """

    flag: str
    switch: str = ""
    reduces: int


def any_size(_: MemoryAsked) -> int:
    """Of a version that captures decode for a batch of any size."""
    return 1


OURS: Mapping[str, str] = {
    "--tp-size": "--tp N of this command",
    "--pp-size": "--pp N of this command",
    "--ep-size": "--ep N of this command",
    "--attn-dp-size": "--attn-dp N of this command",
    "--dp-size": "--attn-dp N of this command",
    "--enable-dp-attention": "--attn-dp N of this command",
    "--nnodes": "the gang's group in the inventory",
    "--node-rank": "the order of the gang's group in the inventory",
    "--dist-init-addr": "l40s_address and l40s_dist_init_port in the inventory",
    "--model-path": "the profile's directory and l40s_model_root in the inventory",
    "--nccl-port": "l40s_nccl_port in the inventory",
    "--host": "l40s_http_host in the inventory",
    "--port": "l40s_http_port in the inventory",
    "--api-key": "l40s_api_key_file in the inventory; as an argument it would show in the process list and the log",
    "--admin-api-key": "nothing; as an argument it would show in the process list and the log",
    "--ssl-keyfile-password": "nothing; as an argument it would show in the process list and the log",
    "--config": "l40s_args in the inventory, flag by flag; a file's contents can't be checked",
}
"""Flags that an extra argument may not set, and where their value is set instead; of those that a version has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One version of an engine.

    dialect:   its family's name
    product:   what people call it; package: the Python package whose version is the engine's
    version:   the listed version whose facts these are
    renamed:   flags of other versions -> what to use in this one
    ours:      flags that the plan sets -> where an operator sets the value
    watched:   what a node agent must know of it. Paths (`http`) are the leader's: alive, generate, models, completions,
               metrics, info; ready: falls when it drains; loads: how many requests it has. Where a version lacks one,
               it is left out
    proofs:    lines that show that something optional is in use, by the variable that a plan sets to 1 for it; id: of
               the remark that says the opposite
    launch:    command words before the flags, unless the stack's file has others; {venv}: the virtual environment
    variables: environment variables by meaning: address (rank 0 tells the others), whole_shared (shared experts are
               not cut)
    tuned:     where it looks for tuned kernel configs
    bench:     modules of its own benchmarks: serving, one_batch
    bench_flags: what the first needs beside the load, so that a run does not hit the cache that its warm-up filled
    memory:    how it divides a GPU
    request_table: rows and columns of req_to_token (where each token of a request is in the KV cache, as int32), from
               a request's context and the KV cache's tokens; None where that is too small to count
    graph_step: batch sizes whose decode is captured are multiples of it; others are left out
    largest_graph: the largest batch whose decode it is told to capture, 0 for none; None where that is not known
    attention: how it divides attention among groups of ranks, None where it does not
    compiles: a profile may ask all versions for torch.compile, this one among them; False where its own manual advises
               against it, so that only who names this version gets it
    """

    dialect: str
    product: str = "SGLang"
    package: str = "sglang"
    version: str
    renamed: tuple[tuple[str, str], ...]
    names: Names
    ours: Mapping[str, str] = field(default_factory=lambda: OURS)
    launch: tuple[str, ...] = LAUNCH
    watched: Watch
    variables: Mapping[str, str]
    tuned: Lookup
    bench: Mapping[str, str]
    memory: Callable[[MemoryAsked], Division]
    request_table: Callable[[MemoryAsked, int, int], tuple[int, int]] | None
    proofs: Mapping[str, CausePattern] = field(default_factory=dict)
    graph_step: Callable[[MemoryAsked], int] = any_size
    largest_graph: Callable[[MemoryAsked], int] | None = None
    attention: AttentionGroups | None = None
    bench_flags: tuple[str, ...] = ()
    compiles: bool = True

    @property
    def health_path(self) -> str:
        """What a router should ask: the flag that draining lowers, else the constant one that every version has."""
        return self.watched.http.get("ready", self.watched.http["alive"])

    def graphs(self, profile: ModelProfile) -> CudaGraphs:
        """What a profile has this version capture and compile."""
        return profile.graphs_of(self.version, compiles=self.compiles)

    @property
    def load_paths(self) -> tuple[str, ...]:
        """What tells how many requests it has, the most direct first."""
        return tuple(self.watched.http[name] for name in ("loads", "metrics") if name in self.watched.http)

    def flags(self) -> KnownFlags:
        """Every flag of this version, with hints for those that other versions have."""
        own = known_flags(self.version, self.product)
        return replace(own, renamed={flag: hint for flag, hint in self.renamed if flag not in own})

    def options(self, intent: Intent) -> tuple[Option, ...]:
        """An intent in this family's full flag names, in the order in which a human would write them; what a version
        can't do, `planning.layout` has refused."""
        return tuple(self._options(intent))

    def _options(self, intent: Intent) -> Iterator[Option]:
        layout, names = intent.layout, self.names
        yield option("--model-path", intent.model_path, "the profile's directory below the node's model root")
        yield option(names.tensor_parallel, layout.tensor_parallel, "layout: tensor parallel degree")
        if layout.pipeline_parallel > 1 and names.pipeline_parallel:
            yield option(names.pipeline_parallel, layout.pipeline_parallel, "layout: pipeline parallel degree")
            yield from self._micro_batch(intent)
        if layout.expert_parallel > 1 and names.expert_parallel:
            yield option(names.expert_parallel, layout.expert_parallel, "layout: expert parallel degree")
            if intent.whole_dense:
                why = "dense layers are kept complete on every rank: split by TP, they would not end on a"
                yield option("--moe-dense-tp-size", 1, f"{why} quantisation block")
        if layout.attention_data_parallel > 1 and self.attention:
            flag = self.attention.flag
            yield option(flag, layout.attention_data_parallel, "layout: attention data parallel degree")
            if self.attention.switch:
                yield Option(self.attention.switch, (), f"without it {flag} means copies of the whole model")
        if layout.nnodes > 1:
            yield option("--dist-init-addr", intent.dist_init, "rendezvous on the leader, the same on every node")
            yield from of_nodes(intent)
        yield from self.of_model(intent)
        if intent.nccl_port is not None:
            yield self.nccl_port(intent.nccl_port)
        why = "l40s_http_host; on every node, or a worker's /health is loopback only"
        yield option("--host", intent.host, why)
        yield option("--port", intent.port, "l40s_http_port; on every node for the same reason")
        why = "/metrics on the leader: queue, speed, and whether a busy engine makes progress"
        yield Option("--enable-metrics", (), why)

    def of_model(self, intent: Intent) -> Iterator[Option]:
        """What a profile asks for."""
        if intent.served_name:
            yield option(SERVED_FLAG, intent.served_name, "the profile's name, which clients ask for instead of a path")
        if intent.trust_remote_code:
            yield Option("--trust-remote-code", (), "the profile: the checkpoint contains its own code")
        yield from self.graph_options(intent.graphs)
        if intent.queue is not None:
            yield self.queue_option(intent.queue, intent.layout.attention_data_parallel)

    def queue_option(self, queue: QueueLimit, groups: int = 1) -> Option:
        """The limit in this family's words; each of so many groups of attention data parallelism has a queue of its own
        (managers/scheduler.py: _abort_on_queued_limit)."""
        return option(self.names.max_queued, -(-queue.waiting // groups), queue.source)

    def graph_options(self, graphs: CudaGraphs) -> tuple[Option, ...]:
        """What is captured and compiled. The largest size is named beside a list of them: 0.4.4 leaves out what is
        above its own maximum (get_batch_sizes_to_capture), 0.5 takes it from the list."""
        options = []
        if most := graphs.torch_compile_max_bs:
            options.append(Option("--enable-torch-compile", (), "the profile asks for torch.compile"))
            options.append(option("--torch-compile-max-bs", most, "the profile: largest batch that is compiled"))
        largest = graphs.sizes[-1] if graphs.sizes else graphs.max_bs
        if largest is not None:
            why = "the profile: largest batch captured as a CUDA graph"
            options.append(option(self.names.cuda_graph_max_bs, largest, why))
        if graphs.sizes:
            why = "the profile: batch sizes captured as CUDA graphs"
            options.append(Option(self.names.cuda_graph_sizes, tuple(map(str, graphs.sizes)), why))
        return tuple(options)

    def _micro_batch(self, intent: Intent) -> Iterator[Option]:
        if (flag := self.names.micro_batch) and intent.micro_batch:
            yield option(flag, intent.micro_batch, "the profile: most requests in a stage at once")
        elif flag:
            stages = intent.layout.pipeline_parallel
            why = f"{CONCURRENCY} requests spread over {stages} stages; by default one stage may take them all"
            yield option(flag, -(-CONCURRENCY // stages), why)

    def nccl_port(self, port: int) -> Option:
        """Raises InputError where the version has no flag for it."""
        if self.names.nccl_port is None:
            raise InputError(
                f"{self.product} {self.version} takes a random port for NCCL and has no flag to choose one",
                where="inventory: l40s_nccl_port",
                fix="remove l40s_nccl_port, or use a stack with SGLang 0.5",
            )
        return option(self.names.nccl_port, port, "l40s_nccl_port in the inventory")

    def with_secrets(self, launch: Sequence[str], folder: str) -> tuple[tuple[str, ...], tuple[Option, ...]]:
        """Launch words and flags for an engine that reads its API key from a file in this folder of the node.

        A version without a flag for that is started by our launch_with_secrets.py in place of `python3 -m`.
        Raises InputError for a stack that is launched in another way.
        """
        if self.names.config is not None:
            reason = "the API key, in a file that only the engine's user can read; an argument would show in `ps`"
            return tuple(launch), (Option(self.names.config, (f"{folder}/{CONFIG_FILE}",), reason),)
        if "-m" not in launch:
            raise InputError(
                f"an API key for {self.product} {self.version} needs a stack that is launched by `python3 -m MODULE`;"
                f" found {launch!r}",
                where="stack: launch",
                fix="remove l40s_api_key_file, or launch the stack that way",
            )
        place = launch.index("-m")
        return (*launch[:place], f"{folder}/{STUB_FILE}", f"{folder}/{ARGUMENTS_FILE}", *launch[place + 1 :]), ()

    def secret_files(self, api_key: str, stub: str) -> tuple[tuple[str, str], ...]:
        """(name, text) of the files that `with_secrets` counts on. stub: the text of launch_with_secrets.py"""
        if self.names.config is not None:
            return ((CONFIG_FILE, f"api-key: {json.dumps(api_key)}\n"),)
        return (STUB_FILE, stub), (ARGUMENTS_FILE, f"--api-key\n{api_key}\n")

    def watch(self, env: Mapping[str, str] | None = None) -> Watch:
        """What a node agent must know to watch this engine: patterns, endpoints, stop order.

        env: of its start, which says what is to be proved; None for everything that can be
        """
        proofs = (causes for variable, causes in self.proofs.items() if env is None or env.get(variable) == "1")
        return replace(self.watched, dialect=self.dialect, proofs=tuple(proofs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """One version's rules.

    moe_parent, linear: folders below site-packages; MoE configs are in `moe_parent`/configs
    by_triton:          MoE configs are in a folder for each Triton version, searched newest first as a fallback
    channel_in_name:    `per_channel_quant=True` is part of a MoE config's name
    down:               the down projection has a config of its own; without one the up projection's serves
    fuses_shared:       a DeepSeek V3 model's shared expert becomes one more routed one (E=257)
    fuses_qkv_a:        q_a and kv_a are one matrix
    variable:           environment variable that replaces `moe_parent`, '' for none; `configs` below it must exist
    spaced:             a block is `[64, 64]` in a name, else `[64,64]`
    skips_compiled:     under torch.compile no tuned linear config is looked up
    """

    moe_parent: str
    linear: str
    by_triton: bool = False
    channel_in_name: bool = False
    down: bool = False
    fuses_shared: bool = False
    fuses_qkv_a: bool = False
    variable: str = ""
    skips_compiled: bool = False
    spaced: bool = True


def moe_root(lookup: Lookup, moe_directory: str = "") -> str:
    """The directory that holds MoE configs, or folders of them by Triton version."""
    parent = moe_directory.rstrip("/") if moe_directory and lookup.variable else lookup.moe_parent
    return f"{parent}/configs"
