"""What slows or diverts data on PCIe: ACS, the IOMMU, links, packet sizes, errors, GPUDirect RDMA."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter
from typing import Any

from orchestrator.doctor.rules.support.cluster import Input, Node, gpu_address
from orchestrator.doctor.rules.support.registry import Rule, finding, note, slow, unjudged, unknown
from orchestrator.doctor.rules.transports import DRIVER, OLDEST_WITH_DMA_BUF, PEERMEM, direct, has_gpudirect, kernel
from orchestrator.model.finding import Finding
from orchestrator.model.per_node import collected
from orchestrator.model.snapshot import part
from orchestrator.model.topology import RAILS, Area, Gpu, PciDevice, PcieLink
from orchestrator.model.words import counted
from orchestrator.protocol.kernel_lines import PCIE_ERROR_FIX
from orchestrator.protocol.severity import Severity
from orchestrator.topology.gpus import whole
from orchestrator.topology.pci import best_link, both_ends, bridges_above, card, config_space, config_unread, number
from orchestrator.topology.rdma import ports_by_card
from orchestrator.topology.speed import Traffic, price
from orchestrator.topology.stated import nameless_gpus, nameless_words, pasted, texts

_PCI = "/sys/bus/pci/devices"


def _acs_of_text(node: Node) -> list[Finding] | None:
    """Of lines about ACS without the functions that they are of."""
    counts = pasted(node.snapshot).get("acs")
    if not isinstance(counts, (list, tuple)) or len(counts) != 2 or not all(map(whole, counts)):
        return None
    return [
        note(
            f"ACS redirects peer-to-peer traffic on {counts[1]} of {counts[0]} functions in the text",
            effect="where one of them is between GPUs, or a GPU and its card: " + price(Traffic.THROUGH_ROOT),
            fix="disable ACS (or VT-d/AMD-Vi) in the BIOS, or by setpci; `sudo lspci -vvv` shows whose the lines are",
        )
    ]


@Rule(
    id="ACS-REDIRECT",
    title="ACS redirects peer-to-peer traffic",
    explain=(
        "With P2P request redirect on, a switch sends every GPU-to-GPU and GPU-to-NIC packet to the CPU and back. The"
        " rule checks every downstream port on the path between GPUs and RDMA cards that share a switch, nested"
        " switches included. Elsewhere it costs nothing."
    ),
    reads=("/sys/bus/pci/devices/*/config (beyond 64 bytes: root only)",),
    source="PCI Express Base Specification, ACS Extended Capability (id 0x000D); NCCL troubleshooting guide, nccl#2079",
    weight=24,
    needs=RAILS,
    on_text=_acs_of_text,
).of_node
def acs_redirect(node: Node) -> Iterator[Finding]:
    """One finding with all ports on the path; unknown where the configuration space was cut off."""
    redirecting, cut_off = _acs(node)
    if node.input is Input.XML:
        cut_off = [(switch.address, "NCCL's file has no configuration space") for switch in node.gpu_switches]
    if redirecting:
        yield slow(
            f"ACS redirects peer-to-peer traffic on {counted(len(redirecting), 'switch port')}",
            *(f"{_PCI}/{address}/config: ACSCtl = {control:#06x}" for address, control in redirecting),
            effect=price(Traffic.THROUGH_ROOT) + "; on some platforms it hangs",
            fix="; ".join(f"sudo setpci -s {address} ECAP_ACS+6.w=0000" for address, _ in redirecting)
            + " (until the next boot; to make it permanent, disable ACS or VT-d/AMD-Vi in the BIOS)",
            devices=tuple(address for address, _ in redirecting),
        )
    elif cut_off:
        yield unknown(
            "whether ACS redirects peer-to-peer traffic could not be read",
            *(f"{_PCI}/{address}/config: {why}" for address, why in cut_off[:4]),
            effect="if it does: " + price(Traffic.THROUGH_ROOT),
            fix=node.input.as_root,
            devices=tuple(address for address, _ in cut_off),
        )


_REQUEST_REDIRECT, _COMPLETION_REDIRECT, _EGRESS_CONTROL = 0x04, 0x08, 0x20
_REDIRECTS = _REQUEST_REDIRECT | _COMPLETION_REDIRECT | _EGRESS_CONTROL


def _acs(node: Node) -> tuple[list[tuple[str, int]], list[tuple[str, str]]]:
    """([(address, ACS control)] of the ports on the path that redirect, [(address, why)] of those not readable)."""
    redirecting, cut_off = [], []
    for address, key in _ports_on_the_way(node):
        control = config_space(node.snapshot, key).acs_control
        if control is None:
            cut_off.append((address, config_unread(node.snapshot, key)))
        elif control & _REDIRECTS:
            redirecting.append((address, control))
    return redirecting, cut_off


def _ports_on_the_way(node: Node) -> list[tuple[str, str]]:
    """Downstream ports above a GPU or rail port while another card is behind the same switch or behind one above it:
    (address, key), in order of address."""
    talkers = {card(endpoint.key) for endpoint in node.endpoints if endpoint.key in node.devices}
    behind = Counter(bridge for talker in talkers for bridge in bridges_above(talker))
    switches = {switch.key for switch in node.topology.switches}
    ports = {port for talker in talkers for port in _ports_to_others(bridges_above(talker), switches, behind)}
    return sorted((node.devices[port].address, port) for port in ports if port in node.devices)


def _ports_to_others(way: Sequence[str], switches: Collection[str], behind: Mapping[str, int]) -> Iterator[str]:
    """The downstream ports between a card and others. way: the bridges above it, nearest first; behind: number of cards
    below each bridge"""
    most = max((behind[bridge] for bridge in way if bridge in switches), default=0)
    return (port for port, above in pairwise(way) if above in switches and behind[port] < most)


@Rule(
    id="GDR-MISSING",
    title="GPUDirect RDMA is missing",
    explain=(
        "NCCL uses nvidia-peermem, or dma-buf with NVIDIA's open kernel module and kernel 5.12 or newer. Without"
        " either, NCCL still uses the cards, but copies through host memory."
    ),
    reads=(*PEERMEM, DRIVER, "uname -r"),
    source="NCCL src/transport/net_ib/gdr.cc ncclIbGdrSupport, ncclIbDmaBufSupport",
    weight=25,
    needs=RAILS,
).of_node
def gdr_missing(node: Node) -> Iterator[Finding]:
    """With RDMA and NVIDIA's GPUs; unknown where the driver's kind could not be read."""
    if not node.rail_ports or not node.nvml_devices or has_gpudirect(node):
        return
    unread = [f"{path}: {why}" for path in (*PEERMEM, *_FOLDERS) if (why := node.snapshot.unread(path))]
    yield unjudged(gdr_missing, node, "what provides GPUDirect RDMA", unread) if unread else _no_gdr(node)


def _no_gdr(node: Node) -> Finding:
    driver, (major, minor) = node.snapshot.text(DRIVER), kernel(node)
    return finding(
        Severity.SLOW if driver else Severity.UNKNOWN,
        "GPUDirect RDMA is missing: nvidia-peermem is not loaded"
        if driver
        else "whether GPUDirect RDMA works could not be read",
        *(f"{path}: {node.snapshot.errors.get(path, 'does not exist')}" for path in PEERMEM),
        f"{DRIVER} = {driver.splitlines()[0] if driver else 'not readable'}",
        *([f"uname -r = {major}.{minor}; dma-buf needs 5.12"] if (major, minor) < OLDEST_WITH_DMA_BUF else []),
        effect=price(Traffic.HOST_STAGED),
        fix="run `sudo modprobe nvidia-peermem` and add it to /etc/modules-load.d, or install NVIDIA's open kernel"
        " modules",
    )


_FOLDERS = ("/sys/kernel/mm/memory_peers", "system")
"""The folder that is listed for nvidia-peermem, and the part of a look that reads them."""


def _iommu_of_text(node: Node) -> list[Finding] | None:
    """What a kernel was told of the IOMMU and says of it; a refused access shows that it translates."""
    also = pasted(node.snapshot)
    refused, options = texts(also.get("iommu_faults")), texts(also.get("boot"))
    told = _told_of_iommu(also, options)
    if not refused and (not told or _PASSING & {*options}):
        return None
    about_gpus = any("nvidia" in words for words in refused)
    return [
        finding(
            Severity.SLOW if about_gpus else Severity.NOTE,
            "the IOMMU translates DMA, and refused accesses of GPUs" if about_gpus else "the IOMMU translates DMA",
            *refused[:4],
            *told,
            effect="peer-to-peer traffic and GPUDirect RDMA through it are not supported on bare metal: NCCL hangs or"
            " fails, or data is wrong",
            fix="boot with iommu=pt (or intel_iommu=off, amd_iommu=off), or disable VT-d/AMD-Vi in the BIOS",
        )
    ]


_PASSING = {"iommu=pt", "iommu=off", "intel_iommu=off", "amd_iommu=off"}


def _told_of_iommu(also: Mapping[str, Any], options: Sequence[str]) -> list[str]:
    on = [option for option in options if option in ("intel_iommu=on", "amd_iommu=on")]
    translated = (
        ["the kernel's log: iommu: Default domain type: Translated"] if also.get("iommu") == "translated" else []
    )
    return [*(f"the kernel's command line: {option}, without iommu=pt" for option in on), *translated]


@Rule(
    id="IOMMU-TRANSLATING",
    title="the IOMMU translates DMA",
    explain=(
        "With translation on, peer-to-peer packets go to the root complex to be translated. NVIDIA supports neither"
        " peer-to-peer between GPUs nor GPUDirect RDMA through it on bare metal: it stops where the plan uses them and"
        " ACS redirects them there, or no switch lies between. In a virtual machine CUDA supports it."
    ),
    reads=(
        "/sys/bus/pci/devices/*/iommu_group (link)",
        "/sys/kernel/iommu_groups/*/type",
        "/proc/cpuinfo (flag hypervisor)",
        "/sys/bus/pci/devices/*/config (ACS)",
    ),
    source="CUDA C++ Programming Guide, IOMMU on Linux; GPUDirect RDMA, Supported Systems, IOMMUs; nccl issue 1999",
    weight=26,
    needs=RAILS,
    on_text=_iommu_of_text,
).of_node
def iommu_translating(node: Node) -> Iterator[Finding]:
    """Where GPUs or RDMA cards are in a group of type DMA or DMA-FQ; a stop where what the plan uses is known to
    fail."""
    links = {endpoint.address: f"{endpoint.key}/iommu_group" for endpoint in node.endpoints}
    groups = {name: node.snapshot.realpath(link) for name, link in links.items() if link in node.snapshot.links}
    kinds = {name: node.snapshot.text(f"{group}/type") for name, group in groups.items()}
    translating = [name for name, kind in kinds.items() if kind.startswith("DMA")]
    broken = _known_to_fail(node)
    if translating:
        yield finding(
            Severity.STOP if broken else Severity.SLOW,
            f"the IOMMU translates the DMA of {len(translating)} GPUs and cards",
            *(f"{groups[name]}/type = {kinds[name]} ({name})" for name in translating[:4]),
            effect=f"{' and '.join(broken)} through it is not supported on bare metal: NCCL hangs or fails, or data is"
            " silently wrong"
            if broken
            else price(Traffic.THROUGH_ROOT) + _unless_read(node),
            fix="boot with iommu=pt (or intel_iommu=off, amd_iommu=off) on the kernel command line, or disable"
            " VT-d/AMD-Vi in the BIOS",
            devices=tuple(translating),
        )


def _known_to_fail(node: Node) -> tuple[str, ...]:
    """What is planned and known to fail; () too where switches may route it themselves: ACS redirects nothing that was
    read."""
    return () if node.is_guest or (node.gpu_switches and not _acs(node)[0]) else direct(node)


def _unless_read(node: Node) -> str:
    if node.is_guest or not _acs(node)[1] or not (planned := direct(node)):
        return ""
    return f"; whether ACS sends {' and '.join(planned)} through it, which is not supported, could not be read"


def _links_of_text(node: Node) -> list[Finding] | None:
    """Of a tree without RDMA devices the GPUs and switches; without a tree, the GPUs whose own links are told."""
    if not node.topology.lacks(Area.PCI, Area.LINKS):
        return list(_links(node))
    loose = [gpu for gpu in node.topology.gpus if gpu.key not in node.devices and gpu.link.width and gpu.link_max.width]
    limited = [*_limited(node), *_narrow_cards(node), *_narrow_nameless(node)]
    findings = [*_reduced_gpus(loose), *limited]
    if node.is_guest:
        findings = [*map(_as_a_guest_sees_it, findings)]
    return findings if loose or limited else None


def _reduced_gpus(gpus: Sequence[Gpu]) -> Iterator[Finding]:
    """GPUs without a place in a tree. NCCL's file tells no width but the best that slot and card can do."""
    widest = {
        name: max(gpu.link_max.width for gpu in own) for name, own in collected((gpu.name, gpu) for gpu in gpus).items()
    }
    for gpu in gpus:
        yield from _reduced(f"GPU {gpu.index}", gpu, None, judge_speed=False, widest=widest[gpu.name])


