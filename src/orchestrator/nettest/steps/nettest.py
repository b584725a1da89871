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
from orchestrator.gang.steps.staging import staged_plan
from orchestrator.jobs.run import follow, in_its_place, in_place_of, planned_requests, refuse_running
from orchestrator.loading.profiles import load_profile, load_stack
from orchestrator.model.benchmark import Between
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.deadlines import NETTEST_S
from orchestrator.model.errors import DeployError, InputError, NodeError, Unreachable
from orchestrator.model.finding import Finding
from orchestrator.model.inventory import GangSpec, Inventory
from orchestrator.model.per_node import lost_first
from orchestrator.model.topology import Topology
from orchestrator.nettest import report
from orchestrator.nettest.expected import NodeHardware, expectations
from orchestrator.nettest.messages import ALL_REDUCE, NettestLine, NettestStep, RanksOrder
from orchestrator.nettest.report import ModelShape, NettestResult, Verification, verified
from orchestrator.nettest.schedule import Place, schedule, verification
from orchestrator.nettest.steps import ports as rails
from orchestrator.nettest.verdict import HALF, Expectation, NettestVerdict, bisected, judge_links, judge_tests
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.protocol.planned import takes
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
        setup = NettestSetup(
            gang=gang,
            requests=requests,
            topologies=topologies,
            shape=shape_of(order.model, requests),
            enough=order.enough,
            timeout_s=order.timeout_s,
            verify_only=order.verify_only,
        )
        return test(fleet, setup, progress, begin)


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

    enough: share of what is expected that will do; verify_only: nothing is to be timed
    """

    gang: GangSpec
    requests: Mapping[str, StagingRequest]
    topologies: Mapping[str, Topology]
    shape: ModelShape
    enough: float
    timeout_s: float = NETTEST_S
    verify_only: bool = False


def test(fleet: Fleet, setup: NettestSetup, progress: Progress, begin: float | None = None) -> TestedGang:
    """Run the ranks on every node of a gang, judge their figures, keep them. Raises as `run_now` does."""
    began, at = time.monotonic() if begin is None else begin, time.time()
    gang, places = setup.gang, _places(setup)
    ranks = sum(len(place.ranks) for place in places)
    if ranks < 2:
        raise InputError("it has a single rank: there is no network to test", where=f"gang {gang.name}",
                         fix="nothing: it can be started")  # fmt: skip
    compare = verification(places, setup.shape.hidden_size)
    steps = () if setup.verify_only else schedule(places, setup.shape.hidden_size, len(compare))
    heard = _NettestAnswers(gang.name, (*compare, *steps), {place.node: place.ranks for place in places}, progress)
    began_ranks = time.monotonic()
    _run(fleet, setup, places, heard)
    began_ports = time.monotonic()
    right = _verified(heard, places)
    timed = bool(steps) and not right.corrupt
    ports, broke = _ports(fleet, setup) if timed else (rails.RailMeasurements(), None)
    ports_s = time.monotonic() - began_ports
    request = setup.requests[gang.leader.name]
    expected: dict[tuple[Between, int], Expectation] = {}
    if request.device == "cuda":
        before = last_good(gang, request.stack, ranks)
        expected = {**_as_before(before, places, steps), **expectations(steps, places, _machines(setup))}
    result = NettestResult(
        gang=gang.name,
        nodes=tuple(setup.requests),
        ranks=ranks,
        verification=right,
        links=(*judge_links(steps, heard.figures, places, expected, enough=setup.enough), *ports.links),
        rails_note=ports.note,
        tests=judge_tests(steps, heard.figures, places, expected, enough=setup.enough),
        transport=_transport(setup, heard),
        moved=_moved(setup, heard),
        bisected=bisected(steps, heard.figures, places),
        shape=setup.shape,
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
        "addresses": addresses_of(gang.nodes),
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


def _ports(fleet: Fleet, setup: NettestSetup) -> tuple[rails.RailMeasurements, DeployError | None]:
    """What was measured of the RDMA ports, and what ended that early: the ranks' figures are not lost with it."""
    try:
        return rails.measure(fleet, setup.gang, setup.requests, setup.topologies, enough=setup.enough), None
    except DeployError as failure:
        return rails.RailMeasurements(note=f"RDMA ports were not measured: {failure.where}: {failure.what}"), failure


