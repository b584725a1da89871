"""Where GPUs and RDMA cards are: how many there are, behind which switches, in which NUMA domain; and which GPUs have a
card near them by what a pasted text tells of path types, or of a bare PCI tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from orchestrator.doctor.rules.support.cluster import Input, Node
from orchestrator.doctor.rules.support.registry import Rule, finding, note, slow, unknown
from orchestrator.model.finding import Finding
from orchestrator.model.topology import PLACES, RAILS, Area, Gpu, PathType, PciDevice, RdmaPort, Switch
from orchestrator.protocol.severity import Severity
from orchestrator.topology.paths import PathEnd, Sharing, gpu_ends, nic_ends, paths, stated_groups
from orchestrator.topology.pci import card, part_name
from orchestrator.topology.rdma import ports_by_card
from orchestrator.topology.speed import Traffic, price
from orchestrator.topology.switches import empty_slots, emulated_switches, homes


class _TooFew(NamedTuple):
    severity: Severity
    effect: str
    fix: str


_LOST = _TooFew(
    severity=Severity.STOP,
    effect="the gang can't start: every TP rank needs its GPU",
    fix="check for Xid 79 with `dmesg -T | grep Xid`; reboot or power-cycle the node; if the GPU stays"
    " missing, reseat the card",
)
_MAYBE_HIDDEN = _TooFew(
    severity=Severity.UNKNOWN,
    effect="either GPUs are lost, or NVML was asked where only some are visible (a container, a cgroup)",
    fix="compare with `nvidia-smi -L` on the node itself",
)


@Rule(
    id="GPU-MISSING",
    title="a GPU is missing or lost",
    explain="Tensor parallelism needs every GPU: one that fell off the bus stops the gang.",
    reads=("NVML device list", "/sys/bus/pci/devices/*/class", "`l40s_gpus` of the inventory"),
    source="NVML nvmlDeviceGetCount_v2, NVML_ERROR_GPU_IS_LOST",
    weight=5,
    needs=(Area.GPUS,),
).of_node
def gpu_missing(node: Node) -> Iterator[Finding]:
    """A stop: which GPUs are lost, and how many are short. Unknown where a recording of NVML shows fewer than its bus:
    whoever made it may have seen only a container's."""
    gpus, wanted = node.topology.gpus, node.spec.gpus
    lost = [gpu for gpu in gpus if gpu.lost or gpu.index < 0]
    respond = len(node.answering)
    known = not node.saved or len(gpus) < wanted or any(gpu.lost for gpu in gpus)
    if not node.topology.nvml_error and respond < wanted:
        which = f": {', '.join(map(_lost_words, lost))}" if lost else ""
        judged = _LOST if known else _MAYBE_HIDDEN
        yield finding(
            judged.severity,
            f"{respond} GPUs respond, {wanted} are needed{which}",
            f"NVML: {respond} devices respond",
            f"PCI: {len(gpus)} GPUs on the bus",
            f"inventory: l40s_gpus = {node.spec.gpus_asked}",
            effect=judged.effect,
            fix=judged.fix,
            devices=tuple(gpu.address for gpu in lost),
        )


def _lost_words(gpu: Gpu) -> str:
    which = f"GPU {gpu.index}" if gpu.index >= 0 else "a GPU"
    return f"{which} at {gpu.address} ({gpu.lost or 'on the bus, not shown by NVML'})"


