"""The workflow of a network test: its expectations, the proof of the transport, its records, and which node is named
when a node is lost."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.local_gang import Notes
from tests.support.reference_cluster import gang, topologies
from tests.support.sources import ROOT

from orchestrator.gang.steps.up_operation import UpRequest
from orchestrator.jobs import run as jobs
from orchestrator.jobs.messages import JobRequest
from orchestrator.model.per_node import PerNode
from orchestrator.model.profile import Between
from orchestrator.nettest import hooks
from orchestrator.nettest.messages import ALL_REDUCE, PAIRS, NettestLine, NettestStep, RailsLine, RanksOrder
from orchestrator.nettest.nettest_report import Corrupt, NettestResult, Verification, as_json
from orchestrator.nettest.schedule import schedule
from orchestrator.nettest.steps import nettest
from orchestrator.nettest.steps import ports as rails
from orchestrator.nettest.verdict import HALF, Expectation, LinkEnd, LinkResult, NettestVerdict
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.protocol.errors import DeployError, Exit, FindingsError, NodeError, Unreachable, VerificationDiffers
from orchestrator.protocol.planned import NodeNetwork, Transport
from orchestrator.protocol.staging import Endpoint, StagingRequest

STACK = "sglang-0.5.23"
GANG = gang(nodes=2)
TOPOLOGIES = topologies(GANG)
RDMA = NodeNetwork(transport=Transport.RDMA, hca="=mlx5_0:1,mlx5_1:1")


def requests(*, device: str = "cuda", ranks: int = 8, network: NodeNetwork = RDMA) -> dict[str, StagingRequest]:
    return {
        node.name: StagingRequest(
            gang="gang0",
            run_id="r",
            node=node.name,
            node_rank=node.node_rank,
            nnodes=2,
            leader=Endpoint(address="10.0.0.11", port=1),
            stack=STACK,
            device=device,
            network=network,
            gpus=tuple(range(ranks)) if device == "cuda" else (),
            tp_ranks=tuple(range(node.node_rank * ranks, (node.node_rank + 1) * ranks)),
        )
        for node in GANG.nodes
    }


def ground(**more: Any) -> nettest.NettestSetup:
    return nettest.NettestSetup(GANG, requests(**more), TOPOLOGIES, nettest.NettestOptions(enough=0.8, timeout_s=240.0))


@pytest.mark.parametrize(
    ("network", "rdma", "ports"),
    [
        (RDMA, True, 2),
        (replace(RDMA, hca="=mlx5_0,mlx5_1,mlx5_2"), True, 3),
        (replace(RDMA, hca="mlx5_0,mlx5_3"), True, 2),
        (replace(RDMA, hca="^mlx5_0,mlx5_bond"), True, 3),
        (replace(RDMA, hca="=nothing"), True, 0),
        (NodeNetwork(transport=Transport.TCP, hca="=mlx5_0"), False, 1),
    ],
)
def test_a_machine_has_the_ports_that_nccl_takes(network: NodeNetwork, rdma: bool, ports: int) -> None:
    found = nettest._machines(ground(network=network))
    assert found.keys() == TOPOLOGIES.keys()
    rate = TOPOLOGIES["node0"].rdma[0].rate_gbps
    assert {(one.rdma, one.rate_gbps, one.nccl) for one in found.values()} == {(rdma, ports * rate, (2, 30, 7))}


def test_a_planned_port_that_is_down_is_missing_from_what_was_planned_and_no_other() -> None:
    """From a list of prefixes, NCCL takes only ports that are up."""
    down = {
        name: replace(one, rdma=tuple(replace(port, state="DOWN") if port.device == "mlx5_1" else port for port in
                                      one.rdma))
        for name, one in TOPOLOGIES.items()
    }  # fmt: skip
    rate = TOPOLOGIES["node0"].rdma[0].rate_gbps
    for pin, ports in (("=mlx5_0,mlx5_1", 2), ("mlx5_0,mlx5_1", 1)):
        found = nettest._machines(replace(ground(network=replace(RDMA, hca=pin)), topologies=down))
        assert found["node0"].rate_gbps == ports * rate


def test_a_node_that_was_not_looked_at_expects_nothing() -> None:
    assert nettest._machines(replace(ground(network=RDMA), topologies={})) == {}


def test_what_was_measured_before_is_expected_where_nothing_else_is() -> None:
    places = nettest._places(ground(ranks=2))
    steps = schedule(places, 7168)
    link = {"kind": Between.NODES.value}
    test = {"kind": Between.ALL.value, "bytes": 14336, "wanted_bytes": 14336, "measured_us": 90.0}
    before = {
        "id": "20260101-1",
        "links": [{**link, "measured_gbps": 40.0}, {**link, "measured_gbps": 44.0}],
        "tests": [
            test,
            {**test, "bytes": 65536, "wanted_bytes": 1835008},
            {**test, "kind": Between.NODE.value, "bytes": 57344, "wanted_bytes": 57344},
        ],
    }
    found = nettest._as_before(before, places, steps)
    source = "the test 20260101-1 of these nodes"
    best = Expectation(44.0, "measured", source, HALF)
    assert found == {
        **{(Between.NODES, rank): best for rank in range(4)},
        (Between.ALL, 14336): Expectation(90.0, "measured", source, HALF),
    }
    assert nettest._as_before(None, places, steps) == {}


LINES = """node0:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB bond0:10.0.0.11<0>
node0:1:1 [0] NCCL INFO Using network IB
node0:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA
node0:1:1 [0] NCCL INFO comm 0x1 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
"""


@pytest.mark.parametrize(
    ("more", "log", "words"),
    [
        ({}, LINES, ["NCCL: ", "IB", "nNodes 2, localRanks 8"]),
        ({}, "", ["NCCL: "]),
        ({"device": "cpu", "network": NodeNetwork(interface="bond0")}, "", ["Gloo over bond0"]),
        ({"device": "cpu", "network": NodeNetwork()}, "", ["Gloo over the interface of its host name"]),
    ],
)
def test_the_transport_of_each_node_is_said(more: dict[str, Any], log: str, words: list[str]) -> None:
    found = nettest._transport(requests(**more)["node0"], log)
    assert all(word in found for word in words), found
    assert ("nNodes" in found) is bool(log)


CORRUPT = Corrupt(start=LinkEnd("a", 0, 0), end=LinkEnd("b", 1, 0), bytes=3)


def found_of(gang_name: str, verdict: NettestVerdict) -> nettest.TestedGang:
    failed = verdict is NettestVerdict.FAILED
    links = () if failed else (link(gang_name, verdict),)
    result = NettestResult(gang=gang_name, nodes=("a", "b"), ranks=2, links=links, tests=(),
                            transport={"a": gang_name}, moved=(), shape=nettest.UNKNOWN_SHAPE, seconds=1.0,
                            steps_s=1.0, verification=Verification(pairs=2, least=1 << 26, seconds=0.1,
                                                                   corrupt=(CORRUPT,) * failed))  # fmt: skip
    return nettest.TestedGang(result=result, record=as_json(result), file=f"/{gang_name}.json")


def link(name: str, verdict: NettestVerdict) -> LinkResult:
    limit = 0.0 if verdict is NettestVerdict.NONE else 50.0
    gbps = 1.0 if verdict is NettestVerdict.SLOW else 60.0
    return LinkResult(start=LinkEnd(f"{name}-a", 0), end=LinkEnd(f"{name}-b", 1), between=Between.NODES, gbps=(gbps,),
                expected=None, limit=limit, verdict=verdict)  # fmt: skip


OK, SLOW, NONE, FAILED = NettestVerdict.OK, NettestVerdict.SLOW, NettestVerdict.NONE, NettestVerdict.FAILED


@pytest.mark.parametrize(
    ("verdicts", "verdict", "judged", "top"),
    [
        ((OK,), "ok", True, "g0"),
        ((SLOW,), "slow", True, "g0"),
        ((NONE,), "ok", False, "g0"),
        ((OK, SLOW, SLOW), "slow", True, "g1"),
        ((NONE, OK), "ok", True, "g0"),
        ((NONE, SLOW), "slow", True, "g1"),
        ((SLOW, FAILED, OK), "failed", True, "g1"),
    ],
)
def test_at_the_top_is_the_gang_with_wrong_data_or_that_is_slow(
    verdicts: tuple[NettestVerdict, ...], verdict: str, judged: bool, top: str
) -> None:
    found = nettest.nettest_json([found_of(f"g{number}", one) for number, one in enumerate(verdicts)])
    assert (found["verdict"], found["judged"]) == (verdict, judged)
    assert found["transport"] == {"a": top} and [one["from"] for one in found["links"][:1]] in ([f"{top}-a"], [])
    assert (found["odd"] is not None) is (verdict == "slow") and bool(found["findings"]) is (verdict != "ok")
    assert (found["verification"]["verdict"] == "corrupt") is (verdict == "failed")
    assert [one["verdict"] for one in found["gangs"]] == ["ok" if one is NONE else one.value for one in verdicts]
    assert [one["judged"] for one in found["gangs"]] == [one is not NONE for one in verdicts]


@pytest.mark.parametrize("verdict", [OK, SLOW, NONE, FAILED])
def test_only_a_slow_network_or_wrong_data_keeps_ranks_from_starting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verdict: NettestVerdict
) -> None:
    own = shutil.copy(ROOT / "inventory/models/MiniMax-M2.yml", tmp_path / "somebody's own.yml")
    asked: list[nettest.NettestSetup] = []

    def test(_: object, here: nettest.NettestSetup, progress: object) -> nettest.TestedGang:
        asked.append(here)
        return found_of("gang0", verdict)

    monkeypatch.setattr(nettest, "test", test)
    notes, request = Notes(), UpRequest(plan=PlanRequest(model=str(own)))
    operation = SimpleNamespace(fleet=None, topologies=TOPOLOGIES, request=request, watcher=notes)
    before = partial(hooks.tested_before, 0.7, operation)  # type: ignore[arg-type]
    if verdict in (SLOW, FAILED):
        kind, code, why = {
            SLOW: (VerificationDiffers, Exit.DIFFERS, "NETTEST-SLOW-LINK"),
            FAILED: (FindingsError, Exit.FINDINGS, "DATA-CORRUPT"),
        }[verdict]
        with pytest.raises(kind, match=f"no rank was started: {why}") as refused:
            before(GANG, requests())
        assert refused.value.exit_code == code
    else:
        before(GANG, requests())
        assert ("not judged" in notes.steps[-1]) is (verdict is NONE)
    assert [(here.shape.hidden_size, here.topologies, here.options.enough) for here in asked] == [
        (3072, TOPOLOGIES, 0.7)
    ]


def test_without_a_network_nothing_is_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nettest, "test", None)
    notes = Notes()
    alone = {"node0": requests(ranks=1)["node0"]}
    hooks.tested_before(0.8, SimpleNamespace(watcher=notes), GANG, alone)  # type: ignore[arg-type]
    assert notes.steps == []  # no step says that a single rank's network is tested


class Fleet:
    """Each node in a separate thread, as in production; failures by node."""

    def on_every(self, work: Callable[[Any], None], only: Sequence[str]) -> PerNode[None]:
        failures: dict[str, DeployError] = {}

        def one(name: str) -> None:
            try:
                work(SimpleNamespace(spec=SimpleNamespace(name=name)))
            except DeployError as failure:
                failures[name] = failure

        threads = [threading.Thread(target=one, args=(name,)) for name in only]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return PerNode({}, {name: failures[name] for name in only if name in failures})


@pytest.fixture
def no_ssh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of records; nodes answer only as a test scripts them."""
    for module in (nettest, rails):
        monkeypatch.setattr(module, "fence", lambda *_: "")
    for module in (jobs, rails):
        monkeypatch.setattr(module, "request_keys", lambda *_: {"state_dir": "/s", "gang": "gang0"})
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "l40s-deploy/nettest"


