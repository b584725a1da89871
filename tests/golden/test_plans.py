"""Whole plans, case by case: plan/<case>/case.yml says what differs from the articles' cluster put right, and
plan.json and node1.sh beside it hold what must come out. UPDATE_GOLDEN=1 rewrites them: read the diff as a review.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.machine_files import reference_machine
from tests.support.reference_cluster import gang, topology

from orchestrator.loading.profiles import load_profile, load_stack
from orchestrator.loading.resources import template
from orchestrator.model.plan import Plan
from orchestrator.model.topology import Topology
from orchestrator.planning.build import PlanFacts, build_plan
from orchestrator.planning.host import HostFacts
from orchestrator.planning.plan_file import plan_json
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.staging import Asked
from orchestrator.rendering import launch_script, launch_template
from orchestrator.topology.build import build

CASES = sorted(path.parent for path in (Path(__file__).parent / "plan").glob("*/case.yml"))
UPDATE = os.environ.get("UPDATE_GOLDEN") == "1"


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_plan(case: Path) -> None:
    wanted = yaml.safe_load((case / "case.yml").read_text("utf-8"))
    try:
        plan = plan_of_case(wanted)
    except DeployError as refusal:
        told = {"exit_code": refusal.exit_code, "what": refusal.what, "where": refusal.where, "fix": refusal.fix}
        _compare(case / "refusal.json", json.dumps(told, indent=2, ensure_ascii=False) + "\n")
        return
    _compare(case / "plan.json", json.dumps(plan_json(plan), indent=2, ensure_ascii=False) + "\n")
    second = plan.gangs[0].nodes[-1]
    _compare(case / "launch.sh", launch_script(second, plan.gangs[0], plan.plan_id, template(launch_template(second))))


def test_there_are_cases() -> None:
    assert len(CASES) >= 10


def plan_of_case(case: dict[str, Any]) -> Plan:
    """gangs: list of {nodes, ...NodeSpec}; machines: right or wrong, files of whole machines; else facts: changes of
    `topology` for all nodes; nodes: of single ones."""
    gangs, facts, hosts, first = [], {}, {}, 0
    for number, described in enumerate(case.get("gangs", [{"nodes": 4}])):
        settings = dict(described)
        spec = gang(settings.pop("nodes"), name=f"gang{number}", first=first, **settings)
        for node in spec.nodes:
            changes = {"gpus": node.gpus, **case.get("facts", {}), **case.get("nodes", {}).get(node.name, {})}
            facts[node.name] = _topology(case.get("machines"), node.name, first + node.node_rank, changes)
            hosts[node.name] = HostFacts(user="root", home="/root", cpu_count=case.get("cpus", 64))
        gangs.append(spec)
        first += len(spec.nodes)
    degrees: dict[str, Any] = {name: case.get(name) for name in ("tp", "pp", "ep", "attn_dp")}
    asked = Asked(model=case["model"], extra_args=tuple(case.get("extra_args", ())), **degrees)
    keys = {spec.name: case["api_key"] for spec in gangs} if "api_key" in case else {}
    known = PlanFacts(topologies=facts, hosts=hosts, api_keys=keys)
    return build_plan(gangs, load_profile(case["model"]), load_stack(case["stack"]), asked, known)


def _topology(machines: str | None, name: str, number: int, changes: dict[str, Any]) -> Topology:
    """From the files of a whole machine, wired right or wrong, or as a value with changes."""
    if machines:
        return build(reference_machine(name, number, right=machines == "right").snapshot())
    down, indices, gpu = (changes.pop(key, None) for key in ("ports_down", "gid_indices", "gpu_name"))
    made = topology(name, number, **changes)
    if indices:
        others = [topology(name, number, **changes, gid_index=index).rdma[place] for place, index in enumerate(indices)]
        made = replace(made, rdma=(*others, *made.rdma[len(others) :]))
    if gpu:
        made = replace(made, gpus=tuple(replace(each, name=gpu) for each in made.gpus))
    return replace(made, rdma=tuple(replace(port, state="DOWN") for port in made.rdma)) if down else made


def _compare(file: Path, text: str) -> None:
    if UPDATE:
        file.write_text(text, "utf-8")
    assert file.exists(), f"{file} is missing: `make golden` writes it, and its diff is the review"
    assert text == file.read_text("utf-8")
