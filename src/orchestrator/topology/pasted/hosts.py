"""What tools print of a host beside its GPUs and ports: its processors and memory (`numactl -H`, lscpu), slots
(`dmidecode -t slot`), interfaces (ifconfig, ibdev2netdev), limits of a shell and of /dev/shm, how its kernel was
booted, and how `nvidia-smi` says that GPUs are divided by MIG.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from orchestrator.topology.pasted.facts import Line, PastedFacts

NUMA_BEGIN = re.compile(r"available: (\d{1,4}) nodes? \([\d,-]{1,64}\)\s*")
NUMA_NODE = re.compile(r"node (?P<node>\d{1,4}) (?P<field>cpus|size): ?(?P<value>.{0,2000})")
_SPAN = re.compile(r"\d{1,5}(?:-\d{1,5})?")
_MEGABYTES = re.compile(r"(\d{1,9}) MB")

LSCPU_BEGIN = re.compile(r"\s*Architecture:\s{1,64}(?:x86_64|aarch64|ppc64le)\s*")
LSCPU_DOMAINS = re.compile(r"\s*(?P<field>NUMA node\(s\)):\s{1,64}(?P<value>\d{1,4})\s*")
"""Where only the part about NUMA was pasted."""
LSCPU_FIELD = re.compile(
    r"\s*(?P<field>CPU\(s\)|Socket\(s\)|NUMA node\(s\)|Model name|Hypervisor vendor|Virtualization type):"
    r"\s{1,64}(?P<value>\S.{0,400})"
)
LSCPU_DOMAIN = re.compile(r"\s*NUMA node(?P<domain>\d{1,4}) CPU\(s\):(?:\s{1,64}(?P<value>[\d,-]{1,400}))?\s*")
"""Empty of a domain that has memory alone, as that of Grace's GPUs."""
_LSCPU = {
    "CPU(s)": "processors",
    "Socket(s)": "sockets",
    "NUMA node(s)": "nodes",
    "Model name": "model",
    "Hypervisor vendor": "hypervisor",
    "Virtualization type": "virtualization",
}

SLOT_BEGIN = re.compile(r"\s{0,16}Designation: (?P<slot>\S.{0,63})")
SLOT_FIELD = re.compile(r"\s{0,16}(?P<field>Type|Current Usage|Bus Address): (?P<value>\S.{0,63})")

NETDEV = re.compile(
    r"\s{0,8}(?:[0-9a-f:.]{7,16} {1,16})?(?P<device>[A-Za-z][\w.@-]{0,63}) {1,16}(?:\([^)]{0,64}\) {1,16})?"
    r"(?:\S.{8,160}? fw [\d.]{3,16} {1,4})?port {1,8}(?P<port>\d{1,2}) {1,8}"
    r"(?:\((?P<port_state>[A-Z]{2,8}) {0,8}\) {1,8})?==> {1,8}(?P<netdev>\S{1,16}) {1,16}\((?P<state>Up|Down)\).{0,64}"
)
"""Of ibdev2netdev; with -v it names the card, its firmware and the port's state."""

RDMA_LINK = re.compile(
    r"(?:\d{1,4}/\d{1,4}: |link )(?P<device>[A-Za-z][\w.@-]{0,63})/(?P<port>\d{1,2}):? "
    r"(?P<subnet>subnet_prefix )?.{0,200}?\bstate (?P<state>[A-Z]{2,16})\b"
    r"(?: physical_state (?P<phys_state>[A-Z_]{2,24}))?(?: netdev (?P<netdev>\S{1,16}))?.{0,64}"
)

IFCONFIG = re.compile(
    r"\s*(?P<name>[A-Za-z][\w.@:-]{0,31}): flags=\d{1,8}<(?P<flags>[A-Z,0-9_]{0,128})> {1,2}mtu (?P<mtu>\d{1,6})\s*"
)
IFCONFIG_INET = re.compile(r"\s*inet (?P<address>[\d.]{7,15})  netmask (?P<mask>[\d.]{7,15}).*")