def _places(setup: NettestSetup) -> tuple[Place, ...]:
    places, first = [], 0
    for name, request in setup.requests.items():
        count = len(request.gpus) or len(request.tp_ranks)
        gpus = {gpu.index: gpu for gpu in setup.topologies[name].gpus} if name in setup.topologies else {}
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


def _machines(setup: NettestSetup) -> dict[str, NodeHardware]:
    found = {}
    for name, request in setup.requests.items():
        if name not in setup.topologies:
            continue
        network, topology = request.network, setup.topologies[name]
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
    """What the nodes have said, together. Written by one thread a node.

    ranks:      of each node; logs: NCCL's lines, by node
    figures, compared: measurements, and what was found of data; compared_s: until the last of these
    ended:      (node, line) of ranks that died or failed, and of nodes whose ranks ended with an error, as heard
    step, seconds: how far all ranks are; imported_at: when the last node's ranks had torch, on the monotonic clock
    """

    gang: str
    schedule: Sequence[NettestStep]
    ranks: Mapping[str, Sequence[int]]
    progress: Progress
    figures: list[NettestLine] = field(default_factory=list)
    compared: list[NettestLine] = field(default_factory=list)
    compared_s: float = 0.0
    seconds: float = 0.0
    logs: dict[str, str] = field(default_factory=lambda: defaultdict(str))
    ended: list[tuple[str, NettestLine]] = field(default_factory=list)
    step: int = 0
    imported_at: float = 0.0
    _broken_at: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, node: str, line: NettestLine) -> bool:
        """One line; whether any rank has failed, and who wanted to say something about it has.

        Raises NodeError for a line that is none of this test."""
        if what := self.odd(node, line):
            raise NodeError(f"it reported {what}", where=node, fix="l40s-deploy nettest again")
        with self._lock:
            self._keep(node, line)
        if line.done >= 0:
            self.progress(self.gang, self.step, len(self.schedule))
        return bool(self._broken_at) and time.monotonic() - self._broken_at > GRACE_S

    def _keep(self, node: str, line: NettestLine) -> None:
        if line.step >= 0:
            (self.compared if line.wrong >= 0 else self.figures).append(line)
        if line.done >= 0:
            self.step, self.seconds = min(line.done + 1, len(self.schedule)), line.seconds
            if line.done < len(self.schedule) and self.schedule[line.done].verify:
                self.compared_s = line.seconds
        if line.started:
            self.imported_at = time.monotonic()
        self.logs[node] += line.log
        if line.died >= 0 or line.failed >= 0 or line.ended > 0:
            self.ended.append((node, line))
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
        if line.done > len(self.schedule):  # their number itself is the end
            return f"step {line.done} of {len(self.schedule)}"
        ours = {-1, *self.ranks.get(node, ())}
        return "of a rank that is not on it" if not {line.died, line.failed, line.rank} <= ours else ""

    def broken(self) -> None:
        """Something has failed: the others need not go on."""
        self._broken_at = self._broken_at or time.monotonic()

    @property
    def at(self) -> str:
        """How far it is, in words."""
        return f"in step {self.step + 1} of {len(self.schedule)}" if self.step else "before the first step was done"


def _run(fleet: Fleet, setup: NettestSetup, places: Sequence[Place], heard: _NettestAnswers) -> None:
    leader = setup.gang.leader
    rendezvous = Endpoint(address=setup.requests[leader.name].leader.address, port=leader.ports.dist_init)
    fenced = fence(fleet, setup.gang.name)
    orders = {}
    for place in places:
        engine = setup.requests[place.node]
        orders[place.node] = in_its_place(
            PROGRAM,
            "network test",
            in_place_of(engine, ports=Ports(check_free=(rendezvous,) if place.node == leader.name else ())),
            RanksOrder(
                ranks=place.ranks,
                world=sum(len(one.ranks) for one in places),
                host=rendezvous.address,
                port=rendezvous.port,
                device=engine.device,
                steps=tuple(heard.schedule),
                reach_s=REACH_S,
                timeout_s=STEP_S,
            ),
            deadline_s=setup.timeout_s,
            beside=f"stop it with `l40s-deploy down {setup.gang.name}`, or test before its next start: `up --nettest`",
            too_long="run `l40s-deploy doctor`, allow more time with --timeout, or name fewer gangs",
        )

    def one(session: Session) -> None:
        name = session.spec.name
        try:
            follow(session, setup.gang.name, orders[name], NettestLine, partial(heard.take, name), fenced)
        except DeployError:
            heard.broken()
            raise

    done = fleet.on_every(one, only=list(orders))
    if (failure := _failure(setup, places, heard, done.failures)) is not None:
        raise failure


