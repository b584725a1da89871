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

from orchestrator.doctor.rules.support.cluster import nccl_of
from orchestrator.engines import nccl_log
from orchestrator.gang.steps.locks import GangLock, fence
from orchestrator.gang.steps.operation import Operation
from orchestrator.gang.steps.staging import staged_plan
from orchestrator.jobs.run import follow, in_its_place, in_place_of, planned_requests, refuse_running
from orchestrator.loading.profiles import load_profile, reported_profile
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.deadlines import NETTEST_S
from orchestrator.model.finding import Finding
from orchestrator.model.inventory import GangSpec
from orchestrator.model.per_node import collected, lost_first
from orchestrator.model.profile import Between
from orchestrator.model.topology import Topology
from orchestrator.nettest import nettest_report
from orchestrator.nettest.messages import ALL_REDUCE, NettestLine, NettestStep, RanksOrder
from orchestrator.nettest.nettest_report import ModelShape, NettestResult, Verification, verified
from orchestrator.nettest.schedule import Place, schedule, verification
from orchestrator.nettest.steps import ports as rails
from orchestrator.nettest.verdict import (
    HALF,
    Expectation,
    NettestVerdict,
    NodeHardware,
    bisected,
    ends,
    expectations,
    judge_links,
    judge_tests,
)
from orchestrator.planning.steps.look import known_stack, look
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.protocol.errors import DeployError, InputError, NodeError, Unreachable
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
UNKNOWN_SHAPE = ModelShape(7168, 61)
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
    kept: what was measured counts for this gang; else it was a trial of other settings than it is started with
    """

    gangs: tuple[str, ...] = ()
    model: str | None = None
    stack: str | None = None
    enough: float
    command: str = ""
    timeout_s: float = NETTEST_S
    verify_only: bool = False
    kept: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TestedGang:
    """One gang's test, as it was kept. file: where"""

    result: NettestResult
    record: Mapping[str, Any]
    file: str


def run_now(operation: Operation, order: NettestOptions, progress: Progress) -> tuple[TestedGang, ...]:
    """Test gang after gang, each in the place of its engine.

    Raises InputError where a gang runs or nobody knows what it will run, LockHeld, and why a node's ranks did not get
    through; nothing of them is left then.
    """
    chosen = chosen_gangs(operation.inventory, order.gangs)
    return tuple(_in_place_of_engine(operation, gang, order, progress) for gang in chosen)


def _stop_or_wait(gang: str) -> str:
    """What to do where the gang runs."""
    later = f"l40s-deploy up --gang {gang} --nettest"
    return f"stop it with `l40s-deploy down {gang}`, or test before its next start: `{later}`"


def _in_place_of_engine(operation: Operation, gang: GangSpec, order: NettestOptions, progress: Progress) -> TestedGang:
    begin, fleet = time.monotonic(), operation.fleet
    refuse_running(
        fleet,
        gang,
        why="its engine and the test would slow each other down",
        fix=_stop_or_wait(gang.name),
    )
    with GangLock(fleet, gang, order.command):
        if order.model is None:
            requests = _last_requests(fleet, gang)
            looked = look(fleet, gang.nodes).all()
            topologies: Mapping[str, Topology] = {name: build(snapshot) for name, snapshot in looked.items()}
        else:
            asked = PlanRequest(model=order.model, stack=order.stack, gangs=(gang.name,))
            planned, requests = planned_requests(operation, gang, asked, run_id="nettest")
            topologies = planned.topologies
        return test(fleet, NettestSetup(gang, requests, topologies, order), progress, begin)


def _last_requests(fleet: Fleet, gang: GangSpec) -> Mapping[str, StagingRequest]:
    try:
        return staged_plan(fleet, gang).requests
    except InputError as nothing:
        raise InputError(nothing.what, where=nothing.where, fix="name its model with --model") from None


@dataclass(frozen=True, slots=True)
class NettestSetup:
    """What a test stands on. requests: as the engine would be staged, by node; topologies: of nodes that were seen"""

    gang: GangSpec
    requests: Mapping[str, StagingRequest]
    topologies: Mapping[str, Topology]
    options: NettestOptions

    @property
    def first(self) -> StagingRequest:
        """A node's; model, stack and leader are those of all."""
        return next(iter(self.requests.values()))

    @property
    def shape(self) -> ModelShape:
        """The model's, by its profile; that of DeepSeek-V3 where there is none at hand."""
        try:
            typed = self.options.model
            profile = load_profile(typed) if typed else reported_profile(self.first.model)
            dimensions = profile.dimensions
        except DeployError:
            return UNKNOWN_SHAPE
        return ModelShape(dimensions.hidden_size, dimensions.num_hidden_layers)