LOST = Unreachable("no answer for 15 s", where="node1", fix="check its power and network")


def two_ranks(said: Mapping[str, Callable[[JobRequest], Iterator[NettestLine]]]) -> Callable[..., Any]:
    def messages(session: Any, verb: str, request: JobRequest, line: object, *_: object) -> Iterator[NettestLine]:
        assert verb == "job"
        return said[session.spec.name](request)

    return messages


def well(request: JobRequest, *, wrong: int = 0, silent: bool = False) -> Iterator[NettestLine]:
    """silent: nothing is said of what was compared"""
    order = RanksOrder.read(json.loads(request.order.files["order.json"]))
    assert isinstance(order, RanksOrder)
    here = order.ranks
    yield NettestLine(started={str(here[0]): 1})
    for step in order.steps:
        if step.verify:
            end = step.groups[0][-1]
            for rank in step.groups[0] if step.kind == ALL_REDUCE else (end,):
                if rank in here and not silent:
                    yield NettestLine(step=step.id, group=0, rank=rank, bytes=9, wrong=wrong * (rank == end))
        elif 0 in here and not wrong:
            for place, wanted in enumerate(step.bytes):
                yield NettestLine(step=step.id, group=0, bytes=wanted, us=10.0 * (place + 1))
        if 0 in here:
            yield NettestLine(done=step.id, seconds=0.1)
    yield NettestLine(ended=0)


