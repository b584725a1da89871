"""What a pasted text says of a machine, in sentences: its GPUs, ports, GIDs, addresses, NUMA domains and slots. Each
holds what was read and nothing that follows from what is absent.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from orchestrator.model.per_node import collected
from orchestrator.model.snapshot import Snapshot, part
from orchestrator.model.topology import Gid, NumaDomain, PathType, PcieLink, RdmaPort, Stated, Topology
from orchestrator.model.words import counted
from orchestrator.topology.gpus import nvml_devices
from orchestrator.topology.paths import gpu_ends, nearest_card_words, paths, placed_by_domain, stated_groups
from orchestrator.topology.pci import is_of_guest, known_part
from orchestrator.topology.stated import cards_of, mappings, nccl_speeds, pasted, recognised, texts
from orchestrator.topology.text_gpus import of_gpus
from orchestrator.topology.text_measures import between, measures
from orchestrator.topology.text_words import spans

_GIB = 1 << 30
_NEAR = (PathType.PIX, PathType.PXB)
_MOST_SENTENCES = 32
_LONG = 120


def text_facts(topology: Topology, snapshot: Snapshot, others: Iterable[Topology] = ()) -> tuple[str, ...]:
    """Sentences without a full stop, of a machine that somebody pasted; () for all others. others: pasted beside it"""
    also, others = pasted(snapshot), [*others]
    if not also:
        return (*_guest({"guest": is_of_guest(topology)}), *_below_cpus(topology)) if topology.of_text else ()
    sentences = (
        *_complaints(also),
        *_guest(also),
        *_of_its_gpus(topology, snapshot, also),
        *_cards(snapshot),
        *_behind(part(also, "behind")),
        *_of_others(texts(also.get("others"))),
        *_switches(also.get("switches")),
        *_redirecting(also.get("acs")),
        *_booted(also),
        *_limits(also),
        *_tested(also.get("tested")),
        *_nccl(part(also, "nccl")),
        *_counted_speeds(topology, snapshot),
        *_chosen(texts(also.get("chosen"))),
        *_of_its_ports(topology, snapshot, also, others),
        *_processors(part(also, "cpu")),
        *_numa(topology, snapshot),
        *_memory_alone(topology, texts(also.get("without_processors"))),
        *_slots(topology, also.get("slots")),
    )
    return sentences[:_MOST_SENTENCES]


def _below_cpus(topology: Topology) -> Iterator[str]:
    """NCCL 2.25 and later: <nic> right below <cpu>."""
    domains = collected((domain, device) for device, domain in placed_by_domain(topology).items())
    for domain, devices in sorted(domains.items()):
        yield f"NCCL's file has {' and '.join(devices)} right below the CPU of NUMA domain {domain}"


def _of_its_gpus(topology: Topology, snapshot: Snapshot, also: Mapping[str, Any]) -> Iterator[str]:
    """also: what `pasted` says"""
    yield from _gpus(topology, also.get("attached"))
    yield from _not_shown(also.get("listed_and_shown"))
    yield from _divided(part(also, "mig"))
    yield from _links(topology)
    yield from of_gpus(snapshot)
    yield from _drivers(topology, part(also, "drivers"))
    yield from _peers(part(also, "peers"))
    yield from _peer_speeds(part(also, "peer_speeds"))
    yield from measures(also)
    yield from _accesses(snapshot)
    yield from _domains(topology)
    yield from _nvlinks(topology)
    yield from _together(topology)
    yield from _nameless(topology, snapshot)


def _of_its_ports(
    topology: Topology, snapshot: Snapshot, also: Mapping[str, Any], others: Sequence[Topology]
) -> Iterator[str]:
    """also: what `pasted` says; others: pasted beside it"""
    yield from _ports(topology)
    yield from _kinds(topology, snapshot)
    yield from _mtus(topology, part(also, "mtus"))
    yield from _gids(topology)
    yield from _gid_elsewhere(topology, others)
    yield from _netdevs(part(also, "netdevs"))
    yield from _interfaces(topology)
    yield from _mtu_elsewhere(topology, others)


def _gpus(topology: Topology, attached: Any) -> Iterator[str]:
    """'GPUs: 8 x NVIDIA L40S, 45 GiB; driver 550.127.05'. attached: how many there are where a text has not all"""
    kinds = Counter(
        (gpu.name, f"{gpu.memory_total / _GIB:.0f} GiB" if gpu.memory_total else "") for gpu in topology.gpus
    )
    named = [f"{count} x {', '.join(filter(None, kind))}" for kind, count in kinds.items() if any(kind)]
    driver = f"driver {topology.driver}" if topology.driver else ""
    if words := "; ".join(filter(None, (" and ".join(named), driver))):
        yield f"GPUs: {words}" if named else words
    if isinstance(attached, int) and attached > len(topology.gpus):
        yield f"{counted(attached, 'GPU')} attached, of which the text has {len(topology.gpus)}"


def _not_shown(counts: Any) -> Iterator[str]:
    """counts: GPUs by lspci, and by nvidia-smi or the like"""
    if isinstance(counts, (list, tuple)) and len(counts) == 2:
        yield (
            f"lspci lists {counts[0]} GPUs, of which the rest of the text shows {counts[1]}: the others have failed, or"
            " are not given to the container or machine that shows them"
        )


def _complaints(also: Mapping[str, Any]) -> Iterator[str]:
    """What drivers and tools say of a fault: first, since an operator asks for it first."""
    yield from texts(also.get("refused"))
    yield from (f"the kernel's log: {words}" for words in texts(also.get("kernel")))
    by_state = collected((str(state), str(name)) for name, state in part(also, "kernel_links").items())
    for state, names in by_state.items():
        yield f"the kernel's log, last: link {state} of {spans(names)}"


def _drivers(topology: Topology, drivers: Mapping[str, Any]) -> Iterator[str]:
    """A GPU that another driver has is none for CUDA."""
    names = {gpu.address: f"GPU{gpu.index}" for gpu in topology.gpus}
    for driver, addresses in drivers.items():
        own = spans(names.get(address, address) for address in texts(addresses))
        yield f"the kernel's driver of {own} is {driver}, not NVIDIA's"


def _peers(peers: Mapping[str, Any]) -> Iterator[str]:
    """By CUDA's own order of its devices."""
    reached = collected((access is True, str(pair)) for pair, access in peers.items())
    for access, words in ((False, "can't reach each other's memory"), (True, "reach each other's memory")):
        if pairs := reached.get(access):
            yield f"CUDA's devices that {words}: {spans(pairs)}"


