"""`nettest`: measures the network of a gang with the stack's own libraries, in place of the engine."""

from __future__ import annotations

import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from orchestrator.doctor.steps.look import look
from orchestrator.doctor.steps.nccl import VERSIONS
from orchestrator.engines import nccl_log
from orchestrator.gang.steps.locks import GangLock, fence
from orchestrator.gang.steps.replay import staged_plan
from orchestrator.jobs.run import follow, in_its_place, in_place_of, planned_requests, refuse_running
from orchestrator.loading.profiles import load_profile
from orchestrator.loading.stacks import load_stack
from orchestrator.model.benchmark import Between
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.deadlines import NETTEST_S
from orchestrator.model.errors import DeployError, InputError, NodeError, Unreachable
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.model.per_node import lost_first
from orchestrator.model.topology import Topology
from orchestrator.nettest import report
from orchestrator.nettest.expected import NodeHardware, expectations
from orchestrator.nettest.halves import bisected
from orchestrator.nettest.messages import ALL_REDUCE, NettestLine, NettestStep, RanksOrder
from orchestrator.nettest.report import ModelShape, NettestResult
from orchestrator.nettest.schedule import Place, schedule, verification
from orchestrator.nettest.steps import ports as rails
from orchestrator.nettest.verdict import HALF, Expectation, NettestVerdict, judge_links, judge_tests
from orchestrator.nettest.verification import Verification, verified
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.protocol.network import takes
from orchestrator.protocol.staging import Endpoint, Ports, StagingRequest
from orchestrator.records.nettests import addresses_of, last_good, write_nettest
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.session import Session
from orchestrator.topology.build import build
from orchestrator.topology.distance import gpu_groups
from orchestrator.topology.distance import nccl_log as predicted_log

