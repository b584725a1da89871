"""What the controller stages on a node: everything that its agent needs for a run. The reference lists the keys."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from orchestrator.protocol.addresses import host_port
from orchestrator.protocol.message import Message, schema
from orchestrator.protocol.planned import Layout, NodeNetwork

PROTOCOL = 1
"""Of staging requests: raised only where a release that ignores a key would start something else. 0, or no number: from
before 0.2.0, without some of the types of what was planned (planning/older_staging.py)."""
LOG_LIMIT = 64 * 1024 * 1024
ARMED_FOR_S = 120.0
"""An armed agent that nobody tells to start ends by itself after so long."""


@schema(frozen=True, slots=True, kw_only=True)
class PhasePattern(Message):
    """A log line that shows that a phase has begun; its groups `step` and `of` count inside it."""

    phase: str
    pattern: str


@schema(frozen=True, slots=True, kw_only=True)
class CausePattern(Message):
    """A log line that explains a failure.

    pattern:   searched in each log line; its groups, where there are any: peer, the other end; own, this one
    text, fix: plain words for the operator
    secondary: the line shows only that another rank or node had failed
    weak:      another primary cause goes before it, since the other end, or what was said before, may be the reason
    after:     a pattern that one of the last lines before it must have, by the same rank where lines name ranks: a
               bare errno names a cause only with the call that failed. '' asks for none
    unless:    a pattern that none of those lines may have: it shows that the engine was past it. '' asks for nothing
    """

    id: str = ""
    pattern: str
    text: str = ""
    fix: str = ""
    secondary: bool = False
    weak: bool = False
    after: str = ""
    unless: str = ""


@schema(frozen=True, slots=True, kw_only=True)
class ProbeOrder(Message):
    """How to tell a hung engine from a busy one.

    answer_s:   how long one generation probe may take; the engine's own environment variable answer_env goes before it
    probes:     so many without an answer or any progress mean hung
    log:        pattern of the log lines that show work on somebody's request
    counters:   pattern of the metrics lines that only such work changes
    pause:      pattern of the log lines that announce a pause of up to pause_s: kernels compiled, weights replaced
    resumed:    pattern of the log lines that end one
    hung_after_s: so long without an answer or any progress means hung, whatever `probes` says; 0: nobody asked for it
    """

    answer_s: float = 20.0
    answer_env: str = ""
    probes: int = 3
    every_s: float = 5.0
    log: str = ""
    counters: str = ""
    pause: str = ""
    pause_s: float = 1200.0
    resumed: str = ""
    hung_after_s: float = 0.0


@schema(frozen=True, slots=True, kw_only=True)
class StopOrder(Message):
    """How this engine is stopped: a signal (`TERM`) for the leader's parent process, then patience, in seconds."""

    leader_signal: str = "TERM"
    drain_s: float = 30.0
    shutdown_s: float = 20.0
    worker_signal: str | None = None


@schema(frozen=True, slots=True, kw_only=True)
class Watch(Message):
    """What an agent must know of its engine's dialect, since it knows no engine.

    rank_title:   pattern of a rank's process title, its group `tp` is the rank; rank_prefix: the same of a log line
    record:       pattern of what a logger writes before every line of a traceback too, its group `speaker` is who
    requests:     pattern of log lines that hold what a client wrote: they are no evidence
    harmless:     pattern of log lines that look like a cause and end nothing
    own:          pattern of the line that tells how this node's ranks connect; its groups: interface, address
    http:         paths by purpose: alive, generate, metrics, models, completions
    barrier_s:    how long loaded ranks wait for the others, 0 where they do not
    allowed_s:    seconds that each phase of a healthy start of this model may take on slow hardware
    raised:       kinds of exceptions: a pattern is searched in `Class: words`, a line break and `path:line` of the one
                  that ended a traceback, where no cause is known; pointers: of exceptions that tell of another one
    shared_names: patterns (glob) of files that it leaves in shared memory and whose names hold no process id
    proofs:       log lines that show that what the plan asks for is in use; id: of the remark that says the opposite
    """

    dialect: str = ""
    rank_title: str = ""
    other_titles: tuple[str, ...] = ()
    phases: tuple[PhasePattern, ...] = ()
    rank_prefix: str = ""
    record: str = ""
    requests: str = ""
    harmless: str = ""
    own: str = ""
    causes: tuple[CausePattern, ...] = ()
    raised: tuple[CausePattern, ...] = ()
    pointers: str = ""
    remarks: tuple[CausePattern, ...] = ()
    proofs: tuple[CausePattern, ...] = ()
    http: Mapping[str, str] = field(default_factory=dict)
    probe: ProbeOrder = ProbeOrder()
    stop: StopOrder = StopOrder()
    barrier_s: float = 0.0
    allowed_s: Mapping[str, float] = field(default_factory=dict)
    shared_names: tuple[str, ...] = ()

    def hung_after(self, seconds: float | None) -> Watch:
        """The same with another patience before an engine counts as hung; None: as it is."""
        return self if seconds is None else replace(self, probe=replace(self.probe, hung_after_s=seconds))


