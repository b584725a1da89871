"""Makes a running node show another machine: its network, /sys and /proc, NVML, and the kernel's log."""

from __future__ import annotations

import time

from l40s_lab.hardware import kernel_log
from l40s_lab.hardware.machine import NodeMachine
from l40s_lab.loopback import hardware
from l40s_lab.namespaces import reveal, rewire
from l40s_lab.namespaces.links import rail_routes
from l40s_lab.node.living import LivingNode
from l40s_lab.nvml import config


def show(node: LivingNode, old: NodeMachine, new: NodeMachine, covers: tuple[str, ...]) -> tuple[str, ...]:
    """Change the machine that a node shows; a node that is switched off shows nothing.

    covers: paths where something is mounted over what the node showed at first; returns these paths after the change
    """
    if old == new or (node.has_namespaces and node.find_pid() is None):
        return covers
    if node.has_namespaces:
        covers = _in_namespaces(node, old, new, covers)
    else:
        hardware.change(node.file("/"), old, new)
    if node.blueprint.devices:
        return covers
    if config.render(old) != config.render(new):
        node.write("/run/l40s-lab/nvml.conf", config.render(new))
    if kernel_log.render(old) != kernel_log.render(new):
        node.write("/dev/kmsg", kernel_log.render(new, time.monotonic_ns() // 1000))
    return covers


def _in_namespaces(node: LivingNode, old: NodeMachine, new: NodeMachine, covers: tuple[str, ...]) -> tuple[str, ...]:
    _rewire(node, old, new)
    if node.blueprint.devices:  # /sys is this machine's own, and shows the node's own network
        return covers
    folder = node.memory / "shown" / str(node.index)
    if new != node.machine:
        return (*covers, *reveal.cover(node.supervisor, node.pid, folder, node.machine, new))
    reveal.uncover(node.supervisor, node.pid, folder, node.machine, covers)
    if _names(old) != _names(new):
        # The original mount looks for the interfaces under names that they have changed meanwhile.
        whole = folder.with_name(f"{node.index}-whole")
        reveal.cover(node.supervisor, node.pid, whole, node.machine, new)
    return ()


def _rewire(node: LivingNode, old: NodeMachine, new: NodeMachine) -> None:
    cables = [node.link(interface.name) for interface in node.machine.interfaces]
    node.ip_outside(rewire.outside(old.interfaces, new.interfaces, cables))
    changed = [one for before, one in zip(old.interfaces, new.interfaces, strict=True) if before != one]
    inside = rewire.inside(old.interfaces, new.interfaces, node.blueprint.gateway)
    node.ip_here([*inside, *rail_routes(new, changed)])


def _names(machine: NodeMachine) -> list[str]:
    return [interface.name for interface in machine.interfaces]
