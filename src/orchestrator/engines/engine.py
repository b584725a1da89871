"""What one engine version knows: its flags, log lines, endpoints, stop order, memory and files. Data, and no I/O."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from orchestrator.engines.known_flags import KnownFlags, known_flags
from orchestrator.engines.memory import Division, MemoryAsked
from orchestrator.model.errors import InputError
from orchestrator.model.profile import CudaGraphs, ModelProfile
from orchestrator.protocol.planned import Layout
from orchestrator.protocol.staging import CausePattern, PhasePattern, ProbeOrder, StopOrder, Watch

CONFIG_FILE = "engine-secrets.yml"
"""An engine's own configuration file."""
ARGUMENTS_FILE = "engine-secrets.args"
"""Arguments, one a line, for templates/launch_with_secrets.py."""
STUB_FILE = "launch_with_secrets.py"


_UNSAID = CudaGraphs()
CONCURRENCY = 128
"""Requests at once that a pipeline is laid out for: the most of the articles' tables."""
GRAPH_STEPS = r"(?:Capturing|Compiling) [a-z ]{1,32}\(.{0,256}\|\s{0,8}(?P<step>\d{1,6})/(?P<of>\d{1,6})\b"
"""Rank 0's progress through the batch sizes of its CUDA graphs: tqdm's bar, in all versions (cuda_graph_runner.py)."""