MIG_CELL = re.compile(r"\|\s{8,64}\|\s{8,64}\|\s{1,32}(?P<mig>Enabled|Disabled)\s*\|?\s*")
MIG_LISTED = re.compile(r"\s+MIG (?P<profile>\d{1,2}(?:c\.\d{1,2})?g\.\d{1,4}gb\S{0,8})\s+Device\s+\d{1,2}:.{0,100}")
MIG_DEVICE = re.compile(
    r"\|\s{1,4}(?P<index>\d{1,3})\s{1,6}\d{1,3}\s{1,6}\d{1,3}\s{1,6}\d{1,3}\s{1,4}\|\s{1,16}\d{1,7}MiB / "
    r"{0,8}(?P<size>\d{1,7}) ?MiB\s.*"
)

BOOTED = re.compile(
    r".{0,128}?(?:\bBOOT_IMAGE=\S{1,128} |\bGRUB_CMDLINE_LINUX(?:_DEFAULT)?=[\"'])(?P<options>.{1,1500}?)[\"']?"
)
IOMMU_KIND = re.compile(r".{0,64}?\biommu: Default domain type: (?P<kind>Translated|Passthrough)\b.{0,64}")
"""Linux drivers/iommu/iommu.c."""
GDS_IOMMU = re.compile(r"\s*IOMMU: (?P<kind>disabled|enabled)\s*")
_OF_IOMMU = re.compile(r"(?:intel_|amd_)?iommu[.=]\S{1,64}|pci=\S{1,64}|pcie_(?:acs_override|aspm|ports)=\S{1,64}")

SERVICE = re.compile(
    r"[\s*\u25cf\u25cb\u00d7]{0,8}(?P<unit>nvidia[\w-]{0,48}|opensmd?|openibd|rdma[\w-]{0,24}|nv_peer_mem)\.service"
    r"(?: - .{0,128})?"
)
SERVICE_STATE = re.compile(r"\s+Active: (?P<state>[a-z]{4,16} \([\w: -]{2,48}\)).{0,128}")
MODULE = re.compile(
    r"(?P<module>nvidia_peermem|nv_peer_mem|nvidia_fs|gdrdrv)\s{1,40}\d{3,9}\s{1,8}\d{1,4}(?:\s.{0,200})?"
)
"""A line of lsmod."""
WSL = re.compile(r".{0,256}?microsoft-standard-WSL2.{0,256}")
DEVICES_HEAD = re.compile(r"\s*device\s+node GUID\s*")
DEVICES_ROW = re.compile(r"\s*(?P<device>[a-z][\w.@-]{1,63})\s+[0-9a-f]{16}\s*")
NO_DEVICES = re.compile(r"\s{0,8}(?P<words>No IB devices found|Failed to get IB devices list\b.{0,64})\s*")

_LOCKED = re.compile(r"max locked memory {1,16}\((?P<unit>kbytes), -l\) (?P<limit>unlimited|\d{1,20})\s*")
_LOCKED_ASKED = re.compile(r".{0,128}?\bulimit (?:-[SH] ?)?-l\s*")
_LOCKED_ANSWER = re.compile(r"(?P<limit>unlimited|\d{1,20})\s*")
_SHM = re.compile(
    r"\s*(?:shm|tmpfs|none|[\w./:-]{1,64})\s+(?P<size>\d{1,16}(?:\.\d{1,3})?)(?P<unit>[KMGT]?)i?B?\s+\S{1,16}\s+"
    r"(?P<left>\S{1,16})\s+\d{1,3}%\s+/dev/shm\s*"
)
_SHM_PLACE = "/dev/shm"  # noqa: S108 - read, not used
_UNITS = {unit: 1 << shift for unit, shift in (("", 10), ("K", 10), ("M", 20), ("G", 30), ("T", 40))}
"""Of `df`, with -h and, in blocks of 1 KiB, without."""
_NO_ROOM = re.compile(r"0[KMGT]?")


def limits(lines: Sequence[Line]) -> Iterator[PastedFacts]:
    """What `ulimit -l` or -a and `df` of /dev/shm print, the last of each."""
    pairs = [*pairwise(lines), (lines[-1], lines[-1])] if lines else []
    answers = [(line, _LOCKED.fullmatch(line.text) or _answer(line, below)) for line, below in pairs]
    locked = [(line, match["limit"]) for line, match in answers if match]
    rooms = [(line, match) for line in lines if _SHM_PLACE in line.text and (match := _SHM.fullmatch(line.text))]
    if locked:
        line, limit = locked[-1]
        kib = -1 if limit == "unlimited" else int(limit)
        yield PastedFacts("ulimit", line.number, line.node, also={"memlock_kib": kib})
    if rooms:
        line, match = rooms[-1]
        size = int(float(match["size"]) * _UNITS[match["unit"]])
        also = {"shm_full": bool(_NO_ROOM.fullmatch(match["left"]))}
        yield PastedFacts("df /dev/shm", line.number, line.node, host={"shm_bytes": size}, also=also)