_P2P = {"Enabled": "with P2P", "Disabled": "without P2P"}
_SLOWER = 0.8
"""Of the speed through main memory: P2P below it is redirected, or goes word by word."""


def _peer_speeds(measured: Mapping[str, Any]) -> Iterator[str]:
    """In GB/s, as CUDA's sample measured them; both ways at once where the text has no other."""
    direct, staged = part(measured, "Enabled"), part(measured, "Disabled")
    at_once = ", both ways" if not (direct or staged) else ""
    for p2p, way in _P2P.items():
        if numbers := [speed for speed in part(measured, f"{p2p}{at_once}").values() if isinstance(speed, float)]:
            yield f"measured between GPUs {way}{at_once and f'{at_once} at once'}: {between(numbers)} GB/s"
    yield from _slower(direct, staged)


def _slower(direct: Mapping[str, Any], staged: Mapping[str, Any]) -> Iterator[str]:
    """Where direct access is slower than the way through main memory."""
    speeds = [(direct[pair], staged.get(pair)) for pair in direct]
    both = [(now, then) for now, then in speeds if isinstance(now, float) and isinstance(then, float)]
    slower = [(with_it, without) for with_it, without in both if with_it < _SLOWER * without]
    if slower:
        with_it, without = min(slower)
        yield (
            f"P2P is slower than without it for {len(slower)} of {len(both)} ways between GPUs: {with_it:g} GB/s where"
            f" main memory gives {without:g}; an IOMMU or ACS that redirects does this"
        )


def _accesses(snapshot: Snapshot) -> Iterator[str]:
    """Of a matrix of accesses; which pairs it refuses, a finding says."""
    pairs = {
        tuple(sorted((str(device.get("index")), str(other)))): part(part(device, "p2p"), other).get("read")
        for device in nvml_devices(snapshot.nvml)
        for other in part(device, "p2p")
        if str(other) != str(device.get("index"))
    }
    over = {"n": "over NVLink", "a": "for atomics"}
    for mode, words in over.items():
        if refused := texts(part(pasted(snapshot), "p2p_refused").get(mode)):
            yield f"no direct access {words} by nvidia-smi topo -p2p {mode}: {spans(refused)}"
    if pairs and not any(pairs.values()):
        yield f"all GPUs reach each other's memory: {counted(len(pairs), 'pair')} by nvidia-smi topo -p2p"


