"""Which files of a machine describe its hardware and settings: the catalogue of what the probe reads.

What is read is kept as it is; nothing is interpreted beyond what decides whether another file is worth reading.
"""

from __future__ import annotations

from orchestrator.node.look.reading import HardwareParts, SnapshotReader

_PCI_IDENTITY = ("class", "vendor", "device", "numa_node")
_PCI_FILES = (
    "subsystem_vendor", "subsystem_device", "revision", "current_link_speed", "current_link_width",
    "max_link_speed", "max_link_width", "resource", "enable", "local_cpulist", "sriov_numvfs", "sriov_totalvfs",
    "aer_dev_correctable", "aer_dev_nonfatal", "aer_dev_fatal", "power/runtime_status", "power_state",
)  # fmt: skip
_WATCHED_CLASSES = ("0x01", "0x02", "0x03", "0x0604", "0x0b", "0x12")
"""Storage, network, display, PCI bridges, processors, accelerators; of all others the identity is enough."""
_WITH_CONFIG = ("0x02", "0x03", "0x0604", "0x0b", "0x12")
_CONFIG_BYTES = 512

_NET_FILES = (
    "mtu", "operstate", "carrier", "speed", "duplex", "address", "type", "flags", "ifindex", "iflink",
    "dev_id", "dev_port", "phys_port_name",
)  # fmt: skip
_RDMA_FILES = ("fw_ver", "board_id", "hca_type", "node_type", "node_guid", "sys_image_guid")
_PORT_FILES = ("state", "phys_state", "rate", "link_layer", "lid", "sm_lid")
_EMPTY_GID = "0000:0000:0000:0000:0000:0000:0000:0000"
_DMI_FILES = (
    "sys_vendor", "product_name", "product_version", "board_vendor", "board_name", "board_version",
    "bios_vendor", "bios_version", "bios_date", "chassis_type",
)  # fmt: skip
_MODULES = ("nvidia", "nvidia_peermem", "nv_peer_mem", "mlx5_core", "mlx5_ib", "bonding", "gdrdrv")
_SETTINGS = (
    "kernel/numa_balancing", "kernel/osrelease", "kernel/random/boot_id", "net/ipv4/ip_local_port_range",
    "net/ipv4/ip_local_reserved_ports", "net/core/rmem_max", "net/core/wmem_max", "vm/nr_hugepages",
    "vm/max_map_count", "vm/overcommit_memory", "vm/zone_reclaim_mode",
)  # fmt: skip
_ARP_SETTINGS = ("arp_ignore", "arp_announce", "rp_filter", "accept_local")
_PLAIN_FILES = (
    "/proc/meminfo", "/proc/uptime", "/proc/cmdline", "/proc/mounts", "/proc/driver/nvidia/version",
    "/proc/driver/nvidia/params", "/proc/net/vlan/config", "/etc/os-release", "/etc/nccl.conf",
    "/var/run/nvidia-topologyd/virtualTopology.xml",
)  # fmt: skip
_MEMORY_PEERS = "/sys/kernel/mm/memory_peers"


def read_pci(reader: SnapshotReader) -> None:
    """Every PCI function by its real path, and the names of physical slots."""
    for address in reader.names("/sys/bus/pci/devices"):
        folder = reader.link(f"/sys/bus/pci/devices/{address}") or f"/sys/bus/pci/devices/{address}"
        _pci_function(reader, folder)
    for slot in reader.names("/sys/bus/pci/slots"):
        reader.text(f"/sys/bus/pci/slots/{slot}/address")
    reader.below("/sys/kernel/pci_switch_link", 3)


def _pci_function(reader: SnapshotReader, folder: str) -> None:
    reader.texts(folder, _PCI_IDENTITY)
    kind = reader.files.get(f"{folder}/class", "").strip()
    if not kind.startswith(_WATCHED_CLASSES):
        return
    reader.texts(folder, _PCI_FILES)
    reader.link(f"{folder}/driver")
    reader.link(f"{folder}/physfn")
    if group := reader.link(f"{folder}/iommu_group"):
        reader.text(f"{group}/type")
    if kind.startswith(_WITH_CONFIG):
        reader.config_space(f"{folder}/config", enough=_CONFIG_BYTES)


