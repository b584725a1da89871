"""/sys of a machine, in the kernel's layout: devices by position, links from classes and buses."""

from __future__ import annotations

from collections.abc import Container

from l40s_lab.hardware import infiniband, netdev, pci
from l40s_lab.hardware.machine import Gpu, Nic, NodeMachine, Recording
from l40s_lab.hardware.pci import Function, Layout
from l40s_lab.node.tree import FileTree

_HIDDEN_HOSTS = ("/class/infiniband", "/class/infiniband_verbs", "/class/pci_bus", "/kernel/iommu_groups")


def render(node: NodeMachine, *, live_network: bool = True, config_bytes: int = 4096) -> FileTree:
    """The tree below /sys.

    live_network: network interfaces really exist, with the kernel's own attributes; else the attributes are written
    config_bytes: readable bytes of each configuration space: 4096 for root, 64 for others
    """
    if node.recording is not None:
        return _recorded(node.recording, live_network=live_network, config_bytes=config_bytes)
    tree = FileTree()
    layout = pci.lay_out(node.machine)
    groups = _iommu_groups(node, layout)
    tree.opaque |= {"/bus/pci/devices", "/bus/pci/slots", "/devices/system/node", *_HIDDEN_HOSTS}
    for root in node.machine.roots:
        _root_bus(tree, f"pci0000:{root.bus:02x}", root.bus, cpulist(node, root.numa))
    above = {function.path: function for function in layout.functions}
    surprised = {above[one.path.rpartition("/")[0]].address for one in layout.functions if one.lost}
    for function in layout.functions:
        _function(tree, function, node, config_bytes, surprised)
        if function.address in groups:
            _iommu(tree, function, groups[function.address], node.machine.system.iommu)
    for slot in layout.slots:
        tree.put_all(
            f"/bus/pci/slots/{slot.name}",
            {"address": slot.address, "max_bus_speed": pci.speed(slot.gen), "cur_bus_speed": pci.speed(slot.now)},
        )
    netdev.render(tree, node, layout, live=live_network)
    infiniband.render(tree, node, layout, refuse_empty=live_network)
    _numa(tree, node)
    _power(tree, node)
    _modules(tree, node, layout)
    _dmi(tree, node)
    return tree


def _recorded(recording: Recording, *, live_network: bool, config_bytes: int) -> FileTree:
    tree = FileTree()
    tree.update(recording.sys if live_network else recording.written)
    tree.files |= {path: content[:config_bytes] for path, content in tree.files.items() if path.endswith("/config")}
    return tree


def _root_bus(tree: FileTree, name: str, bus: int, cpus: str) -> None:
    top = f"/devices/{name}"
    tree.opaque.add(top)
    tree.folders.add(top)
    _pci_bus(tree, top, bus, cpus)


def _pci_bus(tree: FileTree, bridge: str, bus: int, cpus: str) -> None:
    folder = f"{bridge}/pci_bus/0000:{bus:02x}"
    tree.put_all(folder, {"cpulistaffinity": cpus})
    tree.link(f"/class/pci_bus/0000:{bus:02x}", folder)


def _function(
    tree: FileTree, function: Function, node: NodeMachine, config_bytes: int, surprised: Container[str]
) -> None:
    """surprised: addresses of ports whose link went down unexpectedly"""
    top = f"/devices/{function.path}"
    facts: dict[str, str | bytes | int] = {
        "vendor": f"0x{function.ids.vendor:04x}",
        "device": f"0x{function.ids.device:04x}",
        "subsystem_vendor": f"0x{function.ids.subsystem_vendor:04x}",
        "subsystem_device": f"0x{function.ids.subsystem:04x}",
        "class": f"0x{function.ids.class_code:06x}",
        "revision": f"0x{function.ids.revision:02x}",
        "numa_node": function.numa,
        "local_cpulist": cpulist(node, function.numa),
        "enable": 1,
        "irq": 0,
        "modalias": _modalias(function),
        "uevent": _uevent(function),
        "msi_bus": 1,
        "power/control": "on",
        "power/runtime_status": "active",
        "power_state": "D0",
        "config": pci.config_space(function)[:config_bytes],
        "resource": _resource(function),
    }
    if function.has_link:
        facts |= {
            "current_link_speed": pci.speed(function.link.gen),
            "current_link_width": function.link.width,
            "max_link_speed": pci.speed(function.link.max_gen),
            "max_link_width": function.link.max_width,
            "aer_dev_correctable": _AER_CORRECTABLE,
            "aer_dev_nonfatal": _AER_FATAL.replace("TOTAL_ERR_FATAL", "TOTAL_ERR_NONFATAL"),
            "aer_dev_fatal": _AER_SURPRISE_DOWN if function.address in surprised else _AER_FATAL,
        }
    if function.buses:
        facts |= {"secondary_bus_number": function.buses[1], "subordinate_bus_number": function.buses[2]}
        _pci_bus(tree, top, function.buses[1], cpulist(node, function.numa))
    if isinstance(function.card, Nic):
        facts |= {"sriov_totalvfs": 8, "sriov_numvfs": 0}
    tree.put_all(top, facts)
    tree.link(f"{top}/subsystem", "/bus/pci")
    tree.link(f"/bus/pci/devices/{function.address}", top)
    if function.ids.driver:
        driver = f"/bus/pci/drivers/{function.ids.driver}"
        tree.opaque.add(driver)
        tree.link(f"{top}/driver", driver)
        tree.link(f"{driver}/{function.address}", top)