@Rule(
    id="GPU-NOT-USED",
    title="some GPUs of this node are not used",
    explain=(
        "The PCI bus shows every GPU of the machine. A gang uses those that `l40s_gpus` names, or as many as it says of"
        " the first that NVML shows; in a container or on a shared machine, NVML may show fewer than the bus has. The"
        " others are not part of any plan or prediction."
    ),
    reads=("NVML device list", "/sys/bus/pci/devices/*/class", "`l40s_gpus` of the inventory"),
    source="CUDA C++ Programming Guide, CUDA_VISIBLE_DEVICES; NVML nvmlDeviceGetCount_v2",
    weight=70,
    needs=(Area.PCI, Area.GPUS),
).of_node
def gpu_not_used(node: Node) -> Iterator[Finding]:
    """A note where a node has the GPUs it is to have, and more; too few are GPU-MISSING's."""
    gpus, wanted = node.topology.gpus, node.spec.gpus
    used = {gpu.key for gpu in node.gpus}
    idle = [gpu for gpu in gpus if gpu.key not in used]
    if idle and len(used) >= wanted and not node.topology.nvml_error:
        yield note(
            f"{len(idle)} of {len(gpus)} GPUs are not used",
            f"PCI: {len(gpus)} GPUs on the bus",
            f"NVML: {sum(gpu.index >= 0 for gpu in gpus)} devices",
            f"inventory: l40s_gpus = {node.spec.gpus_asked}",
            *(f"{gpu.address}: {_why_not_used(gpu)}" for gpu in idle[:4]),
            effect="the plan, memory and NCCL groups count only the other GPUs",
            fix=f"to use them, set `l40s_gpus: {len(gpus)}`; a container also needs all /dev/nvidia* files",
            devices=tuple(gpu.address for gpu in idle),
        )


def _why_not_used(gpu: Gpu) -> str:
    if gpu.index < 0:
        return "NVML does not show it"
    return gpu.lost or f"GPU {gpu.index}, not in l40s_gpus"


@Rule(
    id="GPU-OTHER-MAKER",
    title="accelerators of another vendor are not counted as GPUs",
    explain=(
        "Only NVIDIA's display controllers count as GPUs. A recorded machine may have another vendor's:"
        " `--accelerator VENDOR:CLASS` counts those. Reported where a node has no NVIDIA GPU and at least two such"
        " cards."
    ),
    reads=("/sys/bus/pci/devices/*/{class,vendor}",),
    source="PCI Code and ID Assignment Specification: 03 display, 0b40 co-processor, 12 processing accelerator",
    weight=80,
    needs=(Area.PCI,),
).of_node
def gpu_other_maker(node: Node) -> Iterator[Finding]:
    """A note where a node has no GPU, for the maker with most accelerators."""
    if node.topology.gpus:
        return
    counts = Counter(
        (accelerator.vendor, accelerator.class_code >> 8)
        for accelerator in node.topology.pci
        if _is_accelerator(accelerator)
    )
    for (vendor, kind), count in counts.most_common(1):
        accelerators = [
            accelerator
            for accelerator in node.topology.pci
            if (accelerator.vendor, accelerator.class_code >> 8) == (vendor, kind)
        ]
        if count >= _FEWEST:
            yield note(
                f"{count} accelerators ({part_name(accelerators[0])}) are not counted as GPUs",
                *(
                    f"/sys/bus/pci/devices/{accelerator.address}/class = {accelerator.class_code:#08x}"
                    for accelerator in accelerators[:4]
                ),
                effect="their place in the PCIe tree is not checked; the engine needs NVIDIA GPUs",
                fix=f"for a recorded machine, add `--accelerator {vendor:04x}:{kind:04x}`",
                devices=tuple(accelerator.address for accelerator in accelerators),
            )


_ACCELERATORS = (0x0300, 0x0302, 0x0380, 0x0B40, 0x1200)
_DISPLAY, _ON_BOARDS = 0x0300, (0x1A03, 0x102B, 0x8086)
"""VGA controllers of ASPEED, Matrox and Intel are on boards and in CPUs."""
_FEWEST = 2


def _is_accelerator(device: PciDevice) -> bool:
    kind = device.class_code >> 8
    return bool(device.vendor) and kind in _ACCELERATORS and not (kind == _DISPLAY and device.vendor in _ON_BOARDS)


