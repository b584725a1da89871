"""The exported job on a real slurmctld and a pair of slurmd (Debian's packages)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.reference_cluster import gang, topologies
from tests.support.slurm import Slurm, slurm
from tests.support.waiting import until
from tests.unit.workflows.plan.test_exports import changed

from orchestrator.loading.profiles import load_profile
from orchestrator.loading.stacks import load_stack
from orchestrator.model.plan import NodePlan, Plan
from orchestrator.planning.build import build_plan
from orchestrator.planning.options import PlanOptions
from orchestrator.workflows.plan.exports import slurm as exported

pytestmark = pytest.mark.processes
GPUS = 8


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    folder = tmp_path_factory.mktemp("slurm")
    tools = folder / "bin"
    tools.mkdir()
    (tools / "nvidia-smi").write_text('#!/bin/bash\ncase "$1" in *query-gpu*) seq 0 7;; esac\n')
    (tools / "nvidia-smi").chmod(0o755)
    with slurm(folder, ("node0", "node1")) as made:
        made.environment["PATH"] = f"{tools}:{made.environment['PATH']}"
        yield made


def two_nodes(model_path: Path, *engine: str) -> Plan:
    """A plan whose engine is a command that runs here, followed by the engine's arguments."""
    spec = gang(nodes=2)
    model, stack = load_profile("MiniMax-M2"), load_stack("sglang-0.5.23")
    plan = build_plan([spec], model, stack, topologies(spec), PlanOptions(expert_parallel=4))

    def node(one: NodePlan) -> NodePlan:
        return replace(one, model_path=str(model_path), working_dir="/", argv=(*engine, *one.argv[3:]))

    return changed(plan, nodes=tuple(map(node, plan.gangs[0].nodes)), http_port=1, dist_init="10.0.0.11:2")


def job(plan: Plan) -> str:
    """For machines without RDMA, and without GPUs, which this Slurm does not count."""
    text = exported(plan)
    assert f"#SBATCH --gpus-per-node={GPUS}\n" in text
    text = text.replace(f"#SBATCH --gpus-per-node={GPUS}\n", "")
    return text.replace("ls /dev/infiniband/uverbs*", "true").replace('"$(ulimit -l)" = unlimited', "1")


def test_each_node_gets_its_own_part(cluster: Slurm) -> None:
    ended = cluster.ended(cluster.submit(job(two_nodes(cluster.folder, "/usr/bin/env", "echo"))))
    assert ended.state == "COMPLETED", ended
    assert ended.log.count("--nnodes 2") == 2
    assert "--node-rank 0" in ended.log and "--node-rank 1" in ended.log


def test_a_fault_of_a_node_ends_the_job_before_an_engine_starts(cluster: Slurm) -> None:
    ended = cluster.ended(cluster.submit(job(two_nodes(cluster.folder / "gone", "/usr/bin/env", "echo"))))
    assert ended.state == "FAILED", ended
    assert "the checkpoint" in ended.log and "is missing" in ended.log and "--node-rank" not in ended.log


def test_a_rank_that_dies_takes_the_other_node_along(cluster: Slurm) -> None:
    there = cluster.folder / "started"
    words = (
        f"echo $$ >{there}.$SLURMD_NODENAME; test $SLURMD_NODENAME = node0 && exec sleep 600; "
        f"until test -s {there}.node0; do sleep 0.1; done; exit 3"
    )
    number = cluster.submit(job(two_nodes(cluster.folder, "/bin/sh", "-c", words)))
    ended = cluster.ended(number)
    assert ended.state == "FAILED", ended
    process = int(Path(f"{there}.node0").read_text())
    until(lambda: not Path(f"/proc/{process}").exists(), 20)
