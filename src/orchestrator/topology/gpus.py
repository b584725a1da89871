"""GPUs: NVML's answer joined with the PCI functions that are GPUs, what counts as one, and which of them a node's
inventory means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, repeat
from typing import Any

from orchestrator.model.gpu_facts import facts_of
from orchestrator.model.inventory import NodeSpec
from orchestrator.model.snapshot import NOT_RECORDED, part
from orchestrator.model.topology import Gpu, GpuProcess, NvLinks, PciDevice, PcieLink, RdmaPort, Topology
from orchestrator.protocol.planned import takes
from orchestrator.topology.pci import normal_address, sort_key
from orchestrator.topology.switches import SwitchPlaces

NVSWITCH = 0x068000
"""PCI class of an NVSwitch (a bridge of another kind); NCCL's tclass of what the PCI tree does not show."""
_GTS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
"""PCIe generation to GT/s a lane."""


def find_gpus(
    nvml: Mapping[str, Any], devices: Sequence[PciDevice], places: SwitchPlaces, accelerators: Accelerators
) -> tuple[Gpu, ...]:
    """All GPUs in order of index, those that NVML does not show last (index -1). Where NVML was not asked, they are
    numbered by address, as CUDA_DEVICE_ORDER=PCI_BUS_ID does."""
    functions = [device for device in devices if is_gpu(device, accelerators)]
    reported = [{"index": place, **device} for place, device in enumerate(nvml_devices(nvml))]
    described = list(_described(reported, functions))
    classes = {device.address: device.class_code for device in devices}
    gpus = [
        replace(_gpu(report, function, places), nvlinks=_nvlinks(report, classes)) for report, function in described
    ]
    shown = [function for _, function in described]
    silent = [function for function in functions if function not in shown]
    gpus += _silent(silent, places, asked=nvml.get("error") != NOT_RECORDED)
    return tuple(sorted(gpus, key=lambda gpu: (gpu.index < 0, gpu.index, sort_key(gpu.address), gpu.key)))


def usable_gpus(gpus: Sequence[Gpu], wanted: int, names: Sequence[str] = ()) -> tuple[Gpu, ...]:
    """The GPUs that a gang may use on a node, those that do not answer left out.

    wanted: the first ones that NVML shows; a lost one of them is lost, since another in its place would move ranks.
    Where NVML shows none at all, the bus is all that is known: the first `wanted` of its GPUs.
    names: if any, these instead: NVML's indices, UUIDs or PCI addresses, in the order of the ranks
    """
    shown = sorted((gpu for gpu in gpus if gpu.index >= 0), key=lambda gpu: gpu.index) or list(gpus)
    meant = [gpu for name in names for gpu in shown if _is_called(gpu, name)] if names else shown[:wanted]
    return tuple(gpu for gpu in dict.fromkeys(meant) if not gpu.lost)


def _is_called(gpu: Gpu, name: str) -> bool:
    return name in (str(gpu.index), gpu.uuid, gpu.address) or normal_address(name) == gpu.address


def capability(gpu: Gpu) -> int:
    """Compute capability as NCCL writes it: NVML's word, else the model's; 0 where unknown."""
    known = facts_of(gpu.name)
    return gpu.sm or (known.sm if known else 0)


def is_gpu(device: PciDevice, accelerators: Accelerators) -> bool:
    """Whether a PCI function counts as a GPU."""
    return AcceleratorClass(device.class_code >> 8, device.vendor) in accelerators


def _described(
    reported: Sequence[Mapping[str, Any]], functions: Sequence[PciDevice]
) -> Iterator[tuple[Mapping[str, Any], PciDevice | None]]:
    """NVML's devices with their PCI functions, None where there is none.

    A lost device may not report its address: where as many functions are left over as such devices, they are the
    same, in order of address (NVML's order).
    """
    left = list(functions)
    for device in reported:
        if address := device.get("pci_bus_id"):
            function = next(
                (function_left for function_left in left if function_left.address == normal_address(str(address))), None
            )
            if function is not None:
                left.remove(function)
            yield device, function
    nameless = [device for device in reported if not device.get("pci_bus_id")]
    fitting = [nameless_function for nameless_function in left if nameless_function.vendor == NVIDIA]
    same: Iterable[PciDevice | None] = fitting if len(fitting) == len(nameless) else repeat(None)
    yield from zip(nameless, same, strict=False)


def _gpu(report: Mapping[str, Any], function: PciDevice | None, places: SwitchPlaces) -> Gpu:
    index, memory, link = whole(report.get("index"), -1), part(report, "memory"), part(report, "link")
    address = function.address if function else normal_address(str(report.get("pci_bus_id") or ""))
    return Gpu(
        index=index,
        address=address,
        key=function.key if function else f"nvml:{address or index}",
        switch=places.nearest(function.key) if function else "",
        numa_node=function.numa_node if function else whole(report.get("numa_node"), -1),
        name=str(report.get("name") or ""),
        uuid=str(report.get("uuid") or ""),
        memory_total=whole(memory.get("total")),
        memory_used=whole(memory.get("used")),
        link=_link(function.link if function else PcieLink(), link.get("gen"), link.get("width")),
        link_max=_link(function.link_max if function else PcieLink(), link.get("max_gen"), link.get("max_width")),
        processes=tuple(
            GpuProcess(pid=whole(process.get("pid")), memory_bytes=whole(process.get("used_bytes")))
            for process in _mappings(report.get("processes"))
        ),
        sm=_sm(report.get("compute_capability")),
        lost=_why_lost(report),
    )


