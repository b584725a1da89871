"""A cable that delays every packet."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict

from l40s_lab import relay
from l40s_lab.faults import words
from l40s_lab.faults.registry import Fault, Undo, Words
from l40s_lab.hardware.machine import NetworkInterface
from l40s_lab.life.home import LOG
from l40s_lab.namespaces import links
from l40s_lab.namespaces.mounts import Spaces, in_child
from l40s_lab.node.living import LivingNode
from l40s_lab.processes import Identity
from orchestrator.model.errors import NodeError

FAULT = Fault(
    name="delay",
    argument="[MS [DEV]]",
    summary="every frame to and from DEV (default: the TCP side) is delayed by MS (default: 25) milliseconds",
    shows="round trips; a process of the lab relays the frames, so the throughput is lower too",
    levels=(1, 2),
    outside=True,
)
_LONGEST_MS = 60_000
_STARTS_S = 10.0


def strike(node: LivingNode, asked: Words) -> Undo:
    """Both ways, each somewhat more or less."""
    words.at_most(asked, 2)
    delay = words.number(asked, 0, what="milliseconds", lowest=1, highest=_LONGEST_MS, default=25)
    return relayed(node, words.any_port(node.machine, asked[1:]), delay)


def relayed(node: LivingNode, port: NetworkInterface, delay_ms: float, *between: str) -> Undo:
    """Frames of a port pass through a relay. It runs in the lab's namespaces, so it ends with the lab.

    between: addresses from and to which bytes are flipped; none: nowhere
    """
    link, bridge = node.link(port.name), links.bridge_of(port)
    if not bridge:
        raise NodeError(f"nothing is at the other end of {port.name}", where=node.name, fix="name another interface")
    numbers = (str(number) for number in (port.mtu, delay_ms, delay_ms / 10))
    process = _start(node, [sys.executable, "-m", relay.__name__, link, bridge, *numbers, *between])
    return {"relay": asdict(process), "link": link, "bridge": bridge}


def heal(node: LivingNode, undo: Undo) -> None:
    """The relay ends first; then the cable is connected to its bridge again."""
    Identity(**undo["relay"]).end(deadline_s=_STARTS_S)
    link, bridge = str(undo["link"]), str(undo["bridge"])
    node.ip_outside([f"link delete {relay.private_bridge(link)}", f"link set {link} master {bridge}"])


def _start(node: LivingNode, command: list[str]) -> Identity:
    spaces = Spaces(node.supervisor, ["net", "pid"])

    def work() -> Identity | None:
        spaces.join()
        with (node.blueprint.path / LOG).open("ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        assert process.stdout is not None
        return Identity.of(process.pid) if process.stdout.readline() == b"ready\n" else None

    try:
        started = in_child(work)
    finally:
        spaces.close()
    if started is None:
        raise NodeError(f"the relay ended: {node.place.log_tail()}", where=node.name, fix="l40s-deploy lab status")
    return started