def _as_a_guest_sees_it(found: Finding) -> Finding:
    """Nobody reseats a card in a virtual machine, and the link may be one that the hypervisor makes up."""
    return replace(
        found,
        severity=Severity.NOTE,
        effect="as the virtual machine sees it: whether it is the card's own link, its host shows",
        fix="on the host: `sudo lspci -vv`",
    )


def _narrow_nameless(node: Node) -> Iterator[Finding]:
    """GPUs whose link a piece of a text tells, and nothing which number they have."""
    for piece in nameless_gpus(node.snapshot):
        now, most = (whole(part(piece, "link").get(name)) for name in ("width", "max_width"))
        if 0 < now < most:
            words = nameless_words(piece)
            yield slow(
                f"{words} runs at x{now}, but supports x{most}",
                f"the link of {words}: x{now} of x{most}",
                effect=price(Traffic.NARROW_LINK),
                fix=_other_slot_or_seat("", most, slot_too_narrow=False),
                devices=(str(piece.get("pci_bus_id") or ""),),
            )


def _narrow_cards(node: Node) -> Iterator[Finding]:
    """Cards of which a list tells the link, and no tree where they are."""
    for entry in texts(pasted(node.snapshot).get("narrow_cards")):
        address, now, most = entry.split("|")
        read = f"lspci of {address}: LnkSta x{now}, LnkCap x{most}"
        yield _narrow_card(
            address, f"x{now}", f"x{most}", read, _other_slot_or_seat("", int(most), slot_too_narrow=False)
        )


