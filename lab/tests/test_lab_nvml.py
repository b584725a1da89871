"""The lab's NVML asked by the real nvidia-ml-py, in a process of its own."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest

from l40s_lab.hardware.machine import NodeMachine
from l40s_lab.nvml import config, library

Make = Callable[..., NodeMachine]
Ask = Callable[..., Any]

PRELUDE = """
import ctypes, json, os, sys
import pynvml as n
n.nvmlInit()
g = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
def v2(i): return n.nvmlDeviceGetMemoryInfo(g[i], n.nvmlMemory_v2)
def error(call, *words):
    try: call(*words)
    except n.NVMLError as wrong: return type(wrong).__name__
def show(value): print(json.dumps(value, default=lambda x: x.decode() if isinstance(x, bytes) else str(x)))
"""


def started(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19]


@pytest.fixture
def folder(tmp_path: Path, node: Make) -> Path:
    (tmp_path / "nvml.conf").write_text(config.render(node()))
    (tmp_path / "claims").mkdir()
    return tmp_path


@pytest.fixture
def ask(folder: Path) -> Ask:
    def run(script: str, prelude: str = PRELUDE) -> Any:
        done = subprocess.run(
            [sys.executable, "-c", prelude + script],
            env={
                **os.environ,
                "LD_LIBRARY_PATH": str(library.build().parent),
                "L40S_LAB_NVML": str(folder / "nvml.conf"),
                "L40S_LAB_GPU_CLAIMS": str(folder / "claims"),
                "PYTHONPATH": str(Path(inspect.getfile(pynvml)).parent),
            },
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_it_names_the_machine(ask: Ask) -> None:
    script = """show([n.nvmlSystemGetDriverVersion(), n.nvmlSystemGetCudaDriverVersion_v2(), len(g),
      n.nvmlDeviceGetName(g[0]), n.nvmlDeviceGetPciInfo(g[7]).busId, hex(n.nvmlDeviceGetPciInfo(g[7]).pciDeviceId),
      hex(n.nvmlDeviceGetPciInfo(g[7]).pciSubSystemId), n.nvmlDeviceGetBAR1MemoryInfo(g[0]).bar1Total >> 20,
      n.nvmlDeviceGetCudaComputeCapability(g[0]), n.nvmlDeviceGetNumaNodeId(g[7]),
      len({n.nvmlDeviceGetUUID(x) for x in g}),
      n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId("0000:9A:00.0"))])"""
    assert ask(script) == [
        "580.65.06", 13000, 8, "NVIDIA L40S", "00000000:9D:00.0", "0x26b910de", "0x185110de", 65536, [8, 9], 1, 8, 4,
    ]  # fmt: skip


def test_the_first_memory_info_counts_what_the_driver_keeps_as_used(ask: Ask) -> None:
    script = """a, b = n.nvmlDeviceGetMemoryInfo(g[0]), v2(0)
