"""NCCL's own lines, as written to standard output with NCCL_DEBUG=INFO, and the transport that they name."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from .log import raw
from .settings import Rank, Settings

_INFINIBAND = Path("/sys/class/infiniband")


def rdma_ports(environment: Mapping[str, str]) -> list[str]:
    """`device:port` that NCCL would use: active ports that NCCL_IB_HCA allows; none if IB is disabled."""
    if environment.get("NCCL_IB_DISABLE") == "1" or environment.get("NCCL_NET", "IB").lower() == "socket":
        return []
    wanted = environment.get("NCCL_IB_HCA", "")
    active = _active_ports()
    if not wanted:
        return active
    exact, excluded = wanted.lstrip("^").startswith("="), wanted.startswith("^")
    names = list(filter(None, wanted.lstrip("^=").split(",")))
    if not active and not excluded:
        return [name if ":" in name else f"{name}:1" for name in names]
    return [port for port in active if any(_matches(port, name, exact) for name in names) != excluded]


def _active_ports() -> list[str]:
    return sorted(
        f"{state.parts[-4]}:{state.parts[-2]}"
        for state in _INFINIBAND.glob("*/ports/*/state")
        if "ACTIVE" in _text(state)
    )


def _switches_with_rdma(ports: list[str]) -> int:
    """Number of PCIe switches with an RDMA device of these ports below them.

    Below a switch a device's path has root port, upstream port, downstream port and the device itself. Ports that this
    machine does not show are assumed to be well placed.
    """
    devices = {port.partition(":")[0] for port in ports}
    paths = [(_INFINIBAND / device / "device").resolve() for device in devices]
    chains = [[part for part in path.parts if part.count(":") == 2] for path in paths]
    if devices and not any(chains):
        return 2
    return len({chain[1] for chain in chains if len(chain) >= 4})


def _matches(port: str, name: str, exact: bool) -> bool:
    device, _, number = name.partition(":")
    found, _, has = port.partition(":")
    return (found == device if exact else found.startswith(device)) and number in ("", has)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def interface(environment: Mapping[str, str]) -> str:
    """The interface in NCCL_SOCKET_IFNAME, else the first except loopback."""
    asked = environment.get("NCCL_SOCKET_IFNAME", "").lstrip("=^").split(",")[0]
    names = [name for _, name in socket.if_nameindex() if name != "lo"]
    return asked or (names[0] if names else "lo")


def watch_ports(settings: Settings, rank: Rank) -> None:
    """If a port of the plan goes down while the engine runs, log NCCL's lines; runs forever, in a thread.

    One rank per node logs, about the connection that it would have on that port. With port failover the traffic
    continues (src/transport/net_ib/p2p_resiliency.cc); without it a real engine would end, which is not played.
    """
    ports = rdma_ports(settings.environment)
    a_node = max(settings.world // settings.nnodes, 1)
    if settings.environment.get("NCCL_IB_RESILIENCY_PORT_FAILOVER") == "1" and rank.world % a_node == 0 and ports:
        threading.Thread(target=_follow_ports, args=(ports, rank), daemon=True).start()


def _follow_ports(ports: list[str], rank: Rank) -> None:
    here = f"{socket.gethostname()}:{os.getpid()}:{os.getpid()} [{rank.gpu}]"
    known = set(ports)
    while True:
        time.sleep(0.5)
        active = set(_active_ports())
        for port in sorted(known - active):
            raw(
                f"{here} transport/net_ib/p2p_resiliency.cc:325 NCCL WARN NET/IB: ncclIbResiliencyHandleDeviceFailure: "
                f"Device {ports.index(port) % 2} marked as failed. Initiating recovery? No (send comm=0x5f0000000001, "
                "outstandingRecovery=0)\n",
                descriptor=1,
            )
        known &= active


def tell(settings: Settings, rank: Rank) -> None:
    """Log the bootstrap, network and communicator lines of one rank.

    With RDMA under each PCIe switch, NCCL counts each half of a node as a node: nNodes 8 and localRanks 4 on the
    reference cluster (NCCL src/graph/paths.cc, ncclTopoTrimSystem); otherwise a node counts as one.
    """
    if settings.environment.get("NCCL_DEBUG", "").upper() not in ("INFO", "TRACE"):
        return
    here = f"{socket.gethostname()}:{os.getpid()}:{os.getpid()} [{rank.gpu}] NCCL INFO"
    port = interface(settings.environment)
    ports = rdma_ports(settings.environment)
    a_node = max(settings.world // settings.nnodes, 1)
    halves = 2 if _switches_with_rdma(ports) >= 2 and a_node >= 2 else 1
    lines = [f"Bootstrap : Using {port}:{settings.dist_host}<0>"]
    if ports:
        listed = " ".join(f"[{number}]{name}/RoCE" for number, name in enumerate(ports))
        lines += [f"NET/IB : Using {listed} [RO]; OOB {port}:{settings.dist_host}<0>", "Using network IB"]
    else:
        lines += [f"NET/Socket : Using [0]{port}:{settings.dist_host}<0>", "Using network Socket"]
    lines.append(
        f"comm 0x5f0000{rank.world:04x} rank {rank.world} nRanks {settings.world} "
        f"nNodes {settings.nnodes * halves} localRanks {a_node // halves} "
        f"localRank {rank.world % a_node % max(a_node // halves, 1)} MNNVL 0"
    )
    if settings.nnodes > 1 and rank.world % a_node == 0:
        way = "NET/IB/0/GDRDMA" if ports else "NET/Socket/0"
        before = (rank.world - 1) % settings.world
        lines.append(f"Channel 00/0 : {before}[{before % a_node}] -> {rank.world}[{rank.gpu}] [receive] via {way}")
    lines += ["Connected all rings", "Init COMPLETE"]
    raw("".join(f"{here} {line}\n" for line in lines), descriptor=1)