@Rule(
    id="GPU-GROUPS-UNEVEN",
    title="the GPUs are not spread evenly over the PCIe switches",
    explain=(
        "Each switch should have the same number of GPUs: NCCL's rings run through a switch's GPUs and leave by its"
        " RDMA card. A GPU on a root port, or a fifth one behind a switch, has no nearby card of its own."
    ),
    reads=("/sys/bus/pci/devices/* (real paths)", "/sys/bus/pci/slots/*/address"),
    source="the articles' cluster (4 GPUs and one card behind each switch); NCCL src/graph/search.cc",
    weight=13,
    needs=(Area.PCI,),
).of_node
def gpu_groups_uneven(node: Node) -> Iterator[Finding]:
    """GPUs on root ports, or switches with different numbers of them; lost GPUs are another rule's, and nobody moves a
    card in a virtual machine."""
    if not _tree_is_whole(node) or len(node.placed) < node.spec.gpus or _has_emulated_switches(node):
        return
    home = homes(node.topology, node.places)
    groups = [(switch.address, sum(home[gpu.key] == switch.key for gpu in node.placed)) for switch in node.gpu_switches]
    away = [gpu.address for gpu in node.placed if not home[gpu.key]]
    if groups and (away or len({count for _, count in groups}) > 1):
        yield _uneven(node, groups, away)


def _has_emulated_switches(node: Node) -> bool:
    return not emulated_switches(node.topology).isdisjoint(switch.key for switch in node.gpu_switches)


def _tree_is_whole(node: Node) -> bool:
    """Whether the tree is a board's: not a virtual machine's, nor a pasted one without any card, which is a part as far
    as anybody can tell."""
    return not node.is_guest and (node.input is not Input.PASTED or bool(nic_ends(node.topology)))


def _uneven(node: Node, groups: Sequence[tuple[str, int]], away: Sequence[str]) -> Finding:
    most = max(count for _, count in groups)
    slots = {device.address: device.slot for device in node.topology.pci if device.slot}
    from_slots = ", ".join(f"slot {slots[address]}" for address in away if address in slots)
    return slow(
        f"the GPUs are spread unevenly: {_spread(groups, away)}",
        *(f"switch {address}: {count} GPUs" for address, count in groups),
        *(f"GPU {address}: on a root port" for address in away),
        effect="GPUs without a nearby card communicate through the CPU; " + price(Traffic.CARD_ON_ROOT_PORT),
        fix=f"move the GPU {f'from {from_slots} ' if from_slots else ''}to a slot behind the switch with the fewest",
        devices=tuple(away or (address for address, count in groups if count == most)),
    )


def _spread(groups: Sequence[tuple[str, int]], away: Sequence[str]) -> str:
    words = " + ".join(str(count) for _, count in groups) + " behind the switches"
    if away:
        words += ", 1 on a root port" if len(away) == 1 else f", {len(away)} on root ports"
    return words


_MELLANOX = 0x15B3
_FEW_CARDS = 4
"""Named one by one; of more, their number and the first."""
_BOND = "bond"
_Cards = tuple[tuple[str, ...], ...]
"""Each by the names of its ports."""
_Paths = Mapping[tuple[str, str], PathType | None]


class Wiring(NamedTuple):
    """What shares a switch.

    lonely: GPUs without a card, behind one switch or single where others have one each; served: GPUs that have one
    moved:  cards for RDMA that are near no GPU, and that the lonely ones may lack; sure: another card is there for TCP
    """

    lonely: tuple[Sharing, ...]
    served: tuple[Sharing, ...]
    moved: _Cards
    sure: bool

    @property
    def alone(self) -> str:
        """The lonely ones, in words."""
        return " and of ".join(", ".join(group.gpus) for group in self.lonely)

    def evidence(self) -> Iterator[str]:
        """Of the lonely ones."""
        return (f"no card is nearer than the CPU to {', '.join(group.gpus)}" for group in self.lonely)


