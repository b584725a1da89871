"""Faults of a running node's network: in its cables, which it can't see, and in its firewall."""

from __future__ import annotations

import json
from dataclasses import asdict

from l40s_lab import relay
from l40s_lab.faults import beside, words
from l40s_lab.faults.registry import Fault, Undo, Words
from l40s_lab.namespaces import cable_speed, links
from l40s_lab.node.living import LivingNode, find_node, nft, tc
from l40s_lab.processes import Identity
from orchestrator.protocol.errors import InputError, NodeError

_LONGEST_MS = 60_000
_ALL = 100
_LEAST_MTU, _MOST_MTU = 576, 9000
"""Bytes: what every IPv4 host takes, and a jumbo frame."""


def _delay(node: LivingNode, asked: Words) -> Undo:
    """Both ways, each somewhat more or less."""
    delay = words.number(asked, 0, what="milliseconds", lowest=1, highest=_LONGEST_MS, default=25)
    delay_s = delay / 1000
    return _relayed(node, asked[1:], relay.Treatment(delay_s=delay_s, jitter_s=delay_s / 10))


def _double(node: LivingNode, asked: Words) -> Undo:
    """As after a switch has learned a new way, or a bond with a wrong mode."""
    return _relayed(node, asked[1:], relay.Treatment(doubled=_share(asked)))


def _reorder(node: LivingNode, asked: Words) -> Undo:
    """As over several ways at once."""
    return _relayed(node, asked[1:], relay.Treatment(overtaken=_share(asked)))


def _swallow(node: LivingNode, asked: Words) -> Undo:
    """As a tunnel on the way does whose ICMP is filtered."""
    longest = words.number(asked, 0, what="bytes", lowest=_LEAST_MTU, highest=_MOST_MTU, default=1400)
    return _relayed(node, asked[1:], relay.Treatment(longest=longest))


def _share(asked: Words) -> float:
    """Percent as a share."""
    return words.number(asked, 0, what="percent", lowest=1, highest=_ALL, default=20) / _ALL


def _corrupt(node: LivingNode, asked: Words) -> Undo:
    """In the node's cable: its own kernel has sent the right bytes."""
    start, end = (_addresses(one)[0] for one in (node, _other_node(node, asked)))
    return _relayed(node, (), relay.Treatment(between=(start, end)))


def _relayed(node: LivingNode, asked: Words, treatment: relay.Treatment) -> Undo:
    """Frames of a port pass through a relay. It runs in the lab's namespaces, so it ends with the lab."""
    port = words.any_port(node.machine, asked)
    link, bridge = node.link(port.name), links.bridge_of(port)
    if not bridge:
        raise NodeError(f"nothing is at the other end of {port.name}", where=node.name, fix="name another interface")
    how = json.dumps(asdict(treatment))
    process = beside.start(node, relay, (link, bridge, str(port.mtu), how))
    return {"relay": asdict(process), "link": link, "bridge": bridge}


def _end_relay(node: LivingNode, undo: Undo) -> None:
    """The relay ends first; then the cable is connected to its bridge again."""
    Identity(**undo["relay"]).end(deadline_s=beside.ENDS_S)
    link, bridge = str(undo["link"]), str(undo["bridge"])
    node.ip_outside([f"link delete {relay.private_bridge(link)}", f"link set {link} master {bridge}"])


def _slow_link(node: LivingNode, asked: Words) -> Undo:
    """At the switch end of both nodes' cables."""
    peer = _other_node(node, asked)
    rate = words.rate(asked, 1)
    ends = [(node, peer), (peer, node)]
    for receiver, sender in ends:
        tc(node.supervisor, *cable_speed.slow(_link(receiver), rate, senders=_addresses(sender)))
    return {"links": [_link(receiver) for receiver, _ in ends]}


def _heal_slow_link(node: LivingNode, undo: Undo) -> None:
    """The queues have no other contents."""
    tc(node.supervisor, *(cable_speed.as_before(str(link)) for link in undo["links"]))


def _other_node(node: LivingNode, asked: Words) -> LivingNode:
    """The first word."""
    if not asked or asked[0] == node.name:
        found = asked[0] if asked else "nothing"
        raise InputError(f"found {found}, wanted the other node", where="ARG", fix="l40s-deploy lab status")
    return find_node(node.blueprint.name, asked[0])


def _link(node: LivingNode) -> str:
    return node.link(words.any_port(node.machine, ()).name)


def _addresses(node: LivingNode) -> list[str]:
    """IPv4 addresses of the TCP side."""
    return [address.partition("/")[0] for address in words.any_port(node.machine, ()).ipv4]


def _slow_node(node: LivingNode, asked: Words) -> Undo:
    """A queue at each end of the cable."""
    rate = words.rate(asked, 0)
    port = words.any_port(node.machine, asked[1:])
    link = node.link(port.name)
    tc(node.supervisor, *cable_speed.slow(link, rate))
    tc(node.pid, *cable_speed.slow(port.name, rate))
    return {"link": link, "port": port.name}


def _heal_slow_node(node: LivingNode, undo: Undo) -> None:
    """A restarted node has a new interface, without the queue."""
    tc(node.supervisor, cable_speed.as_before(str(undo["link"])))
    tc(node.pid, cable_speed.as_before(str(undo["port"])))


