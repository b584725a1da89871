"""What a network test found, as findings and as a document: whether data arrives as it was sent, and what is slow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from orchestrator.engines import nccl_log
from orchestrator.model.finding import Finding
from orchestrator.model.profile import BYTES_A_NUMBER, Between
from orchestrator.nettest.messages import ALL_REDUCE, PAIRS, NettestLine, NettestStep
from orchestrator.nettest.rails import RailResult, rails
from orchestrator.nettest.schedule import TOKENS, Place
from orchestrator.nettest.verdict import Expectation, LinkEnd, LinkResult, NettestVerdict, Odd, Test, ends, odd, overall
from orchestrator.protocol.planned import NodeNetwork
from orchestrator.protocol.severity import Severity

AGAIN = "then test again: l40s-deploy nettest"
_REDUCES_A_LAYER = 2
"""After attention and after the MLP, where both are cut by TP."""


class ModelShape(NamedTuple):
    """Of the model: what a decode step reduces."""

    hidden_size: int
    layers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NettestResult:
    """All that one test of a gang says.

    verification: whether data is right; where it is not, and with `--verify`, there are no links and tests
    transport: by node, as text; counted: (nodes NCCL counts, nodes it should count by the topology), None on CPUs
    moved:     findings about NCCL's transport
    bisected:  the node that is slow in every half of the nodes that it is in
    rails_note: why RDMA ports were not measured, or not all
    seconds:   of the whole command; steps_s: of the ranks' measurements in it; rails_s: of the RDMA ports'
    overhead_s: what the command took besides, by what for
    """

    gang: str
    nodes: tuple[str, ...]
    ranks: int
    verification: Verification
    links: tuple[LinkResult, ...]
    tests: tuple[Test, ...]
    transport: Mapping[str, str]
    moved: tuple[Finding, ...]
    bisected: Odd | None = None
    shape: ModelShape
    rails_note: str = ""
    seconds: float
    steps_s: float
    rails_s: float = 0.0
    overhead_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def verdict(self) -> NettestVerdict:
        """Failed where data is wrong; slow where anything is, and where NCCL took another network than the plan's."""
        if self.verification.corrupt:
            return NettestVerdict.FAILED
        return NettestVerdict.SLOW if self.moved or self.bisected else overall((*self.links, *self.tests))

    @property
    def odd(self) -> Odd | None:
        """What alone is slow."""
        slow = any(link.verdict is NettestVerdict.SLOW for link in self.links)
        return odd(self.links) if slow else self.bisected


def findings(result: NettestResult) -> tuple[Finding, ...]:
    """The most severe first: wrong data, transport, then the outlier, else every slow link, else a slow all-reduce."""
    findings_or_none = (data_finding(result.gang, result.verification), *result.moved, _slow(result))
    return tuple(finding for finding in findings_or_none if finding is not None)


class _Slowness(NamedTuple):
    id: str
    title: str
    evidence: list[str]
    fix: str


def _slowness(result: NettestResult) -> _Slowness | None:
    """The one place, else the links, else the all-reduce that no link explains."""
    slow = [link for link in result.links if link.verdict is NettestVerdict.SLOW]
    evidence = list(map(words, sorted(slow, key=lambda link: link.best / link.limit)))
    if result.odd is not None:
        place = result.odd
        name = "NETTEST-SLOW-LINK" if place.device or len(place.ends) > 1 else "NETTEST-SLOW-NODE"
        return _Slowness(name, f"{place.name} is slow, and nothing else is: {place.why}", evidence, _place(place))
    if slow:
        names = "; ".join(dict.fromkeys(f"{link.start} to {link.end}" for link in slow))
        title = f"{len(slow)} of {len(result.links)} links are slow: {names[:200]}"
        fix = "look at what these links share with `l40s-deploy doctor` and at the switch"
        return _Slowness("NETTEST-SLOW-LINK", title, evidence, fix)
    tests = [test for test in result.tests if test.verdict is NettestVerdict.SLOW]
    return _slow_reduction(tests) if tests else None


def _slow_reduction(tests: Sequence[Test]) -> _Slowness:
    worst = min(tests, key=lambda test: test.share)
    title = f"the all-reduce of {worst.between.value} is slow, and no single link is: "
    title += f"{worst.us:.0f} us for {worst.bytes} bytes, expected {worst.share * worst.us:.0f}"
    fix = "compare NCCL's transport and ports with the plan: l40s-deploy doctor"
    return _Slowness("NETTEST-SLOW", title, list(map(test_words, tests)), fix)


def _slow(result: NettestResult) -> Finding | None:
    seen, slow_place = _slowness(result), result.odd
    if seen is None:
        return None
    return Finding(
        id=seen.id,
        severity=Severity.SLOW,
        node=slow_place.ends[0].node if slow_place else "",
        devices=(slow_place.device,) if slow_place and slow_place.device else (),
        title=seen.title,
        evidence=tuple(seen.evidence[:8]),
        effect=price(result),
        fix=f"{seen.fix}, {AGAIN}",
    )


