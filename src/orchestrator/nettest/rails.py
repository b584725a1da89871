"""RDMA ports of a gang's nodes, measured two at a time with perftest's `ib_write_bw`, in the memory of the nearest
GPUs where the installed program can, else in the host's. Pure.

In a transfer between GPUs, a slow port hides behind the others that share it; here every port is alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from orchestrator.model.per_node import collected
from orchestrator.model.profile import Between
from orchestrator.nettest.messages import RailsLine, alone
from orchestrator.nettest.schedule import rounds
from orchestrator.nettest.verdict import LESS_HEADERS, Expectation, LinkEnd, LinkResult, NettestVerdict, peers, usual

_MOST_TIMES, _WHOLE = 250, 4200
"""_WHOLE: the MTU from which on RoCE's packets have their full 4096 bytes."""
MOST_ROUNDS = 3
"""Partners of a node: two tell a slow port from a slow partner, and three are all that four nodes have."""
_MIB_S = 8 * (1 << 20) / 1e9
_UNITS = {"MB": _MIB_S, "MiB": _MIB_S, "Gb": 1.0}
"""Gb/s of one of each. What it calls MB is 2^20 bytes (src/perftest_parameters.c), MiB in newer releases."""
_HEADER = re.compile(r"^ ?#bytes +#iterations +BW peak\[(\w+)/sec\] +BW average\[(\w+)/sec\] +MsgRate\[Mpps\]", re.M)
_ROW = re.compile(r"^ *\d+ +\d+ +[\d.]+ +(\d{1,9}(?:\.\d{1,9})?)\s+[\d.]+\s*$", re.M)
_STAND_IN = "stand-in of ib_write_bw"
_NOISE = re.compile(
    r"^[-* ]*$|Waiting for client|^ ?(local|remote) address|^ ?GID:|\s:\s|^ [\w .*]+: \S+$|BW Test$|^ ?#bytes|^\s*\d+ "
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RailPort:
    """One port that a plan uses. gid: index, None where the plan names none; mtu: of its interface, 0 where unknown

    gpu: the nearest, -1 where there is none
    """

    node: str
    device: str
    port: int
    rate_gbps: float
    gid: int | None = None
    mtu: int = 0
    gpu: int = -1

    @property
    def end(self) -> LinkEnd:
        return LinkEnd(self.node, -1, port=f"{self.device}:{self.port}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PortPair:
    """One measurement: `start` writes into `end`'s memory. round: its number; in a round each node has one partner, so
    that no other node connects to the program that listens on it"""

    id: int
    round: int
    between: Between
    start: RailPort
    end: RailPort


def ways(ports: Mapping[str, Sequence[RailPort]]) -> tuple[PortPair, ...]:
    """All measurements, in the order in which every node makes its own: no port takes part in two at once.

    Each port with the port in the same place of up to MOST_ROUNDS other nodes' lists, in both directions, and with the
    next port of the first of these nodes.
    """
    port_pairs = list[PortPair]()
    for number, pairs in zip(range(MOST_ROUNDS), rounds(list(ports.values())), strict=False):
        most = max((min(map(len, pair)) for pair in pairs), default=0)
        across = (0, 1) if number == 0 else (0,)  # rails that do not meet may hang: last
        for beside, rail, back, pair in product(across, range(most), (False, True), pairs):
            start, end = reversed(pair) if back else pair
            shared = min(len(start), len(end))
            if rail < shared and (not beside or shared > 1):
                between = Between.OTHER_RAIL if beside else Between.RAIL
                ends = {"start": start[rail], "end": end[(rail + beside) % shared]}
                port_pairs.append(PortPair(id=len(port_pairs), round=number, between=between, **ends))
    return tuple(port_pairs)


def times(ports: Iterable[RailPort]) -> int:
    """Messages of a MiB in a run: 250 are 2.1 Gbit, 21 ms at 100 Gb/s, two seconds at 1 Gb/s. Fewer where packets are
    small: what handles them in software takes its time for each."""
    smallest = min((port.mtu for port in ports if port.mtu), default=_WHOLE)
    return max(1, _MOST_TIMES * min(smallest, _WHOLE) // _WHOLE)


def average_gbps(text: str) -> float | None:
    """The average that `ib_write_bw` prints at its end, in Gb/s; None where it did not get there.

    Its header names the unit: MB/sec (4.5), MiB/sec (newer), Gb/sec with --report_gbits.
    """
    header = _HEADER.search(text)
    if header is None or header[2] not in _UNITS:
        return None
    rows = _ROW.findall(text, header.end())
    return float(rows[-1]) * _UNITS[header[2]] if rows else None


def played(texts: Mapping[int, RailsLine]) -> bool:
    """Whether they came from an emulated cluster's stand-in."""
    return any(_STAND_IN in line.text for line in texts.values())


def judge(pairs: Sequence[PortPair], texts: Mapping[int, RailsLine], *, enough: float) -> tuple[LinkResult, ...]:
    """Every path whose two ends met: by the rate of its ports; where that is unknown, by the others of its kind.

    Where no port reaches one of another rail, the rails are separate networks: those paths are left out. Where a GPU's
    memory could not be used, nothing is known of the port.
    """
    links = [_measured(way, texts[way.id]) for way in pairs if way.id in texts and not alone(texts[way.id])]
    if all(link.why for link in links if link.between is Between.OTHER_RAIL):
        links = [link for link in links if link.between is Between.RAIL]
    return tuple(_judged(link, links, enough) for link in links)


def _judged(link: LinkResult, links: Sequence[LinkResult], enough: float) -> LinkResult:
    usually = usual([other.best for other in links if other.between is link.between])
    limit = link.expected.value * enough if link.expected else usually
    known = bool(limit) and not (link.on_gpu and link.why)
    return replace(link, limit=limit, verdict=NettestVerdict.of(judged=known, slow=link.best < limit))


def _measured(way: PortPair, line: RailsLine) -> LinkResult:
    gbps, rate = average_gbps(line.text), min(way.start.rate_gbps, way.end.rate_gbps)
    why = "" if gbps is not None else f"no figure ({last_words(line)})"
    source = f"{LESS_HEADERS * 100:.0f} % of the ports' {rate:g} Gb/s"
    expected = Expectation(rate * LESS_HEADERS, "calculated", source) if rate else None
    return LinkResult(
        start=way.start.end,
        end=way.end.end,
        between=way.between,
        gbps=(gbps or 0.0,),
        expected=expected,
        limit=0.0,
        verdict=NettestVerdict.NONE,
        why=why,
        on_gpu=line.on_gpu,
    )


def last_words(ended_run: RailsLine) -> str:
    """Why there is no figure: the last line that is part of neither its table nor its settings."""
    lines = [line.strip() for line in ended_run.text.splitlines() if not _NOISE.search(line)]
    ended = "it did not end in time" if ended_run.status < 0 else f"status {ended_run.status}"
    return f"{lines[-1][:160]}, {ended}" if lines else ended


@dataclass(frozen=True, slots=True, kw_only=True)
class RailResult:
    """One port in all its measurements on its own rail. send, receive: the slowest of each direction, in Gb/s; on_gpu:
    an end of one of them was in the memory of a GPU"""

    end: LinkEnd
    on_gpu: bool
    send: float
    receive: float
    expected: Expectation | None
    verdict: NettestVerdict


def rails(links: Sequence[LinkResult]) -> tuple[RailResult, ...]:
    """A row for each port. It is slow only if it is slow with all its partners: else the partner is at fault."""
    on_rail = (link for link in links if link.between is Between.RAIL)
    of_port = collected((end, link) for link in on_rail for end in (link.start, link.end))
    return tuple(_rail(end, ours) for end, ours in of_port.items())


def _used_as_meant(links: Sequence[LinkResult]) -> list[LinkResult]:
    """Those that a GPU's memory could be used for, where it was to be."""
    return [link for link in links if not (link.on_gpu and link.why)]


def _rail(end: LinkEnd, links: Sequence[LinkResult]) -> RailResult:
    slow = [link for link in links if link.verdict is NettestVerdict.SLOW]
    links = _used_as_meant(links) or links
    return RailResult(
        end=end,
        on_gpu=any(link.on_gpu for link in links),
        send=min((link.best for link in links if link.start == end), default=0.0),
        receive=min((link.best for link in links if link.end == end), default=0.0),
        expected=links[0].expected,
        verdict=NettestVerdict.of(
            judged=any(link.verdict is not NettestVerdict.NONE for link in links),
            slow=peers(slow, {end}) == peers(links, {end}),
        ),
    )