def test(fleet: Fleet, setup: NettestSetup, progress: Progress, begin: float | None = None) -> TestedGang:
    """Run the ranks on every node of a gang, judge their figures, keep them. Raises as `run_now` does."""
    began, at = time.monotonic() if begin is None else begin, time.time()
    gang, shape, places = setup.gang, setup.shape, _ranked(setup)
    compare = verification(places, shape.hidden_size)
    steps = () if setup.options.verify_only else schedule(places, shape.hidden_size, len(compare))
    heard = _NettestAnswers(gang.name, (*compare, *steps), {place.node: place.ranks for place in places}, progress)
    began_ranks = time.monotonic()
    _run(fleet, setup, places, heard)
    began_ports = time.monotonic()
    right = _verified(heard, places)
    ports, broke = _ports(fleet, setup) if steps and not right.corrupt else (rails.RailMeasurements(), None)
    ports_s = time.monotonic() - began_ports
    expected = _expected(setup, places, steps)
    result = NettestResult(
        gang=gang.name,
        nodes=tuple(setup.requests),
        ranks=sum(len(place.ranks) for place in places),
        verification=right,
        links=(*judge_links(steps, heard.figures, places, expected), *ports.links),
        rails_note=ports.note,
        tests=judge_tests(steps, heard.figures, places, expected),
        transport={name: _transport(request, heard.logs[name]) for name, request in setup.requests.items()},
        moved=_moved(setup, heard),
        bisected=bisected(steps, heard.figures, places),
        shape=shape,
        seconds=time.monotonic() - began,
        steps_s=heard.seconds - right.seconds,
        rails_s=ports_s,
        overhead_s={
            "look and plan": began_ranks - began,
            "import torch": heard.imported_at - began_ranks,
            "join and end": began_ports - heard.imported_at - heard.seconds,
        },
    )
    tested = _kept(setup, result, at)
    if broke is not None:
        raise _with_what_is_kept(broke, tested)
    return tested


def _ranked(setup: NettestSetup) -> tuple[Place, ...]:
    """Where the ranks are; raises InputError for less than two, between which there is no network."""
    places = _places(setup)
    if sum(len(place.ranks) for place in places) < 2:
        raise _no_network(setup.gang)
    return places


def _with_what_is_kept(broke: DeployError, tested: TestedGang) -> DeployError:
    complete = f"what the GPUs measured is complete, and kept in {tested.file}"
    broke.what = f"in the test of RDMA ports: {broke.what}\n    {complete}"
    return broke


def _expected(
    setup: NettestSetup, places: Sequence[Place], steps: Sequence[NettestStep]
) -> dict[tuple[Between, int], Expectation]:
    """What GPUs should reach: by the machines' links, and by the last good measurement. Nothing of CPUs."""
    if setup.first.device != "cuda":
        return {}
    before = last_good(setup.gang, setup.first.stack, sum(len(place.ranks) for place in places))
    calculated = expectations(steps, places, _machines(setup), setup.options.enough)
    return {**_as_before(before, places, steps), **calculated}


def _no_network(gang: GangSpec) -> InputError:
    what, fix = "it has a single rank: there is no network to test", "nothing: it can be started"
    return InputError(what, where=f"gang {gang.name}", fix=fix)


def _kept(setup: NettestSetup, result: NettestResult, at: float) -> TestedGang:
    """The result with its record, which is written unless it was a trial. at: Unix seconds."""
    first = setup.first
    of_run = {"addresses": addresses_of(setup.gang.nodes), "plan_id": first.plan_id, "model": first.model}
    record = {**nettest_report.as_json(result), **of_run, "stack": first.stack}
    file = str(write_nettest(record, at)) if setup.options.kept else ""
    return TestedGang(result=result, record=record, file=file)


def _verified(heard: _NettestAnswers, places: Sequence[Place]) -> Verification:
    """Raises NodeError where a rank has ended well and did not say what it was to compare: that is not right data."""
    try:
        return verified(heard.schedule, heard.compared, places, heard.compared_s)
    except LookupError as missing:
        raise NodeError(
            f"nobody says whether data is right: {missing}", where=f"gang {heard.gang}", fix="l40s-deploy nettest again"
        ) from None


def _ports(fleet: Fleet, setup: NettestSetup) -> tuple[rails.RailMeasurements, DeployError | None]:
    """What was measured of the RDMA ports, and what ended that early: the ranks' figures are not lost with it."""
    try:
        measured = rails.measure(fleet, setup.gang, setup.requests, setup.topologies, enough=setup.options.enough)
    except DeployError as failure:
        return rails.RailMeasurements(note=f"RDMA ports were not measured: {failure.where}: {failure.what}"), failure
    return measured, None