def _narrow_card(address: str, now: str, most: str, read: str, fix: str) -> Finding:
    """now, most: its link, as words; read: what says so"""
    return slow(
        f"the card at {address} runs at {now}, but supports {most}",
        read,
        effect=price(Traffic.NARROW_LINK),
        fix=fix,
        devices=(address,),
    )


_NETWORK_DRIVERS = ("mlx5_core", "mlx4_core", "bnxt_en", "ice")


def _limited(node: Node) -> Iterator[Finding]:
    """Network cards of which the kernel says at their start that their link gives less than they can take."""
    for entry in texts(pasted(node.snapshot).get("limited_links")):
        driver, address, now, width, could, most = entry.split("|")
        if driver in _NETWORK_DRIVERS:
            read = f"{driver} {address}: available PCIe bandwidth, limited by {now} x{width} link"
            fix = _other_slot_or_seat("", int(most), slot_too_narrow=int(width) < int(most))
            yield _narrow_card(address, f"{now} x{width}", f"{could} x{most}", read, fix)


@Rule(
    id="PCIE-LINK-REDUCED",
    title="a PCIe link is narrower or slower than it could be",
    explain=(
        "The width of every GPU, RDMA card and switch uplink is compared with the device's maximum: a slot with fewer"
        " lanes than the card is as bad as a damaged contact. The speed is compared for cards and switches only, with"
        " the slower end: an idle L40S drops to generation 1 to save power, and returns under load."
    ),
    reads=("/sys/bus/pci/devices/*/{current,max}_link_{speed,width}",),
    source="NCCL src/graph/xml.cc ncclTopoGetXmlFromSys (min of device and port above); nvidia-smi -q of an idle L40S",
    weight=28,
    needs=(*RAILS, Area.LINKS),
    on_text=_links_of_text,
).of_node
def pcie_link_reduced(node: Node) -> Iterator[Finding]:
    """One finding a link; both ports of a card share one."""
    yield from _links(node)