def card_missing(node: Node) -> list[Finding] | None:
    """NIC-MISSING by path types."""
    seen = wiring_of(node)
    if seen is None or not (seen.lonely and seen.served and not seen.moved):
        return None if seen is None else []
    title = f"no RDMA card behind the switch of {seen.alone}"
    fix = "check that the card is seated, has power and a driver: `lspci | grep -i mellanox`, `ibv_devices`"
    near = [f"{', '.join(group.nics)}: PIX or PXB to {', '.join(group.gpus)}" for group in seen.served]
    gpus = tuple(gpu for group in seen.lonely for gpu in group.gpus)
    return [slow(title, *near, *seen.evidence(), effect=price(Traffic.CARD_ON_ROOT_PORT), fix=fix, devices=gpus)]


def card_away(node: Node) -> list[Finding] | None:
    """NIC-NOT-UNDER-SWITCH by path types: one finding a node."""
    seen = wiring_of(node)
    if seen is None or not seen.moved:
        return None if seen is None else []
    names = (" and " if seen.sure else " or ").join(", ".join(ports) for ports in seen.moved[:_FEW_CARDS])
    if len(seen.moved) > _FEW_CARDS:
        names = f"one of {len(seen.moved)} cards ({names}, ...)"
    cost, ports = price(Traffic.CARD_ON_ROOT_PORT), tuple(port for ports in seen.moved for port in ports)
    if seen.sure:
        fix = "power off, and move the card to a slot behind that switch"
        title = f"RDMA card {names} is not behind the switch of {seen.alone}"
        return [slow(title, *seen.evidence(), effect=cost, fix=fix, devices=ports)]
    fix = "run `l40s-deploy doctor` on the node itself, which shows the card that carries TCP"
    title = f"{names} is near no GPU; whether it is for the switch of {seen.alone}, or TCP, is not known"
    return [unknown(title, *seen.evidence(), effect=f"if it serves the GPUs: {cost}", fix=fix, devices=ports)]


def wiring_of(node: Node) -> Wiring | None:
    """None where the path of a NIC is not known."""
    pairs = {(pair.one, pair.other): pair.type for pair in paths(node.topology)}
    nics = nic_ends(node.topology)
    if not nics or not _are_known(node, pairs):
        return None
    groups = stated_groups(node.topology)
    rdma = _rdma_names(node, nics)
    served = tuple(group for group in groups if {*rdma} & {*group.nics})
    lonely = tuple(group for group in (*groups, *_single(node, groups, served)) if not group.nics)
    far, sure = _far(rdma, groups)
    cards = _cards(node, far)
    moved = _moved(cards, lonely, pairs) if lonely else ()
    return Wiring(lonely, served, moved, sure or len(moved) < min(len(cards), len(lonely) + 1))


def _rdma_names(node: Node, nics: Sequence[PathEnd]) -> list[str]:
    """Where no RDMA device is shown, the cards of the make that has RDMA."""
    return [nic.name for nic in nics if node.topology.rdma or node.devices[nic.key].vendor == _MELLANOX]


def _single(node: Node, groups: Sequence[Sharing], served: Sequence[Sharing]) -> list[Sharing]:
    """GPUs that share nothing, where nearly every other one has a card of its own."""
    together = {gpu for group in groups for gpu in group.gpus}
    single = [Sharing((end.name,), ()) for end in gpu_ends(node.topology) if end.name not in together]
    return single * (all(len(group.gpus) == 1 for group in served) and 3 * len(single) <= len(served))


def _are_known(node: Node, pairs: _Paths) -> bool:
    """Of two that have a place in the tree it is known whether they are near each other."""
    placed = {end.name for end in (*gpu_ends(node.topology), *nic_ends(node.topology)) if end.key in node.devices}
    return bool(pairs) and all(path is not None or {*pair} <= placed for pair, path in pairs.items())


