"""NCCL's own look at this machine beside the product's: one all-reduce over all GPUs, and both topology files."""

from __future__ import annotations

import os
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

ATTRIBUTES = ("link_speed", "link_width", "sm", "rank", "gdr")
NCCL_COUNTS_AS = {"0": "16", "": "16"}
"""Lanes where NCCL sees no port above a GPU, as in a virtual machine (NCCL src/graph/topo.cc, ncclTopoAddPci)."""
_DEADLINE_S = 90.0
_ALL_REDUCE = """
import os, datetime, time, torch, torch.distributed as d
r = int(os.environ["RANK"]); torch.cuda.set_device(r)
d.init_process_group("nccl", timeout=datetime.timedelta(seconds=60))
for size in (1 << 13, 1 << 20, 1 << 27):
    x = torch.ones(size // 2, device="cuda", dtype=torch.bfloat16)
    for _ in range(3): d.all_reduce(x)
    torch.cuda.synchronize(); began = time.time()
    for _ in range(10): d.all_reduce(x)
    torch.cuda.synchronize(); each = (time.time() - began) / 10
    if r == 0: print(size, each, flush=True)
nccl = ".".join(map(str, torch.cuda.nccl.version()))
if r == 0: print("versions", torch.__version__, nccl, torch.cuda.get_device_name(0), flush=True)
d.destroy_process_group()
"""


def all_reduce(python: str, gpus: int, folder: Path) -> tuple[dict[int, float], list[str]]:
    """({bytes: microseconds}, [torch, NCCL and GPU]) of an all-reduce; NCCL writes folder/nccl.xml."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "WORLD_SIZE": str(gpus),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29555",
        "NCCL_NVLS_ENABLE": "0",
        "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
        "NCCL_TOPO_DUMP_FILE": str(folder / "nccl.xml"),
    }
    ranks = [
        subprocess.Popen(
            [python, "-c", _ALL_REDUCE],
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(gpus)
    ]
    end = time.monotonic() + _DEADLINE_S
    try:
        said = [rank.communicate(timeout=max(1.0, end - time.monotonic()))[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    if any(rank.returncode for rank in ranks):
        raise OSError(f"the all-reduce failed: {said[0][-400:]}")
    rows = [line.split(maxsplit=3) for line in said[0].splitlines()]
    times = {int(row[0]): round(float(row[1]) * 1e6, 1) for row in rows if len(row) == 2 and row[0].isdigit()}
    return times, next((row[1:] for row in rows if row[:1] == ["versions"]), [])


def compared(theirs: Path, ours: Path) -> dict[str, Any]:
    """Attribute -> [NCCL's, ours] of the GPUs where they differ, NVLinks too; {} where the files say the same."""
    nccl, product = _gpus(theirs), _gpus(ours)
    differing: dict[str, Any] = {}
    if nccl.keys() != product.keys():
        differing["busid"] = [sorted(nccl), sorted(product)]
    for bus in nccl.keys() & product.keys():
        for name in (*ATTRIBUTES, "nvlinks"):
            if nccl[bus].get(name) != product[bus].get(name):
                differing[name] = [nccl[bus].get(name), product[bus].get(name)]
    return differing


def _gpus(file: Path) -> dict[str, dict[str, Any]]:
    found = {}
    for pci in ElementTree.parse(file).iter("pci"):
        gpu = pci.find("gpu")
        if gpu is not None:
            links = sum(int(link.get("count", "0")) for link in gpu.iter("nvlink"))
            width = {"link_width": NCCL_COUNTS_AS.get(pci.get("link_width", ""), pci.get("link_width"))}
            found[pci.get("busid", "").lower()] = {**pci.attrib, **width, **gpu.attrib, "nvlinks": links}
    return found