def _links(node: Node) -> Iterator[Finding]:
    gpus = {gpu.key: f"GPU {gpu.index}" for gpu in node.topology.gpus}
    cards = {
        ports[0].key: f"RDMA card {', '.join(port.device for port in ports)}"
        for ports in ports_by_card(node.rail_ports).values()
    }
    needed = {key for gpu in gpus for key in node.places.above(gpu)}
    uplinks = {switch.key: "the switch's uplink" for switch in node.topology.switches if switch.key in needed}
    for key, words in (gpus | cards | uplinks).items():
        if (device := node.devices.get(key)) is not None:
            widest = _widest_alike(node, device, gpus | cards)
            yield from _reduced(
                words, device, node.above(key), judge_speed=key not in gpus, slot=device.slot, widest=widest
            )


def _widest_alike(node: Node, device: PciDevice, keys: Collection[str]) -> int:
    """Lanes of the widest link that one of these functions of the same part can have; 0 where none is one."""
    others = (node.devices[key] for key in keys if key in node.devices)
    alike = [other for other in others if _part(other) == _part(device)]
    return max((best_link(other, node.devices).width for other in alike), default=0)


_part = attrgetter("vendor", "device", "subsystem_vendor", "subsystem_device")


def _reduced(
    words: str, device: PciDevice | Gpu, bridge: PciDevice | None, *, judge_speed: bool, slot: str = "", widest: int = 0
) -> Iterator[Finding]:
    """widest: of the same part in the node. NCCL's file tells no width but the best that slot and card can do."""
    own, above = device.link_max.width, bridge.link_max if bridge else PcieLink()
    at, lanes = PcieLink(speed_gts=device.link.speed_gts, width=device.link.width or own), max(own, widest)
    best_gts = _best_gts(device, bridge)
    narrow, slowed = 0 < at.width < lanes, judge_speed and 0 < at.speed_gts < best_gts
    if not narrow and not slowed:
        return
    folder, where = _told_at(device.address)
    slot_is_narrow = narrow and 0 < above.width < lanes
    evidence = {
        f"{folder}/current_link_width = {at.width}, max_link_width = {own}": narrow,
        f"others of the same part in this node have {lanes} lanes": 0 < own < lanes,
        f"{folder}/current_link_speed = {at.speed_gts:g} GT/s, both ends support {best_gts:g}": slowed,
        f"{_PCI}/{bridge.address if bridge else ''}/max_link_width = {above.width} (the slot)": slot_is_narrow,
    }
    now, could = f"x{at.width}", f"x{lanes}"
    if slowed:
        now, could = f"{at.speed_gts:g} GT/s {now}", f"{best_gts:g} GT/s {could}"
    yield slow(
        f"{words}{where} runs at {now}, but supports {could}",
        *(line for line, holds in evidence.items() if holds),
        effect=price(Traffic.NARROW_LINK),
        fix=_other_slot_or_seat(slot, lanes, slot_too_narrow=slot_is_narrow or 0 < own < lanes),
        devices=(device.address,),
    )