def _link(read: PcieLink, generation: Any, width: Any) -> PcieLink:
    """What sysfs says, else what NVML says."""
    return PcieLink(speed_gts=read.speed_gts or _GTS.get(whole(generation), 0.0), width=read.width or whole(width))


def _sm(capability: Any) -> int:
    """[9, 0] is 90, as NCCL counts; 0 for anything else."""
    if not isinstance(capability, (list, tuple)) or len(capability) != 2:
        return 0
    major, minor = (whole(part, -1) for part in capability)
    return major * 10 + minor if major > 0 and minor >= 0 else 0


def _nvlinks(report: Mapping[str, Any], classes: Mapping[str, int]) -> tuple[NvLinks, ...] | None:
    """NVLinks that are up and allow peer-to-peer, by their other end (NCCL src/graph/xml.cc, ncclTopoGetXmlFromGpu).

    None where NVML was not asked or failed. For a GPU without NVLink it reports that this is not supported.
    classes: PCI class of every function of the machine, by address
    """
    raw = report.get("nvlinks")
    if not isinstance(raw, (list, tuple)):
        return None
    if not raw:
        return () if _has_no_nvlink(report) else None
    active = [link for link in raw if isinstance(link, Mapping) and link.get("active") == 1]
    if not all(map(_is_read, active)):
        return None
    counts = Counter(str(link["remote"]).lower() for link in active if link["p2p"])
    return tuple(
        NvLinks(target=target, count=links, switch=classes.get(normal_address(target), NVSWITCH) == NVSWITCH)
        for target, links in counts.items()
    )


def _is_read(link: Mapping[str, Any]) -> bool:
    return link.get("p2p") is not None and bool(link.get("remote"))


def _has_no_nvlink(report: Mapping[str, Any]) -> bool:
    """Whether NVML named no link because the GPU has none, not because the question failed."""
    error = str(part(report, "errors").get("nvmlDeviceGetNvLinkState", ""))
    return not error or "NotSupported" in error or "InvalidArgument" in error


def _why_lost(report: Mapping[str, Any]) -> str:
    """A device that reports neither a name nor memory does not answer; the first error says why. Without an error it
    was not asked."""
    if report.get("name") or part(report, "memory"):
        return ""
    return str(next(iter(part(report, "errors").values()), ""))


def _silent(left: Sequence[PciDevice], places: SwitchPlaces, *, asked: bool) -> Iterator[Gpu]:
    """Functions that NVML does not show. Those that it can't know (another vendor's, or not asked) are numbered."""
    foreign = count()
    for device in left:
        yield Gpu(
            index=next(foreign) if device.vendor != NVIDIA or not asked else -1,
            address=device.address,
            key=device.key,
            switch=places.nearest(device.key),
            numa_node=device.numa_node,
            link=device.link,
            link_max=device.link_max,
        )


def nvml_devices(nvml: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What NVML says of each GPU, as far as it is well-formed."""
    return _mappings(nvml.get("devices"))


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, (list, tuple)) else []


def whole(value: object, otherwise: int = 0) -> int:
    """An integer that NVML or a file gave; `otherwise` for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else otherwise


@dataclass(frozen=True, slots=True)
class AcceleratorClass:
    """PCI functions that count as GPUs: base class and subclass (16 bits, 0x0302) of one vendor."""

    class_code: int
    vendor: int


NVIDIA = 0x10DE
NVIDIA_GPUS = (AcceleratorClass(0x0302, NVIDIA), AcceleratorClass(0x0300, NVIDIA))
"""3D controllers (data centre cards) and VGA controllers (workstation cards)."""
Accelerators = Sequence[AcceleratorClass]
"""Which PCI functions are GPUs; a recorded machine may have other ones than NVIDIA's."""


@dataclass(frozen=True)
class Machine:
    """What only facts and inventory together tell of a node: here a variable of the inventory that says what is meant
    by its hardware has its one place."""

    spec: NodeSpec
    topology: Topology

    @property
    def name(self) -> str:
        return self.spec.name

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that the gang may use here, by l40s_gpus and NVML."""
        return usable_gpus(self.topology.gpus, self.spec.gpus, self.spec.gpu_names)

    @property
    def answering(self) -> tuple[Gpu, ...]:
        """Those of them that NVML shows."""
        return tuple(gpu for gpu in self.gpus if gpu.index >= 0)

    @property
    def named_ports(self) -> tuple[RdmaPort, ...]:
        """The RDMA ports that l40s_ib_hca names."""
        pin = self.spec.overrides.ib_hca
        return tuple(port for port in self.topology.rdma if pin and takes(pin, port.device, port.port))
