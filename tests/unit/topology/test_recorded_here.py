"""A real NVIDIA machine, recorded by our own probe: what it shows is what nvidia-smi said there."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.model.snapshot_json import snapshot_from_json
from orchestrator.model.topology import PathType
from orchestrator.topology.build import build
from orchestrator.topology.distance import path_type

RECORDED = Path(__file__).resolve().parents[2] / "recorded" / "two-h200-vm.json"


def test_two_h200_of_a_virtual_machine() -> None:
    topology = build(snapshot_from_json(json.loads(RECORDED.read_text())))
    assert [gpu.name for gpu in topology.gpus] == ["NVIDIA H200", "NVIDIA H200"]
    assert topology.driver == "580.159.04"
    # nvidia-smi there: memory.total 143771 MiB, memory.used 0 MiB although the driver reserves 616 MiB
    assert {gpu.memory_total >> 20 for gpu in topology.gpus} == {143771}
    assert {gpu.memory_used for gpu in topology.gpus} == {0}
    assert not topology.rdma
    assert path_type(topology, topology.gpus[0].key, topology.gpus[1].key) is PathType.PHB
