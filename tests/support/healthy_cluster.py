"""Four healthy nodes, written as files and answers, and helpers to break one.

What machine_files writes for the articles' cluster, plus everything else that a rule may read: configuration
spaces, counters, IOMMU groups, driver, limits, NVML's health. Written from the kernel's and NVIDIA's documents,
independently of the lab.
"""

from __future__ import annotations

import json
import posixpath
import struct
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from tests.support.machine_files import MachineFiles, reference_machine

from orchestrator.doctor.rules.support.cluster import Cluster
from orchestrator.loading.profiles import load_stack
from orchestrator.model.inventory import NodeSpec, Reach
from orchestrator.protocol.looks import Trial
from orchestrator.topology.build import build

UNLIMITED = -1
_ROOT, _UPSTREAM, _DOWNSTREAM, _ENDPOINT = 4, 5, 6, 0
_AER = "RxErr 0\nBadTLP 0\nTOTAL_ERR_{kind} {count}\n"


@dataclass
class HealthyNode:
    """One node that tests break: `machine` has its files, `host` and `nvml` the rest of its snapshot."""

    machine: MachineFiles
    host: dict[str, Any]
    nvml: dict[str, Any]
    spec: dict[str, Any] = field(default_factory=dict)
    stack: dict[str, Any] = field(default_factory=dict)
    """What differs from STACK's file."""

    @property
    def files(self) -> dict[str, str]:
        return self.machine.files

    @property
    def links(self) -> dict[str, str]:
        return self.machine.links

    @property
    def gpus(self) -> list[dict[str, Any]]:
        """NVML's devices."""
        return self.machine.devices

    def copy(self) -> HealthyNode:
        """A copy that may be broken without changing this node. The tables of texts, most of it, stay shared."""
        return deepcopy(self, {id(texts): dict(texts) for texts in (self.files, self.links)})

    def key(self, address: str) -> str:
        """Real path of a PCI function."""
        found = {path.rpartition("/")[0] for path in self.files if path.endswith(f"/{address}/class")}
        (key,) = found
        return key

    def write(self, address: str, **values: object) -> None:
        """Change files of a PCI function."""
        self.machine.write(self.key(address), values)

    def port(self, device: str) -> str:
        """Folder of an RDMA device's port."""
        (folder,) = {path.rpartition("/")[0] for path in self.files if path.endswith(f"/{device}/ports/1/state")}
        return folder

    def set_port(self, device: str, **values: object) -> None:
        self.machine.write(self.port(device), values)

    def interface(self, name: str) -> str:
        """Folder of a network interface."""
        (folder,) = {path.rpartition("/")[0] for path in self.files if path.endswith(f"/net/{name}/mtu")}
        return folder

    def remove(self, prefix: str) -> None:
        """Remove everything at and below a path, and links to it."""
        for table in (self.files, self.links):
            for path in [path for path in table if path == prefix or path.startswith(f"{prefix}/")]:
                del table[path]
        name = prefix.rpartition("/")[2]
        for path in [path for path, target in self.links.items() if target.endswith(f"/{name}") and name in path]:
            del self.links[path]

    def move(self, old: str, new: str) -> None:
        """Move everything below one path to another, as if a card were plugged in elsewhere."""

        def moved(path: str) -> str:
            return new + path[len(old) :] if path == old or path.startswith(f"{old}/") else path

        for path in [path for path in self.files if moved(path) != path]:
            self.files[moved(path)] = self.files.pop(path)
        for path, target in list(self.links.items()):
            leads = moved(posixpath.normpath(posixpath.join(posixpath.dirname(path), target)))
            del self.links[path]
            self.machine.link(moved(path), leads)

    def config(self, address: str, **changes: int) -> None:
        """A function's configuration space; see configuration_space."""
        self.files[f"{self.key(address)}/config"] = configuration_space(**changes).hex()

    def lose_gids(self, device: str) -> None:
        """Remove the port's address and the GIDs that the kernel derived from it."""
        port = self.port(device)
        for path in [path for path in self.files if path.startswith(f"{port}/gid")]:
            if path.endswith(("/2", "/3")):
                del self.files[path]


