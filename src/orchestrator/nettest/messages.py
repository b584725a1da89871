"""A network test between nodes, of ranks and of RDMA ports: the controller's orders, and what a node says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from orchestrator.jobs.messages import JobLine
from orchestrator.protocol.message import Message, schema
from orchestrator.protocol.staging import StagingRequest
from orchestrator.protocol.verbs import GangRequest

ALL_REDUCE = "all-reduce"
PAIRS = "pairs"


@schema(frozen=True, slots=True, kw_only=True)
class NettestStep(Message):
    """One measurement that all ranks come to together.

    kind:     ALL_REDUCE of each group, or PAIRS: the first rank of a group sends to the second
    between:  what is measured, in the schedule's words
    groups:   ranks; no rank is in two groups
    bytes:    sizes, one after the other; as many of them as fit into the box
    box_s:    seconds that one size may take
    captured: in CUDA graphs, as an engine decodes, where they fit into the box
    verify:   what arrives is compared with what was sent, and not timed
    """

    id: int
    kind: str
    between: str
    groups: tuple[tuple[int, ...], ...]
    bytes: tuple[int, ...]
    box_s: float
    captured: bool = False
    verify: bool = False


@schema(frozen=True, slots=True, kw_only=True)
class RanksOrder(Message):
    """What templates/nettest.py reads.

    ranks:     of this node, in the order of its GPUs; world: of all nodes
    host:      of the rendezvous, which rank 0 serves
    reach_s:   how long the ranks wait for each other there; timeout_s: for each other in a step
    """

    ranks: tuple[int, ...]
    world: int
    host: str
    port: int
    device: str
    steps: tuple[NettestStep, ...]
    reach_s: float
    timeout_s: float


@schema(frozen=True, slots=True, kw_only=True)
class NettestLine(JobLine):
    """One line of a node. A measurement has `step`, a rank's end `died` or `failed`, which says `what` in words.

    group:   place in the step's groups; us: of one operation on the slowest rank
    uncaptured: why an all-reduce that should be in a CUDA graph was not, in words
    beside_us: of the same transfer over another link of its kind, measured just before
    wrong:   bytes that differ, in a step that verifies; bytes: of its largest transfer; rank: the one that compared
    done:    the step that all ranks have behind them (the number of steps: the whole test), after so many seconds
    died:    rank that a signal ended; failed: one that ended with an error
    started: process ids by rank
    """

    step: int = -1
    group: int = -1
    bytes: int = 0
    us: float = 0.0
    beside_us: float = 0.0
    captured: bool = False
    uncaptured: str = ""
    wrong: int = -1
    rank: int = -1
    done: int = -1
    seconds: float = 0.0
    died: int = -1
    signal: int = 0
    failed: int = -1
    started: Mapping[str, int] = field(default_factory=dict)


@schema(frozen=True, slots=True, kw_only=True)
class RailRun(Message):
    """One end of one `ib_write_bw`. peer: address of the node to send to, '' to be the one who receives

    gid: index of the GID to use, None for the program's choice; gpu: whose memory to use where the program can, -1 for
    the host's
    """

    id: int
    device: str
    port: int
    gid: int | None = None
    gpu: int = -1
    peer: str = ""


@schema(frozen=True, slots=True, kw_only=True)
class RailsOrder(Message):
    """One node's part, in an order that all nodes share.

    run:      as for an engine, whose user and limits the program has
    tcp_port: where the receiving end listens for the other
    times:    messages of a MiB in a run
    traffic_class, service_level: of the packets, as NCCL's have them; None for the program's choice
    wait_s:   for one run, with the wait for the other end; deadline_s: for all
    """

    run: StagingRequest
    tcp_port: int
    runs: tuple[RailRun, ...]
    times: int = 250
    traffic_class: int | None = None
    service_level: int | None = None
    wait_s: float
    deadline_s: float


@schema(frozen=True, slots=True, kw_only=True)
class RailsRequest(GangRequest):
    """With the gang's lock."""

    order: RailsOrder


@schema(frozen=True, slots=True, kw_only=True)
class RailsLine(Message):
    """One line of a node.

    run, text, status: what the program of one run printed, and how it ended (-1: it was stopped)
    on_gpu: this end's memory was a GPU's
    missing: the program that is not installed; ended: nothing more comes, whatever runs are left
    """

    run: int = -1
    text: str = ""
    status: int = 0
    on_gpu: bool = False
    missing: str = ""
    ended: bool = False


NOBODY_LISTENS = "Couldn't connect to"
"""src/perftest_communication.c, ethernet_client_connect."""


def alone(line: RailsLine) -> bool:
    """Whether the other end did not come, which says nothing about the ports.

    The two ends meet over TCP before anything goes through the ports (src/perftest_communication.c,
    ethernet_client_connect), and only then print the table's head (ctx_print_test_info).
    """
    return NOBODY_LISTENS in line.text or (line.status < 0 and "BW Test" not in line.text)
