"""GPUs: what NVML answers joined with what the PCI tree shows. A GPU that only one of the two knows is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.model.snapshot import Snapshot
from orchestrator.model.topology import Gpu, GpuProcess, Link, PciDevice

NVIDIA = 0x10DE
_DISPLAY = 0x03
_GTS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerators:
    """What counts as a GPU in the PCI tree: NVIDIA display and 3D controllers, or what a recording has instead.

    class_prefix: the upper bytes of the class code, for example 0x0b4000; None for display controllers
    vendor:       None for any vendor of that class
    """

    class_code: int | None = None
    vendor: int | None = NVIDIA

    def includes(self, device: PciDevice) -> bool:
        """Whether a PCI function is a GPU."""
        if self.vendor is not None and device.vendor != self.vendor:
            return False
        if self.class_code is not None:
            return device.class_code == self.class_code
        return device.class_code >> 16 == _DISPLAY


def gpus(
    snapshot: Snapshot, devices: Sequence[PciDevice], switch_of: Callable[[str], str], kind: Accelerators
) -> tuple[Gpu, ...]:
    """NVML's GPUs in its order, then those that only the bus shows."""
    on_bus = {device.address: device for device in devices if kind.includes(device)}
    found = []
    seen: set[str] = set()
    for answer in _answers(snapshot):
        address = bus_address(answer.get("pci_bus_id"), on_bus)
        seen.add(address)
        found.append(_gpu(answer, address, on_bus.get(address), switch_of))
    found.extend(
        _gpu({}, address, device, switch_of) for address, device in sorted(on_bus.items()) if address not in seen
    )
    return tuple(found)


def _answers(snapshot: Snapshot) -> Iterator[Mapping[str, Any]]:
    devices = snapshot.nvml.get("devices")
    if isinstance(devices, (list, tuple)):
        yield from (device for device in devices if isinstance(device, Mapping))


def bus_address(nvml: Any, on_bus: Mapping[str, PciDevice]) -> str:
    """NVML's '00000000:1C:00.0' as the PCI tree spells it: the domain has four digits where four do."""
    text = str(nvml or "").lower()
    domain, _, rest = text.partition(":")
    short = f"{domain[-4:]}:{rest}" if len(domain) == 8 and domain.startswith("0000") else text
    return next((candidate for candidate in (text, short) if candidate in on_bus), short)


def _gpu(answer: Mapping[str, Any], address: str, device: PciDevice | None, switch_of: Callable[[str], str]) -> Gpu:
    memory = answer.get("memory")
    total, used = (_int(memory, "total"), _int(memory, "used")) if isinstance(memory, Mapping) else (0, 0)
    link, link_max = (device.link, device.link_max) if device else _nvml_links(answer.get("link"))
    return Gpu(
        index=_int(answer, "index", default=-1),
        address=address,
        key=device.key if device else "",
        switch=switch_of(device.key) if device else "",
        numa_node=device.numa_node if device else _int(answer, "numa_node", default=-1),
        name=str(answer.get("name") or ""),
        uuid=str(answer.get("uuid") or ""),
        memory_total=total,
        memory_used=used,
        link=link,
        link_max=link_max,
        processes=tuple(_processes(answer.get("processes"))),
        lost=str(answer.get("lost") or ""),
    )


def _nvml_links(link: Any) -> tuple[Link, Link]:
    if not isinstance(link, Mapping):
        return Link(), Link()
    return (
        Link(speed_gts=_GTS.get(_int(link, "gen"), 0.0), width=_int(link, "width")),
        Link(speed_gts=_GTS.get(_int(link, "max_gen"), 0.0), width=_int(link, "max_width")),
    )


def _processes(raw: Any) -> Iterator[GpuProcess]:
    for process in raw if isinstance(raw, (list, tuple)) else ():
        if isinstance(process, Mapping) and _int(process, "pid"):
            yield GpuProcess(pid=_int(process, "pid"), memory_bytes=_int(process, "used_bytes"))


def _int(raw: Mapping[str, Any], key: str, default: int = 0) -> int:
    value = raw.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else default
