"""A plan for another launcher: a Slurm job, a LeaderWorkerSet, compose files. None contains a secret."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace

from orchestrator.loading.stacks import load_stack
from orchestrator.loading.templates import template
from orchestrator.loading.yaml_text import yaml_text
from orchestrator.model.chosen import no_such
from orchestrator.model.errors import InputError
from orchestrator.model.plan import GangPlan, NodePlan, Plan
from orchestrator.planning.lws import Cluster, lws
from orchestrator.planning.redaction import HIDDEN, shown
from orchestrator.rendering import compose_file, launch_script, launch_template, slurm_job

_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def slurm(plan: Plan, gang_name: str | None = None) -> str:
    """The sbatch script of one gang. Raises InputError for a gang that can't be exported."""
    gang = _without_key(_gang(shown(plan), gang_name))
    for node in gang.nodes:
        if _NODE_NAME.fullmatch(node.name) is None:
            raise InputError(
                f"{node.name!r} is not a valid name for a Slurm node",
                where="inventory",
                fix="name the hosts as Slurm does",
            )
    secrets = sorted({name for node in gang.nodes for name, value in node.env if value == HIDDEN})
    scripts = [(node.name, _script(gang, node, plan.plan_id)) for node in gang.nodes]
    leader = gang.nodes[0]
    return slurm_job(
        gang,
        plan.plan_id,
        scripts,
        secrets=secrets,
        rdma=gang.layout.nnodes > 1 and "NCCL_IB_DISABLE" not in dict(leader.env),
        ports=sorted({gang.http_port, int(gang.dist_init.rpartition(":")[2] or 0)} - {0}),
        template=template("slurm.sh.j2"),
    )


def _script(gang: GangPlan, node: NodePlan, plan_id: str) -> str:
    """The launch script; a secret comes from the environment of sbatch."""
    kept = replace(node, env=tuple((name, value) for name, value in node.env if value != HIDDEN))
    return launch_script(kept, gang, plan_id, template(launch_template(kept)))


def leader_worker_set(plan: Plan, cluster: Cluster, gang_name: str | None = None) -> str:
    """The YAML of one gang. Raises InputError where no image holds its stack."""
    gang = _without_key(_gang(shown(plan), gang_name))
    image = cluster.image or load_stack(gang.stack).image
    if not image:
        fix = "add --image NAME (`stack recipe` builds one)"
        raise InputError(f"the stack {gang.stack} names no image", where="export lws", fix=fix)
    head = (
        f"{json.dumps(gang.model)} by {gang.stack}: gang {gang.name} of plan {plan.plan_id}.",
        "Needs the LeaderWorkerSet controller and the NVIDIA device plugin; the nodes' names must be the plan's.",
        "NUMA: give the kubelets cpuManagerPolicy static and topologyManagerPolicy best-effort, and use --cpus.",
    )
    return yaml_text(lws(gang, replace(cluster, image=image)), *head)


def compose_files(plan: Plan) -> Mapping[str, str]:
    """A compose file for every node, by node name."""
    text = template("compose.yml.j2")
    return {
        node.name: compose_file(node, gang, load_stack(gang.stack), text)
        for gang in shown(plan).gangs
        for node in gang.nodes
    }


def _gang(plan: Plan, name: str | None) -> GangPlan:
    if name is None and len(plan.gangs) > 1:
        raise InputError(
            "the plan has several gangs: " + ", ".join(gang.name for gang in plan.gangs),
            where="export",
            fix="choose one with --gang",
        )
    found = next((gang for gang in plan.gangs if name in (None, gang.name)), None)
    if found is None:
        raise no_such("gang", str(name), [gang.name for gang in plan.gangs], where="--gang")
    return found


def _without_key(gang: GangPlan) -> GangPlan:
    if gang.api_key:
        raise InputError(
            f"{gang.name} has an API key, which `up` puts on its nodes and another launcher does not",
            where="inventory: l40s_api_key_file",
            fix="remove it for the export, and check the key in a proxy in front of the engine",
        )
    return gang
