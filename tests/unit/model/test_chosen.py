"""Names that an operator types: the message for a wrong one lists every valid name."""

from __future__ import annotations

import pytest

from orchestrator.model.chosen import MOST_NAMES, chosen_gangs, chosen_nodes, no_such
from orchestrator.model.errors import InputError
from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec, Reach

NAMES = tuple(f"node{number}" for number in range(4))


def node(name: str, gang: str = "gang0") -> NodeSpec:
    return NodeSpec(name=name, gang=gang, node_rank=0, reach=Reach(host=name))


def test_every_known_name_is_listed_the_first_and_the_last_too() -> None:
    for wrong in ("node9", "nod0", "elsewhere"):
        with pytest.raises(InputError) as refused:
            chosen_nodes(map(node, NAMES), ["node0", wrong], "hosts.yml: --node")
        assert refused.value.what == f"no node is called {wrong!r}"
        assert refused.value.fix.endswith(": " + ", ".join(NAMES)), refused.value.fix


def test_a_large_cluster_s_names_are_counted() -> None:
    names = [f"node{number:03d}" for number in range(MOST_NAMES + 5)]
    assert no_such("node", "zzz", names, where="--node").fix.endswith(f"{names[MOST_NAMES - 1]} and 5 more")
    assert no_such("gang", "zzz", (), where="--gang").fix == "one of: there is none"


def test_chosen_ones_keep_the_inventory_s_order() -> None:
    assert list(chosen_nodes(map(node, NAMES), ["node3", "node1"], "--node")) == ["node1", "node3"]
    gangs = tuple(GangSpec(name=name, nodes=(node(f"on-{name}", name),)) for name in ("b", "a"))
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