def _far(rdma: Sequence[str], groups: Sequence[Sharing]) -> tuple[list[str], bool]:
    """(what is near no GPU, whether a bond was left out of it): a bond carries TCP, unless bonds are near GPUs too."""
    near = [nic for group in groups for nic in group.nics]
    far = [nic for nic in rdma if nic not in near]
    plain = far if any(_BOND in nic for nic in near) else [nic for nic in far if _BOND not in nic]
    return plain, plain != far


def _moved(cards: _Cards, lonely: Sequence[Sharing], pairs: _Paths) -> _Cards:
    """Of the cards that are near no GPU those that the lonely ones may lack: of their own NUMA domain where there are
    more."""
    gpus = [gpu for group in lonely for gpu in group.gpus]
    own = tuple(nic for nic in cards if any(pairs[gpu, nic[0]] is PathType.PHB for gpu in gpus))
    return own if own and len(cards) > len(lonely) else cards


def _cards(node: Node, nics: list[str]) -> _Cards:
    """Ports that are PIX from each other are taken for those of one card."""
    words = node.topology.stated.words() if node.topology.stated else {}
    keys = {end.name: card(end.key) for end in nic_ends(node.topology)}
    cards: dict[str, list[str]] = {}
    for nic in nics:
        first = next((known for known in cards if words.get((known, nic)) == "PIX" or keys[known] == keys[nic]), nic)
        cards.setdefault(first, []).append(nic)
    return tuple(map(tuple, cards.values()))


@Rule(
    id="NIC-NOT-UNDER-SWITCH",
    title="an RDMA card is not behind the GPUs' PCIe switch",
    explain=(
        "A card behind the GPUs' own switch reaches them without the CPU (PIX). On a root port the path is PHB: NCCL"
        " does not use GPUDirect for it, and no longer carries traffic between the halves of the node over the cards."
    ),
    reads=("/sys/class/infiniband/*/device (real path)", "/sys/bus/pci/devices/*", "/sys/bus/pci/slots/*/address"),
    source="NCCL src/graph/paths.cc ncclTopoCheckNet, ncclTopoCheckGdr; the articles' first fault",
    weight=10,
    needs=(*RAILS, Area.NUMA),
    on_text=card_away,
).of_node
def nic_not_under_switch(node: Node) -> Iterator[Finding]:
    """One finding a card, naming the slot it is in and the switch that has none; unknown where a card may be either
    misplaced or the main card. A virtual machine's tree is not the board's: PCIE-TREE-HIDDEN says so."""
    if node.is_guest:
        return
    lonely = [
        f"switch {switch.address} (NUMA {switch.numa_node}) has GPUs and no RDMA card" for switch in node.roles.lonely
    ]
    for ports in ports_by_card(node.roles.away).values():
        place, devices, slot = card(ports[0].address), _devices(ports), node.devices[ports[0].key].slot
        yield slow(
            f"RDMA card {place} ({', '.join(devices)}){f' in slot {slot}' if slot else ''} is on a root port, not"
            " behind a GPU switch",
            f"real path of {ports[0].device} = {ports[0].key}",
            f"slot of {place} = {slot or 'not named by the firmware'}",
            *lonely,
            effect=_without_a_card(node) + price(Traffic.CARD_ON_ROOT_PORT),
            fix=f"power off, move the card from {f'slot {slot}' if slot else f'its place at {place}'} to "
            + _better_place(node),
            devices=(*devices, place),
        )
    unclear = ports_by_card(node.roles.unclear).values()
    if unclear:
        names = [f"{card(ports[0].address)} ({', '.join(_devices(ports))})" for ports in unclear]
        yield unknown(
            f"{' or '.join(names)} is on a root port; whether it serves the GPUs or TCP was not recorded",
            *(f"switch {switch.address} has GPUs and no RDMA card" for switch in node.roles.lonely),
            effect="if it serves the GPUs: " + price(Traffic.CARD_ON_ROOT_PORT),
            fix="run `l40s-deploy doctor` on the node itself, which shows the card that carries TCP",
            devices=tuple(device for ports in unclear for device in _devices(ports)),
        )