def outcome(monkeypatch: pytest.MonkeyPatch, *, verify_only: bool = False, **said: Any) -> nettest.TestedGang:
    """Of two nodes that answer so."""
    monkeypatch.setattr(jobs, "messages", two_ranks(dict.fromkeys(("node0", "node1"), partial(well, **said))))
    here = ground(device="cpu", ranks=1)
    here = replace(here, options=replace(here.options, verify_only=verify_only))
    return nettest.test(Fleet(), here, lambda *_: None)  # type: ignore[arg-type]


@pytest.mark.parametrize("verify_only", [False, True])
@pytest.mark.parametrize("wrong", [0, 5])
def test_nothing_is_timed_after_wrong_data_or_where_data_alone_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, no_ssh: Path, verify_only: bool, wrong: int
) -> None:
    ports = list[object]()

    def measure(*_: object, **__: object) -> rails.RailMeasurements:
        ports.append(1)
        return rails.RailMeasurements(note="")

    monkeypatch.setattr(rails, "measure", measure)
    found = outcome(monkeypatch, verify_only=verify_only, wrong=wrong)
    record = json.loads(Path(found.file).read_text())
    timed = not wrong and not verify_only
    assert bool(record["links"]) is bool(record["tests"]) is bool(ports) is timed
    corrupt = [{"from": one, "to": two, "bytes": 5} for one, two in (("node0", "node1"), ("node1", "node0"))]
    wanted = {"verdict": "corrupt", "corrupt": corrupt} if wrong else {"verdict": "ok", "corrupt": []}
    assert record["verification"] == {**wanted, "pairs": 2, "least_bytes": 9, "seconds": 0.1}
    assert record["verdict"] == ("failed" if wrong else "ok")
    assert [one["id"] for one in record["findings"]] == ["DATA-CORRUPT"] * bool(wrong)


