"""Whether data arrives as it was sent: what the ranks compared, and what it means. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.model.finding import Finding, Severity
from orchestrator.nettest.messages import ALL_REDUCE, PAIRS, NettestLine, NettestStep
from orchestrator.nettest.schedule import Place
from orchestrator.nettest.verdict import LinkEnd, ends

_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrupt:
    """Wrong data. start: the sender, or which all-reduce; end: where it was compared; bytes: that differ"""

    start: LinkEnd | str
    end: LinkEnd
    bytes: int

    @property
    def ends(self) -> set[LinkEnd]:
        """Both of a transfer; where a sum was compared."""
        return {self.end, self.start} if isinstance(self.start, LinkEnd) else {self.end}

    def __str__(self) -> str:
        return f"{self.start} to {self.end}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """pairs: directions from a rank to another that were compared; least: bytes of the smallest of their largest
    transfers; seconds: that it took"""

    pairs: int
    least: int
    seconds: float
    corrupt: tuple[Corrupt, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """`verification` of the document."""
        return {
            "verdict": "corrupt" if self.corrupt else "ok",
            "pairs": self.pairs,
            "corrupt": [{"from": str(one.start), "to": str(one.end), "bytes": one.bytes} for one in self.corrupt],
            "least_bytes": self.least,
            "seconds": round(self.seconds, 3),
        }


def verified(
    steps: Sequence[NettestStep], found: Sequence[NettestLine], places: Sequence[Place], seconds: float
) -> Verification:
    """All that the ranks found. Raises LookupError, naming it, where something was not compared; all-reduces are not
    where a pair is corrupt."""
    where, told = ends(places), {(one.step, one.group, one.rank): one for one in found}
    pairs, corrupt = dict[tuple[int, int], int](), dict[tuple[LinkEnd | str, LinkEnd], int]()
    for kind in (PAIRS, ALL_REDUCE):
        if corrupt:
            break
        for step, place, rank in _receivers(steps, kind):
            first = step.groups[place][0]
            start = where[first] if kind == PAIRS else f"all-reduce of {step.between}"
            one = told.get((step.id, place, rank))
            if one is None:
                raise LookupError(f"{start} to {where[rank]}")
            if kind == PAIRS:
                pairs[first, rank] = one.bytes
            if one.wrong:
                corrupt[start, where[rank]] = corrupt.get((start, where[rank]), 0) + one.wrong
    return Verification(
        pairs=len(pairs),
        least=min(pairs.values(), default=0),
        seconds=seconds,
        corrupt=tuple(Corrupt(start=start, end=end, bytes=wrong) for (start, end), wrong in corrupt.items()),
    )


def _receivers(steps: Sequence[NettestStep], kind: str) -> Iterator[tuple[NettestStep, int, int]]:
    """(step, group, rank that compares)."""
    for step in steps:
        if step.verify and step.kind == kind:
            for place, group in enumerate(step.groups):
                for rank in group if kind == ALL_REDUCE else group[1:]:
                    yield step, place, rank


def finding(gang: str, found: Verification) -> Finding | None:
    """What is corrupt, and how to find out why; None where nothing is."""
    if not found.corrupt:
        return None
    shared = _shared(found.corrupt)
    nodes = {end.node for end in shared or set[LinkEnd]().union(*(one.ends for one in found.corrupt))}
    return Finding(
        id="DATA-CORRUPT",
        severity=Severity.STOP,
        node=nodes.pop() if len(nodes) == 1 else "",
        title=_title(found),
        evidence=tuple(f"{one}: {one.bytes} bytes differ from what was sent" for one in found.corrupt[:_SHOWN]),
        effect="the engine computes with wrong numbers, and nothing else shows it; nothing was timed",
        fix=f"{_tries(found.corrupt)}; each time: l40s-deploy nettest --verify {gang}",
    )


def _shared(corrupt: Sequence[Corrupt]) -> set[LinkEnd]:
    """The one end that all of them have; nothing where there is a single one, or none that all have."""
    common = set.intersection(*(one.ends for one in corrupt))
    return common if len(corrupt) > 1 and len(common) == 1 else set()


def _title(found: Verification) -> str:
    pairs = sum(len(one.ends) > 1 for one in found.corrupt)
    where = f"{pairs} of {found.pairs} pairs" if pairs else "sums, while every pair is right"
    more = f" and {len(found.corrupt) - _SHOWN} more" if len(found.corrupt) > _SHOWN else ""
    at = "".join(f"; all of them at {end}" for end in _shared(found.corrupt))
    return f"data arrives wrong in {where}: {'; '.join(map(str, found.corrupt[:_SHOWN]))}{more}{at}"


def _tries(corrupt: Sequence[Corrupt]) -> str:
    """What to try, by what the wrong data passed through."""
    if any(one.end.gpu is None for one in corrupt):
        return (
            "keep the gang down; look at the memory of these nodes (`journalctl -k`, ECC) and at the cards, cables and "
            "switch ports between them (`ethtool -S DEV`), and let the processor compute checksums "
            "(`sudo ethtool -K DEV rx off tx off`)"
        )
    if any(len({end.node for end in one.ends}) == 1 for one in corrupt):
        return (
            'keep the gang down; as a proof set NCCL_P2P_DISABLE to "1" in l40s_env: if the data is right then, '
            "peer-to-peer between the GPUs corrupts it. Try the IOMMU off or with iommu=pt, ACS off (`l40s-deploy "
            "doctor` shows both), and another driver release, without that setting"
        )
    return (
        "keep the gang down; as a proof set NCCL_NET_GDR_LEVEL to LOC in l40s_env: if the data is right then, the way "
        "between GPU and card corrupts it (IOMMU, ACS, driver: `l40s-deploy doctor`), else look at the cards' "
        "firmware, the cables and the switch ports"
    )