def _devices(ports: Sequence[RdmaPort]) -> tuple[str, ...]:
    return tuple(port.device for port in ports)


def _without_a_card(node: Node) -> str:
    keys = {switch.key for switch in node.roles.lonely}
    count = sum(not keys.isdisjoint(node.places.above(gpu.key)) for gpu in node.topology.gpus)
    return f"{count} of {len(node.topology.gpus)} GPUs have no nearby card; " if count else ""


def _better_place(node: Node) -> str:
    """Empty slots behind the switches that lack a card, else the switches."""
    empty = empty_slots(node.topology, node.snapshot)
    places = (_slot_words(switch, empty.get(switch.key, ())) for switch in node.roles.lonely)
    return " or ".join(places) or "a slot behind a GPU switch"


def _slot_words(switch: Switch, empty: Sequence[str]) -> str:
    where = f"switch {switch.address} (NUMA {switch.numa_node})"
    return f"slot {' or '.join(empty)}, empty, behind {where}" if empty else f"a slot behind {where}"


@Rule(
    id="NIC-MISSING",
    title="a switch with GPUs has no RDMA card",
    explain=(
        "Each switch with GPUs needs its own RDMA card. Reported where another switch of the node has one and no card"
        " is elsewhere: the card is not plugged in, dead, or without its driver."
    ),
    reads=("/sys/class/infiniband/*/device (real path)", "/sys/bus/pci/devices/*/{vendor,device,driver}"),
    source="NCCL src/graph/topo.cc ncclTopoGetLocal; the articles' cluster (one card behind each switch)",
    weight=15,
    needs=(*RAILS, Area.NUMA),
    on_text=card_missing,
).of_node
def nic_missing(node: Node) -> Iterator[Finding]:
    """One finding where no misplaced card explains the lack."""
    lonely = {switch.key for switch in node.roles.lonely}
    served = any(lonely.isdisjoint(node.places.above(f"{switch.key}/")) for switch in node.gpu_switches)
    if lonely and served and not node.roles.away:
        yield _no_card(node, [device for device in node.topology.pci if _is_silent(device, node, lonely)])


def _is_silent(device: PciDevice, node: Node, lonely: Collection[str]) -> bool:
    """Whether it is a network card behind a switch whose cards have no RDMA device."""
    return device.class_code >> 16 == _NETWORK_CLASS and not {*lonely}.isdisjoint(node.places.above(device.key))


def _no_card(node: Node, silent: Sequence[PciDevice]) -> Finding:
    switches = node.roles.lonely
    names = ", ".join(f"{switch.address} (NUMA {switch.numa_node})" for switch in switches)
    of_nccl = node.input is Input.XML
    in_file = " in NCCL's file, which has those that it used" if of_nccl else ""
    return slow(
        f"{'NCCL has no card' if of_nccl else 'no RDMA card'} behind switch {names}"
        + (", only a card without an RDMA device" if silent else ""),
        *(
            f"{device.address}: {part_name(device)}, driver = {device.driver or 'none'}, no RDMA device"
            for device in silent
        ),
        *(() if silent else (f"switch {switch.address}: no network card behind it{in_file}" for switch in switches)),
        effect=price(Traffic.CARD_ON_ROOT_PORT),
        fix="load the card's driver with `modprobe mlx5_ib`, then check `dmesg | grep mlx5`"
        if silent
        else "check that the card is seated and has power: `lspci | grep -i mellanox`",
        devices=tuple(device.address for device in (silent or switches)),
    )


_NETWORK_CLASS = 0x02


