"""What the controller asks of a node about a checkpoint: its digests, its finer copy, a push to or from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.protocol.message import Message, schema
from orchestrator.protocol.severity import Severity


@schema(frozen=True, slots=True, kw_only=True)
class DigestsRequest(Message):
    """fresh: read every file again, known or not."""

    state_dir: str | None = None
    directory: str
    fresh: bool = False


@schema(frozen=True, slots=True, kw_only=True)
class DigestsLine(Message):
    """One line: bytes of total read (None: a part of the result), or some of the result.

    files: how many digests were sent, at the end.
    """

    bytes: int = 0
    total: int | None = None
    digests: Mapping[str, str] = field(default_factory=dict)
    files: int | None = None


@schema(frozen=True, slots=True, kw_only=True)
class ReblockRequest(Message):
    """jobs: processes, None for as many as suit the machine; verify: compare then.

    dry_run: say what would be written, write nothing; accept_scales: also such as no quantisation gives (NaN, infinite,
    negative)
    """

    source: str
    target: str
    block: int
    jobs: int | None = None
    verify: bool = False
    dry_run: bool = False
    accept_scales: bool = False


@dataclass(frozen=True, slots=True)
class Progress(Message):
    """How far a run is: bytes and shards of the target, and how the bytes got there."""

    total: int
    done: int = 0
    shards: int = 0
    shards_done: int = 0
    resumed: int = 0
    """Bytes of `done` that an earlier run had written."""
    copied: int = 0
    shared: int = 0
    """Bytes whose blocks are shared with the source (reflink)."""
    scales: int = 0


@dataclass(frozen=True, slots=True)
class Proof(Message):
    """What was compared and found equal: numbers of tensors, scales among them and files, and bytes of the target."""

    tensors: int
    scales: int
    files: int
    bytes: int


@schema(frozen=True, slots=True, kw_only=True)
class Reblocked(Message):
    """How re-blocking ended. written: None where it was there already."""

    written: Progress | None
    proof: Proof | None
    old_block: tuple[int, ...]
    new_block: tuple[int, ...]


@schema(frozen=True, slots=True, kw_only=True)
class WouldReblock(Message):
    """What a run would write. state: a TargetState's value; todo: shards to write; bytes: of these and the small files,
    less where the file system shares blocks with the source; free: bytes on the target's disk."""

    state: str
    shards: int
    todo: int
    bytes: int
    free: int
    old_block: tuple[int, ...]
    new_block: tuple[int, ...]


@schema(frozen=True, slots=True, kw_only=True)
class ReblockLine(Message):
    """One line: how far it is, or at the end the outcome, or what would be done. doing: re-blocking or verifying."""

    doing: str = ""
    progress: Progress | None = None
    outcome: Reblocked | None = None
    would: WouldReblock | None = None


@schema(frozen=True, slots=True, kw_only=True)
class InspectRequest(Message):
    """The facts of one checkpoint."""

    directory: str


@schema(frozen=True, slots=True, kw_only=True)
class ShardCounts(Message):
    """Shards that the index names, that could be read, and that nothing names."""

    named: int
    readable: int
    unused: tuple[str, ...] = ()


@schema(frozen=True, slots=True, kw_only=True)
class ByteCounts(Message):
    """Of files, and of the tensors in them."""

    files: int
    tensors: int


@schema(frozen=True, slots=True, kw_only=True)
class DtypeCounts(Message):
    """Of the tensors of one type."""

    count: int
    bytes: int


@schema(frozen=True, slots=True, kw_only=True)
class TensorCounts(Message):
    """Of all tensors, and by type."""

    count: int
    by_dtype: Mapping[str, DtypeCounts] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CheckpointFinding(Message):
    """One thing that is wrong with a checkpoint. where: the file; severity: STOP where a loader refuses it or loads
    wrong weights."""

    id: str
    severity: Severity
    where: str
    what: str
    fix: str = ""


@schema(frozen=True, slots=True, kw_only=True)
class InspectAnswer(Message):
    """What a checkpoint holds. config: JSON text; layers: {layer: tensors}, experts: {layer: experts}."""

    path: str
    config: str
    block: tuple[int, ...] | None = None
    shards: ShardCounts
    bytes: ByteCounts
    tensors: TensorCounts
    layers: Mapping[str, int] = field(default_factory=dict)
    experts: Mapping[str, int] = field(default_factory=dict)
    faults: tuple[CheckpointFinding, ...] = ()