PROGRAM = "nettest.py"
REACH_S = 60.0
"""For the ranks to find each other: torch is imported meanwhile, from a cold disk perhaps."""
STEP_S = 60.0
GRACE_S = 1.0
"""After the first sign of a failure, for what the others say of it."""
UNKNOWN_SHAPE = ModelShape(hidden_size=7168, layers=61)
"""DeepSeek-V3's, used if the model is unknown."""
Progress = Callable[[str, int, int], None]
"""(gang, steps done, of)."""
_TORN = re.compile(
    r"(?i)connection (closed|reset)|broken pipe|timed? ?out|remote process|peer|ncclRemoteError|no rendez"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NettestOptions:
    """What to test. model: None for what the gang ran last; enough: share of what is expected; timeout_s: of a gang

    verify_only: compare data, and time nothing
    """

    gangs: tuple[str, ...] = ()
    model: str | None = None
    stack: str | None = None
    enough: float
    command: str
    timeout_s: float = NETTEST_S
    verify_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TestedGang:
    """One gang's test, as it was kept. file: where"""

    result: NettestResult
    record: Mapping[str, Any]
    file: str


def run_now(inventory: Inventory, order: NettestOptions, progress: Progress) -> tuple[TestedGang, ...]:
    """Test gang after gang, each in the place of its engine.

    Raises InputError where a gang runs or nobody knows what it will run, LockHeld, and why a node's ranks did not get
    through; nothing of them is left then.
    """
    chosen = chosen_gangs(inventory, order.gangs)
    with Fleet([node for gang in chosen for node in gang.nodes]) as fleet:
        return tuple(_one(inventory, fleet, gang, order, progress) for gang in chosen)


def _one(inventory: Inventory, fleet: Fleet, gang: GangSpec, order: NettestOptions, progress: Progress) -> TestedGang:
    begin = time.monotonic()
    refuse_running(
        fleet,
        gang,
        why="its engine and the test would slow each other down",
        fix=f"l40s-deploy down {gang.name}, or test before its next start: `up --nettest`",
    )
    with GangLock(fleet, gang, order.command):
        if order.model is None:
            requests = _last_requests(fleet, gang)
            looked = look(fleet, gang.nodes).all()
            topologies: Mapping[str, Topology] = {name: build(snapshot) for name, snapshot in looked.items()}
        else:
            asked = PlanRequest(model=order.model, stack=order.stack, gangs=(gang.name,))
            planned, requests = planned_requests(inventory, fleet, gang, asked, run_id="nettest")
            topologies = planned.topologies
        ground = NettestSetup(
            gang=gang,
            requests=requests,
            topologies=topologies,
            shape=shape_of(order.model, requests),
            timeout_s=order.timeout_s,
            verify_only=order.verify_only,
        )
        return test(fleet, ground, enough=order.enough, progress=progress, begin=begin)


def _last_requests(fleet: Fleet, gang: GangSpec) -> Mapping[str, StagingRequest]:
    try:
        return staged_plan(fleet, gang).requests
    except InputError as nothing:
        raise InputError(nothing.what, where=nothing.where, fix="name it: l40s-deploy nettest --model NAME") from None


def shape_of(model: str | None, requests: Mapping[str, StagingRequest]) -> ModelShape:
    """The model's, by its profile; that of DeepSeek-V3 where there is none at hand."""
    name = model or next(iter(requests.values())).model
    try:
        dimensions = load_profile(name).dimensions
    except DeployError:
        return UNKNOWN_SHAPE
    return ModelShape(hidden_size=dimensions.hidden_size, layers=dimensions.num_hidden_layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class NettestSetup:
    """What a test stands on. requests: as the engine would be staged, by node; timeout_s: for its ranks

    verify_only: nothing is to be timed
    """

    gang: GangSpec
    requests: Mapping[str, StagingRequest]
    topologies: Mapping[str, Topology]
    shape: ModelShape
    timeout_s: float = NETTEST_S
    verify_only: bool = False


def test(
    fleet: Fleet, ground: NettestSetup, *, enough: float, progress: Progress, begin: float | None = None
) -> TestedGang:
    """Run the ranks on every node of a gang, judge their figures, keep them. Raises as `run_now` does."""
    began, at = time.monotonic() if begin is None else begin, time.time()
    places = _places(ground)
    if sum(len(place.ranks) for place in places) < 2:
        raise InputError("it has a single rank: there is no network to test", where=f"gang {ground.gang.name}",
                         fix="nothing: it can be started")  # fmt: skip
    compare = verification(places, ground.shape.hidden_size)
    steps = () if ground.verify_only else schedule(places, ground.shape.hidden_size, len(compare))
    heard = _NettestAnswers(
        ground.gang.name, (*compare, *steps), {place.node: place.ranks for place in places}, progress
    )
    began_ranks = time.monotonic()
    _run(fleet, ground, places, heard)
    began_ports = time.monotonic()
    right = _verified(heard, places)
    timed = bool(steps) and not right.corrupt
    ports, broke = _ports(fleet, ground, enough) if timed else (rails.RailMeasurements(note=""), None)
    ports_s = time.monotonic() - began_ports
    request = ground.requests[ground.gang.leader.name]
    expected = expectations(steps, places, _machines(ground)) if request.device == "cuda" else {}
    if request.device == "cuda":
        before = last_good(ground.gang, request.stack, sum(len(p.ranks) for p in places))
        expected = {**_as_before(before, places, steps), **expected}
    result = NettestResult(
        gang=ground.gang.name,
        nodes=tuple(ground.requests),
        ranks=sum(len(place.ranks) for place in places),
        verification=right,
        links=(*judge_links(steps, heard.figures, places, expected, enough=enough), *ports.links),
        rails_note=ports.note,
        tests=judge_tests(steps, heard.figures, places, expected, enough=enough),
        transport=_transport(ground, heard),
        moved=_moved(ground, heard),
        bisected=bisected(steps, heard.figures, places),
        shape=ground.shape,
        seconds=time.monotonic() - began,
        steps_s=heard.seconds - right.seconds,
        rails_s=ports_s,
        overhead_s={
            "look and plan": began_ranks - began,
            "import torch": heard.imported_at - began_ranks,
            "join and end": began_ports - heard.imported_at - heard.seconds,
        },
    )
    record = {
        **report.as_json(result),
        "addresses": addresses_of(ground.gang.nodes),
        "plan_id": request.plan_id,
        "model": request.model,
        "stack": request.stack,
    }
    file = str(write_nettest(record, at))
    if broke is not None:
        broke.what = (
            f"in the test of RDMA ports: {broke.what}\n    what the GPUs measured is complete, and kept in {file}"
        )
        raise broke
    return TestedGang(result=result, record=record, file=file)


def _verified(heard: _NettestAnswers, places: Sequence[Place]) -> Verification:
    """Raises NodeError where a rank has ended well and did not say what it was to compare: that is not right data."""
    try:
        return verified(heard.schedule, heard.compared, places, heard.compared_s)
    except LookupError as missing:
        raise NodeError(f"nobody says whether data is right: {missing}", where=f"gang {heard.gang}",
                        fix="l40s-deploy nettest again") from None  # fmt: skip


def _ports(fleet: Fleet, ground: NettestSetup, enough: float) -> tuple[rails.RailMeasurements, DeployError | None]:
    """What was measured of the RDMA ports, and what ended that early: the ranks' figures are not lost with it."""
    try:
        return rails.measure(fleet, ground.gang, ground.requests, ground.topologies, enough=enough), None
    except DeployError as failure:
        return rails.RailMeasurements(note=f"RDMA ports were not measured: {failure.where}: {failure.what}"), failure


def _places(ground: NettestSetup) -> tuple[Place, ...]:
    places, first = [], 0
    for name, request in ground.requests.items():
        count = len(request.gpus) or len(request.tp_ranks)
        gpus = {gpu.index: gpu for gpu in ground.topologies[name].gpus} if name in ground.topologies else {}
        known = request.device == "cuda" and all(index in gpus for index in request.gpus)
        places.append(
            Place(
                node=name,
                ranks=tuple(range(first, first + count)),
                gpus=request.gpus if request.device == "cuda" else (),
                switch=tuple(gpus[index].switch for index in request.gpus) if known else (),
                numa=tuple(gpus[index].numa_node for index in request.gpus) if known else (),
            )
        )
        first += count
    return tuple(places)


def _machines(ground: NettestSetup) -> dict[str, NodeHardware]:
    found = {}
    for name, request in ground.requests.items():
        if name not in ground.topologies:
            continue
        network, topology = request.network, ground.topologies[name]
        named = network.ports  # one that is down is missing from what was planned
        found[name] = NodeHardware(
            topology=topology,
            nccl=nccl_version(request.stack),
            rdma=network.rdma,
            rate_gbps=sum(
                port.rate_gbps
                for port in topology.rdma
                if takes(network.hca, port.device, port.port) and (named or (port.active and not port.virtual))
            ),
        )
    return found


def nccl_version(stack: str) -> tuple[int, ...]:
    """That of the stack, else of the newest that we know."""
    try:
        named = load_stack(stack).nccl_version
    except DeployError:
        named = ""
    return tuple(int(part) for part in re.findall(r"\d+", named or VERSIONS[-1])[:3])


def _as_before(
    before: Mapping[str, Any] | None, places: Sequence[Place], steps: Sequence[NettestStep]
) -> dict[tuple[Between, int], Expectation]:
    """What this cluster was last seen to do where nothing is calculated: the best link of a kind, each all-reduce."""
    if before is None:
        return {}
    source = f"the test {before.get('id')} of these nodes"
    found: dict[tuple[Between, int], Expectation] = {}
    best: dict[str, float] = {}
    for link in before["links"]:
        best[link["kind"]] = max(best.get(link["kind"], 0.0), float(link["measured_gbps"]))
    ranks = [rank for place in places for rank in place.ranks]
    for step in steps:
        if step.between in best:
            value = Expectation(best[step.between], "measured", source, HALF)
            found |= {(Between(step.between), rank): value for rank in ranks}
    for one in before["tests"]:
        if one["kind"] == Between.ALL.value and one["bytes"] == one["wanted_bytes"]:
            found[Between.ALL, int(one["bytes"])] = Expectation(float(one["measured_us"]), "measured", source, HALF)
    return found


@dataclass
class _NettestAnswers:
    """What the nodes have said, together. Written by one thread a node."""

    gang: str
    schedule: Sequence[NettestStep]
    ranks: Mapping[str, Sequence[int]]
    """Of each node."""
    progress: Progress
    figures: list[NettestLine] = field(default_factory=list)
    compared: list[NettestLine] = field(default_factory=list)
    compared_s: float = 0.0
    """Until the last of them."""
    seconds: float = 0.0
    logs: dict[str, str] = field(default_factory=lambda: defaultdict(str))
    died: list[tuple[str, int, int]] = field(default_factory=list)
    """(node, rank, signal), in the order of hearing."""
    failed: list[tuple[str, int, str]] = field(default_factory=list)
    ended: dict[str, str] = field(default_factory=dict)
    """Nodes whose ranks have ended with an error, and its last words."""
    step: int = 0
    imported_at: float = 0.0
    """When the last node's ranks had torch, on the monotonic clock."""
    _broken_at: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, node: str, line: NettestLine) -> bool:
        """One line; whether any rank has failed, and who wanted to say something about it has.

        Raises NodeError for a line that is none of this test."""
        if what := self.odd(node, line):
            raise NodeError(f"it reported {what}", where=node, fix="l40s-deploy nettest again")
        self._keep(node, line)
        if line.done >= 0:
            self.progress(self.gang, self.step, self.steps)
        return bool(self._broken_at) and time.monotonic() - self._broken_at > GRACE_S

    def _keep(self, node: str, line: NettestLine) -> None:
        with self._lock:
            if line.step >= 0 and line.wrong >= 0:
                self.compared.append(line)
            elif line.step >= 0:
                self.figures.append(line)
            if line.done >= 0:
                self.step, self.seconds = min(line.done + 1, self.steps), line.seconds
                if line.done < self.steps and self.schedule[line.done].verify:
                    self.compared_s = line.seconds
            if line.started:
                self.imported_at = time.monotonic()
            self.logs[node] += line.log
            if line.died >= 0:
                self.died.append((node, line.died, line.signal))
            if line.failed >= 0:
                self.failed.append((node, line.failed, line.what))
            if line.ended > 0:
                self.ended[node] = line.what
        if line.died >= 0 or line.failed >= 0 or line.ended > 0:
            self.broken()

    def odd(self, node: str, line: NettestLine) -> str:
        """Why a line is none of this test, '' where it is one: what a node says becomes places in our lists."""
        if line.step >= 0:
            step = next((one for one in self.schedule if one.id == line.step), None)
            if step is None or not 0 <= line.group < len(step.groups):
                return f"a measurement of step {line.step}, group {line.group}, which is not part of this test"
            if step.verify != (line.wrong >= 0) or line.rank not in (-1, *step.groups[line.group]):
                return f"a result of rank {line.rank} in step {line.step}, which is none of that step"
            before = sum((one.step, one.group) == (line.step, line.group) for one in self.figures)
            if step.kind == ALL_REDUCE and before >= len(step.bytes):
                return f"more than {len(step.bytes)} measurements of step {line.step}, group {line.group}"
        if line.done > self.steps:  # their number itself is the end
            return f"step {line.done} of {self.steps}"
        ours = {-1, *self.ranks.get(node, ())}
        return "of a rank that is not on it" if not {line.died, line.failed, line.rank} <= ours else ""

    def broken(self) -> None:
        """Something has failed: the others need not go on."""
        self._broken_at = self._broken_at or time.monotonic()

    @property
    def steps(self) -> int:
        """How many."""
        return len(self.schedule)


def _run(fleet: Fleet, ground: NettestSetup, places: Sequence[Place], heard: _NettestAnswers) -> None:
    leader = ground.gang.leader
    address = ground.requests[leader.name].leader.address
    rendezvous = Endpoint(address=address, port=leader.ports.dist_init)
    world = sum(len(place.ranks) for place in places)
    fenced = fence(fleet, ground.gang.name)
    orders = {
        place.node: in_its_place(
            PROGRAM,
            "network test",
            in_place_of(
                ground.requests[place.node],
                ports=Ports(check_free=(rendezvous,) if place.node == leader.name else ()),
            ),
            RanksOrder(
                ranks=place.ranks,
                world=world,
                host=rendezvous.address,
                port=rendezvous.port,
                device=ground.requests[place.node].device,
                steps=tuple(heard.schedule),
                reach_s=REACH_S,
                timeout_s=STEP_S,
            ),
            deadline_s=ground.timeout_s,
            beside=f"stop it with `l40s-deploy down {ground.gang.name}`, or test before its next start: `up --nettest`",
            too_long="run `l40s-deploy doctor`, allow more time with --timeout, or name fewer gangs",
        )
        for place in places
    }

    def one(session: Session) -> None:
        name = session.spec.name
        try:
            follow(session, ground.gang.name, orders[name], NettestLine, partial(heard.take, name), fenced)
        except DeployError:
            heard.broken()
            raise

    done = fleet.on_every(one, only=list(orders))
    if (failure := _failure(ground, places, heard, done.failures)) is not None:
        raise failure


def _failure(
    ground: NettestSetup, places: Sequence[Place], heard: _NettestAnswers, failures: Mapping[str, DeployError]
) -> DeployError | None:
    """The one cause: a node that is lost, what a node refused, a rank that died, a rank that failed by itself."""
    first = lost_first(failures) if failures else None
    if isinstance(first, Unreachable):
        return Unreachable(
            f"the connection was lost during the network test ({_at(heard)}): {first.what}",
            where=first.where,
            fix=f"check it with `ssh {first.where}`; its ranks stop within {ground.timeout_s:.0f} s. {first.fix}",
        )
    if first is not None:
        return first
    if heard.died:
        node, rank, number = heard.died[0]
        return _of_rank(places, node, rank, f"was killed by signal {number} {_at(heard)}", "l40s-deploy doctor, and "
                        f"check for the OOM killer with `journalctl -k` on {node}")  # fmt: skip
    if heard.failed:
        node, rank, what = next((one for one in heard.failed if not _TORN.search(one[2])), heard.failed[0])
        fix = f"check ports and firewall between the nodes: l40s-deploy doctor; the port is {_port(ground)}"
        return _of_rank(places, node, rank, f"failed {_at(heard)}: {what}", fix)
    for node, what in heard.ended.items():
        return NodeError(f"its ranks ended {_at(heard)}: {what}", where=node, fix="l40s-deploy doctor")
    return None


def _port(ground: NettestSetup) -> int:
    return ground.gang.leader.ports.dist_init


def _at(heard: _NettestAnswers) -> str:
    return f"in step {heard.step + 1} of {heard.steps}" if heard.step else "before the first step was done"


def _of_rank(places: Sequence[Place], node: str, rank: int, what: str, fix: str) -> NodeError:
    place = next(place for place in places if place.node == node)
    gpu = f", GPU {place.gpus[place.ranks.index(rank)]}" if place.gpus else ""
    return NodeError(f"rank {rank} of the network test {what}; all ranks were stopped", where=f"{node}{gpu}", fix=fix)


def _lines(heard: _NettestAnswers, node: str) -> list[str]:
    return heard.logs[node].splitlines()


def _transport(ground: NettestSetup, heard: _NettestAnswers) -> dict[str, str]:
    found = {}
    for name, request in ground.requests.items():
        if request.device == "cuda":
            seen = nccl_log.read(_lines(heard, name))
            counted = f"; nNodes {seen.nodes}, localRanks {seen.local_ranks}" if seen.nodes else ""
            found[name] = f"NCCL: {seen.words}{counted}"
        else:
            found[name] = f"Gloo over {request.network.interface or 'the interface of its host name'}"
    return found


def _moved(ground: NettestSetup, heard: _NettestAnswers) -> tuple[Any, ...]:
    cuda = {name: request for name, request in ground.requests.items() if request.device == "cuda"}
    if not cuda or not all(name in ground.topologies for name in cuda):
        return ()
    nodes = [
        gpu_groups(replace(ground.topologies[name], gpus=_used(ground.topologies[name], request)),
                   nccl_version(request.stack))
        for name, request in cuda.items()
    ]  # fmt: skip
    predicted = predicted_log(nodes)[0]
    return tuple(
        finding
        for name, request in cuda.items()
        for finding in report.transport_findings(name, request.network, _lines(heard, name), len(cuda), predicted)
    )


def _used(topology: Topology, request: StagingRequest) -> tuple[Any, ...]:
    return tuple(gpu for gpu in topology.gpus if gpu.index in request.gpus)


def why_slow(tested: TestedGang) -> str:
    """The most severe findings, in a sentence."""
    return "; ".join(f"{finding.id}: {finding.title}" for finding in report.findings(tested.result)[:2])


def nettest_json(found: Sequence[TestedGang]) -> dict[str, Any]:
    """The document of `nettest --json`: each gang's figures below `gangs`; at the top those of the first gang with
    wrong data, of the first slow one, of the first one where none is."""
    documents = [{**one.record, "file": one.file} for one in found]
    bad = (NettestVerdict.FAILED.value, NettestVerdict.SLOW.value, NettestVerdict.OK.value)
    worst = min(documents, key=lambda one: bad.index(one["verdict"]))
    top = {key: worst[key] for key in ("verification", "verdict", "transport", "tests", "links", "odd", "findings")}
    return {**top, "judged": any(one["judged"] for one in documents), "gangs": documents}
