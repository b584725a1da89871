"""What a node gathers while its ranks stand still, and what a controller makes of it: which hang it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from orchestrator.protocol.message import Message, schema

FORMAT = 1


@schema(frozen=True, slots=True, kw_only=True)
class RankLook(Message):
    """One rank's process at two instants.

    states:  of its main thread (proc(5): R, S, D, T, ...), one an instant
    calls:   the system call that its main thread was blocked in, by name with what it waits for ('read /data/w0'), ''
             while it runs; () where that may not be read
    cpu_s:   processor seconds between the two, of all its threads
    stacks:  its main thread's Python frames, the innermost first, as `function (file:line)`, one list an instant; ()
             where they were not read. Never values of variables
    """

    tp_rank: int
    pid: int = 0
    states: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    cpu_s: float = 0.0
    stacks: tuple[tuple[str, ...], ...] = ()


@schema(frozen=True, slots=True, kw_only=True)
class PortLook(Message):
    """One RDMA port of the plan. rose: how far each counter that rose did within apart_s seconds."""

    name: str
    state: str = ""
    rose: Mapping[str, int] = field(default_factory=dict)
    apart_s: float = 0.0


@schema(frozen=True, slots=True, kw_only=True)
class GpuLook(Message):
    """One GPU of the gang, as NVML has it; None where it does not tell."""

    index: int
    power_w: float | None = None
    power_limit_w: float | None = None
    clock_mhz: int | None = None
    utilization: int | None = None


@schema(frozen=True, slots=True, kw_only=True)
class RasRank(Message):
    """A rank of a communicator that has launched fewer operations than the others at both looks. node: its name,
    or its address where that is no node's."""

    node: str
    pid: int
    operation: str
    launched: int
    most: int


@schema(frozen=True, slots=True, kw_only=True)
class RasLook(Message):
    """NCCL's RAS at two instants. launched: operations that all ranks have launched together, one an instant; without
    those captured in CUDA graphs."""

    launched: tuple[int, ...] = ()
    behind: tuple[RasRank, ...] = ()


@schema(frozen=True, slots=True, kw_only=True)
class HangFacts(Message):
    """What a node knows of how the gang runs. Of what was not read: None, or ''.

    nccl:        version of the NCCL library that the ranks have loaded, else as their log has it
    roce:        whether the gang's RDMA ports are Ethernet; None without RDMA
    serving_s:   seconds since the gang was ready
    p2p_off:     whether NCCL may not use peer-to-peer between GPUs
    redirected:  whether ACS redirects, or an IOMMU translates, what GPUs send each other over PCIe
    failover:    whether NCCL's port failover (NCCL_IB_RESILIENCY_PORT_FAILOVER) is on
    registers:   whether its log shows buffers registered for the network
    """

    nccl: str = ""
    nnodes: int = 1
    pp: int = 1
    rdma: bool | None = None
    roce: bool | None = None
    serving_s: float = 0.0
    p2p_off: bool | None = None
    redirected: bool | None = None
    failover: bool | None = None
    registers: bool | None = None


@schema(frozen=True, slots=True, kw_only=True)
class HangLook(Message):
    """One node's evidence. at: node's epoch seconds of the first instant; took_s: how long all of it took.

    compilers: programs that compiled below the engine at either instant
    unread:    what could not be read, with the reason
    """

    format: int = FORMAT
    node: str
    at: float = 0.0
    took_s: float = 0.0
    ranks: tuple[RankLook, ...] = ()
    compilers: tuple[str, ...] = ()
    ports: tuple[PortLook, ...] = ()
    gpus: tuple[GpuLook, ...] = ()
    ras: RasLook | None = None
    facts: HangFacts = HangFacts()
    unread: Mapping[str, str] = field(default_factory=dict)


@schema(frozen=True, slots=True, kw_only=True)
class HungRank(Message):
    """A rank that tells the hangs apart. where: the place in its code that it stands at; collective: the operation
    that it waits in, '' for none."""

    tp_rank: int
    node: str = ""
    where: str = ""
    collective: str = ""


@schema(frozen=True, slots=True, kw_only=True)
class Hang(Message):
    """Which hang it is. name: HANG-RANK-BEHIND and so on; moves: a restart would only interrupt what still goes on.

    counts: ranks (of the gang), read (whose stacks were), standing (at the same place twice), and what else was counted
    evidence: sentences, each of which says what was read
    """

    name: str
    ranks: tuple[HungRank, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    evidence: tuple[str, ...] = ()
    fix: str = ""
    moves: bool = False
