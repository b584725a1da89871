"""What `nettest` measures, by the words under which its figures are kept."""

from __future__ import annotations

from enum import Enum

BYTES_A_NUMBER = 2
"""Of an activation between ranks: bfloat16, whatever the weights are."""


class Between(Enum):
    """What a measurement is between, as operators read it."""

    ALL = "all ranks"
    NODE = "the ranks of each node"
    SWITCH = "the GPUs below each switch"
    HALVES = "each half of the nodes"
    SAME_SWITCH = "two GPUs below one switch"
    ACROSS_SOCKETS = "two GPUs across the sockets"
    SAME_NODE = "two GPUs of one node"
    NODES = "the same GPU of two nodes"
    OTHER_HALF = "GPUs in different halves of two nodes"
    RAIL = "the same RDMA port of two nodes, host memory"
    OTHER_RAIL = "different RDMA ports of two nodes, host memory"
