"""The RDMA ports of a gang, two at a time, by perftest's `ib_write_bw` on the nodes themselves."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from orchestrator.gang.steps.locks import fence
from orchestrator.gang.steps.status.reports import request_keys
from orchestrator.jobs.run import in_place_of
from orchestrator.model.deadlines import MARGIN_S, RAILS_ROUND_S
from orchestrator.model.inventory import GangSpec
from orchestrator.model.per_node import lost_first
from orchestrator.model.profile import Between
from orchestrator.model.topology import Topology
from orchestrator.nettest.messages import RailRun, RailsLine, RailsOrder, RailsRequest, alone
from orchestrator.nettest.rails import PortPair, RailPort, judge, played, times, ways
from orchestrator.nettest.verdict import LinkResult
from orchestrator.protocol.errors import NodeError
from orchestrator.protocol.planned import takes
from orchestrator.protocol.staging import StagingRequest
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import StreamLimit, messages
from orchestrator.remote.session import Session
from orchestrator.topology.distance import Distances

WAIT_S = 20.0
"""For one run: the other end may be in an earlier one, or on its way. At 1 Gb/s a run takes two seconds."""
PACKAGE = "perftest"


class RailMeasurements(NamedTuple):
    """links: every path that was measured; note: what was not, and what to do, as text"""

    links: tuple[LinkResult, ...] = ()
    note: str = ""


def _by_round(pairs: Sequence[PortPair]) -> list[list[PortPair]]:
    """Those that are measured at once, round after round."""
    return [[pair for pair in pairs if pair.round == number] for number in sorted({pair.round for pair in pairs})]


def measure(
    fleet: Fleet,
    gang: GangSpec,
    requests: Mapping[str, StagingRequest],
    topologies: Mapping[str, Topology],
    *,
    enough: float,
) -> RailMeasurements:
    """Between every two nodes port after port, where there are RDMA ports and perftest. Raises the failure of a node
    that is lost, before that of one that refuses."""
    ports = {name: _ports(name, request, topologies.get(name)) for name, request in requests.items()}
    addresses = {name: address for request in requests.values() for address, name in request.addresses.items()}
    if (without := _without(ports, addresses)) is not None:
        return RailMeasurements(note=without)
    order = ways(ports)
    heard = _RailsAnswers(order)
    fenced = fence(fleet, gang.name)
    messages = times(port for ports_of_node in ports.values() for port in ports_of_node)

    def measure_from(session: Session, turn: Sequence[PortPair]) -> None:
        name = session.spec.name
        asked = _order(requests[name], gang, _runs(turn, name, addresses), messages)
        _follow(session, RailsRequest(**request_keys(session.spec, gang.name), token=fenced, order=asked), heard)

    for turn in _by_round(order):
        nodes = {end.node for way in turn for end in (way.start, way.end)}
        done = fleet.on_every(partial(measure_from, turn=turn), only=sorted(nodes))
        if done.failures:
            raise lost_first(done.failures)
        if heard.missing:
            break
    return RailMeasurements(links=judge(order, heard.outputs(), enough=enough), note=heard.note())


def _ports(node: str, request: StagingRequest, topology: Topology | None) -> tuple[RailPort, ...]:
    """Those that NCCL takes by the plan, all that are up where it names none."""
    if topology is None:
        return ()
    network, distances = request.network, Distances(topology)
    near = {gpu.key: gpu.index for gpu in topology.gpus if gpu.index in request.gpus}
    up = [port for port in topology.rdma if port.active and not port.virtual]
    return tuple(
        RailPort(
            node=node,
            device=port.device,
            port=port.port,
            rate_gbps=port.rate_gbps,
            gid=network.gid_index,
            mtu=interface.mtu if (interface := topology.interface(port.netdev)) else 0,
            gpu=near[min(near, key=lambda gpu: distances.path_type(gpu, port.key))] if near else -1,
        )
        for port in up
        if takes(network.hca, port.device, port.port)
    )


def _order(request: StagingRequest, gang: GangSpec, runs: tuple[RailRun, ...], messages: int) -> RailsOrder:
    """A node's part of a round."""
    return RailsOrder(
        run=in_place_of(request),
        tcp_port=gang.leader.ports.dist_init,
        runs=runs,
        times=messages,
        traffic_class=request.network.traffic_class,
        service_level=request.network.service_level,
        wait_s=WAIT_S,
        deadline_s=RAILS_ROUND_S,
    )


