"""RDMA ports of a gang's nodes, two at a time, by perftest's `ib_write_bw` in host memory. Pure.

Between GPUs a slow port hides behind the others that share the transfer; here every port is alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.nettest.expected import LESS_HEADERS
from orchestrator.nettest.schedule import Between, Place, rounds
from orchestrator.nettest.verdict import End, Expectation, Link, Verdict, usual

MOST_ROUNDS = 3
"""Partners of a node: two tell a slow port from a slow partner, and three are all that four nodes have."""
_MIB_S = 8 * (1 << 20) / 1e9
_UNITS = {"MB": _MIB_S, "MiB": _MIB_S, "Gb": 1.0}
"""Gb/s of one of them. What it calls MB is 2^20 bytes (src/perftest_parameters.c), MiB in newer releases."""
_HEADER = re.compile(r"^ ?#bytes +#iterations +BW peak\[(\w+)/sec\] +BW average\[(\w+)/sec\] +MsgRate\[Mpps\]", re.M)
_ROW = re.compile(r"^ *\d+ +\d+ +[\d.]+ +(\d{1,9}(?:\.\d{1,9})?)\s+[\d.]+\s*$", re.M)
_STAND_IN = "stand-in of ib_write_bw"
_NOISE = re.compile(
    r"^[-* ]*$|Waiting for client|^ ?(local|remote) address|^ ?GID:|\s:\s|^ [\w .*]+: \S+$|BW Test$|^ ?#bytes|^\s*\d+ "
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RailPort:
    """One port that a plan uses. gid: index, -1 where it says nothing"""

    node: str
    device: str
    port: int
    rate_gbps: float
    gid: int = -1

    @property
    def end(self) -> End:
        return End(self.node, -1, port=f"{self.device}:{self.port}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One measurement: `start` writes into `end`'s memory. round: in which each node has one partner, and no other
    node's program finds it listening"""

    id: int
    round: int
    between: Between
    start: RailPort
    end: RailPort


@dataclass(frozen=True, slots=True)
class Said:
    """Output and exit status of a path's sending end; -1 if it was stopped."""

    text: str
    status: int


def ways(ports: Mapping[str, Sequence[RailPort]]) -> tuple[Way, ...]:
    """All measurements in the order that every node keeps: no port is in two of them at once.

    Each port with its namesakes (the same place in the node's list) of up to MOST_ROUNDS nodes, there and back; once
    with the next port of the first of them.
    """
    found = list[tuple[int, Between, RailPort, RailPort]]()
    places = [Place(node=node, ranks=()) for node in ports]
    for number, pairs in enumerate(rounds(places)):
        if number == MOST_ROUNDS:
            break
        both = [(ports[one.node], ports[two.node]) for one, two in pairs]
        for rail in range(max((min(len(one), len(two)) for one, two in both), default=0)):
            found += _turn(number, both, rail, 0)
            if number == 0:
                found += _turn(number, both, rail, 1)
    return tuple(
        Way(id=place, round=number, between=between, start=start, end=end)
        for place, (number, between, start, end) in enumerate(found)
    )


def _turn(
    number: int, both: Sequence[tuple[Sequence[RailPort], Sequence[RailPort]]], rail: int, beside: int
) -> Iterator[tuple[int, Between, RailPort, RailPort]]:
    between = Between.OTHER_RAIL if beside else Between.RAIL
    for back in (False, True):
        for pair in both:
            start, end = reversed(pair) if back else pair
            shared = min(len(start), len(end))
            if rail < shared and (not beside or shared > 1):
                yield number, between, start[rail], end[(rail + beside) % shared]


def average_gbps(text: str) -> float | None:
    """What `ib_write_bw` says at its end; None where it did not get there.

    In the units of its own header: MB/sec (4.5), MiB/sec (newer), Gb/sec with --report_gbits.
    """
    header = _HEADER.search(text)
    if header is None or header[2] not in _UNITS:
        return None
    rows = _ROW.findall(text, header.end())
    return float(rows[-1]) * _UNITS[header[2]] if rows else None