@schema(frozen=True, slots=True, kw_only=True)
class HubRequest(Message):
    """A repository of a model hub, into a directory. python: the interpreter that has the hub's client.

    dry_run: ask the hub what there is, bring nothing
    """

    hub: str
    repo: str
    revision: str | None = None
    directory: str
    python: str = ""
    endpoint: str | None = None
    token: str | None = field(default=None, repr=False)
    exclude: tuple[str, ...] = ()
    dry_run: bool = False


@schema(frozen=True, slots=True, kw_only=True)
class Downloaded(Message):
    """there: it was there already, and every file is the hub's; by_size: files of which the hub names no digest."""

    directory: str
    commit: str
    files: int
    bytes: int
    by_size: int
    there: bool


@schema(frozen=True, slots=True, kw_only=True)
class WouldDownload(Message):
    """What a download would bring. held: bytes that an interrupted one has left; free: bytes on the disk.

    there: the directory already exists, and would be compared with the hub
    """

    directory: str
    commit: str
    files: int
    bytes: int
    held: int
    free: int
    there: bool


@schema(frozen=True, slots=True, kw_only=True)
class HubLine(Message):
    """One line: bytes done of a total, or at the end the outcome, or what would be done. doing: downloading or
    verifying."""

    doing: str = ""
    done: int = 0
    total: int = 0
    files: int = 0
    outcome: Downloaded | None = None
    would: WouldDownload | None = None


@schema(frozen=True, slots=True, kw_only=True)
class SameRootRequest(Message):
    """op: write, look or remove. name: of our own file; names: of all nodes' files; child: a name below them."""

    op: str
    directory: str = "/"
    name: str = ""
    names: tuple[str, ...] = ()
    child: str = ""


@schema(frozen=True, slots=True, kw_only=True)
class SameRootAnswer(Message):
    """done: the file was written or removed; seen: whose files are there; apart: the child is another file system's."""

    done: bool = False
    seen: tuple[str, ...] = ()
    apart: bool = False


@schema(frozen=True, slots=True, kw_only=True)
class TuneRequest(Message):
    """check: say what would happen; remove: take everything back; files: {place below the engine's root: text}."""

    venv: str
    check: bool = False
    remove: bool = False
    files: Mapping[str, str] = field(default_factory=dict)
    engine_version: str = ""


@schema(frozen=True, slots=True, kw_only=True)
class TuneAnswer(Message):
    """What was done, by places on the node. triton: the version there; left: place -> why."""

    triton: str = ""
    written: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    left: Mapping[str, str] = field(default_factory=dict)


@schema(frozen=True, slots=True, kw_only=True)
class Giving(Message):
    """Where a side of a push gives its files: an address, a port and the secret that its fetchers must know."""

    address: str = ""
    port: int = 0
    secret: str = field(default="", repr=False)


@schema(frozen=True, slots=True, kw_only=True)
class OfferRequest(Message):
    """The source of a push. port: 0 for any."""

    state_dir: str | None = None
    directory: str
    address: str
    port: int = 0


@schema(frozen=True, slots=True, kw_only=True)
class ReceiveRequest(OfferRequest):
    """One link of the chain, which gives on what it receives. files: bytes of each, judged by the room's
    on_node/push/target.py; bytes_per_s: 0 for no limit; repair: replace what differs."""

    files: Mapping[str, int]
    upstream: Giving
    streams: int = 1
    bytes_per_s: int = 0
    repair: bool = False


@schema(frozen=True, slots=True, kw_only=True)
class PushLine(Message):
    """One line of either side: some of the source's files, where it gives its files, or how far it is.

    files: bytes of each, judged as those of a request; there: it had all of them before
    bytes: read, or here and checked; complete: that is all; sent: files that had to be sent
    """

    files: Mapping[str, int] | None = None
    port: int = 0
    secret: str = field(default="", repr=False)
    there: bool = False
    bytes: int = 0
    complete: bool = False
    sent: int = 0