def cpulist(node: NodeMachine, numa: int) -> str:
    """CPUs of a NUMA domain in the kernel's list format: cores first, their second threads after all cores."""
    cpu = node.machine.cpu
    if numa < 0:
        return f"0-{cpu.sockets * cpu.cores * cpu.threads - 1}"
    total = cpu.sockets * cpu.cores
    starts = [thread * total + numa * cpu.cores for thread in range(cpu.threads)]
    return ",".join(f"{start}-{start + cpu.cores - 1}" for start in starts)


def _modalias(function: Function) -> str:
    code = function.ids.class_code
    return (
        f"pci:v{function.ids.vendor:08X}d{function.ids.device:08X}sv{function.ids.subsystem_vendor:08X}"
        f"sd{function.ids.subsystem:08X}bc{code >> 16:02X}sc{code >> 8 & 0xFF:02X}i{code & 0xFF:02X}"
    )


def _uevent(function: Function) -> str:
    lines = [f"DRIVER={function.ids.driver}"] if function.ids.driver else []
    lines += [
        f"PCI_CLASS={function.ids.class_code:X}",
        f"PCI_ID={function.ids.vendor:04X}:{function.ids.device:04X}",
        f"PCI_SUBSYS_ID={function.ids.subsystem_vendor:04X}:{function.ids.subsystem:04X}",
        f"PCI_SLOT_NAME={function.address}",
        f"MODALIAS={_modalias(function)}",
    ]
    return "\n".join(lines)


def _resource(function: Function) -> str:
    """Start, end and flags of each region; an L40S exposes all of its memory through BAR 1."""
    regions = [(0, 0, 0)] * 13
    if isinstance(function.card, Gpu):
        bus = int(function.address[5:7], 16)
        base, size = 0x200000000000 + (bus << 37), function.card.bar1_mib << 20
        regions[0] = (0xA0000000 + (bus << 24), 0xA0FFFFFF + (bus << 24), 0x40200)
        regions[1] = (base, base + size - 1, 0x14220C)
        regions[3] = (base + size, base + size + (32 << 20) - 1, 0x14220C)
    return "\n".join(f"0x{start:016x} 0x{end:016x} 0x{flags:016x}" for start, end, flags in regions)


def _iommu_groups(node: NodeMachine, layout: Layout) -> dict[str, int]:
    if node.machine.system.iommu == "off":
        return {}
    return {function.address: number for number, function in enumerate(layout.functions)}


def _iommu(tree: FileTree, function: Function, number: int, kind: str) -> None:
    group = f"/kernel/iommu_groups/{number}"
    tree.put(f"{group}/type", kind)
    tree.link(f"{group}/devices/{function.address}", f"/devices/{function.path}")
    tree.link(f"/devices/{function.path}/iommu_group", group)