def _redirecting(acs: Any) -> Iterator[str]:
    """Of ACSCtl lines without their functions. acs: [how many, how many of them redirect]"""
    if isinstance(acs, (list, tuple)) and len(acs) == 2 and all(isinstance(count, int) for count in acs):
        words = f"{acs[1]} redirect peer-to-peer traffic" if acs[1] else "none redirects peer-to-peer traffic"
        yield f"ACS of {counted(acs[0], 'function')}: {words}"


def _booted(also: Mapping[str, Any]) -> Iterator[str]:
    """What the kernel was told of the IOMMU and PCI, and says itself."""
    if options := texts(also.get("boot")):
        on = [option for option in options if option in ("intel_iommu=on", "amd_iommu=on")]
        without = " (without iommu=pt)" if on and "iommu=pt" not in options else ""
        yield f"the kernel's command line: {' '.join(options)}{without}"
    if kind := also.get("iommu"):
        yield f"the IOMMU: {kind}"


def _limits(also: Mapping[str, Any]) -> Iterator[str]:
    limit = also.get("memlock_kib")
    if isinstance(limit, int):
        yield "locked memory (ulimit -l): " + (f"{limit} KiB; RDMA needs unlimited" if limit >= 0 else "unlimited")
    if also.get("shm_full") is True:
        yield "/dev/shm has no room left"  # noqa: S108 - told, not used


def _domains(topology: Topology) -> Iterator[str]:
    """'NUMA domain 0: GPU0 to GPU3; 1: GPU4 to GPU7', where a text says it of GPUs."""
    of_domain = collected((gpu.numa_node, f"GPU{gpu.index}") for gpu in topology.gpus if gpu.numa_node >= 0)
    if of_domain:
        yield "NUMA domain " + "; ".join(f"{node}: {spans(of_domain[node])}" for node in sorted(of_domain))


def _nvlinks(topology: Topology) -> Iterator[str]:
    """Which GPUs a matrix shows joined by how many NVLinks; of a cut one those of its rows."""
    pairs = _cells_between_gpus(topology.stated) if topology.stated else {}
    by_count = collected((int(cell[2:]), pair) for pair, cell in pairs.items() if re.fullmatch(r"NV\d{1,2}", cell))
    for links, joined in by_count.items():
        yield f"{counted(links, 'NVLink')} between {_which_pairs(joined, len(pairs), len(topology.gpus))}"
    if by_count and (lone := _without_nvlinks(pairs, len(topology.gpus))):
        yield f"without an NVLink to another GPU: {spans(lone)}"


def _cells_between_gpus(stated: Stated) -> dict[tuple[str, str], str]:
    rows = [(head, zip(stated.heads, row, strict=False)) for head, row, _ in stated.rows if head.startswith("GPU")]
    cells = [(_both(head, other), cell) for head, row in rows for other, cell in row if other != head]
    return {pair: cell for pair, cell in cells if all(name.startswith("GPU") for name in pair)}


def _without_nvlinks(pairs: Mapping[tuple[str, str], str], gpus: int) -> list[str]:
    """Of which the text has every cell."""
    words_of = collected((gpu, cell) for pair, cell in pairs.items() for gpu in pair)
    whole = {gpu: words for gpu, words in words_of.items() if len(words) == gpus - 1}
    return [gpu for gpu, words in whole.items() if not any(word.startswith("NV") for word in words)]


def _which_pairs(joined: Sequence[tuple[str, str]], told: int, gpus: int) -> str:
    """told: pairs of which the text says something"""
    if len(joined) < told or told == 1:
        return spans(f"{first} and {other}" for first, other in joined)
    return "any two GPUs" if told == math.comb(gpus, 2) else "any two GPUs of which the text has a cell"


def _both(one: str, other: str) -> tuple[str, str]:
    """A pair in one order, whichever row it stands in."""
    first, second = sorted((one, other), key=lambda head: (len(head), head))
    return first, second


