"""One directory under several nodes is recognised; the nodes are this machine, by several names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec, Reach
from orchestrator.remote.fleet import Fleet
from orchestrator.workflows.push import Hop, PushRequest, push
from orchestrator.workflows.same_roots import same_roots
from orchestrator.workflows.verify import verify


def node(name: str, root: Path, rank: int = 0) -> NodeSpec:
    reach = Reach(host=name, connection="local")
    return NodeSpec(
        name=name, gang="g", node_rank=rank, reach=reach, model_root=str(root), state_dir=str(root.parent / "state")
    )


def cluster(*nodes: NodeSpec) -> Inventory:
    return Inventory(path="hosts.yml", gangs=(GangSpec(name="g", nodes=nodes),))


class Silent:
    """A watcher that keeps what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, words: str) -> None:
        self.said.append(words)

    def moved(self, hops: Sequence[Hop], total: int, offered: int) -> None:
        """Nothing is drawn."""


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
    pushed = push(inventory, PushRequest(source=str(source)), watcher)
    assert set(pushed.nodes.values) == {"a"}
    assert pushed.shared == {"b": "a"}
    assert watcher.said == ["b: the same directory as on a: nothing is sent"]
    assert (root / "M" / "config.json").read_text() == "{}"
    again = push(inventory, PushRequest(source=f"a:{root}/M"), Silent())
    assert again.shared == {"b": "a"}
    assert not again.nodes.values
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
