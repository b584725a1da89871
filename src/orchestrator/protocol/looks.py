"""The controller's requests about a node's machine: its hardware, its environment, its network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import Enum
from typing import Any

from orchestrator.protocol.message import Message, schema


@schema(frozen=True, slots=True, kw_only=True)
class TunedFolders(Message):
    """Where an engine looks for tuned configs, below its root or absolute; '' where that is not known.

    by_triton: MoE configs are in one folder per Triton version; device: the GPU's name as file names have it.
    """

    moe: str = ""
    by_triton: bool = False
    linear: str = ""
    device: str = ""


@schema(frozen=True, slots=True, kw_only=True)
class StackQuestion(Message):
    """What to read of an installed stack: packages by their normalised names, evidence: {file below the engine's root:
    text whose lines are wanted}."""

    venv: str
    name: str = ""
    packages: tuple[str, ...] = ()
    evidence: Mapping[str, str] = field(default_factory=dict)
    tuned: TunedFolders = TunedFolders()


@schema(frozen=True, slots=True, kw_only=True)
class ProbeRequest(Message):
    """One look at a machine; the answer is a snapshot (model/snapshot.py). model_root, state_dir: places whose
    free space is asked; engine_user: whom the engine runs as, '' for who asks."""

    node: str = ""
    fs_root: str = "/"
    nvml_deadline_s: float = 5.0
    state_dir: str | None = None
    model_root: str | None = None
    engine_user: str = ""
    stack: StackQuestion | None = None


@schema(frozen=True, slots=True, kw_only=True)
class PrerequisitesRequest(Message):
    """What an engine will find beside the hardware. packages: whose versions are asked, by their normalised names, in
    these environments."""

    model_path: str = "/"
    venv: str = "/"
    environments: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()


@schema(frozen=True, slots=True, kw_only=True)
class PrerequisitesAnswer(Message):
    """config: the checkpoint's config.json, with why it could not be read (an errno's name) in config_error.

    engine: the environment's python3 is there; engine_python, glibc: versions, '' for not known; vocabularies:
    tokenizers' are beside the environment; packages: {environment: {package: version}} of those that were asked.
    """

    config: str | None = None
    config_error: str = ""
    engine: bool | None = None
    engine_python: str = ""
    vocabularies: bool | None = None
    glibc: str = ""
    packages: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@schema(frozen=True, slots=True, kw_only=True)
class TunedRequest(Message):
    """Which tuned configs an environment has."""

    venv: str = "/"
    folders: TunedFolders = TunedFolders()


@schema(frozen=True, slots=True, kw_only=True)
class Holdings(Message):
    """What an environment has of tuned configs. root: where the package `sglang` is, '' for nowhere; versions: by
    package; folders: {folder: {name: text}}; absent: folders that are not there; errors: {path: errno's name}."""

    root: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)


@schema(frozen=True, slots=True, kw_only=True)
class LabelsRequest(Message):
    """fs_root: where the hardware is read."""

    fs_root: str = "/"


@schema(frozen=True, slots=True, kw_only=True)
class LabelsAnswer(Message):
    """serials: by file of /sys/class/dmi/id; bmc: lines of `ipmitool lan print` with its addresses; neighbours: what
    `lldpcli -f keyvalue show neighbors` printed; macs: burnt in, by interface, where a bond hides them; unread: why
    something is missing, by its name."""

    serials: Mapping[str, str] = field(default_factory=dict)
    bmc: tuple[str, ...] = ()
    neighbours: str = ""
    macs: Mapping[str, str] = field(default_factory=dict)
    unread: Mapping[str, str] = field(default_factory=dict)


@schema(frozen=True, slots=True, kw_only=True)
class ListenRequest(Message):
    """Listen for a few seconds: on TCP ports of the address, and for datagrams on it and on the rails: {address:
    interface that they must come in by}."""

    address: str
    tcp_ports: tuple[int, ...] = ()
    seconds: float = 8.0
    rails: Mapping[str, str] = field(default_factory=dict)


@schema(frozen=True, slots=True, kw_only=True)
class DialTarget(Message):
    """What to try. kind: tcp, or mtu for a datagram of `size` bytes that must pass in one piece; once: no second try.

    source: our address; device: the interface that it must leave by; name, side, far: which path it is, for the caller.
    """

    name: str = ""
    kind: str
    side: str = ""
    far: str = ""
    address: str
    port: int
    source: str = ""
    device: str = ""
    size: int = 0
    timeout_s: float = 1.0
    once: bool = False


@schema(frozen=True, slots=True, kw_only=True)
class DialRequest(Message):
    """All targets at once; those that did not answer are tried up to `tries` times."""

    targets: tuple[DialTarget, ...] = ()
    tries: int = 1
    spacing_s: float = 0.5


@schema(frozen=True, slots=True, kw_only=True)
class Listening(Message):
    """What a node has opened. Ports of `udp` and `rails` by address; an error's name where one could not be opened."""

    tcp: Mapping[str, str]
    ephemeral: Any
    udp: Mapping[str, Any]
    rails: Mapping[str, Any]
    pid: int = 0


class Outcome(str, Enum):
    """open: answered. refused: the machine answered that nobody listens. silent: no answer at all, as behind a
    firewall that drops. unreachable: the network reports no route. too-big: packets of this size do not pass.
    untried: the source's kernel had no place for the target in its table of neighbours, and dropped the packets."""

    OPEN = "open"
    REFUSED = "refused"
    SILENT = "silent"
    UNREACHABLE = "unreachable"
    TOO_BIG = "too-big"
    UNTRIED = "untried"


@schema(frozen=True, slots=True, kw_only=True)
class Trial(Message):
    """One path from a node to another, or between two cards of one node, tried until it passed or `tries` times.

    source: the node that tried, '' in its own answer
    kind: 'tcp' (a connection to `port`) or 'mtu' (a datagram of `size` bytes that must not be fragmented)
    side: 'tcp' for the rendezvous network, else the name of the RDMA device whose rail was tried
    far:  the RDMA device that was tried to reach from `side`, where it is of another rail; '' for the same rail
    ms:   time to the answer of the try that passed; None where there was none
    resolved: False where a silent one's address was not resolved on the interface that it had to leave by
    """

    source: str = ""
    target: str
    address: str
    port: int
    kind: str
    side: str
    outcome: Outcome
    ms: float | None = None
    size: int = 0
    detail: str = ""
    far: str = ""
    tries: int = 1
    resolved: bool = True


@schema(frozen=True, slots=True, kw_only=True)
class DialAnswer(Message):
    """One result per target."""

    ways: tuple[Trial, ...]