@schema(frozen=True, slots=True, kw_only=True)
class Endpoint(Message):
    """A TCP address; '' is every address of the node."""

    address: str = ""
    port: int


@schema(frozen=True, slots=True, kw_only=True)
class Ports(Message):
    """Where this node will listen: the checks find whether it can."""

    check_free: tuple[Endpoint, ...] = ()


@schema(frozen=True, slots=True, kw_only=True)
class ServiceOrder(Message):
    """Where the gang serves HTTP, for the node that asks it.

    certificate: of an https URL: the gang's secret file that holds the one certificate to accept, whatever its name
    """

    url: str
    certificate: str = ""


@schema(frozen=True, slots=True, kw_only=True)
class Canary(Message):
    """One greedy generation that proves that the engine answers. expect_any: its text holds one of them; none: any."""

    prompt: str
    max_tokens: int = 16
    expect_any: tuple[str, ...] = ()


ENDS_WITH_STDIN = 'exec 3<&0; ( ( while read -r _; do :; done; kill -KILL $$ ) <&3 & ); exec "$@" </dev/null 3<&-'
"""What /bin/sh does inside a container: $$ is itself and the program that it becomes, which is killed when the standard
input of whoever started the container closes (docs/decisions/0005)."""


@schema(frozen=True, slots=True, kw_only=True)
class Container(Message):
    """What the engine runs in on a node that starts it from an image. program: docker or podman; image: by digest."""

    program: str
    image: str = ""


@schema(frozen=True, slots=True, kw_only=True)
class SecretFile(Message):
    """A file for the engine's user."""

    name: str
    text: str = field(repr=False)


@schema(frozen=True, slots=True, kw_only=True)
class Secrets(Message):
    """files: written for the engine's user; redact: values taken out of the log; authorization: the header that the
    engine's HTTP asks for. of_run: those that this run had instead, where a later plan has replaced them.

    They are in the gang's folder as secrets.json too; those before them, of that run, as secrets.before.json.
    """

    files: tuple[SecretFile, ...] = ()
    redact: tuple[str, ...] = field(default=(), repr=False)
    authorization: str = field(default="", repr=False)
    of_run: str | None = None


@schema(frozen=True, slots=True, kw_only=True)
class Asked(Message):
    """What an operator asked for when the gang was planned on all of its nodes: enough to plan it again, on fewer or
    on all of them. None and () let inventory, profile and facts decide."""

    model: str
    stack: str | None = None
    tp: int | None = None
    pp: int | None = None
    ep: int | None = None
    attn_dp: int | None = None
    layout: str = ""
    extra_args: tuple[str, ...] = ()
    accept: tuple[str, ...] = ()
    """Findings that were set aside, `ID` or `ID@node`: they do not forbid a later start of the same plan either."""

    def on_other_nodes(self) -> Asked:
        """The same without what was chosen for so many nodes."""
        return replace(self, tp=None, pp=None, ep=None, attn_dp=None, layout="")