def _answer(line: Line, below: Line) -> re.Match[str] | None:
    return _LOCKED_ANSWER.fullmatch(below.text) if _LOCKED_ASKED.fullmatch(line.text) else None


def boot(facts: PastedFacts, match: re.Match[str], at: str) -> str:
    """A line that tells how the kernel was booted: its options about the IOMMU and PCI, and what that led to."""
    if match.re in (IOMMU_KIND, GDS_IOMMU):
        facts.also["iommu"] = match["kind"].lower()
    elif options := _OF_IOMMU.findall(match["options"]):
        facts.also["boot"] = options
    return at


def numa(facts: PastedFacts, match: re.Match[str], at: str) -> str:
    """A line of `numactl -H`: a domain's processors, and its memory."""
    if match.re is NUMA_NODE:
        number = match["node"]
        folder = f"/sys/devices/system/node/node{number}"
        if match["field"] == "cpus":
            spans = re.sub(r"\(\d{1,5}\)\s*$", "", match["value"]).split()
            facts.files[f"{folder}/cpulist"] = ",".join(filter(_SPAN.fullmatch, spans))
        elif size := _MEGABYTES.match(match["value"].strip()):
            facts.files[f"{folder}/meminfo"] = f"Node {number} MemTotal: {int(size[1]) << 10} kB"
    return at


def processors(facts: PastedFacts, match: re.Match[str], at: str) -> str:
    """A line of lscpu."""
    if match.re is LSCPU_DOMAIN:
        domain, spans = match["domain"], match["value"] or ""
        if not spans:
            facts.also.setdefault("without_processors", []).append(domain)
        elif all(map(_SPAN.fullmatch, spans.split(","))):
            facts.files[f"/sys/devices/system/node/node{domain}/cpulist"] = spans
    elif match.re is not LSCPU_BEGIN:
        facts.also.setdefault("cpu", {}).setdefault(_LSCPU[match["field"]], match["value"].strip())
        if match["field"] == "Hypervisor vendor" or match["value"].strip() == "full":
            facts.also["guest"] = True
    return at


def slots(facts: PastedFacts, match: re.Match[str], at: str) -> str:
    """A line of `dmidecode -t slot`."""
    listed: list[dict[str, str]] = facts.also.setdefault("slots", [])
    if match.re is SLOT_BEGIN:
        listed.append({"slot": match["slot"].strip()})
    elif listed:
        listed[-1].setdefault(match["field"], match["value"].strip())
    return at


def netdev(facts: PastedFacts, match: re.Match[str], at: str) -> str:
    """A line of ibdev2netdev: which interface is which RDMA port's."""
    name = f"{match['device']}:{match['port']}"
    facts.also.setdefault("netdevs", {})[name] = [match["netdev"], match["state"].lower()]
    if match["port_state"]:
        at_port = f"/sys/class/infiniband/{match['device']}/ports/{match['port']}"
        facts.files[f"{at_port}/state"] = match["port_state"]
    return at


def interface(facts: PastedFacts, match: re.Match[str], name: str) -> str:
    """A line of ifconfig; name: of the interface that the line of an address is about."""
    if match.re is IFCONFIG:
        name = match["name"]
        state = "up" if "RUNNING" in match["flags"].split(",") else "down"
        facts.files |= {f"/sys/class/net/{name}/operstate": state, f"/sys/class/net/{name}/mtu": match["mtu"]}
        facts.host.setdefault("addresses", {}).setdefault(name, [])
        return name
    try:
        address = ipaddress.IPv4Interface(f"{match['address']}/{match['mask']}")
    except ValueError:
        return name
    own: list[dict[str, Any]] = facts.host.setdefault("addresses", {}).setdefault(name, [])
    own.append({"family": "inet", "address": str(address.ip), "prefixlen": address.network.prefixlen})
    return name


