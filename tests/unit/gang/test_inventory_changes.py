"""What is said of an inventory that has changed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.gang.inventory_changes import as_it_stood, changes_of, variables_of
from orchestrator.loading.node_spec import ANSIBLES, OURS
from orchestrator.model.chosen import replicas_of, with_spares
from orchestrator.model.inventory import (
    GangPorts,
    GangSpec,
    Inventory,
    NodeSpec,
    Overrides,
    Reach,
    ReceiverKind,
    Recipient,
    RouterSpec,
)
from orchestrator.protocol.errors import InputError


def node(name: str, rank: int = 0, gang: str = "g", **keys: Any) -> NodeSpec:
    return NodeSpec(name=name, gang=gang, node_rank=rank, **{"reach": Reach(host=name), **keys})


def gang(name: str, *nodes: NodeSpec, spares: tuple[NodeSpec, ...] = ()) -> GangSpec:
    return GangSpec(name=name, nodes=nodes, spares=spares)


A, B, C, D = (node(name, rank) for rank, name in enumerate("abcd"))
G, H = gang("g", A, B), gang("h", node("x", gang="h"))
SPARE = replace(C, spare=True)
ROUTER = RouterSpec(node=node("front", gang="router"))
SLACK = Recipient(kind=ReceiverKind.SLACK, url="https://hooks.example.org/s3cr3t")


def inventory(*gangs: GangSpec, **keys: Any) -> Inventory:
    return Inventory(path="hosts.yml", gangs=gangs, **keys)


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (inventory(G, H), inventory(G, H), ()),
        (inventory(G, H), inventory(H, G), ()),
        (inventory(G, H), inventory(G), ("gang h is gone (x)",)),
        (inventory(G), inventory(G, H), ("gang h is new (x)",)),
        (inventory(G, H), inventory(gang("prod", A, B), H), ("gang g is called prod now (a, b)",)),
        (
            inventory(G),
            inventory(gang("prod", A, C)),
            ("gang g is gone (a, b)", "gang prod is new (a, c)"),
        ),
        (inventory(G), inventory(gang("g", A, B, spares=(SPARE,))), ("g: c is new, a spare",)),
        (inventory(G), inventory(gang("g", A, B, C)), ("g: c is new",)),
        (inventory(gang("g", A, B, C)), inventory(gang("g", A, B, spares=(SPARE,))), ("g: c is a spare now",)),
        (inventory(gang("g", A, B, spares=(SPARE,))), inventory(gang("g", A, B, C)), ("g: c is no spare any more",)),
        (inventory(gang("g", A, B, C)), inventory(gang("g", A, C)), ("g: b is gone",)),
        (inventory(G), inventory(gang("g", B, A)), ("g: the order of its nodes is b, a now",)),
        (
            inventory(G),
            inventory(gang("g", replace(A, lease_s=60.0), replace(B, lease_s=60.0, reach=Reach(host="10.0.0.9")))),
            ("l40s_lease of a, b", "ansible_host of b"),
        ),
        (
            inventory(G),
            inventory(gang("g", replace(A, ports=GangPorts(http=1)), replace(B, gpu_names=("0",), gpus=1))),
            ("l40s_http_port of a", "l40s_gpus of b"),
        ),
        (
            inventory(G),
            inventory(gang("g", replace(A, overrides=Overrides(env=(("HF_TOKEN", "s3cr3t"),))), B)),
            ("l40s_env of a",),
        ),
        (inventory(G), inventory(G, router=ROUTER), ("the router is new (front)",)),
        (inventory(G, router=ROUTER), inventory(G), ("the router is gone (front)",)),
        (
            inventory(G, router=ROUTER),
            inventory(G, router=replace(ROUTER, port=1, gang_key_file="/k", node=node("b"))),
            (
                "the router is on b now, no longer on front",
                "l40s_router_port of the router",
                "l40s_api_key_file of the router",
                "ansible_host of the router",
            ),
        ),
        (inventory(G), inventory(G, notify=(SLACK,)), ("l40s_notify: slack is told from now on",)),
        (inventory(G, notify=(SLACK,)), inventory(G), ("l40s_notify: nobody is told from now on",)),
        (
            inventory(G, notify=(SLACK,)),
            inventory(G, notify=(replace(SLACK, url="https://x"), SLACK)),
            ("l40s_notify: slack, slack is told from now on",),
        ),
    ],
)
def test_each_change_is_a_sentence_that_names_what_an_operator_wrote(
    before: Inventory, now: Inventory, said: tuple[str, ...]
) -> None:
    assert changes_of(before, now) == said
    assert "s3cr3t" not in " ".join(said)


def test_every_variable_has_the_name_that_an_inventory_has() -> None:
    assert set(variables_of(A)) <= {*OURS, *ANSIBLES}


def test_a_gang_that_stood_as_replicas_still_does_and_no_spare_is_in_a_nodes_place() -> None:
    before = inventory(*replicas_of(G), H)
    now = as_it_stood(inventory(gang("g", A, B, C), H), before)
    assert [one.name for one in now.gangs] == ["g-0", "g-1", "g-2", "h"]
    assert changes_of(before, now) == ("gang g-2 is new (c)",)
    staffed = with_spares(gang("g", A, B, spares=(SPARE,)), ["c"])
    (written,) = as_it_stood(inventory(staffed), inventory(staffed)).gangs
    assert [one.name for one in written.nodes] == ["a", "b"] and [one.name for one in written.spares] == ["c"]
    with pytest.raises(InputError, match="g-0"):
        as_it_stood(inventory(G, gang("g-0", D)), before)