def _switches(raw: Any) -> Iterator[str]:
    kinds = Counter(re.sub(r" \(rev [0-9a-f]{2}\).*", "", words) for words in texts(raw))
    if kinds:
        yield f"functions of PCIe switches: {', '.join(f'{count} x {words}' for words, count in kinds.items())}"


def _nccl(choices: Mapping[str, Any]) -> Iterator[str]:
    """What NCCL's log says of its own choices."""
    yield from (f"NCCL's network: {words}" for words in texts(choices.get("network")))
    if choices.get("no_rdma"):
        yield "NCCL saw no RDMA device"
    if off := texts(choices.get("gdr_off")):
        yield f"NCCL has GPUDirect RDMA off for {spans(off)}: that traffic goes through main memory"
    if ways := texts(choices.get("ways")):
        yield f"NCCL's channels go by {spans(ways)}"
    yield from (f"NCCL's paths of {words}" for words in texts(choices.get("paths")))
    yield from _chosen(texts(choices.get("chosen")))


_MERGED = "0000:00:00.0"
"""What NCCL's graph has for cards that it merged into one device."""


def _counted_speeds(topology: Topology, snapshot: Snapshot) -> Iterator[str]:
    """'over PCIe NCCL counts on 24 GB/s to GPU0; 12 GB/s to NIC 0000:a1:00.0'"""
    names = {gpu.address: f"GPU{gpu.index}" for gpu in topology.gpus}
    rows = nccl_speeds(snapshot)
    by_speed = collected((gbs, names.get(place, f"{kind} {place}")) for kind, place, gbs in rows if place != _MERGED)
    if by_speed:
        ends = "; ".join(f"{gbs} GB/s to {spans(ends)}" for gbs, ends in by_speed.items())
        yield f"over PCIe NCCL counts on {ends}"


def _chosen(variables: Sequence[str]) -> Iterator[str]:
    if variables:
        yield f"set for NCCL: {spans(dict.fromkeys(variables))}"


def _tested(raw: Any) -> Iterator[str]:
    """'nccl-tests ran on 2 x NVIDIA RTX A6000 (c1, c2)'."""
    rows = [texts(row) for row in raw] if isinstance(raw, (list, tuple)) else []
    by_name = collected((row[0], row[1]) for row in rows if len(row) == 2)
    kinds = [f"{len(addresses)} x {name} ({spans(addresses)})" for name, addresses in by_name.items()]
    if kinds:
        yield f"nccl-tests ran on {' and '.join(kinds)}"


def _guest(also: Mapping[str, Any]) -> Iterator[str]:
    if also.get("guest") is True:
        yield "a virtual machine: its places on the PCI bus are the hypervisor's"


def _divided(mig: Mapping[str, Any]) -> Iterator[str]:
    """MIG: no direct access between GPUs is there, and an engine has one instance (NVIDIA's MIG user guide)."""
    if not mig:
        return
    parts = {index: raw if isinstance(raw, (list, tuple)) else () for index, raw in mig.items()}
    each = [f"GPU {index}{f' ({spans(map(str, parts[index]))})' if parts[index] else ''}" for index in parts]
    yield (
        f"divided by MIG: {spans(each)}; a process gets one instance, without access from one to another over PCIe or"
        " NVLink"
    )


def _links(topology: Topology) -> Iterator[str]:
    """PCIe links of GPUs, as they were when the text was made."""
    known = [gpu for gpu in topology.gpus if gpu.link.width and gpu.link_max != PcieLink()]
    of_link = collected(((gpu.link.words, gpu.link_max.words), f"GPU{gpu.index}") for gpu in known)
    for (now, most), names in of_link.items():
        yield f"PCIe link of {spans(names)}: {now} of {most}{_at_rest(now, most)}"


def _at_rest(now: str, most: str) -> str:
    """A GPU without work lowers its link's speed, never its width."""
    slower = now != most and " " in most and now.rpartition(" ")[2] == most.rpartition(" ")[2]
    return " (an idle GPU lowers the speed)" if slower else ""