@schema(frozen=True, slots=True, kw_only=True)
class NodePlan(Message):
    """One node's part of a gang's plan: the document that is planned, shown, staged, read back and compared.

    argv and env are complete: the agent starts exactly this and adds nothing; in a container where there is one. They
    are made from what was decided, which stands beside them; nobody reads them back.
    """

    gang: str
    node: str
    node_rank: int
    nnodes: int
    members: tuple[str, ...] = ()
    """Node names in node-rank order."""
    addresses: Mapping[str, str] = field(default_factory=dict)
    """Node names by address, of all members."""
    state_dir: str | None = None
    engine_user: str | None = None
    model: str = ""
    served: tuple[str, ...] = ()
    """Names that the engine answers to; () for what serves no model, and where an older release staged it."""
    stack: str = ""
    device: str = "cuda"
    layout: Layout | None = None
    """None where an older release staged it, and the engine's flags do not say it."""
    graph_batch: int | None = None
    """The largest batch that is captured as a CUDA graph; None where the engine chooses."""
    network: NodeNetwork = field(default_factory=NodeNetwork)
    argv: tuple[str, ...] = ()
    """What is started; made of the next two, which say it in parts (`words`)."""
    command: tuple[str, ...] = ()
    flags: tuple[tuple[str, ...], ...] = ()
    """Each with its values."""
    env: Mapping[str, str] = field(default_factory=dict)
    env_public: tuple[str, ...] = ()
    """Names of variables that may be shown beside those that are documented."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where the value of each variable and flag comes from, so that an operator can check it."""
    gpus: tuple[int, ...] = ()
    gpu_uuids: tuple[str, ...] = ()
    """Of these GPUs, since the driver numbers them anew when one is gone; () where they were not read."""
    tp_ranks: tuple[int, ...] = ()
    working_dir: str = "/"
    model_path: str = ""
    venv_python: str = ""
    python_fix: str = ""
    """What to do where that is missing; '' for a stack's."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Versions that the stack names, by package."""
    container: Container | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    """Least limits by name, -1 for unlimited."""
    ports: Ports = Ports()
    http_url: str = ""
    """Where this node's engine would be asked; the leader's alone serves."""
    leader: Endpoint
    """Of the leader's agent."""
    lease_s: float = 30.0
    service: ServiceOrder | None = None
    canary: Canary | None = None
    watch: Watch = Watch()
    request_limit: int | None = None
    """Most requests that may wait in the gang; of a router: most that it lets in at once. None: nobody limits them."""
    runs_at_once: int | None = None
    """Requests of usual length that the gang runs at once, by KV tokens and flags. None: not known."""
    api_key: str | None = None
    """Fingerprint of the engine's API key; the key itself is in no plan."""

    @property
    def name(self) -> str:
        """The node's, as of everything that there is of each node."""
        return self.node

    @property
    def leads(self) -> bool:
        """This node serves HTTP and listens for the other agents."""
        return self.node_rank == 0

    @property
    def leader_name(self) -> str:
        """The node whose agent the others connect to."""
        return self.members[0] if self.members else "the leader"

    @property
    def serves_at(self) -> str:
        """ADDRESS:PORT of the gang's service, as every member's part of the plan tells it; '' where nobody listens."""
        port = next((endpoint.port for endpoint in self.ports.check_free), None)
        return host_port(self.leader.address, port) if port is not None and self.leader.address else ""

    @property
    def mounts(self) -> tuple[tuple[str, bool], ...]:
        """Directories that are inside its container what they are outside, each with whether the engine may write: the
        checkpoint, caches, and on the node that serves the gang's secrets where there is a key."""
        caches, secrets = self.env.get("XDG_CACHE_HOME"), f"{self.working_dir}/gangs/{self.gang}"
        places = ((self.model_path, False), (caches, True), (secrets if self.api_key and self.leads else None, False))
        return tuple((place, writable) for place, writable in places if place)


def words(command: Sequence[str], flags: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """The complete command line."""
    return (*command, *(word for flag in flags for word in flag))


@schema(frozen=True, slots=True, kw_only=True)
class StagingRequest(NodePlan):
    """One node's part of a plan with what belongs to one run of it. What follows `secrets` is no part of run.json,
    which any verb may read."""

    protocol: int = 0
    run_id: str
    plan_id: str = ""
    asked: Asked | None = None
    """None where an older release staged it."""
    armed_for_s: float = ARMED_FOR_S
    log_limit: int = LOG_LIMIT
    secrets: Secrets | None = None
    """None leaves those of the gang as they are, an empty one removes them."""
    key: str = field(default="", repr=False)
    """The run's secret for the leader link, in hex."""
    token: str = field(default="", repr=False)
    """Of the gang's lock, which the caller must still hold."""
    launch_script: str = field(default="", repr=False)
    launch_sha256: str = ""
    """Of the launch script; '' where an older release staged it."""

    @staticmethod
    def of(plan: NodePlan, **of_the_run: Any) -> StagingRequest:
        """A part of a plan, to be staged by this release."""
        planned = {name: getattr(plan, name) for name in NodePlan.__dataclass_fields__}
        return StagingRequest(**planned, protocol=PROTOCOL, **of_the_run)

    def tested_for(self, seconds: float) -> StagingRequest:
        """The same, where between *armed* and *go* something is measured for up to so many seconds; 0: nothing is."""
        return replace(self, armed_for_s=ARMED_FOR_S + seconds)

    def kept(self) -> dict[str, object]:
        """run.json: all but what other files hold."""
        ours = StagingRequest.__dataclass_fields__.keys() - APART
        return {name: value for name, value in self.as_json().items() if name in ours}


APART = ("secrets", "key", "token", "launch_script")
"""Keys of a staging request that are in separate files, or nowhere."""


def launch_digest(script: str) -> str:
    """SHA-256 of a launch script, in hex."""
    return hashlib.sha256(script.encode("utf-8", "surrogateescape")).hexdigest()


def repair(folder: object, node: str = "NODE", good: str = "GOOD_NODE") -> str:
    """The command that copies files that differ or are missing, and only those, from a node whose copy is good."""
    return f"l40s-deploy checkpoint push {shlex.quote(f'{good}:{folder}')} --node {shlex.quote(node)} --repair"