def read_interfaces(reader: SnapshotReader) -> None:
    """Network interfaces, bonds and their slaves."""
    for name in reader.names("/sys/class/net"):
        folder = reader.link(f"/sys/class/net/{name}") or f"/sys/class/net/{name}"
        if not reader.is_folder(folder):  # bonding_masters is a file
            continue
        reader.texts(folder, _NET_FILES)
        reader.link(f"{folder}/device")
        for inner in reader.names(folder):
            if inner == "master" or inner.startswith(("lower_", "upper_")):
                reader.link(f"{folder}/{inner}")
            elif inner in ("bonding", "bonding_slave"):
                reader.folder(f"{folder}/{inner}")
        reader.texts(f"/proc/sys/net/ipv4/conf/{name}", _ARP_SETTINGS)
    for name in reader.names("/proc/net/bonding"):
        reader.text(f"/proc/net/bonding/{name}")


def read_rdma(reader: SnapshotReader) -> None:
    """RDMA devices with their ports, GID tables and counters."""
    for name in reader.names("/sys/class/infiniband"):
        folder = reader.link(f"/sys/class/infiniband/{name}") or f"/sys/class/infiniband/{name}"
        reader.texts(folder, _RDMA_FILES)
        reader.link(f"{folder}/device")
        for port in reader.names(f"{folder}/ports"):
            _rdma_port(reader, f"{folder}/ports/{port}")
    for name in reader.names("/sys/class/infiniband_verbs"):
        if folder := reader.link(f"/sys/class/infiniband_verbs/{name}"):
            reader.text(f"{folder}/ibdev")


def _rdma_port(reader: SnapshotReader, port: str) -> None:
    reader.texts(port, _PORT_FILES)
    slots = reader.names(f"{port}/gids")
    if not slots:  # every kernel lists empty slots too
        reader.errors.setdefault(f"{reader.real(port)}/gids", "no GID table is here")
    for index in slots:
        gid = f"{port}/gids/{index}"
        if (reader.text(gid) or "").strip() == _EMPTY_GID:
            reader.files.pop(reader.real(gid), None)  # an empty slot of some hundred says nothing
            continue
        reader.text(f"{port}/gid_attrs/types/{index}")
        reader.text(f"{port}/gid_attrs/ndevs/{index}")
    reader.folder(f"{port}/counters")
    reader.folder(f"{port}/hw_counters")


def read_processors(reader: SnapshotReader) -> None:
    """NUMA domains, one block of cpuinfo for each socket, power settings."""
    node = "/sys/devices/system/node"
    for name in reader.names(node):
        if name.startswith("node") and name[4:].isdigit():
            reader.texts(f"{node}/{name}", ("cpulist", "cpumap", "distance", "meminfo"))
    reader.texts(node, ("online", "has_cpu", "has_memory"))
    cpu = "/sys/devices/system/cpu"
    reader.texts(cpu, ("online", "smt/active", "cpufreq/boost", "intel_pstate/no_turbo"))
    reader.link(f"{cpu}/cpu0/cpufreq")
    reader.text(f"{cpu}/cpu0/cpufreq/scaling_governor")
    for name in reader.names(f"{cpu}/cpufreq"):
        if name.startswith("policy"):
            reader.text(f"{cpu}/cpufreq/{name}/scaling_governor")
    for state in reader.names(f"{cpu}/cpu0/cpuidle"):
        reader.texts(f"{cpu}/cpu0/cpuidle/{state}", ("name", "disable", "latency"))
    if cpuinfo := reader.text("/proc/cpuinfo"):
        reader.files[reader.real("/proc/cpuinfo")] = one_block_a_socket(cpuinfo)


def one_block_a_socket(cpuinfo: str) -> str:
    """The first block of each `physical id`; where blocks have none (some virtual machines, ARM), the first one."""
    blocks: dict[str, str] = {}
    for block in cpuinfo.split("\n\n"):
        socket = next(
            (line.partition(":")[2].strip() for line in block.splitlines() if line.startswith("physical id")), ""
        )
        if block.strip():
            blocks.setdefault(socket, block.strip("\n"))
    return "\n\n".join(blocks.values()) + "\n"


def read_system(reader: SnapshotReader) -> None:
    """Kernel settings, drivers, firmware, memory."""
    for path in _PLAIN_FILES:
        reader.text(path)
    reader.texts("/proc/sys", _SETTINGS)
    for scope in ("all", "default"):
        reader.texts(f"/proc/sys/net/ipv4/conf/{scope}", _ARP_SETTINGS)
    for module in _MODULES:
        reader.texts(f"/sys/module/{module}", ("version", "initstate"))
    for peer in reader.names(_MEMORY_PEERS):
        reader.texts(f"{_MEMORY_PEERS}/{peer}", ("version",))
    reader.texts("/sys/class/dmi/id", _DMI_FILES)


PARTS: HardwareParts = {
    "PCI": read_pci,
    "network interfaces": read_interfaces,
    "RDMA devices": read_rdma,
    "processors": read_processors,
    "system": read_system,
}
