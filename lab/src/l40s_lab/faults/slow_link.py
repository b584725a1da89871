"""A slow path between two nodes; all other paths are normal."""

from __future__ import annotations

from l40s_lab.faults import words
from l40s_lab.faults.registry import Fault, Undo, Words
from l40s_lab.namespaces import cable_speed
from l40s_lab.node.living import LivingNode, find_node
from orchestrator.model.errors import InputError

FAULT = Fault(
    name="slow-link",
    argument="NODE [RATE]",
    summary="limits traffic between this node and NODE to RATE (default: 20mbit) on the TCP side, in each direction",
    shows="`l40s-deploy nettest` names the two nodes; everything else is as fast as before",
    levels=(1, 2),
    outside=True,
)


def strike(node: LivingNode, asked: Words) -> Undo:
    """At the switch end of both nodes' cables."""
    words.at_most(asked, 2)
    peer = other_node(node, asked)
    rate = words.rate(asked, 1)
    ends = [(node, peer), (peer, node)]
    for receiver, sender in ends:
        cable_speed.run(node.supervisor, cable_speed.slow(_link(receiver), rate, senders=addresses(sender)))
    return {"links": [_link(receiver) for receiver, _ in ends]}


def heal(node: LivingNode, undo: Undo) -> None:
    """The queues have no other contents."""
    for link in undo["links"]:
        cable_speed.run(node.supervisor, cable_speed.as_before(str(link)))


def other_node(node: LivingNode, asked: Words) -> LivingNode:
    """The first word."""
    if not asked or asked[0] == node.name:
        raise InputError(
            f"found {asked[0] if asked else 'nothing'}, wanted the other node",
            where="ARG",
            fix="l40s-deploy lab status",
        )
    return find_node(node.blueprint.name, asked[0])


def _link(node: LivingNode) -> str:
    return node.link(words.any_port(node.machine, ()).name)


def addresses(node: LivingNode) -> list[str]:
    """IPv4 addresses of the TCP side."""
    return [address.partition("/")[0] for address in words.any_port(node.machine, ()).ipv4]