Change = Callable[[HealthyNode], object]


def _as_it_is(_: HealthyNode) -> None:
    """The reference machine."""


def configuration_space(
    *, kind: int = _ENDPOINT, bus: int = 0, acs: int = -1, read_request: int = 4096, payload: int = 256, ats: int = -1
) -> bytes:
    """A function as root reads it. acs, ats: the control register, -1: no such capability; bus: below a bridge."""
    space = bytearray(512)
    space[0x19], space[0x34] = bus, 0x40
    space[0x40] = 0x10
    struct.pack_into("<HIH", space, 0x42, 2 | kind << 4, 1, (payload // 128).bit_length() - 1 << 5)
    control = ((payload // 128).bit_length() - 1) << 5 | ((read_request // 128).bit_length() - 1) << 12
    struct.pack_into("<H", space, 0x48, control)
    at, chain = 0x100, [(0x0001, 0, 0)]
    chain += [(0x000D, acs, 0)] if acs >= 0 else []
    chain += [(0x000F, ats, 0)] if ats >= 0 else []
    for index, (name, value, _) in enumerate(chain):
        follows = at + 0x40 if index + 1 < len(chain) else 0
        struct.pack_into("<I", space, at, name | 1 << 16 | follows << 20)
        struct.pack_into("<H", space, at + 6, value)
        at += 0x40
    return bytes(space)


def healthy_node(name: str = "node0", number: int = 0) -> HealthyNode:
    """A healthy node, to be broken at will."""
    return _shaped_node(name, number, _as_it_is).copy()


@cache
def _shaped_node(name: str, number: int, shape: Change) -> HealthyNode:
    node = dressed(reference_machine(name, number))
    shape(node)
    return node


def dressed(machine: MachineFiles) -> HealthyNode:
    """A machine's files with everything else that a rule may read, all healthy. It has a bond of ens9f0np0 and
    ens9f1np1."""
    node = HealthyNode(
        machine, host=_host(machine), nvml={"driver": "570.86.10", "nvml": "12.570.86.10", "cuda": 12080}
    )
    keys = [path.rpartition("/")[0] for path in machine.files if path.endswith("/class")]
    for count, key in enumerate(keys):
        _function(node, key, count)
    devices = sorted({path.split("/")[-4] for path in machine.files if path.endswith("/ports/1/state")})
    for index, device in enumerate(devices):
        _counters(node, device)
        machine.write(f"/sys/class/infiniband_verbs/uverbs{index}", {"ibdev": device})
    machine.write("/sys/module/nvidia_peermem", {"version": "570.86.10"})
    machine.write("/sys/module/mlx5_core", {"version": "24.10-2.1.8"})
    machine.write("/sys/class/dmi/id", {"bios_version": "2.1", "sys_vendor": "Supermicro", "product_name": "421GE"})
    machine.write("/sys/devices/system/cpu/cpufreq/policy0", {"scaling_governor": "performance"})
    machine.write("/sys/devices/system/cpu/cpu0/cpuidle/state0", {"name": "POLL", "latency": 0, "disable": 0})
    machine.write("/sys/devices/system/cpu/cpu0/cpuidle/state1", {"name": "C1", "latency": 2, "disable": 0})
    machine.write("/proc/sys/kernel", {"numa_balancing": 0})
    machine.write("/proc/sys/vm", {"nr_hugepages": 0, "zone_reclaim_mode": 0})
    machine.write("/proc/driver/nvidia", {"version": "NVRM version: NVIDIA UNIX Kernel Module  570.86.10"})
    bond = node.interface("bond0")
    machine.write(f"{bond}/bonding", {"ad_aggregator": 1})
    for slave in ("ens9f0np0", "ens9f1np1"):
        machine.write(f"{node.interface(slave)}/bonding_slave", {"ad_aggregator_id": 1})
    for place, gpu in enumerate(machine.devices):
        _gpu(gpu, place, len(machine.devices))
    _stack(node)
    return node


STACK = load_stack("sglang-0.5.23")
VENV = "/opt/l40s/venvs/sglang-0.5.23"
SITE = f"{VENV}/lib/python3.11/site-packages"
PACKAGES = {
    "sglang": "0.5.23", "torch": "2.14.1", "nvidia_nccl_cu13": "2.30.7", "sglang_kernel": "0.4.10", "triton": "3.8.0",
}  # fmt: skip
TUNED = "N=2112,K=7168,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[64, 64].json"
TUNED_PATH = f"{SITE}/sglang/kernels/ops/gemm/configs/{TUNED}"
TILES = f"{SITE}/sglang/kernels/ops/attention/extend_attention.py"
KERNELS = f"{SITE}/sgl_kernel/sm100/common_ops.abi3.so"


def tuned(**changed: int) -> str:
    """A config that an engine can use, or one that it can't use."""
    config = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1} | changed
    return json.dumps({"1": config, "4096": config})


def _stack(node: HealthyNode) -> None:
    """What a snapshot reads of an environment that `prepare` made."""
    for package, version in PACKAGES.items():
        node.files[f"{SITE}/{package}-{version}.dist-info/WHEEL"] = "Wheel-Version: 1.0\n"
    node.files[f"{SITE}/sglang/__init__.py"] = ""
    node.files[TILES] = "if CUDA_CAPABILITY[1] == 9 or CUDA_CAPABILITY[1] == 6:\n"
    node.files[KERNELS] = "sm89_dispatch_shape"
    node.files[TUNED_PATH] = tuned()


def _host(machine: MachineFiles) -> dict[str, Any]:
    ports = sum(path.endswith("/ports/1/state") for path in machine.files)
    return {
        "hostname": machine.node,
        "addresses": machine.addresses,
        "uname": {"release": "6.8.0-60-generic"},
        "flow_control": {},
        "user": "l40s",
        "home": "/home/l40s",
        "uid": 1000,
        "systemd": True,
        "limits": {"memlock": [8 << 20, UNLIMITED], "nofile": [1024, 1 << 20], "stack": [8 << 20, UNLIMITED]},
        "limits_attainable": {"memlock": [UNLIMITED, UNLIMITED], "nofile": [1 << 20, 1 << 20]},
        "devices": [f"/dev/infiniband/uverbs{number}" for number in range(ports)],
        "libibverbs": True,
        "kernel_log": {"xid": []},
        "shm_bytes": 512 << 30,
        "disks": {
            "root": {"device": 1, "bytes": 400 << 30, "free_bytes": 200 << 30},
            "tmp": {"device": 1, "bytes": 400 << 30, "free_bytes": 200 << 30},
            "state": {"device": 1, "bytes": 400 << 30, "free_bytes": 200 << 30},
            "models": {"device": 2, "bytes": 3 << 40, "free_bytes": 1 << 40},
        },
        "clock_offset_s": 0.01,
        "round_trip_s": 0.02,
        "stack": {"venv": VENV, "name": STACK.name, "python": True},
    }


def _function(node: HealthyNode, key: str, count: int) -> None:
    address = key.rpartition("/")[2]
    kind = node.files[f"{key}/class"].strip()
    bridge = kind == "0x060400"
    bus = next((int(other.rpartition("/")[2][5:7], 16) for other in _below(node, key)), 0) if bridge else 0
    place = (key.count("/") - 4) % 2
    node.config(
        address,
        kind=(_ROOT if key.count("/") == 4 else _DOWNSTREAM if place == 0 else _UPSTREAM) if bridge else _ENDPOINT,
        bus=bus,
        acs=0 if bridge else -1,
        ats=0 if not bridge else -1,
        read_request=4096 if kind == "0x020000" else 512,
    )
    for kind_of_error, short in (("correctable", "COR"), ("nonfatal", "NONFATAL"), ("fatal", "FATAL")):
        node.files[f"{key}/aer_dev_{kind_of_error}"] = _AER.format(kind=short, count=0)
    group = node.machine.write(f"/sys/kernel/iommu_groups/{count}", {"type": "identity"})
    node.machine.link(f"{key}/iommu_group", group)


def _below(node: HealthyNode, key: str) -> list[str]:
    depth = key.count("/") + 1
    folders = {path.rpartition("/")[0] for path in node.files if path.endswith("/class")}
    return sorted(folder for folder in folders if folder.startswith(f"{key}/") and folder.count("/") == depth)


def _counters(node: HealthyNode, device: str) -> None:
    hardware = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "rnr_nak_retry_err")
    node.machine.write(f"{node.port(device)}/hw_counters", dict.fromkeys(hardware, 0))
    node.machine.write(
        f"{node.port(device)}/counters",
        {"symbol_error": 0, "port_rcv_packets": 10**9, "port_xmit_packets": 10**9, "port_rcv_errors": 0},
    )


def _gpu(device: dict[str, Any], index: int, gpus: int) -> None:
    device.update(
        {
            "bar1_total": 64 << 30,
            "ecc": {"enabled": 1, "corrected": 0, "uncorrected": 0},
            "remapped_rows": [0, 0, 0, 0],
            "clocks_event_reasons": 1,
            "compute_mode": 0,
            "persistence": 1,
            "replays": 0,
            "vbios": "95.02.66.00.02",
            "p2p": {str(other): {"read": 0, "write": 0} for other in range(index + 1, gpus)},
        }
    )


@cache
def _whole_cluster(shape: Change) -> Cluster:
    names = [f"node{number}" for number in range(4)]
    return cluster_of({name: _shaped_node(name, number, shape) for number, name in enumerate(names)})


def cluster_with(name: str, breaks: Change, trials: tuple[Trial, ...] = (), *, shape: Change = _as_it_is) -> Cluster:
    """The healthy cluster of four with one node changed; the others are built once. shape: turns each reference node
    into another machine first."""
    whole = _whole_cluster(shape)
    number = whole.specs[name].node_rank
    node = _shaped_node(name, number, shape).copy()
    breaks(node)
    changed = cluster_of({name: node}, first=number)
    return Cluster(
        topologies={**whole.topologies, **changed.topologies},
        snapshots={**whole.snapshots, **changed.snapshots},
        specs={**whole.specs, **changed.specs},
        trials=trials,
        stacks={**whole.stacks, **changed.stacks},
    )


def healthy_nodes(count: int = 4) -> dict[str, HealthyNode]:
    """A cluster of healthy nodes."""
    return {f"node{number}": healthy_node(f"node{number}", number) for number in range(count)}


def cluster_of(
    nodes: Mapping[str, HealthyNode], *, first: int = 0, gang: Callable[[int], str] | None = None
) -> Cluster:
    """The input of the rules. first: number of the first node; gang: a gang's name by number, by default one gang."""
    snapshots = {
        name: node.machine.snapshot(host=node.host, nvml={"devices": list(node.gpus), **node.nvml})
        for name, node in nodes.items()
    }
    specs = {
        name: NodeSpec(
            **{
                "name": name,
                "gang": gang(number) if gang else "gang0",
                "node_rank": number,
                "reach": Reach(host=f"10.0.0.{11 + number}"),
                **node.spec,
            }
        )
        for number, (name, node) in enumerate(nodes.items(), first)
    }
    topologies = {name: build(snapshot) for name, snapshot in snapshots.items()}
    stacks = {name: replace(STACK, **node.stack) for name, node in nodes.items()}
    return Cluster(topologies=topologies, snapshots=snapshots, specs=specs, stacks=stacks)