def _places(setup: NettestSetup) -> tuple[Place, ...]:
    places, first = list[Place](), 0
    for name, request in setup.requests.items():
        count = len(request.gpus) or len(request.tp_ranks)
        indices = request.gpus if request.device == "cuda" else ()
        known = {gpu.index: gpu for gpu in setup.topologies[name].gpus} if name in setup.topologies else {}
        gpus = [known[index] for index in indices] if known.keys() >= {*indices} else []
        switch, numa = tuple(gpu.switch for gpu in gpus), tuple(gpu.numa_node for gpu in gpus)
        ranks, first = tuple(range(first, first + count)), first + count
        places.append(Place(node=name, ranks=ranks, gpus=indices, switch=switch, numa=numa))
    return tuple(places)


def _machines(setup: NettestSetup) -> dict[str, NodeHardware]:
    nccl = nccl_of(known_stack(setup.first.stack))
    return {
        name: NodeHardware(setup.topologies[name], nccl, request.network.rdma, _rate(setup.topologies[name], request))
        for name, request in setup.requests.items()
        if name in setup.topologies
    }


def _rate(topology: Topology, request: StagingRequest) -> float:
    """Of all ports that NCCL takes; one that is down is missing from a plan that names it, and not from prefixes."""
    network = request.network
    taken = [port for port in topology.rdma if takes(network.hca, port.device, port.port)]
    return sum(port.rate_gbps for port in taken if network.ports or (port.active and not port.virtual))


def _as_before(
    before: Mapping[str, Any] | None, places: Sequence[Place], steps: Sequence[NettestStep]
) -> dict[tuple[Between, int], Expectation]:
    """What this cluster was last seen to do where nothing is calculated: the best link of a kind, each all-reduce."""
    if before is None:
        return {}

    def measured(value: float) -> Expectation:
        return Expectation(value, "measured", f"the test {before['id']} of these nodes", HALF)

    links = collected((link["kind"], float(link["measured_gbps"])) for link in before["links"])
    kinds = [Between(kind) for kind in dict.fromkeys(step.between for step in steps) if kind in links]
    ranks = [rank for place in places for rank in place.ranks]
    expected = {(kind, rank): measured(max(links[kind.value])) for kind in kinds for rank in ranks}
    return expected | {
        (Between.ALL, int(reduced["bytes"])): measured(float(reduced["measured_us"]))
        for reduced in filter(_is_whole, before["tests"])
    }


def _is_whole(reduced: Mapping[str, Any]) -> bool:
    """Whether a kept all-reduce was of all ranks, and of as many bytes as were wanted."""
    return bool(reduced["kind"] == Between.ALL.value and reduced["bytes"] == reduced["wanted_bytes"])


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
            if line.step >= 0:
                (self.compared if line.wrong >= 0 else self.figures).append(line)
            if line.started:
                self.imported_at = time.monotonic()
            self.logs[node] += line.log
            if line.died >= 0 or line.failed >= 0 or line.ended > 0:
                self.ended.append((node, line))
                self.broken()
            if line.done >= 0:
                self._step_done(line)
        if line.done >= 0:
            self.progress(self.gang, self.step, len(self.schedule))
        return bool(self._broken_at) and time.monotonic() - self._broken_at > GRACE_S

    def _step_done(self, line: NettestLine) -> None:
        self.step, self.seconds = min(line.done + 1, len(self.schedule)), line.seconds
        if any(step.verify for step in self.schedule[line.done : line.done + 1]):
            self.compared_s = line.seconds

    def odd(self, node: str, line: NettestLine) -> str:
        """Why a line is none of this test, '' where it is one: what a node says becomes places in our lists."""
        if line.step >= 0 and (what := self._odd_result(line)):
            return what
        if line.done > len(self.schedule):  # their number itself is the end
            return f"step {line.done} of {len(self.schedule)}"
        ours = {-1, *self.ranks.get(node, ())}
        return "of a rank that is not on it" if not {line.died, line.failed, line.rank} <= ours else ""

    def _odd_result(self, line: NettestLine) -> str:
        step = next((candidate for candidate in self.schedule if candidate.id == line.step), None)
        if step is None or not 0 <= line.group < len(step.groups):
            return f"a measurement of step {line.step}, group {line.group}, which is not part of this test"
        if step.verify != (line.wrong >= 0) or line.rank not in (-1, *step.groups[line.group]):
            return f"a result of rank {line.rank} in step {line.step}, which is none of that step"
        before = sum((figure.step, figure.group) == (line.step, line.group) for figure in self.figures)
        if step.kind == ALL_REDUCE and before >= len(step.bytes):
            return f"more than {len(step.bytes)} measurements of step {line.step}, group {line.group}"
        return ""

    def broken(self) -> None:
        """Something has failed: the others need not go on."""
        self._broken_at = self._broken_at or time.monotonic()

    @property
    def at(self) -> str:
        """How far it is, in words."""
        return f"in step {self.step + 1} of {len(self.schedule)}" if self.step else "before the first step was done"