def _together(topology: Topology) -> Iterator[str]:
    """GPUs and cards that share a switch, and whose nearest card is farther, where the text has their whole rows."""
    if topology.stated is None:
        return
    groups = stated_groups(topology)
    shared = [f"{spans(group.gpus)}{' with ' if group.nics else ''}{spans(group.nics)}" for group in groups]
    if shared:
        yield f"behind one switch: {'; '.join(shared)}"
    alone = _without_a_near_card(topology, [head for head in topology.stated.heads if not head.startswith("GPU")])
    if alone and len(alone) < len(topology.gpus):
        yield f"without a card behind the same switch: {spans(alone)}"
    elif alone:
        nearest = collected((nearest_card_words(topology, gpu), gpu) for gpu in alone)
        each = "; ".join(f"{word} of {spans(gpus)}" for word, gpus in nearest.items())
        yield f"no card of the text is behind the switch of a GPU; the nearest: {each}"


def _without_a_near_card(topology: Topology, nics: Sequence[str]) -> list[str]:
    """The GPUs whose path to every card is known, and none of them is near."""
    if not nics:
        return []
    to_cards = collected((pair.one, pair.type) for pair in paths(topology) if not pair.other.startswith("GPU"))
    known = {name: types for name, types in to_cards.items() if len(types) == len(nics) and None not in types}
    return [gpu.name for gpu in gpu_ends(topology) if gpu.name in known and not {*known[gpu.name]} & {*_NEAR}]


def _nameless(topology: Topology, snapshot: Snapshot) -> Iterator[str]:
    """A tree of `lspci -t` has places and no names."""
    named = any(device.vendor for device in topology.pci) or not any("lspci" in form for form in recognised(snapshot))
    if topology.pci and not topology.gpus and not named:
        yield "the tree has no names: `lspci -tv` shows which of its devices are GPUs and cards"


def _of_others(names: Sequence[str]) -> Iterator[str]:
    if kinds := Counter(re.sub(r" \(rev [0-9a-f]{2}\).*", "", name) for name in names):
        yield "accelerators of other makers: " + ", ".join(f"{count} x {name}" for name, count in kinds.items())


def _behind(behind: Mapping[str, Any]) -> Iterator[str]:
    """Of a piece of NCCL's file."""
    for bridge, raw in behind.items():
        if names := texts(raw):
            yield f"behind {bridge} in the piece: {spans(names)}"


def _cards(snapshot: Snapshot) -> Iterator[str]:
    names = cards_of(snapshot)
    virtual = [name for name in names if "Virtual Function" in name]
    for word, own in (("network card", [name for name in names if name not in virtual]), ("virtual function", virtual)):
        if cards := Counter(own):
            kinds = ", ".join(f"{number} x {name}" for name, number in cards.items())
            yield f"{counted(cards.total(), word)}: {kinds}"


def _ports(topology: Topology) -> Iterator[str]:
    """'RDMA ports: ACTIVE, Ethernet, 100 Gb/s: mlx5_0; DOWN (Disabled), Ethernet: mlx5_1'."""
    states = collected((_state(port), port.device) for port in topology.rdma if port.state)
    if states:
        each = "; ".join(f"{words}: {spans(dict.fromkeys(names))}" for words, names in states.items())
        yield f"RDMA ports: {each}"


def _state(port: RdmaPort) -> str:
    """The rate of a port without a link is none that it has."""
    why = f" ({port.phys_state})" if port.phys_state and not (port.active and port.phys_state == "LinkUp") else ""
    rate = f"{port.rate_gbps:g} Gb/s" if port.rate_gbps and port.active else ""
    return ", ".join(filter(None, (port.state + why, port.link_layer, rate)))


def _kinds(topology: Topology, snapshot: Snapshot) -> Iterator[str]:
    """'RDMA devices: ConnectX-7: mlx5_0 to mlx5_3', by their PCI device ids (0x15b3, Mellanox)."""
    devices = dict.fromkeys(port.device for port in topology.rdma)
    numbers = {name: snapshot.text(f"/sys/class/infiniband/{name}/hca_type").removeprefix("MT") for name in devices}
    kinds = collected(
        (known, name)
        for name, number in numbers.items()
        if number.isdecimal() and (known := known_part(_MELLANOX, int(number)))
    )
    if kinds:
        yield "RDMA devices: " + "; ".join(f"{kind}: {spans(names)}" for kind, names in kinds.items())
    if soft := [name for name in devices if name.startswith("rxe")]:
        yield f"software RoCE (the kernel's rxe), not a card: {spans(soft)}"


_MELLANOX = 0x15B3