def _place(slow_place: Odd) -> str:
    if len(slow_place.ends) > 1:
        return f"check cables, switch ports and routes between {' and '.join(map(str, slow_place.ends))}"
    node, port = slow_place.ends[0].node, slow_place.ends[0].port
    if port:
        return (
            f"check the cable and switch port of {port} on {node}, the PCIe link of that card (`l40s-deploy "
            f"doctor`) and its error counters (/sys/class/infiniband/{port.partition(':')[0]}/ports/*/hw_counters)"
        )
    if slow_place.device:
        return f"check the PCIe link and power of {slow_place.device} on {node}, and the NIC beside it"
    return f"check the NICs, cables and switch ports of {node} (`ethtool -S`, `l40s-deploy doctor`)"


def price(result: NettestResult) -> str:
    """What the measured all-reduce of all ranks lets a decode step take at best; '' where none was measured."""
    most, (hidden, layers) = max(TOKENS), result.shape
    wanted = most * hidden * BYTES_A_NUMBER
    test = next(
        (measured for measured in result.tests if measured.between is Between.ALL and measured.wanted == wanted), None
    )
    if test is None or not test.us:
        return ""
    us, count = test.us * wanted / test.bytes, _REDUCES_A_LAYER * layers
    step_s, want = count * us / 1e6, test.expected
    instead = f" instead of {count * want.value / 1e3:.3g} ms ({want.basis})" if want else ""
    return (
        f"the all-reduces of one decode step of {most} requests take {step_s * 1e3:.3g} ms{instead}: "
        f"{count} of {us:.0f} us each over all {result.ranks} ranks; no more than {most / step_s:.0f} tokens/s "
        "(calculated from this test)"
    )


def words(link: LinkResult) -> str:
    """One line: 'node1 to node2: 18.9 and 19.1 Gb/s, expected 92 (calculated: ...)'."""
    tries = link.why or " and ".join(f"{gbps:.3g}" for gbps in link.gbps) + " Gb/s"
    return f"{link.start} to {link.end}, {link.between.value}: {tries}, {_wanted(link.expected, 'Gb/s')}"


def test_words(test: Test) -> str:
    """One line of an all-reduce."""
    return (
        f"all-reduce of {test.bytes} bytes over {test.between.value} ({test.where}): {test.us:.0f} us, "
        f"{_wanted(test.expected, 'us')}"
    )


def _wanted(expected: Expectation | None, unit: str) -> str:
    return (
        f"expected {expected.value:.3g} {unit} ({expected.basis}: {expected.source})" if expected else "no figure known"
    )


def transport_findings(
    node: str, network: NodeNetwork, lines: Sequence[str], nodes: int, predicted: int
) -> tuple[Finding, ...]:
    """NCCL's own log lines compared with the plan.

    nodes: of the gang; predicted: `nNodes` by the topology, 0 where unknown
    """
    seen, found_in_log = nccl_log.read(lines), nccl_log.findings(node, network, lines) if nodes > 1 else ()
    if nodes == 1 and predicted == 1 and seen.direct + seen.staged:
        over = " and ".join(seen.networks) or "unknown"
        title = f"NCCL sends between the GPUs of one node over the network ({over})"
    elif predicted and seen.nodes and seen.nodes != predicted:
        title = f"NCCL counts {seen.nodes} nodes, and should count {predicted} by the PCIe topology"
    else:
        return found_in_log
    other_way = Finding(
        id="NETTEST-TRANSPORT",
        severity=Severity.SLOW,
        node=node,
        title=title,
        evidence=("NCCL's lines: Channel ... via NET, comm ... nNodes",),
        effect="the GPUs do not use the fastest path between them",
        fix="unset NCCL_P2P_DISABLE, NCCL_SHM_DISABLE and NCCL_P2P_LEVEL in l40s_env; see l40s-deploy doctor",
    )
    return (*found_in_log, other_way)


def as_json(result: NettestResult) -> dict[str, Any]:
    """The document of `nettest --json`, without what the command adds. Its verdict is ok where nothing is expected and
    nothing of its kind is beside it; it is not `judged` then."""
    slow_place = result.odd
    return {
        "gang": result.gang,
        "nodes": list(result.nodes),
        "ranks": result.ranks,
        "verification": result.verification.as_json(),
        "verdict": (NettestVerdict.OK if result.verdict is NettestVerdict.NONE else result.verdict).value,
        "judged": result.verdict is not NettestVerdict.NONE,
        "transport": dict(result.transport),
        "tests": [_test_json(test) for test in result.tests],
        "links": [_link_json(link) for link in result.links],
        "rails": [_rail_json(rail) for rail in rails(result.links)],
        "rails_note": result.rails_note,
        "bisected": result.bisected.name if result.bisected else None,
        "odd": None if slow_place is None else slow_place.as_json(),
        "findings": [finding.as_json() for finding in findings(result)],
        "price": price(result),
        "seconds": round(result.seconds, 3),
        "measuring_s": round(result.steps_s, 3),
        "measuring_rails_s": round(result.rails_s, 3),
        "overhead_s": {what: round(seconds, 3) for what, seconds in result.overhead_s.items()},
    }