def _runs(turn: Sequence[PortPair], node: str, addresses: Mapping[str, str]) -> tuple[RailRun, ...]:
    """A node's part of these pairs: only the start of a pair is given its peer."""
    return tuple(
        RailRun(
            id=way.id,
            device=ours.device,
            port=ours.port,
            gid=ours.gid,
            gpu=ours.gpu,
            peer=addresses[way.end.node] if ours is way.start else "",
        )
        for way in turn
        for ours in (way.start, way.end)
        if ours.node == node
    )


def _without(ports: Mapping[str, tuple[RailPort, ...]], addresses: Mapping[str, str]) -> str | None:
    """Why there is nothing to measure."""
    if len(ports) < 2:
        return "RDMA ports are measured between nodes, and this gang has one"
    lacking = [name for name, ports_of_node in ports.items() if not ports_of_node]
    if lacking:
        return (
            f"no RDMA port of the plan is up on {', '.join(lacking)}: the ports' own bandwidth was not measured. Where "
            "there should be one: l40s-deploy doctor"
        )
    if any(":" in addresses.get(name, ":") for name in ports):
        return "ib_write_bw needs IPv4 here, and these nodes have IPv6 addresses: set l40s_address to an IPv4 address"
    return None


@dataclass
class _RailsAnswers:
    """What the nodes have said, together. Written by one thread a node."""

    order: tuple[PortPair, ...]
    said: dict[int, RailsLine] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    on_gpu: set[int] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, node: str, line: RailsLine) -> None:
        """The sender's word counts; where it has none, the receiver's."""
        with self._lock:
            if line.missing:
                self.missing.add(node)
            if line.run < 0:
                return
            way = self.order[line.run] if line.run < len(self.order) else None
            if way is None or node not in (way.start.node, way.end.node):
                what = f"it reported run {line.run}, which is not one of its runs"
                raise NodeError(what, where=node, fix="l40s-deploy nettest again")
            if line.on_gpu:
                self.on_gpu.add(line.run)
            if node == way.start.node or (line.status and way.id not in self.said):
                self.said[way.id] = line

    def outputs(self) -> dict[int, RailsLine]:
        """on_gpu: one end's memory was a GPU's."""
        return {run: replace(line, on_gpu=run in self.on_gpu) for run, line in self.said.items()}

    def note(self) -> str:
        """What was not measured; '' where all was."""
        if self.missing:
            return (
                f"RDMA ports were not measured: ib_write_bw is not installed on {', '.join(sorted(self.missing))}; "
                f"install it there: sudo apt-get install -y {PACKAGE}"
            )
        words = []
        if played(self.said):
            words.append("these figures come from a stand-in: there is no RDMA here")
        if given_up := [way for way in self.order if way.id not in self.said or alone(self.said[way.id])]:
            words.append(_given_up_words(given_up))
        return "; ".join(words)


def _given_up_words(pairs: Sequence[PortPair]) -> str:
    apart = all(pair.between is Between.OTHER_RAIL for pair in pairs)
    many = Counter(node for pair in pairs for node in (pair.start.node, pair.end.node))
    counts = ", ".join(f"{node} ({count})" for node, count in sorted(many.items()))
    if apart:
        words = f"between different rails given up: {counts}; the rails may be separate networks"
    else:
        words = f"given up: {counts}; the other end did not connect"
    return f"measurements {words}, or the time limit was reached"


_RAILS = StreamLimit(total_s=RAILS_ROUND_S + MARGIN_S)


def _follow(session: Session, request: RailsRequest, heard: _RailsAnswers) -> None:
    """Until the node's runs are over, or a node turns out to lack the program: it ends ours when we stop reading."""
    with closing(messages(session, "rails", request, RailsLine, _RAILS)) as lines:
        for line in lines:
            heard.take(session.spec.name, line)
            if line.ended or heard.missing:
                return
    raise NodeError(
        "its part of the test of RDMA ports ended without a result",
        where=session.spec.name,
        fix="l40s-deploy nettest again; if it persists, check the memory of that node",
    )