def _mtus(topology: Topology, mtus: Mapping[str, Any]) -> Iterator[str]:
    """RDMA packets that are smaller than a port could send; of a port without a link it says nothing."""
    active = {port.name for port in topology.rdma if port.active}
    sizes = {name: (sized.get("active_mtu"), sized.get("max_mtu")) for name, sized in mtus.items() if name in active}
    small = collected((pair, name) for name, pair in sizes.items() if None not in pair and pair[0] != pair[1])
    for (now, most), names in small.items():
        yield f"RDMA packets of {now} bytes where {most} are possible (active_mtu): {spans(names)}"


def _gids(topology: Topology) -> Iterator[str]:
    """Which entry of each port's table is RoCE v2 with an address that is routed, as NCCL_IB_GID_INDEX names it."""
    ports = [port for port in topology.rdma if port.gids and port.link_layer != "InfiniBand"]
    by_index = collected(
        (gid.index, f"{port.device} ({gid.ipv4}{_on(gid, port)})")
        for port in ports
        for gid in port.gids
        if _is_routed(gid)
    )
    for index, names in by_index.items():
        yield f"RoCE v2 over IPv4 is GID index {index} at {spans(names)}"
    by_type = collected((_types(port), port.device) for port in ports if _is_typed_and_never_routed(port))
    for types, names in by_type.items():
        yield f"no RoCE v2 GID with an IPv4 address among those in the text: {spans(names)} ({types})"


def _gid_elsewhere(topology: Topology, others: Iterable[Topology]) -> Iterator[str]:
    """NCCL_IB_GID_INDEX is one number for a job's ranks, mostly; containers number their entries by when they began."""
    own = gid_indices(topology)
    for other in others:
        theirs = gid_indices(other)
        if own and theirs and own.isdisjoint(theirs):
            yield (
                f"{other.node} has it at index {spans(map(str, sorted(theirs)))}: no NCCL_IB_GID_INDEX fits both;"
                " leave it unset, or set it on each"
            )


def _on(gid: Gid, port: RdmaPort) -> str:
    """The interface, where the port's entries are of several."""
    several = len({other.netdev for other in port.gids if _is_routed(other)}) > 1
    return f" on {gid.netdev}" if several and gid.netdev else ""


def _is_routed(gid: Gid) -> bool:
    return gid.type == "RoCE v2" and bool(gid.ipv4)


def _is_typed_and_never_routed(port: RdmaPort) -> bool:
    return any(gid.type for gid in port.gids) and not any(map(_is_routed, port.gids))


def gid_indices(topology: Topology) -> set[int]:
    """The indices at which a machine's ports have RoCE v2 over IPv4."""
    return {gid.index for port in topology.rdma for gid in port.gids if _is_routed(gid)}


def _types(port: RdmaPort) -> str:
    """'index 1 RoCE v2 link-local'."""
    return spans(f"index {gid.index} {gid.type} {_scope(gid)}" for gid in port.gids)


def _scope(gid: Gid) -> str:
    if gid.ipv4:
        return "IPv4"
    return "link-local" if gid.gid.startswith("fe80") else "IPv6"


def _netdevs(raw: Mapping[str, Any]) -> Iterator[str]:
    pairs = {name: pair for name, pair in raw.items() if isinstance(pair, (list, tuple)) and len(pair) == 2}
    by_state = collected((str(state), f"{name} is {netdev}") for name, (netdev, state) in pairs.items())
    for state, names in by_state.items():
        yield f"interfaces of RDMA ports that are {state}: {spans(names)}"


def _interfaces(topology: Topology) -> Iterator[str]:
    """Interfaces with an address or an MTU; a loopback says nothing."""
    shown = [interface for interface in topology.interfaces if interface.name != "lo" and interface.operstate]
    by_state = collected(
        (
            interface.operstate,
            " ".join(filter(None, (interface.name, *interface.ipv4, f"MTU {interface.mtu}" if interface.mtu else ""))),
        )
        for interface in shown
    )
    for state, names in by_state.items():
        yield f"interfaces {state}: {spans(names)}"


def _mtu_elsewhere(topology: Topology, others: Iterable[Topology]) -> Iterator[str]:
    """Interfaces of one name whose MTU is another on a machine that was pasted beside this one."""
    own = {interface.name: interface.mtu for interface in topology.interfaces if interface.mtu}
    for other in others:
        for interface in other.interfaces:
            if interface.mtu and own.get(interface.name, interface.mtu) != interface.mtu:
                yield f"MTU of {interface.name}: {own[interface.name]}, {interface.mtu} on {other.node}"


