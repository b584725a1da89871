"""NCCL's own lines about its transport: recorded ones of 2.28.9, and made-up ones for hardware not on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.engines.nccl_log import findings, read
from orchestrator.protocol.planned import NodeNetwork, Transport
from orchestrator.protocol.severity import Severity

RECORDED = Path(__file__).resolve().parents[2] / "recorded"
PLANNED = NodeNetwork(transport=Transport.RDMA, hca="=mlx5_0:1,mlx5_1:1", logged=True)
OPEN = "NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB bond0:10.0.0.1<0>"
ON_IB = ["Using network IB", "comm 0x5f rank 3 nRanks 32 nNodes 8 localRanks 4 localRank 3 MNNVL 0"]


MERGED = "NET/IB : Using [0]={[0] mlx5_0:1/RoCE, [1] mlx5_1:1/RoCE} [RO]; OOB eth0:10.0.0.9<0>"
RAILS = "NET/IB : Using [0]mlx5_0:1:0:1/RoCE [1]mlx5_1:1::1/IB [RO]; OOB eth0:10.0.0.9<0>"
BOTH = ("mlx5_0:1", "mlx5_1:1")
VIRTUAL = "NET/IB : Made virtual device [2] name=mlx5_0+mlx5_1 speed=800000 ndevs=2 rail=-1 plane=0"
PLUGIN = "Channel 00/0 : 11[3] -> 3[3] [receive] via NET/IBext_v8/1/GDRDMA"


def channel(index: int, gdr: str = "/GDRDMA") -> str:
    return f"Channel 00/0 : 3[1] -> 0[0] [receive] via NET/IB/{index}{gdr}"


def test_recorded_sockets() -> None:
    seen = read((RECORDED / "nccl-2.28.9-tcp.log").read_text().splitlines())
    assert (seen.networks, seen.devices, seen.nodes, seen.local_ranks) == (("Socket",), (), 2, 1)
    assert (seen.direct, seen.staged) == (0, 4)
    assert seen.words == "Socket"


def test_recorded_rdma_without_devices() -> None:
    seen = read((RECORDED / "nccl-2.28.9-rdma.log").read_text().splitlines())
    assert (seen.networks, seen.devices) == ((), ())


def test_rdma_as_planned() -> None:
    seen = read([OPEN, *ON_IB, channel(0), channel(1, "(2)/GDRDMA(PCI)")])
    assert seen.devices == ("mlx5_0:1", "mlx5_1:1")
    assert (seen.nodes, seen.local_ranks, seen.staged) == (8, 4, 0)
    assert seen.words == "IB over mlx5_0:1, mlx5_1:1 with GPUDirect RDMA"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([MERGED, *ON_IB, channel(0)], "IB over mlx5_0:1, mlx5_1:1 with GPUDirect RDMA"),
        ([OPEN, VIRTUAL, *ON_IB, channel(2, "")], "IB over mlx5_0:1, mlx5_1:1 without GPUDirect RDMA"),
        ([OPEN, "Using network IBext_v8", PLUGIN], "IBext_v8 over mlx5_0:1, mlx5_1:1 with GPUDirect RDMA"),
        ([RAILS, *ON_IB, channel(1)], "IB over mlx5_0:1, mlx5_1:1 with GPUDirect RDMA"),
    ],
)
def test_merged_ports_and_plugins(lines: list[str], words: str) -> None:
    seen = read(lines)
    assert (seen.devices, seen.words) == (BOTH, words)


@pytest.mark.parametrize(
    ("planned", "lines", "ids"),
    [
        pytest.param(PLANNED, [OPEN, *ON_IB, channel(0)], [], id="as planned"),
        pytest.param(PLANNED, ["Using network Socket"], ["TRANSPORT-NOT-RDMA"], id="a silent fallback to TCP"),
        pytest.param(PLANNED, ["Using network FastSocket"], ["TRANSPORT-NOT-RDMA"], id="another network over TCP"),
        pytest.param(PLANNED, [MERGED, *ON_IB, channel(0)], [], id="the ports of a card as one device"),
        pytest.param(PLANNED, [RAILS, *ON_IB, channel(0)], [], id="with rail and plane"),
        pytest.param(PLANNED, [OPEN, "Using network IBext_v8", PLUGIN], [], id="a plugin"),
        pytest.param(PLANNED, [OPEN, "Using network AWS Libfabric"], [], id="a plugin with a blank in its name"),
        pytest.param(PLANNED, [OPEN, "Using network IBext_v10", PLUGIN[:-7]], ["TRANSPORT-NO-GDR"], id="staged"),
        pytest.param(PLANNED, [*ON_IB, "Using network Socket"], ["TRANSPORT-NOT-RDMA"], id="one communicator fell"),
        pytest.param(
            PLANNED,
            ["NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB b:1<0>", *ON_IB],
            ["TRANSPORT-DEVICE-UNUSED"],
            id="a port is not used",
        ),
        pytest.param(PLANNED, [OPEN, *ON_IB, channel(0, "")], ["TRANSPORT-NO-GDR"], id="no GPUDirect"),
        pytest.param(PLANNED, [], ["TRANSPORT-UNPROVEN"], id="it does not say"),
        pytest.param(replace(PLANNED, hca="mlx5"), [OPEN, *ON_IB], [], id="a prefix names what is there"),
        pytest.param(NodeNetwork(transport=Transport.TCP), ["Using network Socket"], [], id="TCP was planned"),
        pytest.param(NodeNetwork(), ["Using network Socket"], [], id="what was planned is not known"),
    ],
)
def test_findings(planned: NodeNetwork, lines: list[str], ids: list[str]) -> None:
    found = findings("node2", planned, lines)
    assert [finding.id for finding in found] == ids
    for finding in found:
        assert finding.node == "node2" and finding.fix and finding.effect
        assert finding.severity is Severity.UNKNOWN or "tokens/s" in finding.effect or "decod" in finding.effect
