"""Where `push` sends a directory and what `verify` finds of it: the nodes are this machine, under several names."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from tests.support import reference_cluster as reference
from tests.support.advice import commands, refused

from orchestrator.checkpoint.steps import chain as push_chain
from orchestrator.checkpoint.steps import push as push_workflow
from orchestrator.checkpoint.steps import verify as verify_workflow
from orchestrator.checkpoint.steps.chain import Hop
from orchestrator.checkpoint.steps.push import CheckpointPushRequest, PushResult, destinations, push
from orchestrator.checkpoint.steps.verify import differences, repair_command, repairs, same_roots, verify
from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec, Reach
from orchestrator.model.per_node import PerNode
from orchestrator.protocol.errors import InputError, Unreachable
from orchestrator.protocol.jobs import Giving, OfferRequest, ReceiveRequest, SameRootRequest
from orchestrator.remote import node_app
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.session import Session


def node(name: str, root: Path, rank: int = 0) -> NodeSpec:
    reach = Reach(host=name, connection="local")
    return NodeSpec(
        name=name, gang="g", node_rank=rank, reach=reach, model_root=str(root), state_dir=str(root.parent / "state")
    )


def cluster(*nodes: NodeSpec) -> Inventory:
    return Inventory(path="hosts.yml", gangs=(GangSpec(name="g", nodes=nodes),))


class Silent:
    """A watcher that keeps the messages."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, words: str) -> None:
        self.said.append(words)

    def moved(self, hops: Sequence[Hop], total: int, offered: int) -> None:
        """Draws nothing."""


