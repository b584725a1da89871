"""NCCL's lines as the agent keeps them: each once, without process ids."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from orchestrator.engines.nccl_log import read
from orchestrator.node import files
from orchestrator.node.agent import record
from orchestrator.node.agent.run import Run, run_of
from orchestrator.node.engine import nccl_lines
from orchestrator.node.verbs import report
from orchestrator.protocol.network import NodeNetwork, Transport
from orchestrator.protocol.report import TransportLines

RECORDED = Path(__file__).resolve().parents[3] / "recorded" / "nccl-2.28.9-tcp.log"


def run(folder: Path) -> Run:
    staged = {
        "run_id": "r1",
        "gang": "gang0",
        "node": "node0",
        "node_rank": 0,
        "nnodes": 2,
        "leader": {"address": "127.0.0.1", "port": 1},
        "env": {"HF_TOKEN": "secret"},
        "network": {"transport": "rdma"},
    }
    return run_of(staged, str(folder))


def noted_in(folder: Path) -> TransportLines | None:
    """As the run's report shows them."""
    files.write_json(f"{folder}/{files.REPORT_FILE}", record.staged(run(folder), 1.0).as_json())
    found = report.of_run(str(folder))
    assert found is not None
    return found.transport


def test_what_is_kept_reads_as_the_whole_log_does(tmp_path: Path) -> None:
    (tmp_path / "engine.log.1").write_bytes(RECORDED.read_bytes() * 3)
    (tmp_path / "engine.log").write_bytes(b"\xff progress 1%\r" + RECORDED.read_bytes())
    nccl_lines.note(run(tmp_path))
    noted = noted_in(tmp_path)
    assert noted is not None
    assert noted.network == NodeNetwork(transport=Transport.RDMA)
    assert len(noted.lines) < 12
    kept, whole = read(noted.lines), read(RECORDED.read_text().splitlines())
    assert kept == replace(whole, staged=kept.staged)  # each channel once


def test_without_a_log_there_is_nothing_to_keep(tmp_path: Path) -> None:
    assert noted_in(tmp_path) is None
    nccl_lines.note(run(tmp_path))
    assert noted_in(tmp_path) == TransportLines(network=NodeNetwork(transport=Transport.RDMA))