def _told_at(address: str) -> tuple[str, str]:
    """(what says so, the place in words) of a device, whose address a text may not have"""
    return (f"{_PCI}/{address}", f" at {address}") if address else ("the text", "")


def _best_gts(device: PciDevice | Gpu, bridge: PciDevice | None) -> float:
    """What both ends of a link support; 0 where the bridge's end was not read: the slower one counts."""
    if bridge is None:
        return both_ends(device.link_max, PcieLink()).speed_gts
    return both_ends(device.link_max, bridge.link_max).speed_gts if bridge.link_max.speed_gts else 0.0


def _other_slot_or_seat(slot: str, lanes: int, *, slot_too_narrow: bool) -> str:
    card = f"the card in slot {slot}" if slot else "the card"
    if slot_too_narrow:
        return f"move {card} to a slot with {lanes} lanes, or change the slot's bifurcation in the BIOS"
    return f"reseat {card} and its riser, and check the contacts; check bifurcation and link speed in the BIOS"


_OWN = ("nvidia", "mlx5_core")


def _errors_of_text(node: Node) -> list[Finding] | None:
    """Of the kernel's log: what a GPU or an RDMA card could not have corrected slows; of others it is a note."""
    errors = [entry.split("|") for entry in texts(pasted(node.snapshot).get("pcie_errors"))]
    if not errors:
        return None
    own = {gpu.address for gpu in node.topology.gpus}
    failed = any(
        severity.startswith("uncorr") and (driver in _OWN or place in own) for driver, place, severity in errors
    )
    kinds = collected((severity, place) for _, place, severity in errors)
    return [
        finding(
            Severity.SLOW if failed else Severity.NOTE,
            "PCIe errors: " + "; ".join(f"{kind} at {', '.join(places[:6])}" for kind, places in kinds.items()),
            *(f"the kernel's log: {f'{driver} {place}'.strip()}: {kind}" for driver, place, kind in errors[:6]),
            effect="packets are sent again (not measured); an uncorrected error stops the gang",
            fix=PCIE_ERROR_FIX,
            devices=tuple(dict.fromkeys(place for _, place, _ in errors)),
        )
    ]


