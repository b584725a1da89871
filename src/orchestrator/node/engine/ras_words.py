"""What NCCL's RAS reports about a hung job, and which rank the others wait for. Pure.

RAS (reliability, availability, serviceability) answers in JSON since NCCL 2.28.7, in the form of NCCL's manual
(troubleshooting, RAS) and src/ras/client_support.cc. Its counts of collectives leave out those captured in CUDA graphs,
as in an engine's decoding: if all counts are equal, no rank can be named.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

MOST_NAMED = 4
_ERRORS = {1: "ncclUnhandledCudaError", 2: "ncclSystemError", 3: "ncclInternalError", 6: "ncclRemoteError"}
"""nccl.h, ncclResult_t; 0 is success, 7 means in progress."""
_IN_PROGRESS = 7


@dataclass(frozen=True)
class Member:
    """One rank of a communicator. host: its node's address, as NCCL writes it; gpu: NVML's index"""

    rank: int
    host: str
    pid: int
    gpu: int


@dataclass(frozen=True)
class RasAnswer:
    """One answer of RAS.

    ranks:   number of ranks in the largest communicator, 0 if not given
    missing: members that did not answer, and whether RAS considers them dead
    failed:  members with an error, and the error's number
    behind:  members that have launched fewer collectives than others: (member, operation, launched, most launched)
    launched: collectives that all members of all communicators have launched together
    """

    ranks: int = 0
    missing: tuple[tuple[Member, bool], ...] = ()
    failed: tuple[tuple[Member, int], ...] = ()
    behind: tuple[tuple[Member, str, int, int], ...] = ()
    launched: int = field(default=0, compare=False)


@dataclass(frozen=True)
class RasVerdict:
    """words: one clause for the operator; culprit: the process that the others wait for, None if unknown"""

    words: str
    culprit: Member | None = None


def _of_all(communicators: Any, ranks: str) -> Iterator[Any]:
    for communicator in communicators:
        yield from communicator[ranks]


def read(text: str) -> RasAnswer:
    """Parse an answer to STATUS. Raises ValueError for anything else."""
    try:
        communicators = json.loads(text)["communicators"]
        return RasAnswer(
            ranks=max((int(communicator["size"]) for communicator in communicators), default=0),
            missing=_once(
                (_member(rank), bool(rank["status"]["considered_dead"]))
                for rank in _of_all(communicators, "missing_ranks")
                if rank["status"]["unresponsive"] or rank["status"]["considered_dead"]
            ),
            failed=_once(
                (_member(rank), code) for rank in _of_all(communicators, "ranks") if (code := _error(rank["status"]))
            ),
            behind=_once(rank for communicator in communicators for rank in _behind(communicator["ranks"])),
            launched=sum(map(_launched, _of_all(communicators, "ranks"))),
        )
    except (KeyError, TypeError, AttributeError, RecursionError) as wrong:
        raise ValueError(f"this is not a RAS status: {type(wrong).__name__} {wrong}") from None


def _member(rank: Mapping[str, Any]) -> Member:
    return Member(int(rank["rank"]), str(rank["host"]), int(rank["pid"]), int(rank["nvml_dev"]))


def _error(status: Mapping[str, Any]) -> int:
    codes = (int(status["async_error"]), int(status["init_state"]))
    return next((code for code in codes if code not in (0, _IN_PROGRESS)), 0)


def _launched(rank: Mapping[str, Any]) -> int:
    return sum(int(count) for count in rank["collective_counts"].values())


def _behind(ranks: list[Mapping[str, Any]]) -> Iterator[tuple[Member, str, int, int]]:
    for name in dict.fromkeys(name for rank in ranks for name in rank["collective_counts"]):
        counts = [int(rank["collective_counts"].get(name, 0)) for rank in ranks]
        most = max(counts, default=0)
        for rank, count in zip(ranks, counts, strict=True):
            if count < most:
                yield _member(rank), name, count, most


def _once(values: Iterator[Any]) -> tuple[Any, ...]:
    """A process is in several communicators; its first entry is enough."""
    kept: dict[tuple[str, int], Any] = {}
    for value in values:
        kept.setdefault((value[0].host, value[0].pid), value)
    return tuple(kept.values())


def judge(first: RasAnswer, again: RasAnswer, nodes: Mapping[str, str]) -> RasVerdict:
    """What two answers, some seconds apart, show together. nodes: names of the gang's nodes by address."""
    if again.missing:
        members = [member for member, _ in again.missing]
        dead = ", and considers it dead" if all(dead for _, dead in again.missing) else ""
        return RasVerdict(f"NCCL RAS gets no answer from {_names(members, nodes)}{dead}", _alone(members))
    if again.failed:
        member, code = again.failed[0]
        error = _ERRORS.get(code, f"error {code}")
        return RasVerdict(
            f"NCCL RAS: {_name(member, nodes)} reports {error}", _alone([member for member, _ in again.failed])
        )
    stuck = [rank for rank in again.behind if rank in first.behind]
    if stuck:
        _, operation, launched, most = stuck[0]
        members = [member for member, *_ in stuck]
        words = f"NCCL RAS: {_names(members, nodes)} launched {launched} of {most} {operation}"
        return RasVerdict(f"{words} operations, unchanged between two queries", _alone(members))
    all_of_them = f"all {again.ranks} ranks" if again.ranks else "all ranks"
    return RasVerdict(
        f"NCCL RAS can't name the rank that the others wait for: {all_of_them} answer and none stays behind,"
        " but it does not count collectives captured in CUDA graphs"
    )


def _alone(members: list[Member]) -> Member | None:
    return members[0] if len(members) == 1 else None


def _names(members: list[Member], nodes: Mapping[str, str]) -> str:
    shown = ", ".join(_name(member, nodes) for member in members[:MOST_NAMED])
    return shown + (f" and {len(members) - MOST_NAMED} more" if len(members) > MOST_NAMED else "")


def _name(member: Member, nodes: Mapping[str, str]) -> str:
    return f"rank {member.rank} (pid {member.pid}, GPU {member.gpu} of {nodes.get(member.host, member.host)})"
