"""The trials between the nodes leave no port in use: the next start needs the same ones."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.healthy_cluster import cluster_of, healthy_nodes
from tests.support.machine_files import reference_machine
from tests.support.ports import free_port

from orchestrator.doctor.steps import trials as looking
from orchestrator.doctor.steps.trials import try_ways
from orchestrator.model.deadlines import UNHEARD_TRY_S
from orchestrator.model.inventory import GangPorts, NodeSpec, Reach
from orchestrator.model.per_node import PerNode
from orchestrator.model.snapshot import snapshot_json
from orchestrator.planning.steps.look import look
from orchestrator.protocol.errors import NodeError
from orchestrator.protocol.looks import DialTarget, Listening, Trial
from orchestrator.protocol.message import Message
from orchestrator.remote import node_app
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.session import Session
from orchestrator.topology.build import build

HERE = "127.0.0.1"
LISTEN = (
    "import json, sys, time; from orchestrator.node.network import reach\n"
    "serve = reach._serve\n"
    "def late(selector, until):\n"
    "    serve(selector, until)\n"
    "    time.sleep(0.5)  # a busy machine\n"
    "reach._serve = late\n"
    "reach.stream(json.loads(sys.argv[1]))"
)


@dataclass
class Node:
    """Like sshd: closing the channel closes the command's pipe, and nothing waits for its end."""

    spec: NodeSpec
    children: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def lines(self, request: Message) -> Iterator[bytes]:
        child = subprocess.Popen([sys.executable, "-c", LISTEN, json.dumps(request.as_json())], stdout=subprocess.PIPE)
        self.children.append(child)
        assert child.stdout is not None
        try:
            yield from child.stdout
        finally:
            child.stdout.close()

    def run(self, command: str, *, deadline_s: float) -> None:
        for child in self.children:  # our zombies would stay in /proc; sshd reaps its own
            child.wait(deadline_s)
        subprocess.run(command, shell=True, timeout=deadline_s, check=True)


