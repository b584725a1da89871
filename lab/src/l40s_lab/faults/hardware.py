"""Faults of a node's machine: each derives a broken description from a healthy one."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from l40s_lab.faults import words
from l40s_lab.faults.registry import Fault, Undo, Words
from l40s_lab.hardware.edit import change_interface, change_port_of, change_ports, gpus, nic_with
from l40s_lab.hardware.machine import ROCE_V1, Gpu, Machine, NetworkInterface, NodeMachine, PciePort, PcieSwitch
from l40s_lab.hardware.pci import ROOT_PORT, lay_out
from l40s_lab.node.living import LivingNode
from orchestrator.protocol.errors import InputError

_OLDER = "570.133.20"
_CUDA = 12080
"""The CUDA version of the 570 drivers, in the form of cuDriverGetVersion."""


def _gpu(change: Callable[[Gpu], Gpu], node: NodeMachine, asked: Words) -> NodeMachine:
    card = gpus(node.machine)[words.gpu(node, asked)].card
    assert isinstance(card, Gpu)
    return change_port_of(node, card, lambda port: replace(port, card=change(card)))


def _system(node: NodeMachine, _: Words, **values: Any) -> NodeMachine:
    return replace(node, machine=replace(node.machine, system=replace(node.machine.system, **values)))


def _rail_port(change: Callable[[NetworkInterface], NetworkInterface], node: NodeMachine, asked: Words) -> NodeMachine:
    return change_interface(node, words.rail_port(node, asked).name, change)


def _link(change: Callable[[PciePort], PciePort], node: NodeMachine, asked: Words) -> NodeMachine:
    """The port above the given card: a GPU's index, an RDMA device or an interface (default: one on a rail)."""
    if asked and asked[0].isdigit():
        card = gpus(node.machine)[words.gpu(node, asked)].card
        assert card is not None
        return change_port_of(node, card, change)
    name = (words.any_port(node, asked) if asked else words.rail_port(node, ())).name
    found = nic_with(node.machine, name)
    if found is None:
        raise InputError(f"{name} is not a port of a card", where="ARG", fix="name one of its ports")
    return change_port_of(node, found[0], change)


def _redirect(node: NodeMachine, _: Words) -> NodeMachine:
    return replace(node, machine=change_ports(node.machine, _redirecting))


def _redirecting(port: PciePort) -> PciePort:
    if not isinstance(port.card, PcieSwitch):
        return port
    below = tuple(replace(one, acs=True) for one in port.card.ports)
    return replace(port, card=replace(port.card, ports=below))


def _lose_slave(node: NodeMachine, asked: Words) -> NodeMachine:
    """The bond is as fast as its remaining ports."""
    lost = words.slave(node, asked)
    node = change_interface(node, lost.name, lambda one: replace(one, carrier=False))
    left = sum(one.speed_mbps for one in node.interfaces if one.bond == lost.bond and one.linked)
    return change_interface(node, lost.bond, lambda one: replace(one, speed_mbps=left, carrier=left > 0))


def _other_driver(node: NodeMachine, asked: Words) -> NodeMachine:
    """Driver, NVML and CUDA change together."""
    version = asked[0] if asked else _OLDER
    if not re.fullmatch(r"\d{3}\.\d{1,3}(\.\d{1,3})?", version):
        raise InputError(f"found {version!r}, wanted a driver's version", where="ARG", fix=_OLDER)
    return _system(node, (), driver=version, cuda=_CUDA)


def _downgrade(node: NodeMachine, asked: Words) -> NodeMachine:
    """Not for GPUs: an idle one is at generation 1 anyway."""
    if asked and asked[0].isdigit():
        raise InputError(
            f"found {asked[0]!r}, wanted a network card: an idle GPU always shows a low generation",
            where="ARG",
            fix=f"l40s-deploy lab break {node.node} width-x8 {asked[0]}",
        )
    return _link(lambda port: replace(port, trained_gen=3), node, asked)


def _shift_gids(port: NetworkInterface) -> NetworkInterface:
    """Adds a unique local address, of the kind that routers assign (RFC 4193)."""
    low = port.mac.replace(":", "")[-4:]
    return replace(port, ipv6=(f"fd40:0:0:{port.rail or 0}::{low}/64",))


def _abort_users(node: LivingNode, asked: Words) -> Undo:
    """The rank's next CUDA call fails, and PyTorch's NCCL watchdog aborts the process."""
    for process in node.users_of_gpu(words.gpu(node.machine, asked)):
        process.kill(signal.SIGABRT)
    return {}


