"""Bridges and links of a lab, as batches for ip(8)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from l40s_lab import syscalls
from l40s_lab.hardware.machine import NetworkInterface, NodeMachine
from l40s_lab.hardware.netdev import FIRST_INDEX
from l40s_lab.hardware.realise import ALL_RAILS, rail_gateway, rail_network
from l40s_lab.life.blueprint import Blueprint

LAB_BRIDGE = "lab"


def build_switch(blueprint: Blueprint) -> None:
    """The lab's own switch and router, in the supervisor's network namespace.

    Nodes have a default route, as real ones do: programs find their own address with it. It leads nowhere.
    """
    batch(
        [
            "link set lo up",
            f"link add {LAB_BRIDGE} type bridge forward_delay 0",
            f"address add {blueprint.gateway}/24 dev {LAB_BRIDGE}",
            f"link set {LAB_BRIDGE} up",
        ]
    )
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1", encoding="utf-8")


def connect_host(blueprint: Blueprint, host_network: int) -> None:
    """A link from this machine's own network into the lab; it disappears with the lab's namespace."""
    name = blueprint.host_link
    commands = [
        f"link add name {name} type veth peer name host netns {os.getpid()}",
        f"link set {name} alias {host_alias(blueprint.mark)}",
        f"address add {blueprint.controller}/24 dev {name}",
        f"link set {name} up",
    ]
    batch(commands, network=f"/proc/{os.getpid()}/fd/{host_network}")
    batch([f"link set host master {LAB_BRIDGE} up"])


def host_alias(mark: str) -> str:
    """What identifies the link of the lab with this mark; labs in other directories may have the same name."""
    return f"l40s-deploy-lab-{mark}"


def connect_nodes(pids: Mapping[int, int], machines: Mapping[int, NodeMachine]) -> None:
    """Give every node its interfaces. A port is cabled to its rail's bridge, the primary interface to the lab's."""
    rails = {interface.rail for machine in machines.values() for interface in machine.interfaces if interface.rail}
    commands = [f"link add rail{rail} type bridge forward_delay 0" for rail in sorted(rails)]
    commands += [f"link set rail{rail} up" for rail in sorted(rails)]
    if all(machine.machine.rails == "routed" for machine in machines.values()):
        commands += [f"address add {rail_gateway(rail)}/24 dev rail{rail}" for rail in sorted(rails)]
    batch(commands)
    for index, pid in pids.items():
        connect_node(index, pid, machines[index])


def connect_node(index: int, pid: int, machine: NodeMachine) -> None:
    """Give one node its interfaces; the bridges must exist."""
    commands: list[str] = []
    for number, interface in enumerate(machine.interfaces):
        commands += _cable(cable(index, number), interface, pid, FIRST_INDEX + number)
    batch(commands)


def unplug_node(index: int, machine: NodeMachine) -> None:
    """Remove a dead node's cables; the kernel would do so too, but some time after the node's last process has
    ended."""
    text = "".join(f"link delete {cable(index, number)}\n" for number in range(len(machine.interfaces)))
    subprocess.run(["ip", "-force", "-batch", "-"], input=text, text=True, capture_output=True, timeout=60, check=False)


def cable(index: int, number: int) -> str:
    """Name of the lab's end of a cable, by node and interface, both counted from 0."""
    return f"n{index}p{number}"


def bridge_of(interface: NetworkInterface) -> str:
    """Name of the bridge that an interface is cabled to, '' for none."""
    return LAB_BRIDGE if interface.primary else f"rail{interface.rail}" if interface.rail else ""


def _cable(ours: str, theirs: NetworkInterface, pid: int, number: int) -> Iterable[str]:
    yield (
        f"link add name {ours} mtu {theirs.mtu} type veth"
        f" peer name {theirs.name} index {number} address {theirs.mac} mtu {theirs.mtu} netns {pid}"
    )
    bridge = bridge_of(theirs)
    yield f"link set {ours} up" + (f" master {bridge}" if bridge else "")


def rail_routes(machine: NodeMachine, interfaces: Iterable[NetworkInterface]) -> list[str]:
    """Routes to all rails from each of these interfaces, through the lab's router; none if the rails are isolated, or
    if a recorded machine has addresses of its own. A rail's own network is still reached directly."""
    if machine.machine.rails != "routed":
        return []
    return [
        f"route replace {ALL_RAILS} via {rail_gateway(one.rail)} dev {one.name} metric {one.rail + 1}"
        for one in interfaces
        if one.rail and one.enabled and any(address.startswith(f"{rail_network(one.rail)}.") for address in one.ipv4)
    ]


def configure(machine: NodeMachine, gateway: str) -> None:
    """Inside a node: set the addresses of its interfaces, bring ports up that should be up, and set the default
    route."""
    commands = ["link set lo up"]
    for interface in machine.interfaces:
        commands += [f"address add {address} dev {interface.name}" for address in interface.ipv4]
        commands += [f"address add {address} dev {interface.name} nodad" for address in interface.ipv6]
        if interface.enabled:
            commands.append(f"link set {interface.name} up")
    commands.append(f"route add default via {gateway}")
    batch([*commands, *rail_routes(machine, machine.interfaces)])
    for one in machine.interfaces:
        if one.rail:  # RDMA between the cards of one node needs this
            Path(f"/proc/sys/net/ipv4/conf/{one.name}/accept_local").write_text("1", encoding="utf-8")


def batch(commands: Iterable[str], *, network: str | None = None, tool: Sequence[str] = ("ip", "-batch", "-")) -> None:
    """Run commands of ip(8), or of another tool that reads them from stdin, in one process, in this network namespace
    or in that of a namespace file. Raises OSError with the tool's message, FileNotFoundError without the tool."""

    def join() -> None:
        if network is not None:
            syscalls.setns(network, syscalls.CLONE_NEWNET)

    text = "".join(f"{command}\n" for command in commands)
    done = subprocess.run(tool, input=text, text=True, capture_output=True, timeout=60, check=False, preexec_fn=join)
    if done.returncode:
        raise OSError(f"{tool[0]}: {done.stderr.strip()[:300]}")
