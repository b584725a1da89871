"""RDMA ports that NCCL leaves behind: its lines, the ports' states, and how long it takes to notice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.gang import linked_run

from orchestrator.engines.nccl_log import read
from orchestrator.node import files
from orchestrator.node.agent import record
from orchestrator.node.agent.staged_run import Run
from orchestrator.node.engine.vitality import Vitality
from orchestrator.node.network import nccl_transport
from orchestrator.node.network.nccl_transport import Rails
from orchestrator.node.verbs import report
from orchestrator.protocol.planned import NodeNetwork, Transport
from orchestrator.protocol.report import TransportLines
from orchestrator.protocol.staging import ProbeOrder

MARKED = (
    "[2026-05-04 19:55:27] GPU-606:534134:535429 [1] transport/net_ib/p2p_resiliency.cc:325 NCCL WARN NET/IB:"
    " ncclIbResiliencyHandleDeviceFailure: Device 0 marked as failed. Initiating recovery? Yes"
    " (send comm=0x7f03e8086000, outstandingRecovery=0)"
)
"""NVIDIA/nccl#2157, NCCL 2.30.3 on ConnectX-5."""
NOTICE_S = 30.0
ON = NodeNetwork(transport=Transport.RDMA, hca="=mlx5_0:1,mlx5_1:1", notice_s=NOTICE_S)


def port(root: Path, name: str, state: str) -> None:
    file = root / name / "ports" / "1" / "state"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{state}\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("mlx5_0", "mlx5_1"):
        port(tmp_path, name, "4: ACTIVE")
    return tmp_path


def test_a_port_that_went_down_is_named_and_stays_named_when_it_is_back(root: Path) -> None:
    rails = Rails(ON, str(root))
    port(root, "mlx5_1", "1: DOWN")
    rails.feed(MARKED)
    assert rails.look(100.0)
    assert [(rail.port, rail.up, rail.at) for rail in rails.gone] == [("mlx5_1:1", False, 100.0)]
    assert not rails.look(102.0)
    port(root, "mlx5_1", "4: ACTIVE")
    assert rails.look(104.0)
    assert [(rail.port, rail.up, rail.at) for rail in rails.gone] == [("mlx5_1:1", True, 100.0)]


@pytest.mark.parametrize("pin", [ON.hca, "mlx5_0,mlx5_1", "mlx5", "^mlx5_1,bnxt", ""])
def test_ports_of_any_pin_are_looked_at_where_the_engine_found_them_up(root: Path, pin: str) -> None:
    """`mlx5_1` takes mlx5_10 too, which was down before: NCCL never used it."""
    port(root, "mlx5_10", "1: DOWN")
    rails = Rails(replace(ON, hca=pin), str(root))
    (root / "mlx5_0/ports/1/state").unlink()
    rails.feed(MARKED)
    assert rails.look(1.0)
    assert [(rail.port, rail.up) for rail in rails.gone] == [("mlx5_0:1", False)]


def test_the_other_ends_port_is_not_this_nodes(root: Path) -> None:
    rails = Rails(ON, str(root))
    rails.feed(MARKED)
    assert not rails.look(1.0)
    assert (rails.moved, rails.gone) == (1, ())


@pytest.mark.parametrize(
    "line", ["workflow marked as failed", "NET/IB: Device 0 was already marked as failed.", "Device 0 marked as failed"]
)
def test_other_lines_mean_nothing(root: Path, line: str) -> None:
    rails = Rails(ON, str(root))
    rails.feed(line)
    assert rails.moved == 0


def test_without_failover_nothing_is_looked_at(root: Path) -> None:
    rails = Rails(replace(ON, notice_s=0.0), str(root))
    port(root, "mlx5_0", "1: DOWN")
    rails.feed(MARKED)
    assert not rails.look(1.0)


def test_hung_is_judged_only_after_nccl_has_had_its_time() -> None:
    asked = ProbeOrder(hung_after_s=20.0)
    assert Vitality(asked).hung_s == 20.0
    assert min(Vitality(order, NOTICE_S).hung_s for order in (asked, ProbeOrder())) > 2 * NOTICE_S
    assert Vitality(ProbeOrder(hung_after_s=300.0), NOTICE_S).hung_s == 300.0


RECORDED = Path(__file__).resolve().parents[3] / "recorded" / "nccl-2.28.9-tcp.log"


def run(folder: Path) -> Run:
    return linked_run("a", str(folder), network=NodeNetwork(transport=Transport.RDMA))


def noted_in(folder: Path) -> TransportLines | None:
    """As the run's report shows them."""
    files.write_json(f"{folder}/{files.REPORT_FILE}", record.staged(run(folder), 1.0).as_json())
    found = report.of_run(str(folder))
    assert found is not None
    return found.transport


def test_what_is_kept_reads_as_the_whole_log_does(tmp_path: Path) -> None:
    (tmp_path / "engine.log.1").write_bytes(RECORDED.read_bytes() * 3)
    (tmp_path / "engine.log").write_bytes(b"\xff progress 1%\r" + RECORDED.read_bytes())
    nccl_transport.note(run(tmp_path))
    noted = noted_in(tmp_path)
    assert noted is not None
    assert noted.network == NodeNetwork(transport=Transport.RDMA)
    assert len(noted.lines) < 12
    kept, whole = read(noted.lines), read(RECORDED.read_text().splitlines())
    assert kept == replace(whole, staged=kept.staged)  # each channel once


def test_without_a_log_there_is_nothing_to_keep(tmp_path: Path) -> None:
    assert noted_in(tmp_path) is None
    nccl_transport.note(run(tmp_path))
    assert noted_in(tmp_path) == TransportLines(network=NodeNetwork(transport=Transport.RDMA))