def _processors(cpu: Mapping[str, Any]) -> Iterator[str]:
    """'2 x Intel(R) Xeon(R) Gold 6130, 128 processors in 4 NUMA domains; in a virtual machine (KVM)'."""
    model, sockets = str(cpu.get("model") or ""), str(cpu.get("sockets") or "")
    words = [
        " x ".join(filter(None, (sockets if model else "", model))),
        f"{sockets} sockets" if sockets and not model else "",
        f"{cpu['processors']} processors" if cpu.get("processors") else "",
        f"{cpu['nodes']} NUMA domains" if cpu.get("nodes") else "",
        f"a virtual machine ({cpu['hypervisor']})" if cpu.get("hypervisor") else "",
    ]
    if any(words):
        yield f"CPU: {', '.join(filter(None, words))}"


_NODES = "/sys/devices/system/node"


def _numa(topology: Topology, snapshot: Snapshot) -> Iterator[str]:
    """Domains with memory, and those with processors alone: the text says that they have 0 MB."""
    with_cpus = [domain for domain in topology.numa if domain.cpulist]
    memory = {str(domain.node): snapshot.text(f"{_NODES}/node{domain.node}/meminfo") for domain in with_cpus}
    sizes = Counter(f"{domain.memory_bytes / _GIB:.0f} GiB" for domain in topology.numa if domain.memory_bytes)
    if sizes:
        kinds = " and ".join(f"{count} with {size}" for size, count in sizes.items())
        yield f"{counted(len(topology.numa), 'NUMA domain')} in the text: {kinds}"
    elif not texts(pasted(snapshot).get("without_processors")):
        yield from _processors_alone(with_cpus)
    if empty := [node for node, text in memory.items() if " 0 kB" in text]:
        yield f"processors without memory of their own: NUMA domain {spans(empty)}; all their memory is remote"


def _processors_alone(domains: Sequence[NumaDomain]) -> Iterator[str]:
    """Of a text that has not the memory of its domains."""
    each = "; ".join(f"{domain.node}: {domain.cpulist}" for domain in domains)
    if len(domains) > 1:
        yield f"processors by NUMA domain: {each}" if len(each) < _LONG else f"{len(domains)} NUMA domains"


def _memory_alone(topology: Topology, domains: Sequence[str]) -> Iterator[str]:
    """Where lscpu lists domains without processors, as those of the memory of Grace's GPUs."""
    if domains:
        own = collected((domain.cpulist, str(domain.node)) for domain in topology.numa if domain.cpulist)
        with_some = "; ".join(f"processors {cpus} in NUMA domain {spans(nodes)}" for cpus, nodes in own.items())
        yield "; ".join(filter(None, (with_some, f"without processors: {spans(domains)}")))


def _slots(topology: Topology, raw: Any) -> Iterator[str]:
    """Slots in use, with the GPU whose address they name; of a firmware that gives all one address none is known."""
    listed = mappings(raw)
    addresses = [str(slot["Bus Address"]) for slot in listed if slot.get("Bus Address")]
    if len(addresses) > 1 and len(set(addresses)) == 1:
        yield f"the firmware gives all {len(listed)} slots the address {addresses[0]}: which has what is not known"
        return
    yield from _slots_told_apart(listed, {gpu.address.rpartition(":")[0]: f"GPU{gpu.index}" for gpu in topology.gpus})


def _slots_told_apart(listed: Sequence[Mapping[str, Any]], gpus: Mapping[str, str]) -> Iterator[str]:
    used = [_slot_in_use(slot, gpus) for slot in listed if slot.get("Current Usage") not in (None, "", "Available")]
    free = [str(slot.get("slot")) for slot in listed if slot.get("Current Usage") == "Available"]
    for words, names in (("slots in use", used), ("free slots", free)):
        if names:
            yield f"{words}: {spans(names)}"


def _slot_in_use(slot: Mapping[str, Any], gpus: Mapping[str, str]) -> str:
    """'GPU0 in PCIE1 at 0000:17:00.0'. gpus: {bus: name}"""
    address = str(slot.get("Bus Address") or "")
    gpu = gpus.get(address.rpartition(":")[0]) if address else None
    return f"{f'{gpu} in ' if gpu else ''}{slot.get('slot')}{f' at {address}' if address else ''}"
