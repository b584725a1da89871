"""What NCCL's RAS reports about a hung job, and which rank the others wait for. Pure.

RAS (reliability, availability, serviceability) is in NCCL since 2.24: as text, and as JSON since 2.28.7. Both forms
follow NCCL's manual (troubleshooting, RAS) and src/ras/client_support.cc. Its counts of collectives leave out those
captured in CUDA graphs, as in an engine's decoding: if all counts are equal, no rank can be named.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

MOST_NAMED = 4
_ERRORS = {1: "ncclUnhandledCudaError", 2: "ncclSystemError", 3: "ncclInternalError", 6: "ncclRemoteError"}
"""nccl.h, ncclResult_t; 0 is success, 7 means in progress."""
_IN_PROGRESS = 7
_VERSION = re.compile(r"NCCL version (\S+)")
_GPU = r"(?:\S+ \(NVML )?(\d+)\S*"
"""RAS gives CUDA's index, followed by NVML's if that differs (rasGpuToString)."""
_UNANSWERED = re.compile(r"^(INCOMPLETE|DEAD)$((?:\n +\S.*)*)", re.M)
_PROCESS = re.compile(rf"Process (\d+) on node (\S+) managing GPUs? {_GPU}")
_MISSING_RANK = re.compile(r"The missing rank: (\d+)")
_COUNTS = re.compile(r"Communicator ranks have different (\w+) operation counts((?:\n +(?:\d+ ranks|Rank) .*)*)")
_LAUNCHED = re.compile(r"(?:have|has) (?:launched up to operation (\d+)|not launched any operations)")
_RANK = re.compile(rf"Rank (\d+) (?:has .* )?-- GPU {_GPU} managed by process (\d+) on node (\S+)")


@dataclass(frozen=True)
class Member:
    """One rank of a communicator. rank: -1 if only the process is known; host: its node's address, as NCCL writes it;
    gpu: NVML's index"""

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
    """

    version: str = ""
    ranks: int = 0
    missing: tuple[tuple[Member, bool], ...] = ()
    failed: tuple[tuple[Member, int], ...] = ()
    behind: tuple[tuple[Member, str, int, int], ...] = ()


@dataclass(frozen=True)
class RasVerdict:
    """words: one clause for the operator; culprit: the process that the others wait for, None if unknown"""

    words: str
    culprit: Member | None = None


def read(text: str) -> RasAnswer:
    """Parse an answer to STATUS, in either form. Raises ValueError for anything else."""
    if text.lstrip().startswith("{"):
        return _read_json(text)
    if "Communicators..." not in text:
        raise ValueError("this is not a RAS status")
    return _read_text(text)


def _read_json(text: str) -> RasAnswer:
    try:
        raw = json.loads(text)
        communicators = raw["communicators"]
        return RasAnswer(
            version=str(raw.get("nccl_version", "")),
            ranks=max((int(one["size"]) for one in communicators), default=0),
            missing=_once((_member(rank), bool(rank["status"]["considered_dead"]))
                          for one in communicators for rank in one["missing_ranks"]
                          if rank["status"]["unresponsive"] or rank["status"]["considered_dead"]),
            failed=_once((_member(rank), code) for one in communicators for rank in one["ranks"]
                         if (code := _error(rank["status"]))),
            behind=_once(found for one in communicators for found in _behind(one["ranks"])),
        )  # fmt: skip
    except (KeyError, TypeError, AttributeError, RecursionError) as wrong:
        raise ValueError(f"this is not a RAS status: {type(wrong).__name__} {wrong}") from None


def _member(rank: Mapping[str, Any]) -> Member:
    return Member(int(rank["rank"]), str(rank["host"]), int(rank["pid"]), int(rank["nvml_dev"]))


def _error(status: Mapping[str, Any]) -> int:
    codes = (int(status["async_error"]), int(status["init_state"]))
    return next((code for code in codes if code not in (0, _IN_PROGRESS)), 0)


def _behind(ranks: list[Mapping[str, Any]]) -> Iterator[tuple[Member, str, int, int]]:
    operations = dict.fromkeys(name for rank in ranks for name in rank["collective_counts"])
    for name in operations:
        counts = [int(rank["collective_counts"].get(name, 0)) for rank in ranks]
        most = max(counts, default=0)
        for rank, count in zip(ranks, counts):  # noqa: B905 - strict= needs a newer Python than the oldest on a node
            if count < most:
                yield _member(rank), name, count, most


def _once(found: Iterator[Any]) -> tuple[Any, ...]:
    """A process is in several communicators; its first entry is enough."""
    kept: dict[tuple[str, int], Any] = {}
    for one in found:
        kept.setdefault((one[0].host, one[0].pid), one)
    return tuple(kept.values())


def _read_text(text: str) -> RasAnswer:
    version, rank = _VERSION.search(text), _MISSING_RANK.search(text)
    missing = _once(_unanswered(text))
    if rank and len(missing) == 1:
        member, dead = missing[0]
        missing = ((replace(member, rank=int(rank[1])), dead),)
    return RasAnswer(
        version=version[1] if version else "",
        ranks=_largest(text),
        missing=missing,
        behind=_once(found for operation, listed in _COUNTS.findall(text) for found in _fewer(operation, listed)),
    )


def _unanswered(text: str) -> Iterator[tuple[Member, bool]]:
    for state, listed in _UNANSWERED.findall(text):
        for pid, host, gpu in _PROCESS.findall(listed):
            yield Member(-1, host, int(pid), int(gpu)), state == "DEAD"


def _fewer(operation: str, listed: str) -> Iterator[tuple[Member, str, int, int]]:
    """A line with a count comes before the ranks with that count; if only one rank has it, the same line names the
    rank."""
    counts, ranks = [0], []
    for line in listed.splitlines():
        if launched := _LAUNCHED.search(line):
            counts.append(int(launched[1] or 0))
        if rank := _RANK.search(line):
            number, gpu, pid, host = rank.groups()
            ranks.append((Member(int(number), host, int(pid), int(gpu)), counts[-1]))
    most = max(counts)
    return ((member, operation, count, most) for member, count in ranks if count < most)


def _largest(text: str) -> int:
    """Ranks of the largest communicator: the table adds up the ranks of all communicators in a group."""
    rows = re.findall(r"(?m)^ *\d+ +(\d+) +\d+ +[\d-]+ +[\d-]+ +(\d+) +[A-Z]", text)
    return max((int(ranks) // max(int(comms), 1) for comms, ranks in rows), default=0)


def judge(first: RasAnswer, again: RasAnswer, nodes: Mapping[str, str]) -> RasVerdict:
    """What two answers, some seconds apart, show together. nodes: names of the gang's nodes by address."""
    if again.missing:
        names = _names([one for one, _ in again.missing], nodes)
        dead = ", and considers it dead" if all(dead for _, dead in again.missing) else ""
        return RasVerdict(f"NCCL RAS gets no answer from {names}{dead}", _alone([one for one, _ in again.missing]))
    if again.failed:
        member, code = again.failed[0]
        error = _ERRORS.get(code, f"error {code}")
        return RasVerdict(f"NCCL RAS: {_name(member, nodes)} reports {error}", _alone([one for one, _ in again.failed]))
    stuck = [one for one in again.behind if one in first.behind]
    if stuck:
        member, operation, launched, most = stuck[0]
        words = f"NCCL RAS: {_names([one[0] for one in stuck], nodes)} launched {launched} of {most} {operation}"
        return RasVerdict(f"{words} operations, unchanged between two queries", _alone([one[0] for one in stuck]))
    all_of_them = f"all {again.ranks} ranks" if again.ranks else "all ranks"
    return RasVerdict(
        f"NCCL RAS can't name the rank that the others wait for: {all_of_them} answer and none stays behind,"
        " but it does not count collectives captured in CUDA graphs"
    )


def _alone(members: list[Member]) -> Member | None:
    return members[0] if len(members) == 1 else None


def _names(members: list[Member], nodes: Mapping[str, str]) -> str:
    shown = ", ".join(_name(one, nodes) for one in members[:MOST_NAMED])
    return shown + (f" and {len(members) - MOST_NAMED} more" if len(members) > MOST_NAMED else "")


def _name(member: Member, nodes: Mapping[str, str]) -> str:
    rank = f"rank {member.rank}" if member.rank >= 0 else "the process"
    return f"{rank} (pid {member.pid}, GPU {member.gpu} of {nodes.get(member.host, member.host)})"