@dataclass
class Nodes:
    """A fleet of such sessions."""

    nodes: Mapping[str, Node]
    failed: dict[str, NodeError] = field(default_factory=dict)

    def on_every(self, work: Callable[[Node], Any], *, only: Collection[str]) -> PerNode[Any]:
        values = {name: value for name in only for value in self._answers(name, work)}
        return PerNode(values, self.failed)

    def _answers(self, name: str, work: Callable[[Node], Any]) -> Iterator[Any]:
        try:
            yield work(self.nodes[name])
        except NodeError as failure:
            self.failed[name] = failure


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def fleet(port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    ports = GangPorts(dist_init=port, agent=free_port())
    spec = NodeSpec(name="a", gang="g", node_rank=0, reach=Reach(host=HERE), ports=ports)
    made = Nodes({"a": Node(spec)})
    monkeypatch.setattr(node_app, "stream", lambda node, _, request, *__: node.lines(request))
    monkeypatch.setattr(node_app, "call", lambda *_, **__: [])
    yield made
    for node in made.nodes.values():
        for child in node.children:
            child.kill()
            child.wait(10)


def ways_of(fleet: Nodes) -> tuple[Trial, ...]:
    """What is tried on a node without an RDMA port."""
    cluster = SimpleNamespace(
        tcp={"a": SimpleNamespace(address=HERE)},
        nodes=(SimpleNamespace(name="a", usable=(), interfaces={}),),
        specs={"a": fleet.nodes["a"].spec},
        topologies={"a": SimpleNamespace(interfaces=())},
    )
    return try_ways(fleet, cluster)  # type: ignore[arg-type]


def test_its_listeners_have_ended_when_the_trials_have(fleet: Nodes, port: int) -> None:
    assert ways_of(fleet) == () and not fleet.failed
    assert fleet.nodes["a"].children
    with socket.socket() as mine:
        mine.bind((HERE, port))  # EADDRINUSE where one still listens


@pytest.mark.parametrize(("listens_s", "outcomes"), [(30.0, ["open", "refused"]), (0.0, ["open"])])
def test_what_did_not_pass_is_not_known_where_a_listener_may_have_ended_before(
    fleet: Nodes, monkeypatch: pytest.MonkeyPatch, listens_s: float, outcomes: list[str]
) -> None:
    monkeypatch.setattr(looking, "LISTEN_S", listens_s)
    ways = [{**WAY, "source": "a"}, {**WAY, "source": "a", "outcome": "refused"}]
    monkeypatch.setattr(node_app, "call", lambda *_, **__: ways)
    assert [trial.outcome.value for trial in ways_of(fleet)] == outcomes


def test_the_same_rail_is_found_under_other_names_and_every_other_rail_is_tried() -> None:
    mine = {"mlx5_0": ("192.0.2.1", "ens1"), "mlx5_2": ("198.51.100.1", "ens2")}
    theirs = {"rocep1": ("192.0.2.2", "enp1"), "rocep2": ("198.51.100.2", "enp2")}
    same = looking._same_rail(mine, theirs)
    assert same == {"rocep1": "mlx5_0", "rocep2": "mlx5_2"}
    listening = Listening(tcp={}, ephemeral=1, udp={}, rails={"192.0.2.2": 4001, "198.51.100.2": 4002})
    tried = list(looking._across(partial(DialTarget, name="node1"), mine, theirs, same, listening))
    assert [(one.side, one.far, one.device, one.source, one.address) for one in tried] == [
        ("mlx5_0", "rocep2", "ens1", "192.0.2.1", "198.51.100.2"),
        ("mlx5_2", "rocep1", "ens2", "198.51.100.1", "192.0.2.2"),
    ]


def test_a_trial_on_its_own_rail_goes_out_by_that_port_as_one_across_does() -> None:
    """Verbs ask no route: whichever table would lead elsewhere says nothing of them."""
    specs = {
        name: NodeSpec(name=name, gang="g", node_rank=rank, reach=Reach(host=name)) for rank, name in enumerate("ab")
    }
    ways = {"a": {"mlx5_0": ("192.0.2.1", "ens1")}, "b": {"mlx5_0": ("192.0.2.2", "enp1")}}
    cluster: Any = SimpleNamespace(specs=specs, topologies={"a": SimpleNamespace(interfaces=())})
    opened = {"b": Listening(tcp={}, ephemeral=1, udp={"10.0.0.2": 9, "192.0.2.2": 8}, rails={"192.0.2.2": 4001})}
    tried = list(looking._targets(specs["a"], cluster, {"a": "10.0.0.1", "b": "10.0.0.2"}, ways, opened))
    rails = {(one.device, one.source, one.address, one.port) for one in tried if one.side == "mlx5_0"}
    assert rails == {("ens1", "192.0.2.1", "192.0.2.2", 4001)}
    assert not any(one.device for one in tried if one.side == "tcp")


WAY: Mapping[str, Any] = {"target": "b", "address": HERE, "port": 1, "kind": "tcp", "side": "tcp", "outcome": "open"}


@pytest.mark.parametrize(
    ("verb", "odd"),
    [
        ("listen", None),
        ("listen", []),
        ("listen", {}),
        ("listen", {"tcp": 5, "ephemeral": 1, "udp": {}, "rails": {}}),
        ("dial", None),
        ("dial", {}),
        ("dial", [None]),
        ("dial", [{**WAY, "port": "1"}]),
        ("dial", [{**WAY, "outcome": "maybe"}]),
    ],
)
def test_an_odd_answer_is_that_nodes_failure(
    fleet: Nodes, monkeypatch: pytest.MonkeyPatch, verb: str, odd: object
) -> None:
    if verb == "listen":
        monkeypatch.setattr(node_app, "stream", lambda *_: iter([json.dumps({"ok": True, "value": odd}).encode()]))
    else:
        monkeypatch.setattr(node_app, "call", lambda *_, **__: odd)
    assert ways_of(fleet) == ()
    assert fleet.failed["a"].where == "a" and verb in str(fleet.failed["a"])


def test_within_a_node_every_port_tries_those_of_its_other_cards() -> None:
    node = cluster_of(healthy_nodes(1)).nodes[0]
    mine = dict(looking._rail_addresses(node))
    rails = {address: 4001 + place for place, (address, _) in enumerate(mine.values())}
    listening = Listening(tcp={}, ephemeral=1, udp={}, rails=rails)
    tried = list(looking._within(node, mine, listening))
    assert {(one.name, *sorted((one.side, one.far))) for one in tried} == {
        ("node0", here, there) for here, there in product(("mlx5_0", "mlx5_1"), ("mlx5_2", "mlx5_3"))
    }
    assert len(tried) == 8
    assert {one.timeout_s for one in tried} == {UNHEARD_TRY_S}
    assert all(mine[one.side] == (one.source, one.device) for one in tried)


def local(name: str, rank: int = 0, **changes: Any) -> NodeSpec:
    return NodeSpec(
        name=name, gang="gang0", node_rank=rank, reach=Reach(host="127.0.0.1", connection="local"), **changes
    )


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_this_machine_through_the_delivered_application(tmp_path: Path) -> None:
    reference_machine().put_below(tmp_path / "root")
    specs = [local("real"), local("fake", 1, fs_root=str(tmp_path / "root"))]
    with Fleet(specs) as fleet:
        seen = look(fleet, specs).all()
    assert list(seen) == ["real", "fake"]
    assert seen["real"].node == "real" and seen["fake"].node == "fake"
    assert len(build(seen["fake"]).switches) == 2
    offset, way = seen["real"].host["clock_offset_s"], seen["real"].host["round_trip_s"]
    assert abs(offset) <= way / 2 + 0.05  # one clock: the offset is at most half the round trip, plus the clock's tick


@pytest.mark.parametrize("answer", [None, [], {"format": 9}, {"format": 1, "files": {"/a": 1}}])
def test_an_answer_that_is_no_snapshot_is_told(answer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_app, "call", lambda *_, **__: answer)
    spec = local("odd")
    with Fleet([spec]) as fleet:
        failure = look(fleet, [spec]).failures["odd"]
    assert isinstance(failure, NodeError) and "not a snapshot" in failure.what and failure.where == "odd"


@pytest.mark.parametrize("ahead", [0.0, 5.0, -120.0])
def test_a_clock_that_is_off_is_measured(ahead: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(session: Session, verb: str, request: Any, *, deadline_s: float) -> Any:
        raw = snapshot_json(reference_machine().snapshot())
        raw["host"] |= {"clock": time.time() + ahead, "probe_seconds": {"all": 0.0}}
        return raw

    monkeypatch.setattr(node_app, "call", call)
    spec = local("node0")
    with Fleet([spec]) as fleet:
        host = look(fleet, [spec]).all()["node0"].host
    assert host["clock_offset_s"] == pytest.approx(ahead, abs=0.5)