LAUNCH = ("{venv}/bin/python3", "-m", "sglang.launch_server")
HARMLESS = (
    r"NCCL WARN (?:\S{1,64} )?Call to bind failed ?: Address already in use"
    r"|^\[W\S{0,16} .{0,64}socket\.cpp.{0,64}bind"
)
"""The port of NCCL's own monitor, RAS (ras/client_support.cc: every other of its sockets takes any free port), is
taken on every node with two jobs; torch's store warns of each address that it can't take, and fails if it gets none."""
PROBE = ProbeOrder(
    answer_s=20,
    answer_env="SGLANG_HEALTH_CHECK_TIMEOUT",
    probes=3,
    log=r"\b(?:Prefill|Decode) batch\b",
    counters=r"^sglang[:_](?:prompt|generation)_tokens_total\b.*$",
    # model_executor/model_runner and layers/deep_gemm_wrapper/compile_utils, which says 10 to 20 minutes
    pause=r"Update engine weights online from disk begin|DeepGEMM JIT (?:Pre-Compile session|Compiling for)",
    pause_s=1200,
    resumed=r"Update weights end\.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogProof:
    """A log line that shows that something optional is in use.

    id:       of the remark (`Cause`) that says the opposite
    pattern:  searched in each log line
    text:     what is in use
    variable: of the environment; a plan that sets it to 1 asks for it
    """

    id: str
    pattern: str
    text: str
    variable: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What one node's engine should do, in no version's words.

    dist_init:   host:port of the rendezvous, '' where one node needs none
    whole_dense: dense layers are kept complete on every rank, because their cut would not end on a block
    micro_batch: most requests in a pipeline stage at once; None spreads CONCURRENCY over the stages
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


@dataclass(frozen=True, slots=True)
class Option:
    """One flag of a command line: name, values, and where they come from."""

    flag: str
    values: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """This family's full spellings; None where it has no such flag."""

    tensor_parallel: str
    pipeline_parallel: str | None
    expert_parallel: str | None
    micro_batch: str | None
    nccl_port: str | None
    cuda_graph_max_bs: str
    cuda_graph_sizes: str
    torch_compile: str = "--enable-torch-compile"
    torch_compile_max_bs: str = "--torch-compile-max-bs"
    config: str | None
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


OURS: Mapping[str, str] = {
    "--tp-size": "--tp N of this command",
    "--pp-size": "--pp N of this command",
    "--ep-size": "--ep N of this command",
    "--attn-dp-size": "--attn-dp N of this command",
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
    causes:    signatures of failures; remarks: lines that cost speed and end nothing
    proofs:    lines that show that an option is in use
    http:      paths on the leader: alive, generate, models, completions, metrics, info; ready: falls when it drains;
               loads: how many requests it has. Where a version lacks one, it is left out
    launch:    command words before the flags, unless the stack's file has others; {venv}: the virtual environment
    variables: environment variables by meaning: address (rank 0 tells the others), whole_shared (shared experts are
               not cut)
    shared_names: patterns (glob) of files that it leaves in shared memory and whose names hold no process id
    tuned:     where it looks for tuned kernel configs
    bench:     modules of its own benchmarks: serving, one_batch
    bench_flags: what the first needs beside the load, so that a run does not hit the cache that its warm-up filled
    memory:    how it divides a GPU
    request_table: rows and columns of req_to_token (where each token of a request is in the KV cache, as int32), from
               a request's context and the KV cache's tokens; None where that is too small to count
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
    phases: tuple[tuple[str, str], ...]
    causes: tuple[CausePattern, ...]
    remarks: tuple[CausePattern, ...]
    http: Mapping[str, str]
    variables: Mapping[str, str]
    tuned: Lookup
    bench: Mapping[str, str]
    memory: Callable[[MemoryAsked], Division]
    request_table: Callable[[MemoryAsked, int, int], tuple[int, int]] | None
    proofs: tuple[LogProof, ...] = ()
    attention: AttentionGroups | None = None
    bench_flags: tuple[str, ...] = ()
    compiles: bool = True
    shared_names: tuple[str, ...] = ()
    stop: StopOrder
    barrier_s: float
    """How long a rank that has its weights waits for the others (UNBALANCED_MODEL_LOADING_TIMEOUT_S, can't be set)."""
    rank_title: str = r"^sglang::scheduler(?:_(?!TP)[A-Z_]+\d+)*(?:_TP(?P<tp>\d+))?"
    other_titles: tuple[str, ...] = (r"^sglang::",)
    rank_prefix: str = r"^\[[^\]]{0,128}\bTP(?P<tp>\d{1,6})\b"
    record: str = ""
    requests: str = (
        r"^(?:\[[\d :-]{19}\] )?(?:\x1b\[\d{1,3}m)?INFO(?:\x1b\[\d{0,3}m)?: {1,16}\S{0,64} - \""
        r"|HTTP/\d(?:\.\d)?\" \d{3}(?: [A-Za-z' -]{0,40})?$"
    )
    """Lines of uvicorn's access log, which hold what a client wrote: their beginning, or their end where another
    process's line came between (format of every version: set_uvicorn_logging_configs in sglang/srt/utils)."""
    harmless: str = HARMLESS
    own: str = (
        r"NCCL INFO (?:Bootstrap ?: Using |NET/IB\w{0,16} : Using.{0,1024}; OOB )"
        r"(?P<interface>[^\s:]{1,32}):(?P<address>[^\s<]{1,64})"
    )
    probe: ProbeOrder = PROBE
    """How to tell a hung engine from a busy one: the probe's time limit, and what shows that it works on requests."""

    @property
    def health_path(self) -> str:
        """What a router should ask: the flag that draining lowers, else the constant one that every version has."""
        return self.http.get("ready", self.http["alive"])

    def graphs(self, profile: ModelProfile) -> CudaGraphs:
        """What a profile has this version capture and compile."""
        return profile.graphs_of(self.version, compiles=self.compiles)

    @property
    def load_paths(self) -> tuple[str, ...]:
        """What tells how many requests it has, the most direct first."""
        return tuple(self.http[name] for name in ("loads", "metrics") if name in self.http)

    def flags(self) -> KnownFlags:
        """Every flag of this version, with hints for those that other versions have."""
        own = known_flags(self.version, self.product)
        return replace(own, renamed={flag: hint for flag, hint in self.renamed if flag not in own})

    def options(self, intent: Intent) -> tuple[Option, ...]:
        """An intent in this family's full flag names, in the order in which a human would write them; what a version
        can't do, `planning.layout` has refused."""
        options = [
            Option("--model-path", (intent.model_path,), "the profile's directory below the node's model root"),
            Option(self.names.tensor_parallel, (str(intent.layout.tensor_parallel),), "layout: tensor parallel degree"),
        ]
        if intent.layout.pipeline_parallel > 1 and self.names.pipeline_parallel:
            degree = (str(intent.layout.pipeline_parallel),)
            options.append(Option(self.names.pipeline_parallel, degree, "layout: pipeline parallel degree"))
            options += self._micro_batch(intent)
        if intent.layout.expert_parallel > 1 and self.names.expert_parallel:
            degree = (str(intent.layout.expert_parallel),)
            options.append(Option(self.names.expert_parallel, degree, "layout: expert parallel degree"))
            if intent.whole_dense:
                reason = "dense layers are kept complete on every rank: split by TP, they would not end on a"
                options.append(Option("--moe-dense-tp-size", ("1",), f"{reason} quantisation block"))
        if intent.layout.attention_data_parallel > 1 and self.attention:
            degree = (str(intent.layout.attention_data_parallel),)
            options.append(Option(self.attention.flag, degree, "layout: attention data parallel degree"))
            if self.attention.switch:
                reason = f"without it {self.attention.flag} means copies of the whole model"
                options.append(Option(self.attention.switch, (), reason))
        if intent.layout.nnodes > 1:
            options += [
                Option("--dist-init-addr", (intent.dist_init,), "rendezvous on the leader, the same on every node"),
                Option("--nnodes", (str(intent.layout.nnodes),), "nodes in the gang's inventory group"),
                Option("--node-rank", (str(intent.node_rank),), "this node's position in the gang's inventory group"),
            ]
        if intent.served_name:
            reason = "the profile's name, which clients ask for instead of a path"
            options.append(Option("--served-model-name", (intent.served_name,), reason))
        if intent.trust_remote_code:
            options.append(Option("--trust-remote-code", (), "the profile: the checkpoint contains its own code"))
        options += self.graph_options(intent.graphs)
        if intent.nccl_port is not None:
            options.append(self._nccl_port(intent.nccl_port))
        options += [
            Option("--host", (intent.host,), "l40s_http_host; on every node, or a worker's /health is loopback only"),
            Option("--port", (str(intent.port),), "l40s_http_port; on every node for the same reason"),
            Option(
                "--enable-metrics",
                (),
                "/metrics on the leader: queue, speed, and whether a busy engine makes progress",
            ),
        ]
        return tuple(options)

    def graph_options(self, graphs: CudaGraphs) -> tuple[Option, ...]:
        """What is captured and compiled. The largest size is named beside a list of them: 0.4.4 leaves out what is
        above its own maximum (get_batch_sizes_to_capture), 0.5 takes it from the list."""
        options = []
        if graphs.torch_compile_max_bs:
            size = str(graphs.torch_compile_max_bs)
            options += [
                Option(self.names.torch_compile, (), "the profile asks for torch.compile"),
                Option(self.names.torch_compile_max_bs, (size,), "the profile: largest batch that is compiled"),
            ]
        largest = graphs.sizes[-1] if graphs.sizes else graphs.max_bs
        if largest is not None:
            why = "the profile: largest batch captured as a CUDA graph"
            options.append(Option(self.names.cuda_graph_max_bs, (str(largest),), why))
        if graphs.sizes:
            why = "the profile: batch sizes captured as CUDA graphs"
            options.append(Option(self.names.cuda_graph_sizes, tuple(map(str, graphs.sizes)), why))
        return tuple(options)

    def _micro_batch(self, intent: Intent) -> Iterator[Option]:
        if self.names.micro_batch is not None:
            stages = intent.layout.pipeline_parallel
            reason = f"{CONCURRENCY} requests spread over {stages} stages; by default one stage may take them all"
            if intent.micro_batch:
                reason = "the profile: most requests in a stage at once"
            yield Option(self.names.micro_batch, (str(intent.micro_batch or -(-CONCURRENCY // stages)),), reason)

    def _nccl_port(self, port: int) -> Option:
        if self.names.nccl_port is None:
            raise InputError(
                f"{self.product} {self.version} takes a random port for NCCL and has no flag to choose one",
                where="inventory: l40s_nccl_port",
                fix="remove l40s_nccl_port, or use a stack with SGLang 0.5",
            )
        return Option(self.names.nccl_port, (str(port),), "l40s_nccl_port in the inventory")

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

        `rank_title` finds no number where tensor parallel is 1: the title is `sglang::scheduler` then.
        """
        return Watch(
            dialect=self.dialect,
            rank_title=self.rank_title,
            other_titles=self.other_titles,
            phases=tuple(PhasePattern(phase=phase, pattern=pattern) for phase, pattern in self.phases),
            rank_prefix=self.rank_prefix,
            record=self.record,
            requests=self.requests,
            harmless=self.harmless,
            own=self.own,
            causes=self.causes,
            remarks=self.remarks,
            proofs=tuple(
                CausePattern(id=one.id, pattern=one.pattern, text=one.text)
                for one in self.proofs
                if env is None or env.get(one.variable) == "1"
            ),
            http=self.http,
            probe=self.probe,
            stop=self.stop,
            barrier_s=self.barrier_s,
            shared_names=self.shared_names,
        )


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
    by_triton: bool
    channel_in_name: bool
    down: bool
    fuses_shared: bool
    fuses_qkv_a: bool
    variable: str
    skips_compiled: bool
    spaced: bool = True


def moe_root(lookup: Lookup, moe_directory: str = "") -> str:
    """The directory that holds MoE configs, or folders of them by Triton version."""
    parent = moe_directory.rstrip("/") if moe_directory and lookup.variable else lookup.moe_parent
    return f"{parent}/configs"