def test_what_no_rank_compared_is_not_right(monkeypatch: pytest.MonkeyPatch, no_ssh: Path) -> None:
    with pytest.raises(NodeError, match="nobody says whether data is right: node0 to node1"):
        outcome(monkeypatch, silent=True)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (NettestLine(step=0, group=0, rank=1, wrong=0), ""),
        (NettestLine(step=1, group=0, us=1.0), ""),
        (NettestLine(done=1), ""),
        (NettestLine(done=2), ""),  # their number is the end of all
        (NettestLine(done=3), "step 3 of 2"),
        (NettestLine(step=0, group=0, us=1.0), "a result of rank -1 in step 0"),
        (NettestLine(step=0, group=7, rank=1, wrong=0), "step 0, group 7"),
        (NettestLine(step=2, group=0, rank=1, wrong=0), "step 2, group 0"),
        (NettestLine(step=0, group=0, rank=0, wrong=0), "a rank that is not on it"),
        (NettestLine(died=0), "a rank that is not on it"),
    ],
)
def test_what_is_none_of_the_test_is_told_from_what_is(line: NettestLine, words: str) -> None:
    steps = (
        NettestStep(id=0, kind=PAIRS, between="pairs", groups=((0, 1),), bytes=(8,), box_s=1.0, verify=True),
        NettestStep(id=1, kind=ALL_REDUCE, between="all ranks", groups=((0, 1),), bytes=(8, 16), box_s=1.0),
    )
    found = nettest._NettestAnswers("gang0", steps, {"node0": (0,), "node1": (1,)}, lambda *_: None).odd("node1", line)
    assert words in found if words else found == ""