def _failure(
    setup: NettestSetup, places: Sequence[Place], heard: _NettestAnswers, failures: Mapping[str, DeployError]
) -> DeployError | None:
    """The one cause: a node that is lost, what a node refused, a rank that died, a rank that failed by itself."""
    first = lost_first(failures) if failures else None
    if isinstance(first, Unreachable):
        return Unreachable(
            f"the connection was lost during the network test ({heard.at}): {first.what}",
            where=first.where,
            fix=f"check it with `ssh {first.where}`; its ranks stop within {setup.timeout_s:.0f} s. {first.fix}",
        )
    if first is not None:
        return first
    for node, line in heard.ended:
        if line.died >= 0:
            fix = f"l40s-deploy doctor, and check for the OOM killer with `journalctl -k` on {node}"
            return _of_rank(places, node, line.died, f"was killed by signal {line.signal} {heard.at}", fix)
    failed = [(node, line) for node, line in heard.ended if line.failed >= 0]
    for node, line in (*(one for one in failed if not _TORN.search(one[1].what)), *failed):
        port = setup.gang.leader.ports.dist_init
        fix = f"check ports and firewall between the nodes: l40s-deploy doctor; the port is {port}"
        return _of_rank(places, node, line.failed, f"failed {heard.at}: {line.what}", fix)
    for node, line in heard.ended:
        return NodeError(f"its ranks ended {heard.at}: {line.what}", where=node, fix="l40s-deploy doctor")
    return None


def _of_rank(places: Sequence[Place], node: str, rank: int, what: str, fix: str) -> NodeError:
    place = next(place for place in places if place.node == node)
    gpu = f", GPU {place.gpus[place.ranks.index(rank)]}" if place.gpus else ""
    return NodeError(f"rank {rank} of the network test {what}; all ranks were stopped", where=f"{node}{gpu}", fix=fix)


def _transport(setup: NettestSetup, heard: _NettestAnswers) -> dict[str, str]:
    found = {}
    for name, request in setup.requests.items():
        if request.device == "cuda":
            seen = nccl_log.read(heard.logs[name].splitlines())
            counted = f"; nNodes {seen.nodes}, localRanks {seen.local_ranks}" if seen.nodes else ""
            found[name] = f"NCCL: {seen.words}{counted}"
        else:
            found[name] = f"Gloo over {request.network.interface or 'the interface of its host name'}"
    return found


def _moved(setup: NettestSetup, heard: _NettestAnswers) -> tuple[Finding, ...]:
    """What NCCL did otherwise than planned, by its own lines; nothing where not all nodes were looked at."""
    cuda = {name: request for name, request in setup.requests.items() if request.device == "cuda"}
    nodes = []
    for name, request in cuda.items():
        if name not in setup.topologies:
            return ()
        topology = setup.topologies[name]
        used = tuple(gpu for gpu in topology.gpus if gpu.index in request.gpus)
        nodes.append(gpu_groups(replace(topology, gpus=used), nccl_version(request.stack)))
    predicted = predicted_log(nodes)[0] if nodes else 0
    return tuple(
        finding
        for name, request in cuda.items()
        for finding in report.transport_findings(
            name, request.network, heard.logs[name].splitlines(), len(cuda), predicted
        )
    )


def nettest_json(found: Sequence[TestedGang]) -> dict[str, Any]:
    """The document of `nettest --json`: each gang's figures below `gangs`; at the top those of the first gang with
    wrong data, of the first slow one, of the first one where none is."""
    documents = [{**one.record, "file": one.file} for one in found]
    bad = (NettestVerdict.FAILED.value, NettestVerdict.SLOW.value, NettestVerdict.OK.value)
    worst = min(documents, key=lambda one: bad.index(one["verdict"]))
    top = {key: worst[key] for key in ("verification", "verdict", "transport", "tests", "links", "odd", "findings")}
    return {**top, "judged": any(one["judged"] for one in documents), "gangs": documents}