def test_nodes_are_grouped_by_what_they_see_and_the_files_are_gone_afterwards(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    (tmp_path / "link").symlink_to(one)
    specs = [node("a", one), node("b", two), node("c", tmp_path / "link"), node("d", tmp_path / "nowhere")]
    with Fleet(specs) as fleet:
        found = same_roots(fleet, {spec.name: spec.model_root for spec in specs})
    assert found == {"a": "a", "b": "b", "c": "a", "d": "d"}
    assert not [*one.iterdir(), *two.iterdir()]


def test_push_onto_one_shared_directory_sends_it_once_and_verify_reads_it_once(tmp_path: Path) -> None:
    source, root = tmp_path / "source" / "M", tmp_path / "shared"
    source.mkdir(parents=True)
    root.mkdir()
    (source / "config.json").write_text("{}")
    inventory = cluster(node("a", root), node("b", root, 1))
    watcher = Silent()
    pushed = push(inventory, CheckpointPushRequest(source=str(source)), watcher)
    assert set(pushed.nodes.values) == {"a"}
    assert pushed.shared == {"b": "a"}
    assert watcher.said == ["b: has the same directory as a (shared file system); nothing to send"]
    assert (root / "M" / "config.json").read_text() == "{}"
    again = push(inventory, CheckpointPushRequest(source=f"a:{root}/M"), Silent())
    assert again.shared == {"b": "a"}
    assert not again.nodes.values
    with pytest.raises(InputError, match="no such directory"):
        push(inventory, CheckpointPushRequest(source=f"a:{root}/Misspelt"), Silent())
    verified = verify(inventory, "M", to=(), fresh=False, report=lambda *_: None)
    assert verified.same
    assert verified.shared == {"b": "a"}
    assert set(verified.copies.values) == {"a"}


def test_verify_names_file_and_node(tmp_path: Path) -> None:
    nodes = []
    for rank, name in enumerate("abcd"):
        copy = tmp_path / name / "M"
        copy.mkdir(parents=True)
        (copy / "same").write_text("same")
        (copy / "weights").write_text("good" if name != "c" else "evil")
        nodes.append(node(name, tmp_path / name, rank))
    (tmp_path / "b" / "M" / "same").unlink()
    (tmp_path / "d" / "M").rename(tmp_path / "d" / "M.l40s-partial")
    verified = verify(cluster(*nodes), "M", to=(), fresh=False, report=lambda *_: None)
    assert [(one.path, one.words()) for one in verified.differences] == [
        ("same", "missing on b"),
        ("weights", "differs on c"),
    ]
    failure = verified.copies.failures["d"]
    assert failure.exit_code == 7
    assert "interrupted" in failure.what
    (tmp_path / "c" / "M" / "weights").write_text("good")
    (tmp_path / "b" / "M" / "same").write_text("same")
    assert verify(cluster(*nodes[:3]), f"{tmp_path}/a/M", to=("a",), fresh=True, report=lambda *_: None).same
    assert verify(cluster(*nodes[:3]), "M", to=(), fresh=False, report=lambda *_: None).same


def test_another_name_below_the_sources_root_is_sent(tmp_path: Path) -> None:
    source, other = node("a", tmp_path), node("b", tmp_path, 1)
    with Fleet([source, other]) as fleet:
        assert push_workflow._shared(fleet, {"b": f"{tmp_path}/Y"}, source, f"{tmp_path}/X") == {}
        assert push_workflow._shared(fleet, {"b": f"{tmp_path}/X"}, source, f"{tmp_path}/X") == {"b": "a"}


def test_a_node_is_as_complete_as_the_one_whose_directory_it_shares() -> None:
    lost = Unreachable("gone", where="b", fix="correct")
    pushed = PushResult(
        source="a:/m/X",
        directories=dict.fromkeys("bcde", "/m/X"),
        nodes=PerNode(values={"d": Hop("d", "complete", 1)}, failures={"b": lost}),
        shared={"c": "b", "e": "a"},
        seconds=1.0,
    )
    assert {name: pushed.complete(name) for name in "bcde"} == {"b": False, "c": False, "d": True, "e": True}
    assert {name: pushed.there_before(name) for name in "bcde"} == {"b": False, "c": False, "d": False, "e": True}


def test_a_link_of_its_own_below_a_shared_root_is_nobody_elses(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "M").symlink_to("/dev/shm/of-another-node")
    specs = [node("a", tmp_path / "root"), node("b", tmp_path / "root", 1)]
    with Fleet(specs) as fleet:
        roots = {spec.name: spec.model_root for spec in specs}
        assert same_roots(fleet, roots, "M") == {"a": "a", "b": "b"}
        assert same_roots(fleet, roots, "N") == {"a": "a", "b": "a"}


def test_a_node_without_forwarding_is_left_out_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(spec: NodeSpec, port: int) -> NoReturn:
        raise Unreachable("ssh does not forward a port there", where=spec.name, fix="allow it")

    monkeypatch.setattr(push_chain, "port_forward", refused)
    links: list[push_chain.VerbStream] = []
    chain = push_chain.Chain(
        fleet=Fleet([replace(node("a", tmp_path), reach=Reach(host="a", connection="ssh"))]),
        origin=push_chain.VerbStream(Fleet([]), "here", "push-offer", OfferRequest(directory="/", address="")),
        source=Giving(address="127.0.0.1", port=1, secret="s"),
        files={},
        local=True,
        addresses={},
        requests={"a": ReceiveRequest(directory="/", files={}, upstream=Giving(), address="")},
    )
    with ExitStack() as closing:
        failures = chain._build(["a"], links, closing)
    assert set(failures) == {"a"}
    assert not links


def test_verify_refuses_a_directory_without_files(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name / "M").mkdir(parents=True)
    nodes = (node("a", tmp_path / "a"), node("b", tmp_path / "b", 1))
    verified = verify(cluster(*nodes), "M", to=(), fresh=False, report=lambda *_: None)
    assert not verified.same
    assert {failure.what for failure in verified.copies.failures.values()} == {"contains no files"}


def test_verify_waits_no_longer_for_a_node_that_says_the_same_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()

    def says(*_: object) -> Iterator[bytes]:
        while not over.wait(0.01):
            yield b'{"bytes": 5, "total": 9}'

    monkeypatch.setattr(node_app, "stream", says)
    monkeypatch.setattr(verify_workflow, "SILENT_S", 0.2)
    verified = verify(cluster(node("a", tmp_path)), "M", to=(), fresh=False, report=lambda *_: None)
    over.set()
    assert verified.copies.failures["a"].exit_code == 4
    assert "could read nothing" in verified.copies.failures["a"].what


def test_verify_takes_nothing_for_digests_that_did_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_app, "stream", lambda *_: iter([b'{"bytes": 9, "total": 9}', b'{"digests": {"a"']))
    verified = verify(cluster(node("a", tmp_path)), "M", to=(), fresh=False, report=lambda *_: None)
    assert "before all checksums" in verified.copies.failures["a"].what


def test_a_node_that_lies_speaks_for_itself_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node claims to see every other node's file: the others still get theirs."""
    for name in "abc":
        (tmp_path / name).mkdir()
    specs = [node(name, tmp_path / name, rank) for rank, name in enumerate("abc")]
    real = node_app.call

    def lie(session: Session, verb: str, request: SameRootRequest, *, deadline_s: float) -> object:
        answer = real(session, verb, request, deadline_s=deadline_s)
        liar = session.spec.name == "a" and request.op == "look"
        return {**answer, "seen": [*request.names, "odd"]} if liar else answer

    monkeypatch.setattr(node_app, "call", lie)
    with Fleet(specs) as fleet:
        found = same_roots(fleet, {spec.name: spec.model_root for spec in specs})
    assert {name: found[name] for name in "bc"} == {"b": "b", "c": "c"}