def _unplug(node: NodeMachine, asked: Words) -> NodeMachine:
    """Programs that use it get no error: their connections just stall."""
    cut = words.any_port(node, asked)
    for name in (cut.name, *cut.slaves):
        node = change_interface(node, name, lambda one: replace(one, carrier=False))
    return node


def _shrink_frames(node: NodeMachine, asked: Words) -> NodeMachine:
    """Between IPv6's minimum and the card's maximum."""
    port = words.any_port(node, asked[:1]) if asked else words.rail_port(node, ())
    size = words.number(asked, 1, what="bytes", lowest=1280, highest=9978, default=1500)
    return change_interface(node, port.name, lambda one: replace(one, mtu=size))


def _forget_numa(node: NodeMachine, _: Words) -> NodeMachine:
    machine = node.machine
    return replace(node, machine=replace(machine, roots=tuple(replace(root, numa=-1) for root in machine.roots)))


def _slot_at(machine: Machine, address: str) -> str:
    return next((function.slot for function in lay_out(machine).functions if function.address == address), "")


def _move(node: NodeMachine, asked: Words) -> NodeMachine:
    """Interfaces are named after their slot (systemd.net-naming-scheme(7)); the addresses stay."""
    rails = [interface for interface in node.interfaces if interface.rail is not None and interface.rdma]
    port = words.rail_port(node, asked or tuple(rail.name for rail in rails[-1:]))
    place = nic_with(node.machine, port.name)
    target = _free_slot(node)
    if place is None or target is None:
        raise InputError(
            f"{port.name} can't be moved: there is no empty slot on a root port",
            where="ARG",
            fix="start a lab with another --wiring",
        )
    card, function = place
    old_slot = _slot_at(node.machine, function.path.split("/")[-2])
    names = {own.netdev: _in_slot(own.netdev, old_slot, target) for own in card.ports}
    moved = replace(card, ports=tuple((replace(own, netdev=names[own.netdev])) for own in card.ports))
    node = change_port_of(node, card, lambda place: replace(place, card=None))
    machine = change_ports(node.machine, lambda place: replace(place, card=moved) if place.slot == target else place)
    node = replace(node, machine=machine)
    for old, new in names.items():
        node = change_interface(node, old, partial(_named, new))
    return node


def _free_slot(node: NodeMachine) -> str | None:
    """The last empty slot on a root port."""
    on_roots = [one.slot for one in lay_out(node.machine).functions if one.kind == ROOT_PORT and one.slot]
    empty = {slot.name for slot in lay_out(node.machine).slots if not slot.now}
    return next((slot for slot in reversed(on_roots) if slot in empty), None)


def _named(name: str, interface: NetworkInterface) -> NetworkInterface:
    return replace(interface, name=name)


def _in_slot(name: str, old: str, new: str) -> str:
    """ens15f0np0 of slot 15 becomes ens17f0np0 in slot 17; a name without a slot number stays."""
    return re.sub(rf"^ens{re.escape(old)}(?=\D|$)", f"ens{new}", name) if old else name


