"""Path types of every pair, and the table that is compared with `nvidia-smi topo -m`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.machine_files import MachineFiles, reference_machine
from tests.support.variants import two_sub_switches

from orchestrator.cli.main import main
from orchestrator.doctor.steps.recordings import save_snapshots
from orchestrator.topology.build import build
from orchestrator.topology.draw import paths_json
from orchestrator.topology.paths import matrix, paths


def table(text: str) -> dict[tuple[str, str], str]:
    """{(row, column): word} of a matrix."""
    lines = [line.split("\t") for line in text.splitlines() if line.startswith(("\t", "GPU", "NIC")) and "\t" in line]
    heads = lines[0][1:]
    return {(line[0], head): word for line in lines[1:] for head, word in zip(heads, line[1:], strict=False)}


def test_every_pair_is_there_once_lower_index_first_and_gpu_before_nic() -> None:
    topology = build(reference_machine().snapshot())
    found = [(pair.one, pair.other) for pair in paths(topology)]
    gpus = [f"GPU{index}" for index in range(8)]
    nics = ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_bond_0"]
    assert found == [(one, other) for place, one in enumerate(gpus) for other in gpus[place + 1 :]] + [
        (gpu, nic) for gpu in gpus for nic in nics
    ]
    types = {(each["from"], each["to"]): each["type"] for each in paths_json(topology)}
    assert types["GPU0", "GPU3"] == types["GPU0", "mlx5_1"] == "PIX"
    assert types["GPU0", "GPU4"] == types["GPU0", "mlx5_2"] == "SYS"
    assert types["GPU0", "mlx5_bond_0"] == "PHB"


def test_a_gpu_that_only_nvml_shows_has_no_type() -> None:
    topology = build(reference_machine().snapshot(files={}, links={}))
    assert {each["type"] for each in paths_json(topology)} == {None}


@pytest.mark.parametrize(("domains", "cpus", "nodes"), [(1, "0-31", "0"), (2, "0-63", "0-1")])
def test_a_gpu_of_no_domain_is_near_to_all(domains: int, cpus: str, nodes: str) -> None:
    machine = MachineFiles()
    machine.processors(domains)
    machine.gpu(machine.root_port(0x10, numa=-1), 0x11, numa=-1)
    words = table(matrix(build(machine.snapshot())))
    assert (words["GPU0", "CPU Affinity"], words["GPU0", "NUMA Affinity"]) == (cpus, nodes)


def test_the_matrix_counts_every_switch_where_nccl_merges_them() -> None:
    topology = build(two_sub_switches().snapshot())
    assert table(matrix(topology))["GPU0", "GPU1"] == "PXB"
    assert [pair.type.name for pair in paths(topology) if pair.type] == ["PIX"]


def test_discover_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (source,) = save_snapshots({"node0": reference_machine().snapshot()}, tmp_path)
    assert main(["discover", "--matrix", "--from", str(source)]) == 0
    words = table(capsys.readouterr().out)
    assert (words["GPU0", "GPU1"], words["GPU0", "GPU4"]) == ("PIX", "SYS")
    assert main(["discover", "--json", "--from", str(source)]) == 0
    (node,) = json.loads(capsys.readouterr().out)["nodes"]
    assert {"from": "GPU0", "to": "mlx5_0", "type": "PIX"} in node["paths"]
    assert main(["doctor", "--json", "--from", str(source)]) == 0
    assert json.loads(capsys.readouterr().out)["nodes"][0]["paths"] == node["paths"]


def asus_esc8000a_e12() -> MachineFiles:
    """Four RTX 6000 Ada and two dual-port ConnectX-7, each on a root port of its own (`lspci -tv`, `numactl -H`)."""
    machine = MachineFiles()
    machine.processors(2)
    for bus, numa in ((0x00, 0), (0x40, 0), (0xC0, 1), (0xE0, 1)):
        machine.gpu(machine.root_port(bus, numa=numa), bus + 1, numa=numa)
    for number, (bus, numa) in enumerate(((0x20, 0), (0x80, 1))):
        names = [f"eth{2 * number}", f"eth{2 * number + 1}"]
        for index, folder in enumerate(machine.nic(machine.root_port(bus, 3, numa=numa), bus + 1, names, numa=numa)):
            machine.rdma(f"mlx5_{2 * number + index}", folder, names[index], up=False)
    return machine


ASUS = """
        GPU0    GPU1    GPU2    GPU3    NIC0    NIC1    NIC2    NIC3    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NODE    SYS     SYS     NODE    NODE    SYS     SYS     0-31    0               N/A
GPU1    NODE     X      SYS     SYS     NODE    NODE    SYS     SYS     0-31    0               N/A
GPU2    SYS     SYS      X      NODE    SYS     SYS     NODE    NODE    32-63   1               N/A
GPU3    SYS     SYS     NODE     X      SYS     SYS     NODE    NODE    32-63   1               N/A
NIC0    NODE    NODE    SYS     SYS      X      PIX     SYS     SYS
NIC1    NODE    NODE    SYS     SYS     PIX      X      SYS     SYS
NIC2    SYS     SYS     NODE    NODE    SYS     SYS      X      PIX
NIC3    SYS     SYS     NODE    NODE    SYS     SYS     PIX      X
"""
"""`nvidia-smi topo -m` of that machine, as its owners published it beside `lspci -tv` (github.com/luigifcruz/stelline,
docs/quickstart/validated-hardware/server/asus-esc8000a-e12.md)."""


def test_the_matrix_is_the_one_that_nvidia_smi_printed_on_a_real_machine() -> None:
    printed = [line.split() for line in matrix(build(asus_esc8000a_e12().snapshot())).splitlines()[:9]]
    assert printed == [line.split() for line in ASUS.strip("\n").splitlines()]