def _run(fleet: Fleet, setup: NettestSetup, places: Sequence[Place], heard: _NettestAnswers) -> None:
    gang, timeout_s = setup.gang.name, setup.options.timeout_s
    rendezvous = Endpoint(address=setup.first.leader.address, port=setup.gang.leader.ports.dist_init)
    fenced = fence(fleet, gang)

    def run_on(session: Session) -> None:
        name = session.spec.name
        free = (rendezvous,) if name == setup.gang.leader.name else ()
        order = in_its_place(
            PROGRAM,
            "network test",
            in_place_of(setup.requests[name], ports=Ports(check_free=free)),
            RanksOrder(
                ranks=tuple(heard.ranks[name]),
                world=sum(map(len, heard.ranks.values())),
                host=rendezvous.address,
                port=rendezvous.port,
                device=setup.first.device,
                steps=tuple(heard.schedule),
                reach_s=REACH_S,
                timeout_s=STEP_S,
            ),
            deadline_s=timeout_s,
            beside=_stop_or_wait(gang),
            too_long="run `l40s-deploy doctor`, allow more time with --timeout, or name fewer gangs",
        )
        try:
            follow(session, gang, order, NettestLine, partial(heard.take, name), fenced)
        except DeployError:
            heard.broken()
            raise

    done = fleet.on_every(run_on, only=list(setup.requests))
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
            fix=f"check it with `ssh {first.where}`; its ranks stop within {setup.options.timeout_s:.0f} s."
            f" {first.fix}",
        )
    if first is not None or not heard.ended:
        return first

    def weight(failed: tuple[str, NettestLine]) -> int:
        line = failed[1]
        if line.died >= 0:
            return 0
        if line.failed < 0:
            return 3
        return 2 if _TORN.search(line.what) else 1

    node, line = min(heard.ended, key=weight)
    if line.died >= 0:
        fix = f"l40s-deploy doctor, and check for the OOM killer with `journalctl -k` on {node}"
        return _of_rank(places, line.died, f"was killed by signal {line.signal} {heard.at}", fix)
    if line.failed >= 0:
        port = setup.gang.leader.ports.dist_init
        fix = f"check ports and firewall between the nodes: l40s-deploy doctor; the port is {port}"
        return _of_rank(places, line.failed, f"failed {heard.at}: {line.what}", fix)
    return NodeError(f"its ranks ended {heard.at}: {line.what}", where=node, fix="l40s-deploy doctor")


def _of_rank(places: Sequence[Place], rank: int, what: str, fix: str) -> NodeError:
    end = ends(places)[rank]
    where = ", ".join(filter(None, (end.node, end.device)))
    return NodeError(f"rank {rank} of the network test {what}; all ranks were stopped", where=where, fix=fix)


def _transport(request: StagingRequest, log: str) -> str:
    if request.device != "cuda":
        return f"Gloo over {request.network.interface or 'the interface of its host name'}"
    seen = nccl_log.read(log.splitlines())
    counted = f"; nNodes {seen.nodes}, localRanks {seen.local_ranks}" if seen.nodes else ""
    return f"NCCL: {seen.words}{counted}"


def _moved(setup: NettestSetup, heard: _NettestAnswers) -> tuple[Finding, ...]:
    """What NCCL did otherwise than planned, by its own lines; nothing where not all nodes were looked at."""
    requests, topologies = setup.requests, setup.topologies
    if setup.first.device != "cuda" or not topologies.keys() >= requests.keys():
        return ()
    nccl = nccl_of(known_stack(setup.first.stack))
    used = {
        name: tuple(gpu for gpu in topologies[name].gpus if gpu.index in request.gpus)
        for name, request in requests.items()
    }
    predicted, _ = predicted_log(
        [gpu_groups(replace(topologies[name], gpus=gpus), nccl) for name, gpus in used.items()]
    )
    return tuple(
        finding
        for name, request in requests.items()
        for finding in nettest_report.transport_findings(
            name, request.network, heard.logs[name].splitlines(), len(requests), predicted
        )
    )


def nettest_json(tested: Sequence[TestedGang]) -> dict[str, Any]:
    """The document of `nettest --json`: each gang's figures below `gangs`; at the top those of the first gang with
    wrong data, of the first slow one, of the first one where none is."""
    documents = [{**gang.record, "file": gang.file} for gang in tested]
    bad = (NettestVerdict.FAILED.value, NettestVerdict.SLOW.value, NettestVerdict.OK.value)
    worst = min(documents, key=lambda document: bad.index(document["verdict"]))
    top = {key: worst[key] for key in ("verification", "verdict", "transport", "tests", "links", "odd", "findings")}
    return {**top, "judged": any(document["judged"] for document in documents), "gangs": documents}
