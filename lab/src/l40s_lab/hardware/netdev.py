"""/sys/class/net and the directories behind it."""

from __future__ import annotations

from l40s_lab.hardware.machine import Bond, NetworkInterface, NodeMachine
from l40s_lab.hardware.pci import Layout
from l40s_lab.node.tree import FileTree

_VIRTUAL = "/devices/virtual/net"
_ARPHRD_INFINIBAND = 32
FIRST_INDEX = 2
"""Interface index of a node's first interface; 1 is the loopback device."""


def folder_of(layout: Layout, name: str) -> str:
    """Directory of an interface below /sys: under its PCI function, or among the virtual ones."""
    function = layout.of_netdev(name)
    return f"/devices/{function.path}/net/{name}" if function else f"{_VIRTUAL}/{name}"


def render(tree: FileTree, node: NodeMachine, layout: Layout, *, live: bool) -> None:
    """Every interface of the node. live: the kernel has it as a virtual one, and its attributes are used."""
    for number, interface in enumerate(node.interfaces):
        folder = folder_of(layout, interface.name)
        if folder.startswith(_VIRTUAL):
            tree.folders.add(folder)
        else:
            _under_its_card(tree, interface, folder, live=live)
        tree.link(f"/class/net/{interface.name}", folder)
        tree.put(f"{folder}/speed", interface.speed_mbps if interface.linked else -1)
        tree.put(f"{folder}/duplex", "full" if interface.linked else "unknown")
        if interface.link_layer == "InfiniBand":
            tree.put(f"{folder}/type", _ARPHRD_INFINIBAND)
        tree.put(f"{folder}/iflink", FIRST_INDEX + number)  # of the actual veth, it would give the other end
        if not live:
            _written(tree, interface, folder, number)
    for bond in node.machine.bonds:
        _bond(tree, node, layout, bond)


def _under_its_card(tree: FileTree, interface: NetworkInterface, folder: str, *, live: bool) -> None:
    card = folder.rpartition("/net/")[0]
    tree.link(f"{folder}/device", card)
    if live:
        tree.borrowed[folder] = f"{_VIRTUAL}/{interface.name}"
        tree.hidden.add(f"{_VIRTUAL}/{interface.name}")
    function = int(card[-1])
    tree.put(f"{folder}/phys_port_name", f"p{function}")


def _written(tree: FileTree, interface: NetworkInterface, folder: str, number: int) -> None:
    flags = 0x1003 | (0x400 if interface.slaves else 0) | (0x800 if interface.bond else 0)
    facts: dict[str, str | int] = {
        "address": interface.mac,
        "addr_len": 6,
        "mtu": interface.mtu,
        "operstate": "up" if interface.linked else "down",
        "flags": hex(flags if interface.enabled else flags & ~1),
        "ifindex": FIRST_INDEX + number,
        "type": _ARPHRD_INFINIBAND if interface.link_layer == "InfiniBand" else 1,
        "dev_id": "0x0",
        "dev_port": 0,
        "tx_queue_len": 1000,
    }
    if interface.enabled:
        facts["carrier"] = int(interface.carrier)  # for an interface that is down, the kernel gives EINVAL
    tree.put_all(folder, facts)


def _bond(tree: FileTree, node: NodeMachine, layout: Layout, bond: Bond) -> None:
    folder = f"{_VIRTUAL}/{bond.name}"
    up = [name for name in bond.slaves if node.interface(name).linked]
    tree.put_all(
        f"{folder}/bonding",
        {
            "mode": f"{bond.mode} {MODES.get(bond.mode, 0)}",
            "slaves": " ".join(bond.slaves),
            "mii_status": "up" if up else "down",
            "miimon": 100,
            "xmit_hash_policy": "layer3+4 1",
            "lacp_rate": "fast 1",
            "ad_num_ports": len(up),
            "ad_aggregator": 1,
            "ad_partner_mac": "9c:05:91:3e:00:01",
        },
    )
    for name in bond.slaves:
        slave = folder_of(layout, name)
        tree.link(f"{slave}/master", folder)
        tree.link(f"{folder}/lower_{name}", slave)
        linked = node.interface(name).linked
        tree.put_all(
            f"{slave}/bonding_slave",
            {
                "state": "active",
                "mii_status": "up" if linked else "down",
                "link_failure_count": 0 if linked else 1,
                "perm_hwaddr": node.interface(name).mac,
                "ad_aggregator_id": 1 if linked else 2,
            },
        )


MODES = {"balance-rr": 0, "active-backup": 1, "balance-xor": 2, "broadcast": 3, "802.3ad": 4}
"""Numbers of the bonding modes (Documentation/networking/bonding.rst)."""
