"""What one node could reach on another, tried with real packets."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One path from a node to another, or between two cards of one node, tried until it passed or `tries` times.

    kind: 'tcp' (a connection to `port`) or 'mtu' (a datagram of `size` bytes that must not be fragmented)
    side: 'tcp' for the rendezvous network, else the name of the RDMA device whose rail was tried
    far:  the RDMA device that was tried to reach from `side`, where it is of another rail; '' for the same rail
    ms:   time to the answer of the try that passed; None where there was none
    resolved: False where a silent one's address was not resolved on the interface that it had to leave by
    """

    source: str
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