FAULTS = (
    Fault(
        name="acs-on",
        summary="ACS redirects traffic between cards behind one switch through the CPU, as after a BIOS change",
        shows="the ACS control register of every switch port (configuration space)",
        change=_redirect,
    ),
    Fault(
        name="bond-slave-down",
        argument="[DEV]",
        summary="the port DEV of a bond (default: its last) loses its link; the bond continues with the others",
        shows="the slave's carrier, bonding_slave/mii_status, /proc/net/bonding, the bond's speed",
        change=_lose_slave,
    ),
    Fault(
        name="driver-skew",
        argument="[VERSION]",
        summary="the node has the NVIDIA driver VERSION (default: 570.133.20), which is older than its peers'",
        shows="NVML (driver, NVML and CUDA version), /sys/module/nvidia*/version, /proc/driver/nvidia/version",
        change=_other_driver,
    ),
    Fault(
        name="ecc",
        argument="G",
        summary="GPU G counts an uncorrectable memory error and waits for a reset to remap the row",
        shows="NVML (ECC counters, remapped rows), Xid 48 and 63 in the kernel log",
        change=partial(_gpu, lambda card: replace(card, uncorrected=card.uncorrected + 1)),
    ),
    Fault(
        name="gen-downgraded",
        argument="[DEV]",
        summary="the link of DEV's card (default: the first on a rail) comes up at PCIe generation 3",
        shows="current_link_speed and configuration space of card and port",
        change=_downgrade,
    ),
    Fault(
        name="gid-missing",
        argument="[DEV]",
        summary="the port DEV (default: the first on a rail) has its address, but no GID for it",
        shows="infiniband gids, gid_attrs/types and gid_attrs/ndevs",
        change=partial(_rail_port, lambda one: replace(one, address_gids=False)),
    ),
    Fault(
        name="gid-shifted",
        argument="[DEV]",
        summary="the port DEV (default: the first on a rail) also has an IPv6 address, which moves its IPv4 GID by two",
        shows="infiniband gids and gid_attrs, the interface's addresses",
        change=partial(_rail_port, _shift_gids),
    ),
    Fault(
        name="gpu-lost",
        argument="G",
        summary="GPU G falls off the bus, and the rank that uses it dies",
        shows="NVML (GPU is lost), configuration space (ones), the link and the port above, AER, Xid 79 in the kernel"
        " log",
        change=partial(_gpu, lambda card: replace(card, lost=True)),
        strike=_abort_users,
    ),
    Fault(
        name="iommu-on",
        summary="the IOMMU translates DMA, as on a kernel booted without iommu=pt",
        shows="the type of every IOMMU group, /proc/cmdline",
        change=partial(_system, iommu="DMA"),
    ),
    Fault(
        name="link-down",
        argument="[DEV]",
        summary="the cable of DEV (default: the interface that carries TCP) is unplugged; addresses stay",
        shows="carrier, operstate, speed, a bond's ports, infiniband state, the kernel log, and that no packet passes",
        levels=(1, 2),
        change=_unplug,
    ),
    Fault(
        name="mtu",
        argument="[DEV [BYTES]]",
        summary="the port DEV (default: the first on a rail) gets an MTU of BYTES (default: 1500); larger frames are"
        " lost",
        shows="the interface's mtu, and which packets arrive",
        change=_shrink_frames,
    ),
    Fault(
        name="nic-moved",
        argument="[DEV]",
        summary="DEV's card (default: the last on a rail) is in an empty slot of a root port, not behind its switch",
        shows="its place and bus number, slots, NUMA domain, the names of its interfaces, infiniband device links",
        change=_move,
    ),
    Fault(
        name="no-peermem",
        summary="no GPUDirect RDMA: the closed kernel driver, which has no dma-buf, and nvidia-peermem is not loaded",
        shows="/sys/module/nvidia_peermem, /proc/driver/nvidia/version",
        change=partial(_system, peermem=False, open_driver=False),  # with the open one NCCL would not need the module
    ),
    Fault(
        name="numa-unknown",
        summary="the firmware does not report the NUMA domain of the PCIe slots",
        shows="numa_node and local_cpulist of every PCI function",
        change=_forget_numa,
    ),
    Fault(
        name="nvml-wedged",
        summary="the NVIDIA driver hangs: NVML calls never return",
        shows="NVML (no answer), Xid 119 in the kernel log",
        change=partial(_system, wedged=True),
    ),
    Fault(
        name="port-down",
        argument="[DEV]",
        summary="the RDMA port DEV (default: the first on a rail) loses its link, its address and its GIDs",
        shows="infiniband state and phys_state, the interface's carrier, operstate and speed, GIDs, the kernel log",
        # systemd-networkd removes an address when the carrier is lost (IgnoreCarrierLoss= in systemd.network(5))
        change=partial(_rail_port, lambda one: replace(one, carrier=False, ipv4=(), ipv6=())),
    ),
    Fault(
        name="roce-v1-only",
        argument="[DEV]",
        summary="the port DEV (default: the first on a rail) makes GIDs of RoCE v1 only, as old firmware does",
        shows="infiniband gids and gid_attrs/types",
        change=partial(_rail_port, lambda one: replace(one, roce=(ROCE_V1,))),
    ),
    Fault(
        name="throttle",
        argument="G",
        summary="GPU G overheats and throttles",
        shows="NVML (temperature, clocks, clock event reasons)",
        change=partial(_gpu, lambda card: replace(card, hot=True)),
    ),
    Fault(
        name="width-x8",
        argument="[G|DEV]",
        summary="the link of GPU G, or of DEV's card (default: the first on a rail), comes up with 8 lanes",
        shows="current_link_width and configuration space of card and port, NVML's link width of a GPU",
        change=partial(_link, lambda port: replace(port, trained_width=8)),
    ),
)
