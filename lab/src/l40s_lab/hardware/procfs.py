"""Files below /proc that describe the hardware."""

from __future__ import annotations

import uuid

from l40s_lab.hardware.machine import Bond, NodeMachine
from l40s_lab.hardware.realise import digest
from l40s_lab.node.tree import FileTree


def render(node: NodeMachine) -> FileTree:
    """The tree below /proc: only files that differ from the host's."""
    tree = FileTree()
    if node.recording is not None:
        tree.update(node.recording.proc)
        return tree
    system = node.machine.system
    flavour = "Open Kernel Module for x86_64" if system.open_driver else "Kernel Module"
    tree.put(
        "/driver/nvidia/version",
        f"NVRM version: NVIDIA UNIX {flavour}  {system.driver}  Release Build  (builder@host)\n"
        "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1)",
    )
    tree.put("/driver/nvidia/params", 'ResmanDebugLevel: 4294967295\nNVreg_RegistryDwords: ""\nRegistryDwords: ""')
    tree.put("/cpuinfo", _cpuinfo(node).encode())
    tree.put("/cmdline", f"BOOT_IMAGE=/boot/vmlinuz root=/dev/md0 ro quiet{_IOMMU[system.iommu]}")
    tree.put("/sys/kernel/numa_balancing", system.numa_balancing)
    tree.put("/sys/kernel/random/boot_id", str(uuid.UUID(bytes=digest(node.seed, "boot")[:16], version=4)))
    for bond in node.machine.bonds:
        tree.put(f"/net/bonding/{bond.name}", _bonding(node, bond))
    return tree


_IOMMU = {"off": " intel_iommu=off", "identity": " intel_iommu=on iommu=pt", "DMA": " intel_iommu=on"}


def meminfo(node: NodeMachine) -> str:
    """/proc/meminfo; nodes that share the host's memory keep the host's, since engines plan with it."""
    total = node.machine.system.memory_gib << 20
    return f"MemTotal:       {total} kB\nMemFree:        {total * 9 // 10} kB\nMemAvailable:   {total * 9 // 10} kB\n"


def _cpuinfo(node: NodeMachine) -> str:
    cpu = node.machine.cpu
    blocks = []
    for thread in range(cpu.threads):
        for socket in range(cpu.sockets):
            for core in range(cpu.cores):
                number = thread * cpu.sockets * cpu.cores + socket * cpu.cores + core
                blocks.append(
                    f"processor\t: {number}\n"
                    f"vendor_id\t: {cpu.vendor}\n"
                    f"cpu family\t: {cpu.family}\n"
                    f"model\t\t: {cpu.model}\n"
                    f"model name\t: {cpu.name}\n"
                    f"stepping\t: {cpu.stepping}\n"
                    "microcode\t: 0x2b000620\n"
                    f"cpu MHz\t\t: {cpu.mhz:.3f}\n"
                    "cache size\t: 61440 KB\n"
                    f"physical id\t: {socket}\n"
                    f"siblings\t: {cpu.cores * cpu.threads}\n"
                    f"core id\t\t: {core}\n"
                    f"cpu cores\t: {cpu.cores}\n"
                    f"apicid\t\t: {socket * 128 + core * 2 + thread}\n"
                    "fpu\t\t: yes\n"
                    "fpu_exception\t: yes\n"
                    "cpuid level\t: 32\n"
                    "wp\t\t: yes\n"
                    "flags\t\t: fpu vme de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat pse36 clflush mmx"
                    " fxsr sse sse2 ss ht syscall nx pdpe1gb rdtscp lm constant_tsc pni ssse3 fma cx16 sse4_1 sse4_2"
                    " movbe popcnt aes xsave avx f16c rdrand avx2 bmi2 avx512f avx512dq avx512bw avx512vl"
                    " avx512_bf16 amx_bf16 amx_tile amx_int8\n"
                    f"bogomips\t: {cpu.mhz * 2:.2f}\n"
                    "clflush size\t: 64\n"
                    "cache_alignment\t: 64\n"
                    "address sizes\t: 46 bits physical, 57 bits virtual\n"
                    "power management:\n"
                )
    return "\n".join(blocks) + "\n"


def _bonding(node: NodeMachine, bond: Bond) -> str:
    """In the format of drivers/net/bonding/bond_procfs.c, only the lines that people read."""
    mode = {"802.3ad": "IEEE 802.3ad Dynamic link aggregation", "active-backup": "fault-tolerance (active-backup)"}
    up = [name for name in bond.slaves if node.interface(name).linked]
    lines = [
        "Ethernet Channel Bonding Driver: v6.8.0",
        "",
        f"Bonding Mode: {mode.get(bond.mode, bond.mode)}",
        "Transmit Hash Policy: layer3+4 (1)",
        f"MII Status: {'up' if up else 'down'}",
        "MII Polling Interval (ms): 100",
        "Up Delay (ms): 0",
        "Down Delay (ms): 0",
        "Peer Notification Delay (ms): 0",
        "",
        "802.3ad info",
        "LACP active: on",
        "LACP rate: fast",
        "Min links: 0",
        "Aggregator selection policy (ad_select): stable",
    ]
    for name in bond.slaves:
        slave = node.interface(name)
        lines += [
            "",
            f"Slave Interface: {name}",
            f"MII Status: {'up' if slave.linked else 'down'}",
            f"Speed: {slave.speed_mbps if slave.linked else 'Unknown'}{' Mbps' if slave.linked else ''}",
            f"Duplex: {'full' if slave.linked else 'Unknown'}",
            f"Link Failure Count: {0 if slave.linked else 1}",
            f"Permanent HW addr: {slave.mac}",
            "Slave queue ID: 0",
            f"Aggregator ID: {1 if slave.linked else 2}",
        ]
    return "\n".join(lines)
