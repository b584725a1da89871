"""A path from one node to another that silently flips bytes."""

from __future__ import annotations

from l40s_lab.faults import delay, slow_link, words
from l40s_lab.faults.registry import Fault, Undo, Words
from l40s_lab.node.living import LivingNode

FAULT = Fault(
    name="corrupt-link",
    argument="NODE",
    summary="flips one byte in every MiB of TCP data that this node sends to NODE, with a right checksum (TCP side)",
    shows="`l40s-deploy nettest --verify` names the two nodes; nothing else notices (a process of the lab relays the "
    "frames, so the throughput is lower)",
    levels=(1, 2),
    outside=True,
)


def strike(node: LivingNode, asked: Words) -> Undo:
    """In the node's cable: its own kernel has sent the right bytes."""
    words.at_most(asked, 1)
    start, end = (slow_link.addresses(one)[0] for one in (node, slow_link.other_node(node, asked)))
    return delay.relayed(node, words.any_port(node.machine, ()), 0, start, end)


def heal(node: LivingNode, undo: Undo) -> None:
    """As of any relay."""
    delay.heal(node, undo)