@Rule(
    id="PCIE-ERRORS",
    title="a PCIe link has counted errors",
    explain=(
        "After a corrected error the packet is sent again, which costs time; many of them on one link mean a bad"
        " contact, riser or retimer. An uncorrected error fails the transfer."
    ),
    reads=("/sys/bus/pci/devices/*/aer_dev_{correctable,nonfatal,fatal}", "NVML nvmlDeviceGetPcieReplayCounter"),
    source="Linux Documentation/PCI/pcieaer-howto.rst, sysfs-bus-pci-devices-aer_stats",
    weight=58,
    needs=RAILS,
    on_text=_errors_of_text,
).of_node
def pcie_errors(node: Node) -> Iterator[Finding]:
    """One note over all links; uncorrected errors make it slow."""
    corrected, uncorrected = _counted(node)
    kinds = {"not corrected": uncorrected, "corrected": corrected}
    if corrected or uncorrected:
        yield finding(
            Severity.SLOW if uncorrected else Severity.NOTE,
            "; ".join(f"PCIe errors {kind} on {', '.join(links)}" for kind, links in kinds.items() if links),
            *uncorrected.values(),
            *corrected.values(),
            effect="packets are sent again (not measured); an uncorrected error stops the gang",
            fix=PCIE_ERROR_FIX,
            devices=tuple(dict.fromkeys((*uncorrected, *corrected))),
        )


_SOME = 100
"""Corrected errors since boot below this are noise: links train, cables are touched."""


def _counted(node: Node) -> tuple[dict[str, str], dict[str, str]]:
    """Links with (corrected, uncorrected) errors: evidence by address."""
    corrected: dict[str, str] = {}
    uncorrected: dict[str, str] = {}
    keys = [endpoint.key for endpoint in node.endpoints]
    for key in dict.fromkeys([*keys, *(bridge.key for key in keys if (bridge := node.above(key)))]):
        for kind, least, counts in (
            ("correctable", _SOME, corrected),
            ("nonfatal", 1, uncorrected),
            ("fatal", 1, uncorrected),
        ):
            count = _total(node.snapshot.files.get(f"{key}/aer_dev_{kind}", ""))
            if count >= least:
                counts[key.rpartition("/")[2]] = f"{key}/aer_dev_{kind}: {count}"
    for device in node.nvml_devices:
        replays = whole(device.get("replays"))
        if replays >= _SOME:
            evidence = f"NVML of GPU {device.get('index')}: PCIe replays = {replays}"
            corrected.setdefault(gpu_address(device), evidence)
    return corrected, uncorrected


def _total(text: str) -> int:
    """The last line of such a file is the sum: 'TOTAL_ERR_COR 12'."""
    name, _, value = text.strip().rpartition("\n")[2].partition(" ")
    return max(0, number(value)) if name.startswith("TOTAL_ERR") else 0


