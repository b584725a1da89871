"""/sys/class/infiniband and the directories behind it, with GID tables as mlx5 fills them."""

from __future__ import annotations

import ipaddress

from l40s_lab.hardware.machine import ROCE_V1, NetworkInterface, Nic, NodeMachine
from l40s_lab.hardware.pci import Function, Layout
from l40s_lab.hardware.realise import digest
from l40s_lab.node.tree import FileTree


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_FABRIC_SLOTS = 8
"""GIDs of an InfiniBand port; the rest of the table is for virtual functions."""
_EMPTY = ":".join(["0000"] * 8)
_RATES = {10: "10 Gb/sec (1X QDR)", 25: "25 Gb/sec (1X EDR)", 40: "40 Gb/sec (4X QDR)", 50: "50 Gb/sec (1X HDR)",
          100: "100 Gb/sec (4X EDR)", 200: "200 Gb/sec (4X HDR)", 400: "400 Gb/sec (4X NDR)"}  # fmt: skip
_COUNTERS = _words(
    "port_xmit_data port_rcv_data port_xmit_packets port_rcv_packets port_rcv_errors port_xmit_discards "
    "symbol_error link_downed link_error_recovery port_xmit_wait local_link_integrity_errors VL15_dropped"
)
_HW_COUNTERS = _words(
    "out_of_sequence packet_seq_err local_ack_timeout_err rnr_nak_retry_err out_of_buffer duplicate_request "
    "implied_nak_seq_err np_cnp_sent np_ecn_marked_roce_packets rp_cnp_handled rp_cnp_ignored "
    "rx_icrc_encapsulated roce_adp_retrans roce_slow_restart req_cqe_error resp_cqe_error"
)


def gid_table(interface: NetworkInterface, guid: str = "") -> list[tuple[str, str]]:
    """(GID, type) from index 0: link-local twice, then every address twice, v1 before v2, IPv6 before IPv4.

    In the order of drivers/infiniband/core/roce_gid_mgmt.c: default GIDs first, then those of the addresses, which an
    interface that is down has lost. guid: of an InfiniBand port, whose one GID is derived from it.
    """
    if interface.link_layer == "InfiniBand":
        return [(_port_gid(guid), ROCE_V1)]  # the kernel gives InfiniBand's own GIDs this type
    gids = [_link_local(interface.mac)]
    if interface.enabled and interface.address_gids:
        gids += [_spelled(ipaddress.IPv6Interface(address).ip.packed) for address in interface.ipv6]
        gids += [mapped_gid(address) for address in interface.ipv4]
    return [(gid, kind) for gid in gids for kind in interface.roce]


def _link_local(mac: str) -> str:
    octets = [int(part, 16) for part in mac.split(":")]
    host = bytes([octets[0] ^ 2, *octets[1:3], 0xFF, 0xFE, *octets[3:]])
    return _spelled(b"\xfe\x80" + bytes(6) + host)


def _port_gid(guid: str) -> str:
    return _spelled(b"\xfe\x80" + bytes(6) + bytes.fromhex(guid.replace(":", "")))


def mapped_gid(address: str) -> str:
    """The GID of an IPv4 address, with or without its prefix length."""
    return _spelled(bytes(10) + b"\xff\xff" + ipaddress.IPv4Interface(address).ip.packed)


def _spelled(data: bytes) -> str:
    return data.hex(":", -2)


def render(tree: FileTree, node: NodeMachine, layout: Layout, *, refuse_empty: bool) -> None:
    """Every RDMA device; a bond's is that of its first port.

    refuse_empty: whether reading an empty GID slot's type can be made to fail as in the kernel (EINVAL)
    """
    number = 0
    for interface in node.interfaces:
        if interface.rdma:
            function = layout.of_netdev(interface.slaves[0] if interface.slaves else interface.name)
            assert function is not None  # the wiring was checked
            _device(tree, node, interface, function, number, refuse_empty=refuse_empty)
            number += 1


def _device(
    tree: FileTree,
    node: NodeMachine,
    interface: NetworkInterface,
    function: Function,
    number: int,
    *,
    refuse_empty: bool,
) -> None:
    card = function.card
    assert isinstance(card, Nic)
    parent = f"/devices/{function.path}"
    folder = f"{parent}/infiniband/{interface.rdma}"
    guid = _guid(node.seed, interface.rdma)
    tree.put_all(
        folder,
        {
            "fw_ver": card.firmware,
            "board_id": card.board,
            "hca_type": f"MT{card.device:04d}",
            "hw_rev": 0,
            "node_type": "1: CA",
            "node_guid": guid,
            "sys_image_guid": guid,
            "node_desc": f"{node.node} {interface.rdma}",
        },
    )
    tree.link(f"{folder}/device", parent)
    tree.link(f"{folder}/subsystem", "/class/infiniband")
    tree.link(f"/class/infiniband/{interface.rdma}", folder)
    verbs = f"{parent}/infiniband_verbs/uverbs{number}"
    tree.put_all(verbs, {"ibdev": interface.rdma, "abi_version": 1, "dev": f"231:{192 + number}"})
    tree.link(f"{verbs}/device", parent)
    tree.link(f"/class/infiniband_verbs/uverbs{number}", verbs)
    tree.put("/class/infiniband_verbs/abi_version", 6)
    _port(tree, f"{folder}/ports/1", node, interface, guid, refuse_empty=refuse_empty)


def _port(
    tree: FileTree, port: str, node: NodeMachine, interface: NetworkInterface, guid: str, *, refuse_empty: bool
) -> None:
    gbps = interface.speed_mbps // 1000
    fabric = interface.link_layer == "InfiniBand"
    tree.put_all(
        port,
        {
            "state": "4: ACTIVE" if interface.linked else "1: DOWN",
            "phys_state": "5: LinkUp" if interface.linked else "3: Disabled",
            "rate": _RATES.get(gbps, f"{gbps} Gb/sec (4X EDR)"),
            "link_layer": interface.link_layer,
            "lid": f"0x{1 + digest(guid)[0]:x}" if fabric else "0x0",
            "sm_lid": "0x1" if fabric else "0x0",
            "sm_sl": 0,
            "lid_mask_count": 0,
            "cap_mask": "0x04010000",
            "pkeys/0": "0xffff",
            **{f"counters/{name}": 0 for name in _COUNTERS},
            **{f"hw_counters/{name}": 0 for name in _HW_COUNTERS},
        },
    )
    _gids(tree, port, node, interface, guid, refuse_empty=refuse_empty)


def _gids(
    tree: FileTree, port: str, node: NodeMachine, interface: NetworkInterface, guid: str, *, refuse_empty: bool
) -> None:
    """The port's table, with its empty places."""
    fabric = interface.link_layer == "InfiniBand"
    table = gid_table(interface, guid)
    for index, (gid, kind) in enumerate(table):
        tree.put(f"{port}/gids/{index}", gid)
        tree.put(f"{port}/gid_attrs/types/{index}", kind)
        if not fabric:
            tree.put(f"{port}/gid_attrs/ndevs/{index}", interface.name)
        elif refuse_empty:
            tree.einval.add(f"{port}/gid_attrs/ndevs/{index}")
    for index in range(len(table), _FABRIC_SLOTS if fabric else node.machine.gid_slots):
        tree.put(f"{port}/gids/{index}", _EMPTY)
        if refuse_empty:
            tree.einval |= {f"{port}/gid_attrs/types/{index}", f"{port}/gid_attrs/ndevs/{index}"}


def _guid(seed: str, name: str) -> str:
    return _spelled(b"\xb8\x3f\xd2" + digest(seed, "guid", name)[:5])
