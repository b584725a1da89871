"""A bandwidth test of RDMA ports between nodes: the controller's order, and the node's messages."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.protocol.message import Message
from orchestrator.protocol.staging import StagingRequest
from orchestrator.protocol.verbs import GangRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class RailRun(Message):
    """One end of one `ib_write_bw`. peer: address of the node to send to, '' to be the one who receives

    gid: index of the GID to use, -1 for the program's choice; gpu: whose memory to use where the program can, -1 for
    the host's
    """

    id: int
    device: str
    port: int
    gid: int = -1
    gpu: int = -1
    peer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RailsOrder(Message):
    """One node's part, in an order that all nodes share.

    run:      as for an engine, whose user and limits the program has
    tcp_port: where the receiving end listens for the other
    times:    messages of a MiB in a run
    traffic_class, service_level: of the packets, as NCCL's have them; -1 for the program's choice
    wait_s:   for one run, with the wait for the other end; deadline_s: for all
    """

    run: StagingRequest
    tcp_port: int
    runs: tuple[RailRun, ...]
    times: int = 250
    traffic_class: int = -1
    service_level: int = -1
    wait_s: float
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RailsRequest(GangRequest):
    """With the gang's lock."""

    order: RailsOrder


@dataclass(frozen=True, slots=True, kw_only=True)
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


def alone(said: RailsLine) -> bool:
    """Whether the other end did not come, which says nothing about the ports.

    The two ends meet over TCP before anything goes through the ports (src/perftest_communication.c,
    ethernet_client_connect), and only then print the table's head (ctx_print_test_info).
    """
    return NOBODY_LISTENS in said.text or (said.status < 0 and "BW Test" not in said.text)
