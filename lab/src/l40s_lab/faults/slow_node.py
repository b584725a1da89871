"""A node whose TCP traffic is slow in both directions, to all nodes."""

from __future__ import annotations

from l40s_lab.faults import words
from l40s_lab.faults.registry import Fault, Undo, Words
from l40s_lab.namespaces import cable_speed
from l40s_lab.node.living import LivingNode

FAULT = Fault(
    name="slow-node",
    argument="[RATE [DEV]]",
    summary="limits traffic into and out of DEV (default: the TCP side) to RATE (default: 20mbit)",
    shows="`l40s-deploy nettest` names the node; SSH to it is slow too",
    levels=(1, 2),
    outside=True,
)


def strike(node: LivingNode, asked: Words) -> Undo:
    """A queue at each end of the cable."""
    words.at_most(asked, 2)
    rate = words.rate(asked, 0)
    port = words.any_port(node.machine, asked[1:])
    link = node.link(port.name)
    cable_speed.run(node.supervisor, cable_speed.slow(link, rate))
    cable_speed.run(node.pid, cable_speed.slow(port.name, rate))
    return {"link": link, "port": port.name}


def heal(node: LivingNode, undo: Undo) -> None:
    """A restarted node has a new interface, without the queue."""
    cable_speed.run(node.supervisor, cable_speed.as_before(str(undo["link"])))
    cable_speed.run(node.pid, cable_speed.as_before(str(undo["port"])))