def _test_json(test: Test) -> dict[str, Any]:
    return {
        "kind": test.between.value,
        "where": test.where,
        "ranks": test.ranks,
        "bytes": test.bytes,
        "wanted_bytes": test.wanted,
        "captured": test.captured,
        "uncaptured": test.uncaptured or None,
        "measured_us": test.us,
        **_expected_json(test.expected, "us"),
        "verdict": test.verdict.value,
    }


def _link_json(link: LinkResult) -> dict[str, Any]:
    return {
        "from": str(link.start),
        "to": str(link.end),
        "kind": link.between.value,
        "measured_gbps": round(link.best, 4),
        "tries_gbps": [round(gbps, 4) for gbps in link.gbps],
        **_expected_json(link.expected, "gbps"),
        "limit_gbps": round(link.limit, 4) or None,
        "verdict": link.verdict.value,
        **({"why": link.why} if link.why else {}),
    }


def _rail_json(rail: RailResult) -> dict[str, Any]:
    return {
        "node": rail.end.node,
        "port": rail.end.port,
        "memory": "gpu" if rail.on_gpu else "host",
        "send_gbps": round(rail.send, 4),
        "receive_gbps": round(rail.receive, 4),
        **_expected_json(rail.expected, "gbps"),
        "verdict": rail.verdict.value,
    }


def _expected_json(expected: Expectation | None, unit: str) -> dict[str, Any]:
    value, basis, source = (expected.value, expected.basis, expected.source) if expected else (None, None, None)
    return {f"expected_{unit}": value, "basis": basis, "source": source}


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
            "corrupt": [
                {"from": str(corrupt.start), "to": str(corrupt.end), "bytes": corrupt.bytes} for corrupt in self.corrupt
            ],
            "least_bytes": self.least,
            "seconds": round(self.seconds, 3),
        }


def verified(
    steps: Sequence[NettestStep], lines: Sequence[NettestLine], places: Sequence[Place], seconds: float
) -> Verification:
    """All that the ranks found. Raises LookupError, naming it, where something was not compared; all-reduces are not
    where a pair is corrupt."""
    where, line_of = ends(places), {(line.step, line.group, line.rank): line for line in lines}
    pairs, corrupt = dict[tuple[int, int], int](), dict[tuple[LinkEnd | str, LinkEnd], int]()
    for kind in (PAIRS, ALL_REDUCE):
        if corrupt:
            break
        for step, place, rank in _receivers(steps, kind):
            first = step.groups[place][0]
            start = where[first] if kind == PAIRS else f"all-reduce of {step.between}"
            line = line_of.get((step.id, place, rank))
            if line is None:
                raise LookupError(f"{start} to {where[rank]}")
            if kind == PAIRS:
                pairs[first, rank] = line.bytes
            if line.wrong:
                corrupt[start, where[rank]] = corrupt.get((start, where[rank]), 0) + line.wrong
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


def _shared_end(corrupt: Sequence[Corrupt]) -> set[LinkEnd]:
    """The one end that all of several have; an empty set where there is none, or more than one."""
    common = set.intersection(*(corruption.ends for corruption in corrupt))
    return common if len(corrupt) > 1 and len(common) == 1 else set[LinkEnd]()


def data_finding(gang: str, verification: Verification) -> Finding | None:
    """What is corrupt, and how to find out why; None where nothing is."""
    if not verification.corrupt:
        return None
    corrupt, pairs = verification.corrupt, sum(len(corruption.ends) > 1 for corruption in verification.corrupt)
    shared = _shared_end(corrupt)
    nodes = {end.node for end in shared or set[LinkEnd]().union(*(corruption.ends for corruption in corrupt))}
    where = f"{pairs} of {verification.pairs} pairs" if pairs else "sums, while every pair is right"
    more = f" and {len(corrupt) - _SHOWN} more" if len(corrupt) > _SHOWN else ""
    at = "".join(f"; all of them at {end}" for end in shared)
    return Finding(
        id="DATA-CORRUPT",
        severity=Severity.STOP,
        node=nodes.pop() if len(nodes) == 1 else "",
        title=f"data arrives wrong in {where}: {'; '.join(map(str, corrupt[:_SHOWN]))}{more}{at}",
        evidence=tuple(
            f"{corruption}: {corruption.bytes} bytes differ from what was sent" for corruption in corrupt[:_SHOWN]
        ),
        effect="the engine computes with wrong numbers, and nothing else shows it; nothing was timed",
        fix=f"{_tries(corrupt)}; each time: l40s-deploy nettest --verify {gang}",
    )


def _tries(corrupt: Sequence[Corrupt]) -> str:
    """What to try, by what the wrong data passed through."""
    if any(corruption.end.gpu is None for corruption in corrupt):
        return (
            "keep the gang down; look at the memory of these nodes (`journalctl -k`, ECC) and at the cards, cables and "
            "switch ports between them (`ethtool -S DEV`), and let the processor compute checksums "
            "(`sudo ethtool -K DEV rx off tx off`)"
        )
    if any(len({end.node for end in corruption.ends}) == 1 for corruption in corrupt):
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