def _numa(tree: FileTree, node: NodeMachine) -> None:
    cpu, system = node.machine.cpu, node.machine.system
    each_kib = system.memory_gib * 1024 * 1024 // cpu.sockets
    for number in range(cpu.sockets):
        folder = f"/devices/system/node/node{number}"
        distances = ["10" if other == number else "21" for other in range(cpu.sockets)]
        cpus = cpulist(node, number)
        tree.put_all(
            folder,
            {
                "cpulist": cpus,
                "cpumap": _cpumap(cpus, cpu.sockets * cpu.cores * cpu.threads),
                "distance": " ".join(distances),
                "meminfo": f"Node {number} MemTotal:       {each_kib} kB\n"
                f"Node {number} MemFree:        {each_kib * 9 // 10} kB\n"
                + "\n".join(
                    f"Node {number} {part}: 0 kB" for part in ("Active(file)", "Inactive(file)", "SReclaimable")
                ),
            },
        )
        tree.link(f"/bus/node/devices/node{number}", folder)
    tree.opaque.add("/bus/node/devices")
    every = f"0-{cpu.sockets - 1}" if cpu.sockets > 1 else "0"
    names = ("online", "possible", "has_cpu", "has_memory", "has_normal_memory")
    tree.put_all("/devices/system/node", dict.fromkeys(names, every))


def _power(tree: FileTree, node: NodeMachine) -> None:
    """Governor and idle states. The list of online CPUs stays the host's: programs size themselves by it."""
    cpu, system = node.machine.cpu, node.machine.system
    top = "/devices/system/cpu"
    tree.opaque |= {f"{top}/cpufreq", f"{top}/cpu0/cpuidle"}
    for policy in range(cpu.sockets * cpu.cores * cpu.threads):
        tree.put(f"{top}/cpufreq/policy{policy}/scaling_governor", system.governor)
    tree.link(f"{top}/cpu0/cpufreq", f"{top}/cpufreq/policy0")
    tree.put(f"{top}/intel_pstate/no_turbo", 0)
    for number, (name, latency) in enumerate((("POLL", 0), ("C1", 1), ("C1E", 2), ("C6", 290))):
        disabled = int(name == "C6" and not system.deep_sleep)
        tree.put_all(f"{top}/cpu0/cpuidle/state{number}", {"name": name, "latency": latency, "disable": disabled})


def _cpumap(cpus: str, total: int) -> str:
    mask = 0
    for part in cpus.split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            mask |= 1 << number
    words = [f"{mask >> 32 * word & 0xFFFFFFFF:08x}" for word in range((total + 31) // 32)]
    return ",".join(reversed(words))


def _modules(tree: FileTree, node: NodeMachine, layout: Layout) -> None:
    system = node.machine.system
    versions = {"nvidia": system.driver}
    if any(function.ids.driver == "mlx5_core" for function in layout.functions):
        versions |= {"mlx5_core": "24.10-2.1.8", "mlx5_ib": "24.10-2.1.8"}
    if system.peermem:
        versions["nvidia_peermem"] = system.driver
    for name, version in versions.items():
        tree.opaque.add(f"/module/{name}")
        tree.put_all(f"/module/{name}", {"version": version, "initstate": "live", "refcnt": 1})


def _dmi(tree: FileTree, node: NodeMachine) -> None:
    system = node.machine.system
    folder = "/devices/virtual/dmi/id"
    tree.opaque.add(folder)
    tree.put_all(
        folder,
        {
            "sys_vendor": system.vendor,
            "product_name": system.product,
            "product_version": "0123456789",
            "board_vendor": system.vendor,
            "board_name": "X13DEG-OA",
            "board_version": "1.02",
            "bios_vendor": "American Megatrends International, LLC.",
            "bios_version": system.bios,
            "bios_date": "06/14/2025",
            "chassis_type": 23,
        },
    )
    tree.link("/class/dmi/id", folder)


def _zeros(names: str) -> str:
    return "\n".join(f"{name} 0" for name in names.split())


_AER_CORRECTABLE = _zeros("RxErr BadTLP BadDLLP Rollover Timeout NonFatalErr CorrIntErr HeaderOF TOTAL_ERR_COR")
_AER_FATAL = _zeros(
    "Undefined DLP SDES TLP FCP CmpltTO CmpltAbrt UnxCmplt RxOF MalfTLP ECRC UnsupReq ACSViol UncorrIntErr BlockedTLP"
    " AtomicOpBlocked TLPBlockedErr PoisonTLPBlocked TOTAL_ERR_FATAL"
)
_AER_SURPRISE_DOWN = _AER_FATAL.replace("SDES 0", "SDES 1").replace("TOTAL_ERR_FATAL 0", "TOTAL_ERR_FATAL 1")