@Rule(
    id="NUMA-UNKNOWN",
    title="the NUMA domain of GPUs or cards is unknown, or differs from their switch's",
    explain=(
        "With numa_node -1, NCCL attaches everything to one CPU and no longer sees that the halves are far apart. A"
        " device that reports another domain than its switch gets its processes on the wrong socket."
    ),
    reads=("/sys/bus/pci/devices/*/numa_node", "/sys/devices/system/node/node*"),
    source="NCCL src/graph/xml.cc (numaid of the top PCI node), src/graph/paths.cc",
    weight=32,
    needs=(*RAILS, Area.NUMA),
).of_node
def numa_unknown(node: Node) -> Iterator[Finding]:
    """At most one finding of each kind, where the machine has several domains."""
    gpus, domains = node.topology.gpus, node.topology.numa
    if len(domains) < 2:
        return
    lost = [gpu.address for gpu in gpus if gpu.numa_node < 0]
    if lost:
        yield slow(
            f"{len(lost)} GPUs have no NUMA domain; the machine has {len(domains)} domains",
            *(f"/sys/bus/pci/devices/{address}/numa_node = -1" for address in lost[:4]),
            effect="NCCL keeps traffic between the halves off the RDMA cards; " + price(Traffic.CARD_ON_ROOT_PORT),
            fix="enable NUMA in the BIOS (Node Interleaving off, SRAT), or update the BIOS",
            devices=tuple(lost),
        )
    odd = dict(_contradicting(node))
    if odd:
        yield slow(
            f"{', '.join(odd)} reports another NUMA domain than its switch",
            *odd.values(),
            effect="memory and processes are placed on the far socket (not measured)",
            fix="update the BIOS; its _PXM tables are wrong",
            devices=tuple(odd),
        )


def _contradicting(node: Node) -> Iterator[tuple[str, str]]:
    domains = {switch.key: switch.numa_node for switch in node.topology.switches}
    for endpoint in node.endpoints:
        above = domains.get(endpoint.switch, -1)
        if 0 <= endpoint.numa_node != above >= 0:
            yield (
                endpoint.address,
                f"/sys/bus/pci/devices/{endpoint.address}/numa_node = {endpoint.numa_node}, its switch's = {above}",
            )


@Rule(
    id="PCIE-TREE-HIDDEN",
    title="a virtual machine hides the PCIe switches",
    explain=(
        "A hypervisor usually puts every passed-through GPU and card on an emulated root port, or switch. Which of them"
        " share a switch, and what ACS does there, shows on the host only. NCCL sees no more than this either, unless"
        " the hypervisor provides virtualTopology.xml."
    ),
    reads=("/proc/cpuinfo (flag hypervisor)", "/sys/bus/pci/devices/* (real paths)"),
    source="Linux arch/x86/include/asm/cpufeatures.h X86_FEATURE_HYPERVISOR; NCCL src/graph/xml.cc",
    weight=88,
    needs=PLACES,
).of_node
def pcie_tree_hidden(node: Node) -> Iterator[Finding]:
    """Unknown in a virtual machine with several GPUs, and cards for them, of which none is behind a real switch."""
    placed, emulated = [gpu.key for gpu in node.placed], emulated_switches(node.topology)
    hidden = len(placed) > 1 and all(emulated.issuperset(node.places.above(key)) for key in placed)
    if node.is_guest and node.rail_ports and hidden:
        yield unknown(
            "this virtual machine shows no real PCIe switch above its GPUs: rules of switches can't judge it",
            "/proc/cpuinfo: hypervisor",
            f"{len(placed)} GPUs, none behind a real switch",
            effect="the faults that these rules find may exist on the host, and NCCL does not see it either",
            fix="run `l40s-deploy doctor` on the host, or ask the provider for NCCL's topology file of this"
            " machine type (NCCL_TOPO_FILE) and read it with `doctor --from`",
            devices=_BLIND,
        )


_BLIND = (
    "ACS-REDIRECT", "GPU-GROUPS-UNEVEN", "GPU-P2P-OFF", "NIC-MISSING", "NIC-NOT-UNDER-SWITCH", "NUMA-UNKNOWN",
    "PCIE-LINK-REDUCED",
)  # fmt: skip
"""Rules that look at switches, wholly or in part."""