@Rule(
    id="PCIE-SETTINGS",
    title="an RDMA card's PCIe settings reduce its bandwidth",
    explain=(
        "A card that may read 512 bytes at a time sends eight requests instead of one for 4096 bytes. A packet size"
        " (MaxPayload) below that of the card's port wastes bandwidth on headers."
    ),
    reads=("/sys/bus/pci/devices/*/config (PCI Express capability; beyond 64 bytes: root only)",),
    source="NVIDIA ConnectX tuning guide (MaxReadReq 4096); PCI Express Base Specification, Device Control",
    weight=65,
    needs=RAILS,
).of_node
def pcie_settings(node: Node) -> Iterator[Finding]:
    """One note, or one unknown where nothing of it was readable."""
    keys = {card(port.key): port.key for port in reversed(node.rail_ports) if port.key in node.devices}.values()
    wrong = {node.devices[key].address: words for key in keys if (words := _wrong_sizes(node, key))}
    cut_off = [key for key in keys if config_space(node.snapshot, key).max_read_request is None]
    if wrong:
        yield _small_sizes(wrong)
    elif cut_off:
        yield unknown(
            "the RDMA cards' read request and packet sizes could not be read",
            *(f"{_PCI}/{node.devices[key].address}/config: {config_unread(node.snapshot, key)}" for key in cut_off),
            effect="if they are small, the card loses some bandwidth (not measured)",
            fix=node.input.as_root,
            devices=tuple(node.devices[key].address for key in cut_off),
        )


def _small_sizes(wrong: Mapping[str, str]) -> Finding:
    """wrong: {address of a card: its sizes in words}"""
    return note(
        "; ".join(wrong.values()),
        *(f"{_PCI}/{words}" for words in wrong.values()),
        effect="the card loses some bandwidth (not measured)",
        fix="change Maximum Read Request and Maximum Payload in the BIOS; until the next boot: "
        + "; ".join(f"sudo setpci -s {address} CAP_EXP+8.w=5000:7000" for address in wrong),
        devices=tuple(wrong),
    )


_BEST_READ_REQUEST = 4096


def _wrong_sizes(node: Node, key: str) -> str:
    space, address, bridge = config_space(node.snapshot, key), node.devices[key].address, node.above(key)
    request, payload = space.max_read_request, space.max_payload
    above = config_space(node.snapshot, bridge.key).max_payload if bridge else None
    if request is not None and request < _BEST_READ_REQUEST:
        return f"{address}: MaxReadReq = {request} bytes, {_BEST_READ_REQUEST} is best"
    if payload is not None and above is not None and payload < above:
        return f"{address}: MaxPayload = {payload} bytes, its port's is {above}"
    return ""


@Rule(
    id="ATS-OFF",
    title="ATS is off in a virtual machine",
    explain=(
        "In a virtual machine the IOMMU translates addresses. With Address Translation Services, a card asks it once"
        " and then sends peer-to-peer packets directly. On bare metal it does not matter, and is not checked."
    ),
    reads=("/proc/cpuinfo (flag hypervisor)", "/sys/bus/pci/devices/*/config (ATS, id 0x000F)"),
    source="NCCL troubleshooting guide, virtual machines: ATS on the network card is a must for GPU Direct RDMA",
    weight=75,
    needs=RAILS,
).of_node
def ats_off(node: Node) -> Iterator[Finding]:
    """One note a virtual machine."""
    spaces = {port: config_space(node.snapshot, port.key) for port in node.rail_ports}
    off = {port.device: port.address for port, space in spaces.items() if space.ats_enabled is False}
    if off and node.is_guest:
        yield note(
            f"ATS is off on {', '.join(off)}, in a virtual machine",
            *(f"{_PCI}/{address}/config: ATSCtl enable = 0" for address in off.values()),
            effect="if GPUDirect traffic passes through the IOMMU: " + price(Traffic.THROUGH_ROOT),
            fix="run `mlxconfig -d DEVICE set ATS_ENABLED=true`, then power-cycle the machine; the hypervisor"
            " must pass ATS through",
            devices=tuple(off),
        )
