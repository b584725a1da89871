"""A running node shows another machine: its network, /sys and /proc, NVML, and the kernel's log."""

from __future__ import annotations

from orchestrator.lab.hardware import kernel_log
from orchestrator.lab.hardware.machine import NodeMachine
from orchestrator.lab.living import LivingNode
from orchestrator.lab.loopback import hardware
from orchestrator.lab.namespaces import reveal, rewire
from orchestrator.lab.nvml import config


def show(node: LivingNode, old: NodeMachine, new: NodeMachine, covers: tuple[str, ...]) -> tuple[str, ...]:
    """Turn what a node shows from one machine into another; a node that is switched off shows nothing.

    covers: where something is mounted over what the node showed at first; returns where that is afterwards
    """
    if old == new or (node.has_namespaces and node.find_pid() is None):
        return covers
    if node.has_namespaces:
        covers = _in_namespaces(node, old, new, covers)
    else:
        hardware.change(node.file("/"), old, new)
    if config.render(old) != config.render(new):
        node.write("/run/l40s-lab/nvml.conf", config.render(new))
    if kernel_log.render(old) != kernel_log.render(new):
        node.write("/dev/kmsg", kernel_log.render(new))
    return covers


def _in_namespaces(node: LivingNode, old: NodeMachine, new: NodeMachine, covers: tuple[str, ...]) -> tuple[str, ...]:
    cables = [node.link(interface.name) for interface in node.machine.interfaces]
    node.ip_outside(rewire.outside(old.interfaces, new.interfaces, cables))
    node.ip_here(rewire.inside(old.interfaces, new.interfaces, node.blueprint.gateway))
    if new == node.machine:
        reveal.uncover(node.pid, covers, node.machine)
        return ()
    return (*covers, *reveal.cover(node.supervisor, node.pid, node.memory, node.machine, new))
