"""Names that an operator types: the message for a wrong one lists every valid name."""

from __future__ import annotations

import pytest
from tests.support.reference_cluster import gang, node

from orchestrator.model.chosen import (
    MOST_NAMES,
    as_written,
    chosen_gangs,
    chosen_nodes,
    in_order,
    no_such,
    part,
    staffed,
    the_one_gang,
    with_spares,
    without,
)
from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec, Reach
from orchestrator.protocol.errors import InputError

NAMES = tuple(f"node{number}" for number in range(4))


def spec(name: str, gang: str = "gang0") -> NodeSpec:
    return NodeSpec(name=name, gang=gang, node_rank=0, reach=Reach(host=name))


def test_every_known_name_is_listed_the_first_and_the_last_too() -> None:
    for wrong in ("node9", "nod0", "elsewhere"):
        with pytest.raises(InputError) as refused:
            chosen_nodes(map(spec, NAMES), ["node0", wrong], "hosts.yml: --node")
        assert refused.value.what == f"no node is called {wrong!r}"
        assert refused.value.fix.endswith(": " + ", ".join(NAMES)), refused.value.fix


@pytest.mark.parametrize(("option", "word"), [("", "`gang1`"), ("--gang", "`--gang gang1`")])
def test_a_command_of_one_gang_says_how_one_is_named(option: str, word: str) -> None:
    gangs = tuple(gang(1, name=f"gang{number}", first=number) for number in range(3))
    inventory = Inventory(path="hosts.yml", gangs=gangs)
    with pytest.raises(InputError) as refused:
        the_one_gang(inventory, ["gang1", "gang2"], command="sweep", option=option)
    assert "sweep takes one gang at a time, but 2 were selected" in str(refused.value.what)
    assert refused.value.fix == f"name one of them alone, such as {word}"
    assert the_one_gang(inventory, ["gang2"], command="sweep").name == "gang2"


def test_a_large_cluster_s_names_are_counted() -> None:
    names = [f"node{number:03d}" for number in range(MOST_NAMES + 5)]
    assert no_such("node", "zzz", names, where="--node").fix.endswith(f"{names[MOST_NAMES - 1]} and 5 more")
    assert no_such("gang", "zzz", (), where="--gang").fix == "one of: there is none"


def test_chosen_ones_keep_the_inventory_s_order() -> None:
    assert list(chosen_nodes(map(spec, NAMES), ["node3", "node1"], "--node")) == ["node1", "node3"]
    gangs = tuple(GangSpec(name=name, nodes=(spec(f"on-{name}", name),)) for name in ("b", "a"))
    inventory = Inventory(path="hosts.yml", gangs=gangs)
    assert [gang.name for gang in chosen_gangs(inventory, ("a", "b"))] == ["b", "a"]
    with pytest.raises(InputError, match="no gang is called 'c'"):
        chosen_gangs(inventory, ("c",))


@pytest.mark.parametrize(
    ("name", "lister", "fix"),
    [
        ("deepseek-v3", "", "did you mean DeepSeek-V3 or DeepSeek-V3-0324? known: DeepSeek-V3, DeepSeek-V3-0324, Qwen"),
        ("qwem", "", "did you mean Qwen? known: DeepSeek-V3, DeepSeek-V3-0324, Qwen"),
        ("", "", "one of: DeepSeek-V3, DeepSeek-V3-0324, Qwen"),
        ("qwem", "l40s-deploy models", "did you mean Qwen? run `l40s-deploy models` for the list"),
        ("x", "l40s-deploy models", "run `l40s-deploy models` for the list"),
    ],
)
def test_what_begins_alike_comes_first_whatever_its_case(name: str, lister: str, fix: str) -> None:
    known = ["DeepSeek-V3", "DeepSeek-V3-0324", "Qwen"]
    assert no_such("model", name, known, where="--model", lister=lister).fix == fix


BOTH = Inventory(path="hosts.yml", gangs=(gang(4), gang(2, name="gang1", first=4)))


def ranks(spec: GangSpec) -> dict[str, int]:
    return {node.name: node.node_rank for node in spec.nodes}


def test_who_is_left_is_ranked_anew_and_the_first_leads() -> None:
    assert ranks(part(gang(4), {"node3", "node1"})) == {"node1": 0, "node3": 1}
    left = without(BOTH, ("node0", "node4"))
    assert [ranks(one) for one in left.gangs] == [{"node1": 0, "node2": 1, "node3": 2}, {"node5": 0}]
    assert left.gangs[0].leader.name == "node1"
    assert without(BOTH, ()) is BOTH


def test_a_node_that_is_not_there_and_the_last_of_a_gang_are_refused() -> None:
    with pytest.raises(InputError, match="no node is called 'node9'"):
        without(BOTH, ("node9",))
    with pytest.raises(InputError, match="no node would be left in gang gang1") as caught:
        without(BOTH, ("node4", "node5"))
    assert "l40s-deploy down gang1" in caught.value.fix


def manned(*spares: str) -> GangSpec:
    return GangSpec(
        name="gang0",
        nodes=gang(4).nodes,
        spares=tuple(node(name, 4 + place, spare=True) for place, name in enumerate(spares)),
    )


@pytest.mark.parametrize(
    ("spares", "left_out", "members", "waiting", "short"),
    [
        pytest.param(("s0",), ("node2",), "node0 node1 s0 node3", "", False, id="in the rank that it replaces"),
        pytest.param(("s0",), ("node0",), "s0 node1 node2 node3", "", False, id="and leads where the leader is gone"),
        pytest.param(("s0",), ("node1", "node2"), "node0 s0 node3", "", True, id="one spare for two nodes"),
        pytest.param(("s0",), ("node2", "s0"), "node0 node1 node3", "", True, id="the spare is away too"),
        pytest.param(("s0", "s1"), ("node2", "s0"), "node0 node1 s1 node3", "", False, id="the next spare"),
        pytest.param(("s0", "s1"), ("node2",), "node0 node1 s0 node3", "s1", False, id="the other one waits on"),
        pytest.param((), ("node2",), "node0 node1 node3", "", True, id="there is none"),
    ],
)
def test_spares_take_places_before_the_gang_has_fewer(
    spares: tuple[str, ...], left_out: tuple[str, ...], members: str, waiting: str, short: bool
) -> None:
    found = staffed(manned(*spares), left_out)
    assert [one.name for one in found.nodes] == members.split()
    assert [one.node_rank for one in found.nodes] == list(range(len(found.nodes)))
    assert ([one.name for one in found.spares], found.short) == (waiting.split(), short)


def test_a_gang_as_it_runs_and_as_it_is_written() -> None:
    standing = with_spares(manned("s0", "s1"), ["s1"])
    assert ([one.name for one in standing.nodes][4:], [one.name for one in standing.spares]) == (["s1"], ["s0"])
    runs = in_order(manned("s0"), ["node0", "s0", "node3"])
    assert ranks(runs) == {"node0": 0, "s0": 1, "node3": 2} and not runs.spares
    assert as_written(standing).nodes == manned().nodes
    assert [one.name for one in as_written(standing).spares] == ["s1", "s0"]


def test_a_spare_that_is_in_place_and_dies_leaves_the_gang_short() -> None:
    standing = with_spares(manned("s0"), ["s0"])
    found = staffed(standing, ("node2", "s0"))
    assert (list(ranks(found)), found.short) == (["node0", "node1", "node3"], True)
