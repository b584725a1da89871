"""The plan exported for other launchers: checked by their own tools."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from tests.support.reference_cluster import gang, topologies

from orchestrator.loading.profiles import load_profile
from orchestrator.loading.stacks import load_stack
from orchestrator.model.errors import InputError
from orchestrator.model.inventory import Overrides
from orchestrator.model.plan import GangPlan, NodePlan, Plan
from orchestrator.planning.build import build_plan
from orchestrator.planning.lws import Cluster, dns_name
from orchestrator.planning.options import PlanOptions
from orchestrator.workflows.plan.exports import compose_files, leader_worker_set, slurm

SCHEMA = json.loads(Path(__file__).with_name("lws_v1.json").read_text())
"""leaderworkerset.x-k8s.io/v1: the fields that we write, with the types of the published CRD (kubernetes-sigs/lws
060ab4d, which also accepts our documents when unknown fields are refused); no other field."""
SECRET = Overrides(env=(("HF_TOKEN", "hf_secret"), ("PRICE", "5$ $(id) \n: {'\"")))
IMAGE = Cluster(image="hub.example/sglang:1", rdma_resource="rdma/hca", cpus=32)


def planned(**changes: Any) -> Plan:
    spec = gang(**changes)
    model, stack = load_profile("DeepSeek-V3-0324-Block64x64"), load_stack("sglang-0.5.23")
    return build_plan([spec], model, stack, topologies(spec), PlanOptions())


def changed(plan: Plan, **words: Any) -> Plan:
    return replace(plan, gangs=(replace(plan.gangs[0], **words),))


def test_the_job_is_clean_by_shellcheck() -> None:
    for plan in (planned(), planned(overrides=SECRET)):
        done = subprocess.run(
            ["shellcheck", "--shell=bash", "-"], input=slurm(plan), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout


def play(job: str, folder: Path, node: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The job with stand-ins: for srun, which runs its arguments here as one node, and for nvidia-smi."""
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    (tools / "srun").write_text('#!/bin/bash\nwhile [[ "$1" == --* ]]; do shift; done\nexec "$@"\n')
    (tools / "nvidia-smi").write_text('#!/bin/bash\ncase "$1" in *query-gpu*) seq 0 7;; esac\n')
    (tools / "srun").chmod(0o755)
    (tools / "nvidia-smi").chmod(0o755)
    path = {"PATH": f"{tools}:/usr/bin:/bin", "SLURMD_NODENAME": node, **env}
    return subprocess.run(["bash", "-c", job], env=path, capture_output=True, text=True, check=False, timeout=60)


def of_this_machine(plan: Plan, folder: Path) -> Plan:
    """The plan with a local checkpoint, and an engine that prints its arguments and environment."""

    def node(one: NodePlan) -> NodePlan:
        return replace(one, model_path=str(folder), working_dir="/", argv=("/usr/bin/env", "echo", *one.argv[3:]))

    first: GangPlan = plan.gangs[0]
    return changed(plan, nodes=tuple(map(node, first.nodes)), http_port=1, dist_init="10.0.0.11:2")


def test_each_node_checks_itself_and_starts_its_own_part(tmp_path: Path) -> None:
    plan = of_this_machine(planned(overrides=SECRET), tmp_path)
    job = slurm(plan).replace("ls /dev/infiniband/uverbs*", "true").replace('"$(ulimit -l)" = unlimited', "1")
    assert "hf_secret" not in job
    without = play(job, tmp_path, "node2")
    assert without.returncode != 0 and "HF_TOKEN: set it in the environment" in without.stderr
    done = play(job, tmp_path, "node2", HF_TOKEN="t")
    assert done.returncode == 0, done.stderr
    assert "--node-rank 2" in done.stdout and "--nnodes 4" in done.stdout
    stranger = play(job, tmp_path, "gpu17", HF_TOKEN="t")
    assert stranger.returncode != 0 and "no node of the plan is called gpu17" in stranger.stderr


def test_a_fault_of_a_node_ends_the_job_before_the_engine(tmp_path: Path) -> None:
    plan = of_this_machine(planned(), tmp_path / "gone")
    done = play(slurm(plan).replace('"$(ulimit -l)" = unlimited', "1"), tmp_path, "node1")
    assert done.returncode != 0 and done.stdout == ""
    assert "node1: the checkpoint" in done.stderr and "is missing" in done.stderr


def test_the_set_is_what_the_published_schema_allows() -> None:
    for plan in (planned(), planned(overrides=SECRET)):
        document = yaml.safe_load(leader_worker_set(plan, IMAGE))
        jsonschema.validate(document, SCHEMA)
    document["spec"]["leaderWorkerTemplate"]["size"] = "4"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMA)


def test_the_set_says_what_the_plan_says() -> None:
    plan = planned(overrides=SECRET)
    template = yaml.safe_load(leader_worker_set(plan, IMAGE))["spec"]["leaderWorkerTemplate"]
    assert template["size"] == 4
    for kind in ("leaderTemplate", "workerTemplate"):
        pod = template[kind]["spec"]
        (engine,) = pod["containers"]
        script = engine["command"][2]
        assert pod["hostNetwork"] and engine["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
        assert (
            engine["resources"]["limits"]["nvidia.com/gpu"] == "8" and engine["resources"]["limits"]["rdma/hca"] == "1"
        )
        for words in ('--dist-init-addr "$LWS_LEADER_ADDRESS:5000"', '--node-rank "$LWS_WORKER_INDEX"', "--tp-size 32"):
            assert words in script, script
        env = {one["name"]: one for one in engine["env"]}
        assert env["HF_TOKEN"]["valueFrom"]["secretKeyRef"]["key"] == "HF_TOKEN"
        assert env["PRICE"]["value"] == "5$ $$(id) \n: {'\""  # Kubernetes would expand $(id) as a variable
        done = subprocess.run(["sh", "-n"], input=script, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_what_can_t_be_exported_says_why() -> None:
    with pytest.raises(InputError, match="names no image"):
        leader_worker_set(planned(), Cluster(image=""))
    with pytest.raises(InputError, match="has an API key"):
        slurm(changed(planned(), api_key="ab12"))
    with pytest.raises(InputError, match="no gang is called"):
        slurm(planned(), "gang7")
    odd = planned()
    nodes = (replace(odd.gangs[0].nodes[0], name="a b"), *odd.gangs[0].nodes[1:])
    with pytest.raises(InputError, match="not a valid name for a Slurm node"):
        slurm(changed(odd, nodes=nodes))


def test_names_for_kubernetes() -> None:
    assert dns_name("Gang_0.a") == "gang-0-a" and dns_name("__") == "gang"


def test_a_compose_file_says_what_the_plan_says() -> None:
    evil = Overrides(env=(("PRICE", "5$ \n: {"), ("HF_TOKEN", "hf_secret")))
    plan = planned(overrides=evil)
    engine = yaml.safe_load(compose_files(plan)["node1"])["services"]["engine"]
    node = plan.gangs[0].nodes[1]
    assert engine["command"] == ["python3", *node.argv[1:]]
    assert engine["environment"]["NCCL_IB_HCA"] == dict(node.env)["NCCL_IB_HCA"]
    assert engine["environment"]["PRICE"] == "5$$ \n: {"
    assert engine["environment"]["HF_TOKEN"] == "${HF_TOKEN:?put it into .env}"
    assert (engine["restart"], engine["network_mode"], engine["devices"]) == ("no", "host", ["/dev/infiniband"])
    gpus = engine["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
    assert gpus == [str(gpu) for gpu in node.gpus]