def _lose(node: LivingNode, asked: Words) -> Undo:
    """In the lab's network: the node itself can't see the reason."""
    percent = words.number(asked, 0, what="percent", lowest=1, highest=_ALL, default=30)
    link = node.link(words.any_port(node.machine, asked[1:]).name)
    which = f"numgen random mod 100 < {percent} " if percent < _ALL else ""
    drop = f'oifname "{link}" {which}drop;'
    hooks = "".join(
        f"chain {hook} {{ type filter hook {hook} priority 0;\n {drop}\n }}\n" for hook in ("forward", "output")
    )
    nft(node.supervisor, f"table bridge loss_{link} {{\n{hooks}}}\n")
    return {"link": link}


def _heal_loss(node: LivingNode, undo: Undo) -> None:
    """The table has no other contents."""
    nft(node.supervisor, f"delete table bridge loss_{undo['link']}\n")


def _close_port(node: LivingNode, asked: Words) -> Undo:
    """Like rules that an operator added."""
    port = words.number(asked, 0, what="a TCP port", lowest=1, highest=65535)
    chain = f"chain input {{ type filter hook input priority 0; policy accept;\n tcp dport {port} drop;\n }}"
    nft(node.pid, f"table inet drop_{port} {{\n{chain}\n}}\n")
    return {"port": port}


def _open_port(node: LivingNode, undo: Undo) -> None:
    """The table has no other contents."""
    nft(node.pid, f"delete table inet drop_{int(undo['port'])}\n")


_TORCH = "(with `lab up --engine sglang`: the stand-in has no torch)"

FAULTS = (
    Fault(
        name="corrupt-link",
        argument="NODE",
        summary="flips one byte in every MiB of TCP data that this node sends to NODE, with a right checksum (TCP"
        " side)",
        shows=f"`l40s-deploy nettest --verify` {_TORCH} names the two nodes; nothing else notices (a process of the"
        " lab relays the frames, so the throughput is lower)",
        levels=(1, 2),
        outside=True,
        strike=_corrupt,
        heal=_end_relay,
    ),
    Fault(
        name="delay",
        argument="[MS [DEV]]",
        summary="every frame to and from DEV (default: the TCP side) is delayed by MS (default: 25) milliseconds",
        shows="round trips; a process of the lab relays the frames, so the throughput is lower too",
        levels=(1, 2),
        outside=True,
        strike=_delay,
        heal=_end_relay,
    ),
    Fault(
        name="duplicate",
        argument="[PERCENT [DEV]]",
        summary="PERCENT (default: 20) percent of all frames to and from DEV (default: the TCP side) arrive twice",
        shows="the kernel's counters alone (TCPDSACKRecv); a process of the lab relays the frames, so the throughput is"
        " lower",
        levels=(1, 2),
        outside=True,
        strike=_double,
        heal=_end_relay,
    ),
    Fault(
        name="firewall-port",
        argument="P",
        summary="the node's firewall silently drops incoming packets for TCP port P",
        shows="connections that time out, the node's own nft ruleset",
        levels=(1, 2),
        strike=_close_port,
        heal=_open_port,
    ),
    Fault(
        name="mtu-black-hole",
        argument="[BYTES [DEV]]",
        summary="packets of more than BYTES (default: 1400) bytes to and from DEV (default: the TCP side) are lost, and"
        " nobody is told",
        shows="connections that open, and hang at the first full packet; short messages pass",
        levels=(1, 2),
        outside=True,
        strike=_swallow,
        heal=_end_relay,
    ),
    Fault(
        name="one-way-loss",
        argument="[PERCENT [DEV]]",
        summary="PERCENT (default: 30) percent of all packets to DEV (default: the TCP side) are lost, but none from"
        " it",
        shows="connections that are slow or break while the link is up",
        levels=(1, 2),
        outside=True,
        strike=_lose,
        heal=_heal_loss,
    ),
    Fault(
        name="reorder",
        argument="[PERCENT [DEV]]",
        summary="PERCENT (default: 20) percent of all frames to and from DEV (default: the TCP side) arrive 10"
        " milliseconds late, after those that were sent later",
        shows="the kernel's counters alone; a process of the lab relays the frames, so the throughput is lower",
        levels=(1, 2),
        outside=True,
        strike=_reorder,
        heal=_end_relay,
    ),
    Fault(
        name="slow-link",
        argument="NODE [RATE]",
        summary="limits traffic between this node and NODE to RATE (default: 20mbit) on the TCP side, in each"
        " direction",
        shows=f"`l40s-deploy nettest` {_TORCH} names the two nodes; everything else is as fast as before",
        levels=(1, 2),
        outside=True,
        strike=_slow_link,
        heal=_heal_slow_link,
    ),
    Fault(
        name="slow-node",
        argument="[RATE [DEV]]",
        summary="limits traffic into and out of DEV (default: the TCP side) to RATE (default: 20mbit)",
        shows=f"`l40s-deploy nettest` {_TORCH} names the node; SSH to it is slow too",
        levels=(1, 2),
        outside=True,
        strike=_slow_node,
        heal=_heal_slow_node,
    ),
)
