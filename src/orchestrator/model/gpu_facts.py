"""GPUs that this product meets: what does not depend on the machine that they sit in.

Sources: NVIDIA's data sheets of each model (memory, NVLink, PCIe generation); CUDA C++ Programming Guide, table of
compute capabilities (shared memory of one block); memory by NVML: nvidia-smi -q of an L40S with ECC, and of the H200
in tests/recorded. Where NVML is asked, its word counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """One model.

    memory_gb:  as it is sold; of several sizes the largest
    nvml_mib:   what NVML says it has, 0 where nobody has seen it
    sm:         compute capability as NCCL writes it (89 for 8.9)
    nvlink:     whether it has NVLink in any of its forms; a PCIe card has it with a bridge only
    pcie_gen:   the fastest generation of its own link
    """

    name: str
    memory_gb: int
    nvml_mib: int = 0
    sm: int
    nvlink: bool
    pcie_gen: int


GPUS = (
    GpuFacts(name="L40S", memory_gb=48, nvml_mib=46068, sm=89, nvlink=False, pcie_gen=4),
    GpuFacts(name="L40", memory_gb=48, sm=89, nvlink=False, pcie_gen=4),
    GpuFacts(name="L4", memory_gb=24, sm=89, nvlink=False, pcie_gen=4),
    GpuFacts(name="L20", memory_gb=48, sm=89, nvlink=False, pcie_gen=4),
    GpuFacts(name="RTX 6000 Ada", memory_gb=48, sm=89, nvlink=False, pcie_gen=4),
    GpuFacts(name="RTX 4090", memory_gb=24, sm=89, nvlink=False, pcie_gen=4),
    GpuFacts(name="A100", memory_gb=80, sm=80, nvlink=True, pcie_gen=4),
    GpuFacts(name="H100", memory_gb=80, sm=90, nvlink=True, pcie_gen=5),
    GpuFacts(name="H200", memory_gb=141, nvml_mib=143771, sm=90, nvlink=True, pcie_gen=5),
)
L40S = GPUS[0]
"""What every price and every measured layout of the articles is of."""

SHARED_MEMORY = {80: 166912, 89: 101376, 90: 232448}
"""Bytes that one block may have, by compute capability."""


def facts_of(name: str) -> GpuFacts | None:
    """The model that NVML's name means ('NVIDIA H100 80GB HBM3', or with underscores as torch's file names have it)."""
    words = re.sub(r"[^A-Za-z0-9]+", " ", name)
    return next((one for one in GPUS if re.search(rf"(?:^|\s){re.escape(one.name)}(?=\s|$)", words)), None)


def short_name(name: str) -> str:
    """'L40S', 'H100' for models of the table; any other name without its maker's; '' stays ''."""
    known = facts_of(name)
    return known.name if known else name.removeprefix("NVIDIA ")