def alone(text: str, status: int) -> bool:
    """The other end did not come: that says nothing of the ports.

    The two ends meet over TCP before anything goes through the ports (src/perftest_communication.c,
    ethernet_client_connect), and the table's head follows that (ctx_print_test_info).
    """
    return "Couldn't connect to" in text or (status < 0 and "BW Test" not in text)


def played(texts: Mapping[int, Said]) -> bool:
    """They came from an emulated cluster's stand-in."""
    return any(_STAND_IN in said.text for said in texts.values())


def judge(found: Sequence[Way], texts: Mapping[int, Said], *, enough: float) -> tuple[Link, ...]:
    """Every path whose two ends met, with its ports' rate. Where no port reaches any other one of another place,
    the rails are apart, and that is not judged."""
    tried = [way for way in found if way.id in texts and not alone(texts[way.id].text, texts[way.id].status)]
    gbps = {way.id: average_gbps(texts[way.id].text) for way in tried}
    crossed = [way for way in tried if way.between is Between.OTHER_RAIL]
    apart = bool(crossed) and all(gbps[way.id] is None for way in crossed)
    kinds = {
        between: usual([gbps[way.id] or 0.0 for way in tried if way.between is between])
        for between in (Between.RAIL, Between.OTHER_RAIL)
    }
    links = []
    for way in tried:
        if apart and way.between is Between.OTHER_RAIL:
            continue
        expected, speed = _expected(way), gbps[way.id]
        limit = expected.value * enough if expected else kinds[way.between]
        verdict = Verdict.NONE if not limit else Verdict.SLOW if (speed or 0.0) < limit else Verdict.OK
        why = "" if speed is not None else f"no figure ({last_words(texts[way.id])})"
        links.append(
            Link(start=way.start.end, end=way.end.end, between=way.between, gbps=(speed or 0.0,), expected=expected,
                 limit=limit, verdict=verdict, why=why)
        )  # fmt: skip
    return tuple(links)


def _expected(way: Way) -> Expectation | None:
    rate = min(way.start.rate_gbps, way.end.rate_gbps)
    if not rate:
        return None
    return Expectation(rate * LESS_HEADERS, "calculated", f"{LESS_HEADERS * 100:.0f} % of the ports' {rate:g} Gb/s")


def last_words(said: Said) -> str:
    """Why there is no figure: what is neither its table nor its settings."""
    lines = [line.strip() for line in said.text.splitlines() if not _NOISE.search(line)]
    ended = "it did not end in time" if said.status < 0 else f"status {said.status}"
    return f"{lines[-1][:160]}, {ended}" if lines else ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Rail:
    """One port, in all its measurements with its namesakes. The slowest of each direction, in Gb/s."""

    end: End
    send: float
    receive: float
    expected: Expectation | None
    verdict: Verdict


def rails(links: Sequence[Link]) -> tuple[Rail, ...]:
    """A row for each port. A slow partner is not its fault: slow is a port that is slow with all of them."""
    same = [link for link in links if link.between is Between.RAIL]
    found = []
    for end in dict.fromkeys(end for link in same for end in (link.start, link.end)):
        ours = [link for link in same if end in (link.start, link.end)]
        slow = {link.start if link.end == end else link.end for link in ours if link.verdict is Verdict.SLOW}
        partners = {link.start if link.end == end else link.end for link in ours}
        judged = any(link.verdict is not Verdict.NONE for link in ours)
        verdict = Verdict.NONE if not judged else Verdict.SLOW if slow == partners else Verdict.OK
        found.append(
            Rail(
                end=end,
                send=min((link.best for link in ours if link.start == end), default=0.0),
                receive=min((link.best for link in ours if link.end == end), default=0.0),
                expected=ours[0].expected,
                verdict=verdict,
            )
        )
    return tuple(found)