def test_a_node_that_may_not_write_belongs_to_the_first_that_it_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = [node(name, tmp_path, rank) for rank, name in enumerate("abc")]
    real = node_app.call

    def readonly(session: Session, verb: str, request: SameRootRequest, *, deadline_s: float) -> object:
        refused = session.spec.name == "a" and request.op == "write"
        return {"done": False} if refused else real(session, verb, request, deadline_s=deadline_s)

    monkeypatch.setattr(node_app, "call", readonly)
    with Fleet(specs) as fleet:
        found = same_roots(fleet, {spec.name: spec.model_root for spec in specs})
    assert found == {"a": "b", "b": "b", "c": "b"}


@pytest.mark.parametrize(
    ("copies", "words"),
    [
        ({"a": "1", "b": "1", "c": "2"}, "differs on c"),
        ({"a": "1", "b": "1", "c": None}, "missing on c"),
        ({"a": "1", "b": "2"}, "not the same: a 1; b 2"),
        ({"a": "1", "b": None}, "missing on b"),
        ({"a": "1", "b": "1", "c": "2", "d": "2"}, "not the same: a 1; b 1; c 2; d 2"),
        ({"a": "1", "b": "1", "c": "1", "d": None, "e": "3"}, "missing on d, differs on e"),
    ],
)
def test_the_odd_ones_are_named_where_most_agree(copies: dict[str, str | None], words: str) -> None:
    found = differences({node: {"f": digest} if digest else {} for node, digest in copies.items()})
    assert [one.words() for one in found] == [words]


Copies = dict[str, dict[str, str]]
FROM = "l40s-deploy checkpoint push a:/models/M --node {} --repair"


@pytest.mark.parametrize(
    ("source", "name", "command"),
    [
        ("a:/models/M", "M", "l40s-deploy checkpoint push a:/models/M --node d --repair"),
        ("a:/models/M", "N", "l40s-deploy checkpoint push a:/models/M --node d --as N --repair"),
        ("./my model", "", "l40s-deploy checkpoint push './my model' --node d --repair"),
    ],
)
def test_the_command(source: str, name: str, command: str) -> None:
    assert repair_command(source, ["d"], name) == command


@pytest.mark.parametrize(
    ("copies", "wanted"),
    [
        ({"a": {"f": "1"}, "b": {"f": "1"}, "c": {"f": "2"}}, [FROM.format("c")]),
        ({"a": {"f": "1", "g": "1"}, "b": {"f": "2", "g": "1"}, "c": {"f": "1"}, "d": {"f": "1", "g": "1"}},
         [FROM.format("b"), FROM.format("c")]),
        ({"a": {"f": "1"}, "b": {}}, [FROM.format("b")]),
        ({"a": {"f": "1"}, "b": {"f": "1"}, "c": {"f": "1", "x": "1"}},
         ["remove x on c: the other nodes do not have it"]),
    ],
)  # fmt: skip
def test_each_odd_node_gets_its_command_from_a_good_one(copies: Copies, wanted: list[str]) -> None:
    directories = dict.fromkeys(copies, "/models/M")
    assert list(repairs(differences(copies), directories, list(copies))) == wanted


def test_without_a_majority_somebody_has_to_choose() -> None:
    copies = {"a": {"f": "1"}, "b": {"f": "2"}}
    (line,) = repairs(differences(copies), dict.fromkeys(copies, "/models/M"), list(copies))
    assert line.startswith("find the right copy")


def test_of_three_different_copies_each_other_node_is_named_as_the_parser_takes_it() -> None:
    copies = {name: {"f": name} for name in ("a", "b", "c")}
    (line,) = repairs(differences(copies), dict.fromkeys(copies, "/models/M"), list(copies))
    (command,) = commands(line)
    assert command == "checkpoint push a:/models/M --node b --node c --repair"
    assert refused(command) == "" and refused(command.replace("b --node c", "b,c")) != ""


SPARE = reference.node("node9", 2, spare=True, model_root="/srv")
MANNED = Inventory(path="hosts.yml", gangs=(GangSpec(name="gang0", nodes=reference.gang(2).nodes, spares=(SPARE,)),))


def test_a_spare_gets_what_its_gang_gets_below_its_own_model_root() -> None:
    to = destinations(MANNED, CheckpointPushRequest(source="node0:/workspace/V3"))
    assert to == {"node1": "/workspace/V3", "node9": "/srv/V3"}
    assert destinations(MANNED, CheckpointPushRequest(source="node0:/workspace/V3", to=("node9",))) == {
        "node9": "/srv/V3"
    }
    assert set(destinations(MANNED, CheckpointPushRequest(source="node9:/srv/V3"))) == {"node0", "node1"}, (
        "it can be the source"
    )


def test_a_node_that_is_not_there_is_refused_with_the_spares_name_among_the_known() -> None:
    with pytest.raises(InputError, match="no node is called 'node8'") as caught:
        destinations(MANNED, CheckpointPushRequest(source="node0:/workspace/V3", to=("node8",)))
    assert "node9" in caught.value.fix