_HWLOC = re.compile(
    r"(?P<indent>\s*)(?:(?P<inside>Machine \(|Package L#\d|Group\d? L#\d)|NUMANode L#\d{1,4} \(P#(?P<domain>\d{1,4})"
    r"|(?P<bridge>HostBridge)|PCI (?P<place>[0-9a-f]{2,8}:[0-9a-f:]{2,5}\.[0-7]) \((?P<kind>[\w -]{2,24})\)"
    r"|(?:Net|OpenFabrics|Block|CoProc\(\w{2,12}\))[^\"]{0,24}\"(?P<called>[\w.@-]{1,64})\").*"
)
_OF_USE = ("VGA", "3D", "Ethernet", "InfiniBand", "Display")


def drawn_by_hwloc(lines: Sequence[Line]) -> Iterator[PastedFacts]:
    """The GPUs and cards that `lstopo` draws, below each host bridge, with the NUMA domain above it."""
    matches = [(line, match) for line in lines if (match := _HWLOC.fullmatch(line.text))]
    bridges: list[dict[str, Any]] = []
    domain, package = "", ""
    for _, match in matches:
        if match["inside"]:
            domain, package = "", match["indent"]
        elif match["domain"]:
            domain = match["domain"]
        elif match["bridge"]:
            domain = domain if len(match["indent"]) > len(package) else ""
            bridges.append({"domain": domain, "devices": []})
        elif bridges:
            _drawn(bridges[-1]["devices"], match)
    if drawn := [bridge for bridge in bridges if bridge["devices"]]:
        first = matches[0][0]
        yield PastedFacts("lstopo", first.number, first.node, also={"drawn": drawn})


def _drawn(devices: list[str], match: re.Match[str]) -> None:
    if match["place"] and match["kind"] in _OF_USE:
        devices.append(f"{match['place']} ({match['kind']})")
    elif match["called"] and devices and devices[-1].endswith(")"):
        devices[-1] = f"{devices[-1][:-1]}, {match['called']})"


CHOSEN = re.compile(
    r"\s{0,8}(?:export |-x |-e |ENV |- )?(?P<name>NCCL_[A-Z0-9_]{2,48})="
    r"[\"']?(?P<value>[\w.,:^=/+-]{1,96})[\"']?\s*\\?\s*"
)
"""A variable as a shell, a launcher or collect_env of vLLM has it."""


def chosen(facts: PastedFacts, match: re.Match[str], at: str) -> str:
    """A line that sets a variable of NCCL's."""
    facts.also.setdefault("chosen", []).append(f"{match['name']}={match['value']}")
    return at


def running(facts: PastedFacts, match: re.Match[str], unit: str) -> str:
    """A line of `systemctl status`, lsmod or uname; unit: that the line of a state is about."""
    if match.re is SERVICE:
        return match["unit"]
    if match.re is SERVICE_STATE and unit:
        facts.also.setdefault("services", {})[unit] = match["state"]
    elif match.re is MODULE:
        facts.also.setdefault("modules", []).append(match["module"])
    elif match.re is WSL:
        facts.also |= {"guest": True, "wsl": True}
    return unit


def devices(facts: PastedFacts, match: re.Match[str], at: str) -> str:
    """A line of `ibv_devices`, or of ibv_devinfo where there are none."""
    if match.re is DEVICES_ROW:
        facts.also.setdefault("rdma_devices", []).append(match["device"])
    elif match.re is NO_DEVICES:
        facts.also.setdefault("refused", []).append(f"ibv_devinfo said '{match['words'].strip()}'")
    return at


def mig_devices(facts: PastedFacts, match: re.Match[str], at: str) -> str:
    """A line of the table of MIG devices: what is left of a GPU that is divided."""
    divided: dict[str, list[str]] = facts.also.setdefault("mig", {})
    divided.setdefault(match["index"], []).append(f"{match['size']} MiB")
    return at


def divided_gpu(facts: PastedFacts, match: re.Match[str]) -> None:
    """What a GPU's rows tell of MIG."""
    index = str(facts.gpus[-1]["index"])
    if match.re is MIG_LISTED:
        facts.also.setdefault("mig", {}).setdefault(index, []).append(match["profile"])
    elif match["mig"] == "Enabled":
        facts.also.setdefault("mig", {}).setdefault(index, [])
