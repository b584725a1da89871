"""GPUs that this product meets: what does not depend on the machine that they sit in.

Looked up on 2026-11-22. NVIDIA's own words could be read of few; the others are second-hand and show its figures:

L40S, L40      NVIDIA's table of both, as a reseller shows it (mullet.se, product 355414): 48 GB, PCIe Gen4; NVLink "not
               supported" (itcreations.com, nvidia-l40s-gpu-accelerator); 46068 MiB: nvidia-smi -q of an L40S with ECC
H200           NVIDIA's system description for MLPerf Inference 4.1 (H200-SXM-141GBx8_TRT_MaxQ.json): 141 GB, PCIe Gen5,
               NVLink; 143771 MiB, 9.0 and NVLink: measured (tests/recorded, tests/gpu/measured.md)
A100, H100     glennklockwood.com/garden/processors/A100 and /h100, which cite NVIDIA's data sheets: 80 GB, NVLink, PCIe
               Gen4 and Gen5; 8.0: deviceQuery of an A100 (upb-pc2.atlassian.net, NVIDIA A100 40GB with NVLINK)
L20            technical.city/video/L20, topcpu.net (A40 against L20): 48 GB, PCIe 4.0, CUDA 8.9; nothing of NVIDIA's
L4             pcpartdb.com (L4 against L20): 24 GB; store.sourcecode.com (its comparison of Ada cards): PCIe 4.0
RTX 6000 Ada   hardwareluxx.de, news 59532: 48 GB, PCIe 4.0, and that Ada cards have no NVLink any more, by NVIDIA's CEO
RTX 4090       pugetsystems.com, part 14644: 24 GB, PCIe 4.0, no way to couple several
No H100 but that of 80 GB is meant: the NVL has 94 GB.

Shared memory of one block: CUDA's tuning guides; of 9.0 the 227 KB are confirmed by FlashInfer's tests, of 8.9
(99 KB) and 8.0 (163 KB) by nothing that was found. Where NVML is asked, its word counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFacts:
    """One model.

    nvml_mib:   what NVML says it has, 0 where nobody has seen it
    sm:         compute capability as NCCL writes it (89 for 8.9)
    nvlink:     whether it has NVLink in any of its forms; a PCIe card has it with a bridge only
    """

    name: str
    nvml_mib: int = 0
    sm: int
    nvlink: bool


GPUS = (
    GpuFacts(name="L40S", nvml_mib=46068, sm=89, nvlink=False),
    GpuFacts(name="L40", sm=89, nvlink=False),
    GpuFacts(name="L4", sm=89, nvlink=False),
    GpuFacts(name="L20", sm=89, nvlink=False),
    GpuFacts(name="RTX 6000 Ada", sm=89, nvlink=False),
    GpuFacts(name="RTX 4090", sm=89, nvlink=False),
    GpuFacts(name="A100", sm=80, nvlink=True),
    GpuFacts(name="H100", sm=90, nvlink=True),
    GpuFacts(name="H200", nvml_mib=143771, sm=90, nvlink=True),
)
L40S = GPUS[0]
"""What every price and every measured layout of the articles is of."""

SHARED_MEMORY = {80: 166912, 89: 101376, 90: 232448}
"""Bytes that one block may have, by compute capability."""


@lru_cache(maxsize=1 << 6)
def facts_of(name: str) -> GpuFacts | None:
    """The model that NVML's name means ('NVIDIA H100 80GB HBM3', or with underscores as torch's file names have it)."""
    words = re.sub(r"[^A-Za-z0-9]+", " ", name)
    return next((facts for facts in GPUS if re.search(rf"(?:^|\s){re.escape(facts.name)}(?=\s|$)", words)), None)


def short_name(name: str) -> str:
    """'L40S', 'H100' for models of the table; any other name without its maker's; '' stays ''."""
    known = facts_of(name)
    return known.name if known else name.removeprefix("NVIDIA ")