def test_a_node_lost_in_the_middle_is_the_one_that_is_named(monkeypatch: pytest.MonkeyPatch, no_ssh: Path) -> None:
    """The others fail because of it, and first."""

    def stays(request: JobRequest) -> Iterator[NettestLine]:
        yield NettestLine(started={"0": 1})
        yield NettestLine(done=2, seconds=0.1)
        raise NodeError("its part of the network test ended without a result", where="node0", fix="again")

    def lost(request: JobRequest) -> Iterator[NettestLine]:
        yield NettestLine(started={"1": 1})
        raise LOST

    monkeypatch.setattr(jobs, "messages", two_ranks({"node0": stays, "node1": lost}))
    with pytest.raises(Unreachable) as failed:
        nettest.test(Fleet(), ground(device="cpu", ranks=1), lambda *_: None)  # type: ignore[arg-type]
    assert (failed.value.where, failed.value.exit_code) == ("node1", Exit.UNREACHABLE)
    assert "lost during the network test" in failed.value.what and "no answer for 15 s" in failed.value.what
    assert "its ranks stop within 240 s" in failed.value.fix and "check its power" in failed.value.fix
    assert not no_ssh.exists()


@pytest.mark.parametrize(
    ("failures", "where"),
    [
        ({"node0": NodeError("refused", where="node0", fix="look"), "node1": LOST}, "node1"),
        ({"node0": NodeError("refused", where="node0", fix="look")}, "node0"),
    ],
)
def test_what_fails_while_rdma_ports_are_measured_keeps_the_ranks_figures(
    monkeypatch: pytest.MonkeyPatch, no_ssh: Path, failures: dict[str, DeployError], where: str
) -> None:
    monkeypatch.setattr(jobs, "messages", two_ranks({"node0": well, "node1": well}))

    def port_messages(session: Any, *_: object) -> Iterator[Any]:
        if session.spec.name in failures:
            raise failures[session.spec.name]
        yield RailsLine(ended=True)

    monkeypatch.setattr(rails, "messages", port_messages)
    addresses = {"10.0.0.11": "node0", "10.0.0.12": "node1"}
    here = ground(device="cpu", ranks=1)
    here = replace(here, requests={name: replace(one, addresses=addresses) for name, one in here.requests.items()})
    with pytest.raises(DeployError) as failed:
        nettest.test(Fleet(), here, lambda *_: None)  # type: ignore[arg-type]
    assert failed.value.where == where
    assert failed.value.exit_code == (Exit.UNREACHABLE if where == "node1" else Exit.FINDINGS)
    (file,) = no_ssh.glob("*.json")
    record = json.loads(file.read_text())
    assert "in the test of RDMA ports" in failed.value.what and str(file) in failed.value.what
    assert len(record["links"]) == 2 and record["tests"] and record["rails"] == []
    assert f"RDMA ports were not measured: {where}" in record["rails_note"]
    assert record["addresses"] == ["10.0.0.11:", "10.0.0.12:"]
