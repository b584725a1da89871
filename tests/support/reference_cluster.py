"""The articles' cluster, with its faults corrected, as values: topologies and gangs that tests change as needed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from orchestrator.model.inventory import GangSpec, NodeSpec, Reach
from orchestrator.model.topology import Gid, Gpu, Interface, RdmaPort, Switch, Topology

GPU_BYTES = 46068 << 20
"""An L40S as NVML shows it: 46068 MiB."""

SWITCHES = ("/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0", "/sys/devices/pci0000:97/0000:97:01.0/0000:98:00.0")
DOWNSTREAM = "0000:17:00.0"


def node(name: str = "node0", rank: int = 0, **changes: object) -> NodeSpec:
    """A reference node of gang0; addresses on the bond start at 10.0.0.11."""
    spec = NodeSpec(name=name, gang="gang0", node_rank=rank, reach=Reach(host=f"10.0.0.{11 + rank}"))
    return replace(spec, **changes)  # type: ignore[arg-type]


def gang(nodes: int = 4, *, name: str = "gang0", first: int = 0, **changes: object) -> GangSpec:
    """A gang of reference nodes that all have the same changes."""
    return GangSpec(
        name=name,
        nodes=tuple(
            replace(
                node(f"node{first + rank}", rank, **changes), gang=name, reach=Reach(host=f"10.0.0.{11 + first + rank}")
            )
            for rank in range(nodes)
        ),
    )


def topology(
    name: str = "node0",
    number: int = 0,
    *,
    gpus: int = 8,
    rdma: Iterable[str] = ("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"),
    gid_index: int = 3,
    link_layer: str = "Ethernet",
    bond: str = "bond0",
) -> Topology:
    """8 GPUs behind 2 switches, 2 RDMA ports under each, and a bond of two ports on a root port for TCP."""
    devices = tuple(rdma)
    half = (len(devices) + 1) // 2
    ports = tuple(
        rdma_port(
            device,
            SWITCHES[index // half],
            f"rdma{index}",
            address=f"10.{index + 1}.0.{11 + number}",
            gid_index=gid_index,
            link_layer=link_layer,
        )
        for index, device in enumerate(devices)
    )
    main = tuple(
        rdma_port(f"mlx5_bond_{index}", "", f"main{index}", address="", gid_index=gid_index) for index in range(2)
    )
    interfaces = [
        Interface(name="lo", operstate="unknown", carrier=True, ipv4=("127.0.0.1/8",)),
        Interface(name="docker0", operstate="up", carrier=True, ipv4=("172.17.0.1/16",)),
        Interface(
            name=bond,
            operstate="up",
            carrier=True,
            ipv4=(f"10.0.0.{11 + number}/24",),
            slaves=("main0", "main1"),
            speed_mbps=200000,
        ),
        Interface(name="main0", operstate="up", carrier=True, bond=bond, physical=True, speed_mbps=100000),
        Interface(name="main1", operstate="up", carrier=True, bond=bond, physical=True, speed_mbps=100000),
    ]
    for index, port in enumerate(ports):
        interfaces.append(
            Interface(
                name=port.netdev,
                operstate="up",
                carrier=True,
                physical=True,
                speed_mbps=100000,
                ipv4=(f"10.{index + 1}.0.{11 + number}/24",),
            )
        )
    return Topology(
        node=name,
        switches=tuple(Switch(key=key, address=key.rpartition("/")[2], numa_node=0) for key in SWITCHES),
        gpus=tuple(gpu(index, SWITCHES[index // max(1, gpus // 2) % 2]) for index in range(gpus)),
        rdma=(*ports, *main),
        interfaces=tuple(interfaces),
    )


def gpu(index: int, switch: str = SWITCHES[0], **changes: object) -> Gpu:
    """An idle L40S."""
    address = f"0000:{0x16 + index:02x}:00.0"
    whole = Gpu(
        index=index,
        address=address,
        key=f"{switch}/{DOWNSTREAM}/{address}",
        switch=switch,
        numa_node=0,
        name="NVIDIA L40S",
        memory_total=GPU_BYTES,
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


def rdma_port(
    device: str, switch: str, netdev: str, *, address: str, gid_index: int = 3, link_layer: str = "Ethernet"
) -> RdmaPort:
    """A port with GIDs as mlx5 fills the table: link-local v1 and v2 first, then IPv4 in v1 and, at gid_index, v2."""
    gids = [
        Gid(index=0, gid="fe80:0000:0000:0000:0000:0000:0000:0001", type="IB/RoCE v1", netdev=netdev),
        Gid(index=1, gid="fe80:0000:0000:0000:0000:0000:0000:0001", type="RoCE v2", netdev=netdev),
    ]
    if address and link_layer == "Ethernet":
        a, b, c, d = (int(part) for part in address.split("."))
        mapped = f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"
        gids += [
            Gid(index=gid_index - 1, gid=mapped, type="IB/RoCE v1", netdev=netdev),
            Gid(index=gid_index, gid=mapped, type="RoCE v2", netdev=netdev),
        ]
    return RdmaPort(
        device=device,
        port=1,
        address="0000:1b:00.0",
        key=f"{switch}/{DOWNSTREAM}/{device}",
        switch=switch,
        numa_node=0,
        netdev=netdev if link_layer == "Ethernet" else "",
        state="ACTIVE",
        phys_state="LinkUp",
        rate_gbps=100.0,
        link_layer=link_layer,
        gids=tuple(gids),
    )


def topologies(gang_spec: GangSpec, first: int = 0) -> dict[str, Topology]:
    """One reference topology for each node of a gang."""
    return {spec.name: topology(spec.name, first + spec.node_rank, gpus=spec.gpus) for spec in gang_spec.nodes}