show([a.total, a.used, a.free, b.total, b.reserved, b.used, b.free])"""
    mib = 1 << 20
    assert ask(script) == [
        46068 * mib, 615 * mib, 45453 * mib, 46068 * mib, 615 * mib, 0, 45453 * mib,
    ]  # fmt: skip


def test_claims_count_while_their_process_lives(ask: Ask, folder: Path) -> None:
    living, other_start, dead = os.getpid(), int(started(os.getpid())) + 1, 2**22 - 1
    (folder / f"claims/2.{living}").write_text(f"{3 << 30} {started(living)}")
    (folder / f"claims/3.{living}").write_text(f"{3 << 30} {other_start}")
    (folder / f"claims/4.{dead}").write_text(f"{3 << 30} 1")
    (folder / f"claims/5.{living}").write_text("nonsense")
    (folder / f"claims/.6.{living}.new").write_text(f"{3 << 30} {started(living)}")
    used, processes, links = ask(
        """show([[v2(i).used for i in range(8)],
      [[p.pid, p.usedGpuMemory] for p in n.nvmlDeviceGetComputeRunningProcesses(g[2])],
      [n.nvmlDeviceGetCurrPcieLinkGeneration(g[i]) for i in (2, 3)]])"""
    )
    assert used == [0, 0, 3 << 30, 0, 0, 0, 0, 0]
    assert processes == [[living, 3 << 30]]
    assert links == [4, 1], "an idle link rests at generation 1"


def test_pairs_are_as_far_apart_as_the_tree_says(ask: Ask) -> None:
    script = """show([n.nvmlDeviceGetTopologyCommonAncestor(g[0], g[1]),
      n.nvmlDeviceGetTopologyCommonAncestor(g[0], g[4]),
      *(n.nvmlDeviceGetP2PStatus(g[0], g[1], i) for i in range(3))])"""
    assert ask(script) == [10, 50, 0, 0, 5], "one switch; across sockets; read, write, and no NVLink"


@pytest.mark.parametrize(
    ("line", "script", "answer"),
    [
        (
            "5.fail=15",
            "show([error(n.nvmlDeviceGetName, g[4]), error(n.nvmlDeviceGetHandleByIndex, 5)])",
            [None, "NVMLError_GpuIsLost"],
        ),
        ("0.ecc_unc=3", "show(n.nvmlDeviceGetTotalEccErrors(g[0], 1, 0))", 3),
        ("*.reasons=0x40", "show(n.nvmlDeviceGetCurrentClocksEventReasons(g[3]))", 0x40),
        ("1.width=8", "show([n.nvmlDeviceGetCurrPcieLinkWidth(x) for x in g[:2]])", [16, 8]),
        ("1.nvlinks=0", "show(error(n.nvmlDeviceGetNvLinkState, g[1], 0))", "NVMLError_NotSupported"),
        (
            "1.nvlinks=2",
            """show([n.nvmlDeviceGetNvLinkState(g[1], 1), n.nvmlDeviceGetNvLinkCapability(g[1], 1, 0),
      n.nvmlDeviceGetNvLinkRemotePciInfo(g[1], 1).busIdLegacy, error(n.nvmlDeviceGetNvLinkState, g[1], 2)])""",
            [1, 1, "FFFFFFF:FF:FF.0", "NVMLError_InvalidArgument"],
        ),
        ("p2p.0.1=1", "show(n.nvmlDeviceGetP2PStatus(g[1], g[0], 0))", 1),
    ],
)
def test_the_hardware_can_change(ask: Ask, folder: Path, line: str, script: str, answer: Any) -> None:
    file = folder / "nvml.conf"
    key = line.partition("=")[0]
    kept = [one for one in file.read_text().splitlines() if one.partition("=")[0] != key]
    file.write_text("\n".join([*kept, line]) + "\n")
    prelude = PRELUDE.replace("range(n.nvmlDeviceGetCount())", "range(5)")
    assert ask(script, prelude) == answer


def test_without_a_driver_it_does_not_start(ask: Ask, folder: Path) -> None:
    (folder / "nvml.conf").unlink()
    prelude = PRELUDE.replace("n.nvmlInit()\n", "").replace("g = [", "g = [] and [")
    assert ask("show(error(n.nvmlInit))", prelude) == "NVMLError_DriverNotLoaded"


def test_layouts_are_those_of_nvidia_ml_py(tmp_path: Path) -> None:
    """Sizes as the C compiler lays them out, against the ctypes structures to be filled."""
    import ctypes

    names = ("PciInfo", "Memory", "Memory2", "Bar1", "Process")
    print_sizes = "".join(f'printf("%zu ", sizeof({name}));' for name in names)
    source = library._SOURCE.read_text() + f"\nint main(void) {{ {print_sizes} return 0; }}\n"
    (tmp_path / "sizes.c").write_text(source)
    subprocess.run(["gcc", "-o", str(tmp_path / "sizes"), str(tmp_path / "sizes.c")], check=True, timeout=60)
    sizes = subprocess.run([str(tmp_path / "sizes")], capture_output=True, check=True, text=True).stdout.split()
    structures = (
        pynvml.nvmlPciInfo_t,
        pynvml.c_nvmlMemory_t,
        pynvml.c_nvmlMemory_v2_t,
        pynvml.c_nvmlBAR1Memory_t,
        pynvml.c_nvmlProcessInfo_v3_t,
    )
    assert [int(size) for size in sizes] == [ctypes.sizeof(structure) for structure in structures]
